// RUN: sharding-opt %s --propagate-shardings --partition --verify-placement --split-input-file | FileCheck %s

// A factor of at most 1 in magnitude is applied to the parts of a sum.
// CHECK-LABEL: func.func @half
// CHECK: %[[P:.+]] = nn.mul %arg0
// CHECK: dist.reduce_scatter sum %[[P]]
dist.mesh @mesh = <["dp"=2]>
func.func @half(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>})
    -> (tensor<4x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>}) {
  %k = nn.constant dense<0.5> : tensor<f32>
  %y = nn.mul %x, %k : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// Any other factor is applied to the sum, since the program states the parts.
// CHECK-LABEL: func.func @any
// CHECK: dist.{{(all_reduce|reduce_scatter)}} sum %arg0
// CHECK: nn.mul
dist.mesh @mesh = <["dp"=2]>
func.func @any(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>}, %k: tensor<f32> {nn.input = "k"})
    -> (tensor<4x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>}) {
  %y = nn.mul %x, %k : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
