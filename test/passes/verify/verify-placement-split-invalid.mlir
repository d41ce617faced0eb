// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// A reshape that states the split of a dimension has no other reading.

// One of two heads on a rank, of which the softmax takes one, and not both.
dist.mesh @mesh = <["tp"=2]>
func.func @softmax_over_sharded_heads(%x: tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here, and has layout [{}, {"tp"}, {}]}}
  %h = nn.reshape %x {dist.results = [#dist.sharding<@mesh, [{?}, (2{"tp"}), {?}]>]} : (tensor<3x4xf32>) -> tensor<3x1x4xf32>
  // expected-error@below {{'nn.softmax' op needs the whole of a dimension of operand 0 that is sharded over {"tp"}}}
  %s = nn.softmax %h dim 1 : tensor<3x1x4xf32>
  %y = nn.reshape %s : (tensor<3x1x4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @another_size(%x: tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x1x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<3x2x4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{'nn.reshape' op result 0, dimension 0: expected the layout that the op states, [{"tp"}] of true size 6, got layout [{}, {}, {"tp"}]}}
  %h = nn.reshape %x {dist.results = [#dist.sharding<@mesh, [(6{"tp"}), {?}, {?}]>]} : (tensor<3x4xf32>) -> tensor<3x1x4xf32>
  return %h : tensor<3x1x4xf32>
}
