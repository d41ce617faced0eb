// RUN: sharding-opt %s --split-input-file --verify-placement | FileCheck %s

// CHECK-LABEL: func.func @fits
dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<4xf32>
func.func @fits(%s: tensor<2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    -> (tensor<2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.exp %s : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// The sharding of the state spells its padding; those of its places have it from their types.

// CHECK-LABEL: func.func @padded
dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [(3 pad 8{"tp"})]>} : tensor<3xf32>
func.func @padded(%s: tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<3xf32>})
    -> (tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<3xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.neg %s : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// A state that is replicated over one axis. An entry reads it, and sums its own tokens into it.
// CHECK-LABEL: func.func @replicated
dist.mesh @mesh = <["dp"=2, "tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<4xf32>
func.func @replicated(
    %x: tensor<3x2xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, dist.global = tensor<6x4xf32>},
    %s: tensor<2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    -> (tensor<2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reduce sum %x dims [0] : (tensor<3x2xf32>) -> tensor<2xf32>
  %1 = dist.all_reduce sum %0 axes ["dp"] : (tensor<2xf32>) -> tensor<2xf32>
  %2 = nn.add %s, %1 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2 : tensor<2xf32>
}
