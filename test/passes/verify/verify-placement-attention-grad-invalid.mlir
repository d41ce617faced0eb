// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// Gradients of keys that are not summed over the ranks of the queries.
dist.mesh @mesh = <["a"=2]>
func.func @not_reduced(
    %q: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %k: tensor<1x2x9x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x9x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x9x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x9x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is unreduced over {"a"} from here on}}
  %r:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %q scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>)
  // expected-error@below {{result 0}}
  return %r#1 : tensor<1x2x9x8xf32>
}

// -----

// The gradient of the queries has a row for each rank. It is no sum.
dist.mesh @mesh = <["a"=2]>
func.func @reduced_queries(
    %q: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %k: tensor<1x2x9x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x9x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x4x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %r:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %q scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>)
  // expected-error@below {{operand 0}}
  %s = dist.all_reduce sum %r#0 axes ["a"] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %s : tensor<1x2x4x8xf32>
}

// -----

// Padding of the queries whose cotangents may not be zero.
dist.mesh @mesh = <["a"=2]>
func.func @padded_cotangents(
    %q: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>, dist.global = tensor<1x2x7x8xf32>},
    %k: tensor<1x2x9x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x9x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}]>, dist.global = tensor<1x2x7xf32>})
    -> (tensor<1x2x9x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x9x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 5 is from here}}
  %c = nn.exp %q : tensor<1x2x4x8xf32>
  // expected-error@below {{sums over the padding behind the 7 true of 8 rows of operand 5: expected zero, got positive}}
  %r:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %c scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>)
  %s = dist.all_reduce sum %r#1 axes ["a"] : (tensor<1x2x9x8xf32>) -> tensor<1x2x9x8xf32>
  return %s : tensor<1x2x9x8xf32>
}

// -----

// A mask that counts keys by their index needs all of them.
dist.mesh @mesh = <["a"=2]>
func.func @causal_keys(
    %q: tensor<1x2x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    // expected-note@below {{operand 1 is from here}}
    %k: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}], unreduced = {"a"}>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{needs the whole of a dimension of operand 1 that is sharded over {"a"}}}
  %r:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %q scale 0.5 {causal} : (tensor<1x2x8x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  return %r#0 : tensor<1x2x8x8xf32>
}

// -----

// A rank of padding alone adds to the gradient of a bias that broadcasts over the batch.
dist.mesh @mesh = <["dp"=4]>
func.func @padded_batch_of_bias(
    %q: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}, {}]>, dist.global = tensor<3x2x4x8xf32>},
    %b: tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x4x4xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<3x2x4xf32>})
    -> (tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x4x4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 6 is from here}}
  %c = nn.exp %q : tensor<1x2x4x8xf32>
  // expected-error@below {{sums over the padding behind the 3 true of 4 rows of operand 6: expected zero, got positive}}
  %r:4 = nn.attention_grad %q, %q, %q bias %b lse %l delta %l cotangent %c scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %s = dist.all_reduce sum %r#3 axes ["dp"] : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  return %s : tensor<1x2x4x4xf32>
}

// -----

// Keys of one rank that claim to be all of them.
dist.mesh @mesh = <["a"=2]>
func.func @whole_keys(
    %q: tensor<1x2x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    // expected-note@below {{operand 1 is from here}}
    %k: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}], unreduced = {"a"}>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{has nn.whole_keys, and keys sharded over {"a"}}}
  %r:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %q scale 0.5 {nn.whole_keys} : (tensor<1x2x8x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  return %r#0 : tensor<1x2x8x8xf32>
}

// -----

// The padding of query heads follows that of the heads of keys, and all heads share a bias.
dist.mesh @mesh = <["a"=2]>
func.func @padded_heads_of_shared_bias(
    %q: tensor<1x4x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"a"}, {}, {}]>, dist.global = tensor<1x6x4x8xf32>},
    %k: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"a"}, {}, {}]>, dist.global = tensor<1x3x4x8xf32>},
    %b: tensor<1x1x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x1x4x4xf32>},
    %l: tensor<1x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"a"}, {}]>, dist.global = tensor<1x6x4xf32>})
    -> (tensor<1x1x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x1x4x4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %e = nn.exp %q : tensor<1x4x4x8xf32>
  // expected-error@below {{sums over the padding behind the 3 true of 4 rows of operand 0: expected zero, got positive}}
  %r:4 = nn.attention_grad %e, %k, %k bias %b lse %l delta %l cotangent %q scale 0.5 : (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4x8xf32>) -> (tensor<1x4x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x1x4x4xf32>)
  %s = dist.all_reduce sum %r#3 axes ["a"] : (tensor<1x1x4x4xf32>) -> tensor<1x1x4x4xf32>
  return %s : tensor<1x1x4x4xf32>
}

// -----

// All cotangents are one, as behind a mean over the tokens, those in padding too.
dist.mesh @mesh = <["a"=2]>
func.func @equal_cotangents(
    %q: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>, dist.global = tensor<1x2x7x8xf32>},
    %k: tensor<1x2x9x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x9x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}]>, dist.global = tensor<1x2x7xf32>},
    %g: tensor<1x2x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x1x8xf32>})
    -> (tensor<1x2x9x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x9x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 5 is from here}}
  %c = nn.broadcast %g : (tensor<1x2x1x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{sums over the padding behind the 7 true of 8 rows of operand 5: expected zero, got arbitrary}}
  %r:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %c scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>)
  %s = dist.all_reduce sum %r#1 axes ["a"] : (tensor<1x2x9x8xf32>) -> tensor<1x2x9x8xf32>
  return %s : tensor<1x2x9x8xf32>
}
