// RUN: sharding-opt %s --verify-placement

// Equal elements take the layout that a reshape states of its result.
dist.mesh @mesh = <["tp"=2]>
func.func @equal_elements(%x: tensor<3x1x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<3x2x4xf32>})
    -> (tensor<3xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<3xf32>})
    attributes {dist.spmd = @mesh} {
  %ones = nn.constant dense<1.0> : tensor<3x4xf32>
  %h = nn.reshape %ones {dist.results = [#dist.sharding<@mesh, [{?}, (2{"tp"}), {?}]>]} : (tensor<3x4xf32>) -> tensor<3x1x4xf32>
  %s = nn.reduce sum %h dims [1, 2] : (tensor<3x1x4xf32>) -> tensor<3xf32>
  %r = dist.all_reduce sum %s axes ["tp"] : (tensor<3xf32>) -> tensor<3xf32>
  return %r : tensor<3xf32>
}

// Without a statement, the two chunks of four may be two heads, or eight features of one.
func.func @not_stated(%x: tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %h = nn.reshape %x : (tensor<3x4xf32>) -> tensor<3x1x4xf32>
  %s = nn.softmax %h dim 2 : tensor<3x1x4xf32>
  %y = nn.reshape %s : (tensor<3x1x4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}

// A part of equal elements is equal, too, so it takes the layout of the batch.
func.func @part_of_equal_elements(%x: tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>, dist.global = tensor<2x4x8xf32>},
    %y: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>, dist.global = tensor<2x4x8xf32>})
    attributes {dist.spmd = @mesh} {
  %b = nn.broadcast %y : (tensor<1x8xf32>) -> tensor<4x8xf32>
  %h = nn.reshape %b {dist.results = [#dist.sharding<@mesh, [(2{"tp"}), {?}, {?}]>]} : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
  %z = nn.mul %x, %h : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
  return %z : tensor<1x4x8xf32>
}
