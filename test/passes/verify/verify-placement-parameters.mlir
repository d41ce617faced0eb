// RUN: sharding-opt %s --verify-placement | FileCheck %s

// A parameter keeps its bounds beside a state of the same type and layout.

// CHECK-LABEL: func.func @parameter_beside_state
dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{}]>, role = "parameter"} : tensor<6xf32>
func.func @parameter_beside_state(
    %s: tensor<6xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<6xf32>},
    %b: tensor<6xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<6xf32>},
    %x: tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<7x6xf32>})
    -> (tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<6xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.add %x, %b : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  %1 = nn.mul %0, %0 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  %2 = nn.mul %1, %x : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  %3 = nn.reduce sum %2 dims [0] : (tensor<4x6xf32>) -> tensor<6xf32>
  %4 = dist.all_reduce sum %3 axes ["tp"] : (tensor<6xf32>) -> tensor<6xf32>
  %5 = nn.add %4, %s : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  return %5 : tensor<6xf32>
}
