// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// A product contracts the columns of its weight, so blocks are along dimension 1.
#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["gtp"=2]>
func.func @rows_where_columns_are_due(
    %x: tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>},
    %w: tensor<32x64xf32> {nn.parameter = "w", dist.sharding = #shard, dist.global = tensor<64x64xf32>})
    -> (tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.encode %w : (tensor<32x64xf32>) -> tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 0>>
  %1 = dist.all_gather %0 axes ["gtp"] dims [0] role weights : (tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 0>>) -> tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 0>>
  // expected-note @below {{the weight}}
  %2 = dist.decode %1 : (tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 0>>) -> tensor<64x64xf32>
  // expected-error @below {{'nn.linear' op reads a weight with blocks along dimension 0: expected blocks along dimension 1, which it contracts}}
  %3 = nn.linear %x, %2 : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  return %3 : tensor<4x64xf32>
}

// -----

// The product behind a transpose contracts the rows. Launches hide neither.
#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["gtp"=2]>
func.func @through_launches(
    %x: tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>},
    %w: tensor<32x64xf32> {nn.parameter = "w", dist.sharding = #shard, dist.global = tensor<64x64xf32>})
    -> (tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.encode %w : (tensor<32x64xf32>) -> tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
  %1 = dist.all_gather %0 axes ["gtp"] dims [0] role weights : (tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 1>>) -> tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
  %2 = rt.kernel %1 : (tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>) -> tensor<64x64xf32> {
  ^bb0(%a: tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>):
    // expected-note @below {{the weight}}
    %5 = dist.decode %a : (tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>) -> tensor<64x64xf32>
    rt.yield %5 : tensor<64x64xf32>
  }
  %3 = rt.kernel %x, %2 : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32> {
  ^bb0(%a: tensor<4x64xf32>, %b: tensor<64x64xf32>):
    %5 = nn.transpose %b [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    // expected-error @below {{'nn.linear' op reads a weight with blocks along dimension 1: expected blocks along dimension 0, which it contracts}}
    %6 = nn.linear %a, %5 : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
    rt.yield %6 : tensor<4x64xf32>
  }
  return %3 : tensor<4x64xf32>
}

// -----

// The scales of a weight depend on its own largest magnitude.
#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["gtp"=2]>
nn.state @w {dist.sharding = #shard} : tensor<64x64xf32>
nn.state @v {dist.sharding = #shard} : tensor<64x64xf32>
func.func @scales_of_another_weight(
    %x: tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>},
    %w: tensor<32x64xf32> {nn.state = "w", nn.parameter = "w", dist.sharding = #shard, dist.global = tensor<64x64xf32>},
    %v: tensor<32x64xf32> {nn.state = "v", nn.parameter = "v", dist.sharding = #shard, dist.global = tensor<64x64xf32>})
    -> (tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.largest %w : (tensor<32x64xf32>) -> tensor<f32>
  %1 = dist.largest %v : (tensor<32x64xf32>) -> tensor<f32>
  %2:2 = dist.all_reduce max %0, %1 axes ["gtp"] : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  // expected-error @below {{'dist.encode' op encodes 'w' by the largest magnitude of 'v': expected that of the weight itself}}
  %3 = dist.encode %w largest %2#1 : (tensor<32x64xf32>, tensor<f32>) -> tensor<32x64xf4E2M1FN, #dist.form<nvfp4>>
  %4 = dist.all_gather %3 axes ["gtp"] dims [0] role weights : (tensor<32x64xf4E2M1FN, #dist.form<nvfp4>>) -> tensor<64x64xf4E2M1FN, #dist.form<nvfp4>>
  %5 = dist.decode %4 : (tensor<64x64xf4E2M1FN, #dist.form<nvfp4>>) -> tensor<64x64xf32>
  %6 = nn.linear %x, %5 : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  return %6 : tensor<4x64xf32>
}
