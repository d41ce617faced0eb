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

// -----

// The padding of a chunk of whole heads, and of a chunk of the rows of heads, has the same rows.

// CHECK-LABEL: func.func @masked_shards
dist.mesh @mesh = <["dp"=2, "tp"=3]>
nn.state @w {dist.sharding = #dist.sharding<@mesh, [(32 pad 48{"tp"}), {}]>} : tensor<32x72xf32>
nn.state @m {dist.sharding = #dist.sharding<@mesh, [(2 pad 3{"tp"}, 16{"dp"}), {}]>} : tensor<32x72xf32>
func.func @masked_shards(%w: tensor<16x72xf32> {dist.global = tensor<32x72xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.state = "w"},
   %m: tensor<8x72xf32> {dist.global = tensor<32x72xf32>, dist.sharding = #dist.sharding<@mesh, [(2 pad 3{"tp"}, 16{"dp"}), {}]>, nn.state = "m"},
   %lr : tensor<f32> {dist.global = tensor<f32>, dist.sharding = #dist.sharding<@mesh, []>})
    -> (tensor<16x72xf32> {dist.global = tensor<32x72xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.state = "w"})
    attributes {dist.spmd = @mesh} {
  %positions = dist.positions <32 pad 48{"tp"}> : tensor<16xi64>
  %none = nn.constant dense<0> : tensor<i64>
  %is_row = nn.compare ge %positions, %none : (tensor<16xi64>, tensor<i64>) -> tensor<16xi1>
  %0 = nn.reshape %w : (tensor<16x72xf32>) -> tensor<1x16x72xf32>
  %1 = dist.slice %0 axes ["dp"] dims [1] : (tensor<1x16x72xf32>) -> tensor<1x8x72xf32>
  %2 = nn.reshape %1 : (tensor<1x8x72xf32>) -> tensor<8x72xf32>
  %3 = nn.mul %m, %lr : (tensor<8x72xf32>, tensor<f32>) -> tensor<8x72xf32>
  %4 = nn.sub %2, %3 : (tensor<8x72xf32>, tensor<8x72xf32>) -> tensor<8x72xf32>
  %5 = nn.reshape %4 : (tensor<8x72xf32>) -> tensor<1x8x72xf32>
  %6 = nn.reshape %5 : (tensor<1x8x72xf32>) -> tensor<8x72xf32>
  %7 = nn.reshape %is_row : (tensor<16xi1>) -> tensor<16x1xi1>
  %zero = nn.constant dense<0.0> : tensor<f32>
  %8 = dist.slice %7 axes ["dp"] dims [0] : (tensor<16x1xi1>) -> tensor<8x1xi1>
  %9 = nn.select %8, %6, %zero : (tensor<8x1xi1>, tensor<8x72xf32>, tensor<f32>) -> tensor<8x72xf32>
  %10 = dist.all_gather %9 axes ["dp"] dims [0] : (tensor<8x72xf32>) -> tensor<16x72xf32>
  return %10 : tensor<16x72xf32>
}
