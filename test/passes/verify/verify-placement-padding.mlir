// RUN: sharding-opt %s --verify-placement --split-input-file | FileCheck %s

// Padding whose state is proved by intervals and conditions.

// Zero weights make zeros of finite hidden states. Where these are not finite, each true
// feature is not finite either, so nothing is masked.
// CHECK-LABEL: func.func @gated
dist.mesh @mesh = <["tp"=4]>
func.func @gated(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %b: tensor<3x8xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %v = nn.linear %x, %b : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %g = nn.silu %u : tensor<2x3xf32>
  %h = nn.mul %g, %v : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// The exponential of minus infinity is zero.
// CHECK-LABEL: func.func @exponential_of_minus_infinity
dist.mesh @mesh = <["tp"=4]>
func.func @exponential_of_minus_infinity(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %e = nn.exp %u : tensor<2x3xf32>
  %i = nn.log %e : tensor<2x3xf32>
  %s = nn.mul %i, %i : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %l = nn.constant dense<0xFF800000> : tensor<f32>
  %t = dist.positions <10 pad 12{"tp"}> : tensor<3xi64>
  %z = nn.constant dense<0> : tensor<i64>
  %c = nn.compare ge %t, %z : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
  %m = nn.select %c, %s, %l : (tensor<3xi1>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %h = nn.exp %m : tensor<2x3xf32>
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A comparison of positions is false in padding, so the selection is zero there.
// CHECK-LABEL: func.func @masked
dist.mesh @mesh = <["tp"=4]>
func.func @masked(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %p: tensor<3xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %s = nn.mul %u, %u : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %q = nn.add %s, %p : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %l = nn.log %q : tensor<2x3xf32>
  %t = dist.positions <10 pad 12{"tp"}> : tensor<3xi64>
  %z = nn.constant dense<0> : tensor<i64>
  %f = nn.constant dense<0.0> : tensor<f32>
  %c = nn.compare ge %t, %z : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
  %h = nn.select %c, %l, %f : (tensor<3xi1>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// No padding of the joined value meets other padding, so its new padding is zero.
// CHECK-LABEL: func.func @redistributed
dist.mesh @mesh = <["tp"=4]>
func.func @redistributed(
    %a: tensor<2x3x3xf32> {nn.input = "a", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<2x3x3xf32>},
    %b: tensor<2x2x3xf32> {nn.input = "b", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<2x2x3xf32>},
    %o: tensor<8x1xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x3xf32>})
    -> (tensor<2x5x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}], unreduced = {"tp"}>, dist.global = tensor<2x5x8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.concat %a, %b dim 1 : (tensor<2x3x3xf32>, tensor<2x2x3xf32>) -> tensor<2x5x3xf32>
  %s = dist.slice %c axes ["tp"] dims [1] : (tensor<2x5x3xf32>) -> tensor<2x2x3xf32>
  %r = dist.redistribute %s from [#dist.sharding<@mesh, [{}, {"tp"}, {}]>] to [#dist.sharding<@mesh, [{}, {}, {"tp"}]>] : (tensor<2x2x3xf32>) -> tensor<2x8x1xf32>
  %w = nn.slice %r starts [0, 0, 0] limits [2, 5, 1] strides [1, 1, 1] : (tensor<2x8x1xf32>) -> tensor<2x5x1xf32>
  %t = nn.tanh %w : tensor<2x5x1xf32>
  %y = nn.linear %t, %o : (tensor<2x5x1xf32>, tensor<8x1xf32>) -> tensor<2x5x8xf32>
  return %y : tensor<2x5x8xf32>
}

// -----

// Values that are not finite in padding do not matter to the log-sum-exp.
// CHECK-LABEL: func.func @log_sum_exp_beside_infinite_values
dist.mesh @mesh = <["tp"=2]>
func.func @log_sum_exp_beside_infinite_values(
    %q: tensor<1x2x5x4xf32> {nn.parameter = "q", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>, dist.global = tensor<1x3x5x4xf32>},
    %p: tensor<1x2x1xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<1x3x1xf32>})
    -> (tensor<1x5xf32> {nn.output = "r", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<1x5xf32>})
    attributes {dist.spmd = @mesh} {
  %v = nn.log %q : tensor<1x2x5x4xf32>
  %a, %l = nn.attention %q, %q, %v scale 0.5 : (tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>) -> (tensor<1x2x5x4xf32>, tensor<1x2x5xf32>)
  %e = nn.exp %l : tensor<1x2x5xf32>
  %m = nn.mul %e, %p : (tensor<1x2x5xf32>, tensor<1x2x1xf32>) -> tensor<1x2x5xf32>
  %r = nn.reduce sum %m dims [1] : (tensor<1x2x5xf32>) -> tensor<1x5xf32>
  return %r : tensor<1x5xf32>
}

// -----

// One event makes the size and the feature infinite or NaN, and a maximum keeps plus infinity.
// CHECK-LABEL: func.func @features_over_their_sizes
dist.mesh @mesh = <["tp"=4]>
func.func @features_over_their_sizes(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %s = nn.abs %u : tensor<2x3xf32>
  %k = nn.constant dense<0.001> : tensor<f32>
  %c = nn.maximum %s, %k : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %h = nn.div %u, %c : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A constant of one value is bounded by that value. Its elements are too many to look at.
// CHECK-LABEL: func.func @large_splat
dist.mesh @mesh = <["dp"=2]>
func.func @large_splat(
    %x: tensor<1000000x1000000xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<1999999x1000000xf32>})
    -> (tensor<1000000x1000000xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<1999999x1000000xf32>})
    attributes {dist.spmd = @mesh} {
  %z = nn.constant dense<0.0> : tensor<1000000x1000000xf32>
  %y = nn.mul %x, %z : (tensor<1000000x1000000xf32>, tensor<1000000x1000000xf32>) -> tensor<1000000x1000000xf32>
  return %y : tensor<1000000x1000000xf32>
}

// -----

// Zeros on all ranks are a sum of zeros.
// CHECK-LABEL: func.func @open_zeros
dist.mesh @mesh = <["dp"=2]>
func.func @open_zeros()
    -> (tensor<4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"dp"}>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  %z = nn.constant dense<0.0> : tensor<4xf32>
  return %z : tensor<4xf32>
}

// -----

// Zeros join values whose padding is finite, though their true elements may not be.
// CHECK-LABEL: func.func @zeros_beside_rows
dist.mesh @mesh = <["dp"=2]>
func.func @zeros_beside_rows(
    %x: tensor<2x5x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<3x5x8xf32>},
    %v: tensor<2x6x4xf32> {nn.input = "v", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<3x6x4xf32>})
    -> (tensor<8x4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<8x4xf32>},
        tensor<8x4xf32> {nn.output = "z", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.cos %x : tensor<2x5x8xf32>
  %z = nn.constant dense<0.0> : tensor<2x1x8xf32>
  %a = nn.concat %c, %z dim 1 : (tensor<2x5x8xf32>, tensor<2x1x8xf32>) -> tensor<2x6x8xf32>
  %b = nn.concat %z, %c dim 1 : (tensor<2x1x8xf32>, tensor<2x5x8xf32>) -> tensor<2x6x8xf32>
  %p = nn.weight_grad %a, %v : (tensor<2x6x8xf32>, tensor<2x6x4xf32>) -> tensor<8x4xf32>
  %q = nn.weight_grad %b, %v : (tensor<2x6x8xf32>, tensor<2x6x4xf32>) -> tensor<8x4xf32>
  return %p, %q : tensor<8x4xf32>, tensor<8x4xf32>
}
