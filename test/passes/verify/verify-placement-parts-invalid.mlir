// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// Parts of a sum that the signature states may be large, of opposite signs, and add up to zero. Times a
// factor, one of them is infinite and the other minus infinity, and their sum is NaN.

dist.mesh @mesh = <["dp"=2]>
// expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
func.func @large_factor(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = nn.constant dense<1.0e30> : tensor<f32>
  // expected-error@below {{multiplies operand 0, stated as unreduced over {"dp"}, by a factor with which its parts may overflow where their sum does not: expected the sum}}
  %s = nn.mul %x, %k : (tensor<3x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
// expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
func.func @any_factor(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{multiplies operand 0, stated as unreduced over {"dp"}, by a factor with which its parts may overflow where their sum does not: expected the sum}}
  %s = nn.mul %x, %g : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
// expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
func.func @exponential(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %e = nn.exp %g : tensor<3x8xf32>
  // expected-error@below {{multiplies operand 0, stated as unreduced over {"dp"}, by a factor with which its parts may overflow where their sum does not: expected the sum}}
  %s = nn.mul %x, %e : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
// expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
func.func @any_divisor(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{multiplies operand 0, stated as unreduced over {"dp"}, by a factor with which its parts may overflow where their sum does not: expected the sum}}
  %s = nn.div %x, %g : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
// expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
func.func @any_weight(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{multiplies operand 0, stated as unreduced over {"dp"}, by a factor with which its parts may overflow where their sum does not: expected the sum}}
  %s = nn.linear %x, %g : (tensor<3x8xf32>, tensor<8x8xf32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
// expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
func.func @sum_of_two(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = nn.constant dense<2.0> : tensor<f32>
  %a = nn.add %x, %g : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  // expected-error@below {{multiplies operand 0, stated as unreduced over {"dp"}, by a factor with which its parts may overflow where their sum does not: expected the sum}}
  %s = nn.mul %a, %k : (tensor<3x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// Zeros of other ranks make no maximum.
dist.mesh @mesh = <["tp"=2, "dp"=2]>
func.func @placed_maximum(%x: tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = max {"tp", "dp"}>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
  %p = dist.partial max %x axes ["dp"] : (tensor<3x4xf32>) -> tensor<3x4xf32>
  // expected-error@below {{reads operand 0, a maximum over {"dp"} that is not yet taken}}
  %r = dist.place %p axes ["tp"] dim 1 shifts [0] : (tensor<3x4xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// A maximum of the terms of a sum.
dist.mesh @mesh = <["tp"=2, "dp"=2]>
// expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
func.func @maximum_of_terms(%x: tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>})
    -> (tensor<3xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = max {"tp", "dp"}>, dist.global = tensor<3xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{is not linear in operand 0, which is unreduced over {"dp"}}}
  %r = nn.reduce max %x dims [1] : (tensor<3x4xf32>) -> tensor<3xf32>
  return %r : tensor<3xf32>
}
