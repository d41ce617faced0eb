// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// Equal elements are those of the whole value unless an operand or a statement shows that other ranks
// have more of them: a sum over them is no part of a sum.

// The constant is whole, as x is.
dist.mesh @mesh = <["dp"=2]>
func.func @constant_beside_a_whole_row(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<1x8xf32>
  %p = nn.mul %x, %c : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %s = nn.reduce sum %p dims [0] : (tensor<1x8xf32>) -> tensor<8xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @broadcast_of_a_whole_row(%x: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %p = nn.broadcast %x : (tensor<8xf32>) -> tensor<1x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %s = nn.reduce sum %p dims [0] : (tensor<1x8xf32>) -> tensor<8xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @positions_beside_a_whole_row(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %i = nn.iota dim 1 : tensor<1x8xi64>
  %c = nn.cast %i : (tensor<1x8xi64>) -> tensor<1x8xf32>
  %p = nn.mul %x, %c : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %s = nn.reduce sum %p dims [0] : (tensor<1x8xf32>) -> tensor<8xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @product_with_a_constant(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<1x1xf32>
  // expected-note@below {{operand 0 is from here}}
  %s = nn.matmul %c, %x : (tensor<1x1xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<1x8xf32>) -> tensor<1x8xf32>
  return %r : tensor<1x8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @reshaped_row(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<1x8xf32>
  %p = nn.mul %x, %c : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  %q = nn.reshape %p : (tensor<1x8xf32>) -> tensor<1x1x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %s = nn.reduce sum %q dims [0, 1] : (tensor<1x1x8xf32>) -> tensor<8xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// Several equal rows are no more rows of other ranks than one is.
dist.mesh @mesh = <["dp"=2]>
func.func @sum_of_a_constant()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<4x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %s = nn.reduce sum %c dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @gathered_rows(%x: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %p = nn.broadcast %x : (tensor<8xf32>) -> tensor<1x8xf32>
  // expected-error@below {{gathers dimension 0 of operand 0 over {"dp"}, which replicate it}}
  %g = dist.all_gather %p axes ["dp"] dims [0] : (tensor<1x8xf32>) -> tensor<2x8xf32>
  %r = nn.reduce sum %g dims [0] : (tensor<2x8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// The true size of the result is 1.
dist.mesh @mesh = <["dp"=2]>
func.func @promised_rows(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<1x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %r = nn.mul %x, %c : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  // expected-error@below {{result 0: expected layout [{"dp"}, {}], which the signature promises, got [{}, {}]; expected global shape 2x8, got 1x8}}
  return %r : tensor<1x8xf32>
}

// -----

// A statement does not help a value that shows its size.
dist.mesh @mesh = <["dp"=2]>
func.func @stated_of_a_whole_value(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<1x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %p = nn.mul %x, %c : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  // expected-error@below {{operand 0, dimension 0: expected the layout that the op states, [{"dp"}] of true size 2, got layout [{}, {}]}}
  %s = nn.reduce sum %p dims [0] {dist.operands = [#dist.sharding<@mesh, [(2{"dp"}), {?}]>]} : (tensor<1x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// Without a mask, the sum counts the padding behind the seven true rows.
dist.mesh @mesh = <["dp"=2]>
func.func @stated_padding()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %c = nn.constant dense<2.0> : tensor<4x8xf32>
  // expected-error@below {{reads the padding behind the 7 true of 8 rows}}
  %s = nn.reduce sum %c dims [0] {dist.operands = [#dist.sharding<@mesh, [(7 pad 8{"dp"}), {?}]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}
