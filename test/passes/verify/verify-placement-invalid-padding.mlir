// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// Padding that is not finite where a contraction reads it.

// The logarithm of zero.
dist.mesh @mesh = <["tp"=4]>
func.func @logarithm_of_zero(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %p: tensor<3xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %s = nn.mul %u, %u : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %q = nn.add %s, %p : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.log %q : tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got minus infinity}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// Zero minus a number that is not negative is not positive.
dist.mesh @mesh = <["tp"=4]>
func.func @logarithm_of_a_difference(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %s = nn.mul %u, %u : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %k = nn.constant dense<0.01> : tensor<f32>
  %d = nn.sub %s, %k : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.log %d : tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A true value may be infinite, and the exponential of NaN is NaN.
dist.mesh @mesh = <["tp"=4]>
func.func @zero_times_infinity(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %p: tensor<3xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xf32>},
    %t: tensor<2x1xf32> {nn.input = "t", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x1xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %q = nn.mul %t, %p : (tensor<2x1xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.exp %q : tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A true divisor may be zero, and the tanh of NaN is NaN.
dist.mesh @mesh = <["tp"=4]>
func.func @zero_over_zero(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %t: tensor<2x1xf32> {nn.input = "t", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x1xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %d = nn.div %u, %t : (tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.tanh %d : tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// The exponential of 95 is infinite in f32.
dist.mesh @mesh = <["tp"=4]>
func.func @overflow_in_padding(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %p: tensor<3xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %k = nn.constant dense<95.0> : tensor<f32>
  %d = nn.sub %k, %p : (tensor<f32>, tensor<3xf32>) -> tensor<3xf32>
  %e = nn.exp %d : tensor<3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.mul %u, %e : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// The square of 1e-30 is zero in f32.
dist.mesh @mesh = <["tp"=4]>
func.func @underflow_in_padding(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %p: tensor<3xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %k = nn.constant dense<1.0e-30> : tensor<f32>
  %d = nn.add %p, %k : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
  %e = nn.mul %d, %d : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.div %u, %e : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A selection has the union of its branches.
dist.mesh @mesh = <["tp"=4]>
func.func @selection_of_infinity(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %p: tensor<3xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %k = nn.constant dense<0xFF800000> : tensor<f32>
  %c = nn.compare lt %u, %p : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xi1>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.select %c, %k, %u : (tensor<2x3xi1>, tensor<f32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A hidden state of minus infinity gives true features of zero, but zero times it is NaN.
dist.mesh @mesh = <["tp"=4]>
func.func @rectified(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.relu %u : tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// Zero xor two is two: integers have more bits than truth values.
dist.mesh @mesh = <["tp"=4]>
func.func @logarithm_of_bits(
    %n: tensor<3xi64> {nn.parameter = "n", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xi64>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %i = nn.constant dense<2> : tensor<i64>
  %b = nn.xor %n, %i : (tensor<3xi64>, tensor<i64>) -> tensor<3xi64>
  %c = nn.cast %b : (tensor<3xi64>) -> tensor<3xf32>
  %k = nn.constant dense<2.0> : tensor<f32>
  %d = nn.sub %k, %c : (tensor<f32>, tensor<3xf32>) -> tensor<3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.log %d : tensor<3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<3xf32>, tensor<8x3xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// -----

// A key that is not finite may hide a value that is. The product before the key's has the same
// layouts, but its condition names another value.
dist.mesh @mesh = <["tp"=2]>
func.func @condition_of_another_value(
    %x: tensor<1x1x5x4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x1x5x4xf32>},
    %y: tensor<1x1x5x4xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x1x5x4xf32>},
    %t: tensor<1x2x5x4xf32> {nn.parameter = "t", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>, dist.global = tensor<1x3x5x4xf32>},
    %o: tensor<1x2x4x4xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>, dist.global = tensor<1x3x4x4xf32>})
    -> (tensor<1x5x4xf32> {nn.output = "r", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}], unreduced = {"tp"}>, dist.global = tensor<1x5x4xf32>})
    attributes {dist.spmd = @mesh} {
  %s = nn.mul %x, %t : (tensor<1x1x5x4xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
  %v = nn.mul %x, %s : (tensor<1x1x5x4xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
  %k = nn.mul %y, %s : (tensor<1x1x5x4xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
  %a = nn.attention %t, %k, %v scale 0.5 : (tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x5x4xf32>
  // expected-note@below {{operand 0 is from here}}
  %m = nn.matmul %a, %o : (tensor<1x2x5x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x5x4xf32>
  // expected-error@below {{reads the padding behind the 3 true of 4 rows: expected zero, got arbitrary}}
  %r = nn.reduce sum %m dims [1] : (tensor<1x2x5x4xf32>) -> tensor<1x5x4xf32>
  return %r : tensor<1x5x4xf32>
}

// -----

// The mean of values that are not finite. The log-sum-exp beside it is a number.
dist.mesh @mesh = <["tp"=2]>
func.func @mean_of_infinite_values(
    %q: tensor<1x2x5x4xf32> {nn.parameter = "q", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>, dist.global = tensor<1x3x5x4xf32>},
    %p: tensor<1x2x1x1xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>, dist.global = tensor<1x3x1x1xf32>})
    -> (tensor<1x5x4xf32> {nn.output = "r", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}], unreduced = {"tp"}>, dist.global = tensor<1x5x4xf32>})
    attributes {dist.spmd = @mesh} {
  %v = nn.log %q : tensor<1x2x5x4xf32>
  %a, %l = nn.attention %q, %q, %v scale 0.5 : (tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>) -> (tensor<1x2x5x4xf32>, tensor<1x2x5xf32>)
  // expected-note@below {{operand 0 is from here}}
  %m = nn.mul %a, %p : (tensor<1x2x5x4xf32>, tensor<1x2x1x1xf32>) -> tensor<1x2x5x4xf32>
  // expected-error@below {{reads the padding behind the 3 true of 4 rows: expected zero, got arbitrary}}
  %r = nn.reduce sum %m dims [1] : (tensor<1x2x5x4xf32>) -> tensor<1x5x4xf32>
  return %r : tensor<1x5x4xf32>
}

// -----

// A divisor that is not finite for another reason hides each true feature, but not NaN.
dist.mesh @mesh = <["tp"=4]>
func.func @features_over_other_sizes(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %z: tensor<2x8xf32> {nn.input = "z", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %v = nn.linear %z, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %s = nn.abs %v : tensor<2x3xf32>
  %k = nn.constant dense<0.001> : tensor<f32>
  %c = nn.maximum %s, %k : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.div %u, %c : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A constant has its elements where the other operand has padding.
dist.mesh @mesh = <["dp"=2]>
func.func @infinities_beside_rows(
    %x: tensor<2x5x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<3x5x8xf32>},
    %v: tensor<2x6x4xf32> {nn.input = "v", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<3x6x4xf32>})
    -> (tensor<8x4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.cos %x : tensor<2x5x8xf32>
  %i = nn.constant dense<0x7F800000> : tensor<2x1x8xf32>
  // expected-note @below {{is from here}}
  %a = nn.concat %i, %c dim 1 : (tensor<2x1x8xf32>, tensor<2x5x8xf32>) -> tensor<2x6x8xf32>
  // expected-error @below {{reads the padding behind the 3 true of 4 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %p = nn.weight_grad %a, %v : (tensor<2x6x8xf32>, tensor<2x6x4xf32>) -> tensor<8x4xf32>
  return %p : tensor<8x4xf32>
}

// -----

// Rows of padding behind each of seven tokens are no rows of the result.
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @repeated_rows(%x: tensor<1x4x8x1xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}, {}, {}]>, dist.global = tensor<2x7x8x1xf32>})
    -> (tensor<2x128xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x128xf32>})
    attributes {dist.spmd = @mesh} {
  %b = nn.broadcast %x : (tensor<1x4x8x1xf32>) -> tensor<1x4x8x2xf32>
  %0 = nn.reshape %b : (tensor<1x4x8x2xf32>) -> tensor<64xf32>
  %1 = nn.reshape %0 : (tensor<64xf32>) -> tensor<1x64xf32>
  // expected-note@below {{operand 0 is from here}}
  %2 = dist.redistribute %1 from [#dist.sharding<@mesh, [{"dp"}, {"tp"}]>] to [#dist.sharding<@mesh, [{}, {}]>] : (tensor<1x64xf32>) -> tensor<2x128xf32>
  // expected-error@below {{expected global shape 2x128, got 2x112}}
  return %2 : tensor<2x128xf32>
}
