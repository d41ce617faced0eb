// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// A row that is not finite makes a quotient NaN in padding. The true quotients are infinite or NaN if
// the dividend is of the same row, and may be zero if it is of another one.

dist.mesh @mesh = <["tp"=4]>
func.func @shifted_rows(
    %x: tensor<3x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x3xf32>
  %k = nn.constant dense<1.0> : tensor<f32>
  %l = nn.slice %u starts [1, 0] limits [3, 3] strides [1, 1] : (tensor<3x3xf32>) -> tensor<2x3xf32>
  %f = nn.slice %u starts [0, 0] limits [2, 3] strides [1, 1] : (tensor<3x3xf32>) -> tensor<2x3xf32>
  %s = nn.abs %f : tensor<2x3xf32>
  %c = nn.add %s, %k : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.div %l, %c : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @rolled_rows(
    %x: tensor<3x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<3x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x3xf32>
  %k = nn.constant dense<1.0> : tensor<f32>
  %l1 = nn.slice %u starts [1, 0] limits [3, 3] strides [1, 1] : (tensor<3x3xf32>) -> tensor<2x3xf32>
  %l2 = nn.slice %u starts [0, 0] limits [1, 3] strides [1, 1] : (tensor<3x3xf32>) -> tensor<1x3xf32>
  %l = nn.concat %l1, %l2 dim 0 : (tensor<2x3xf32>, tensor<1x3xf32>) -> tensor<3x3xf32>
  %f = nn.neg %u : tensor<3x3xf32>
  %s = nn.abs %f : tensor<3x3xf32>
  %c = nn.add %s, %k : (tensor<3x3xf32>, tensor<f32>) -> tensor<3x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.div %l, %c : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<3x3xf32>, tensor<8x3xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @sum_of_rows(
    %x: tensor<3x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<3x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x3xf32>
  %k = nn.constant dense<1.0> : tensor<f32>
  %l = nn.neg %u : tensor<3x3xf32>
  %g = nn.reduce sum %u dims [0] : (tensor<3x3xf32>) -> tensor<3xf32>
  %f = nn.reshape %g : (tensor<3xf32>) -> tensor<1x3xf32>
  %s = nn.abs %f : tensor<1x3xf32>
  %c = nn.add %s, %k : (tensor<1x3xf32>, tensor<f32>) -> tensor<1x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.div %l, %c : (tensor<3x3xf32>, tensor<1x3xf32>) -> tensor<3x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<3x3xf32>, tensor<8x3xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @running_sum_of_rows(
    %x: tensor<3x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<3x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x3xf32>
  %k = nn.constant dense<1.0> : tensor<f32>
  %l = nn.neg %u : tensor<3x3xf32>
  %f = nn.cumsum %u dim 0 : tensor<3x3xf32>
  %s = nn.abs %f : tensor<3x3xf32>
  %c = nn.add %s, %k : (tensor<3x3xf32>, tensor<f32>) -> tensor<3x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.div %l, %c : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<3x3xf32>, tensor<8x3xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @rows_after_a_reshape(
    %x: tensor<3x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<3x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x3xf32>
  %k = nn.constant dense<1.0> : tensor<f32>
  %l = nn.neg %u : tensor<3x3xf32>
  %p = nn.reshape %u : (tensor<3x3xf32>) -> tensor<3x1x3xf32>
  %q = nn.transpose %p [1, 0, 2] : (tensor<3x1x3xf32>) -> tensor<1x3x3xf32>
  %w = nn.reshape %q : (tensor<1x3x3xf32>) -> tensor<3x3xf32>
  %f1 = nn.slice %u starts [2, 0] limits [3, 3] strides [1, 1] : (tensor<3x3xf32>) -> tensor<1x3xf32>
  %f2 = nn.slice %u starts [0, 0] limits [2, 3] strides [1, 1] : (tensor<3x3xf32>) -> tensor<2x3xf32>
  %f = nn.concat %f1, %f2 dim 0 : (tensor<1x3xf32>, tensor<2x3xf32>) -> tensor<3x3xf32>
  %s = nn.abs %f : tensor<3x3xf32>
  %c = nn.add %s, %k : (tensor<3x3xf32>, tensor<f32>) -> tensor<3x3xf32>
  // expected-note@below {{operand 0 is from here}}
  %h = nn.div %l, %c : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
  // expected-error@below {{reads the padding behind the 10 true of 12 rows: expected zero on one side of the product and finite on the other, got arbitrary}}
  %y = nn.linear %h, %o : (tensor<3x3xf32>, tensor<8x3xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}
