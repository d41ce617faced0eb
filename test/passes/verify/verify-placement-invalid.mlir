// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// A dropped reduction.
dist.mesh @mesh = <["tp"=4]>
func.func @dropped_reduction(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{operand 0 is unreduced over {"tp"} from here on}}
  %r = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{result 0: expected layout [{}, {}], which the signature promises, got [{}, {}] unreduced {"tp"}}}
  return %r : tensor<8x16xf32>
}

// -----

// A dropped reduction, before a residual.
dist.mesh @mesh = <["tp"=4]>
func.func @dropped_reduction_before_residual(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{operand 1 is unreduced over {"tp"} from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{adds an unreduced value to a replicated one: operand 1 is unreduced over {"tp"}, operand 0 is not}}
  %r = nn.add %x, %1 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A doubled reduction.
dist.mesh @mesh = <["tp"=4]>
func.func @doubled_reduction(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{operand 0 is from here, and has layout [{}, {}]}}
  %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{reduces operand 0 over {"tp"}, over which it is replicated: the result would be 4 times too large}}
  %r = dist.all_reduce sum %2 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// The wrong axis: one that shards the value.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @reduction_over_sharded_axis(
    %x: tensor<4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
  // expected-note@below {{operand 0 is unreduced over {"tp"} from here on}}
  %1 = nn.linear %0, %down : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, the wrong axis: it shards dimension 0 of it, which is unreduced over {"tp"}}}
  %r = dist.all_reduce sum %1 axes ["dp"] : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %r : tensor<4x16xf32>
}

// -----

// The wrong axis: one over which the value is replicated.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @reduction_over_replicated_axis(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{operand 0 is unreduced over {"tp"} from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %r = dist.all_reduce sum %1 axes ["dp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// The wrong kind of reduction.
dist.mesh @mesh = <["tp"=4]>
func.func @max_of_a_sum(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{takes a max of operand 0, whose parts make up a sum}}
  %r = dist.all_reduce max %1 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A residual added to an unreduced value on every rank.
dist.mesh @mesh = <["tp"=4]>
func.func @residual_on_every_rank(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{operand 0 is unreduced over {"tp"} from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{adds an unreduced value to a replicated one: operand 0 is unreduced over {"tp"}, operand 1 is not}}
  %2 = nn.add %1, %x : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %r = dist.all_reduce sum %2 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A bias added to an unreduced value on every rank.
dist.mesh @mesh = <["tp"=4]>
func.func @bias_on_every_rank(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>},
    %b: tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{operand 0 is unreduced over {"tp"} from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{adds an unreduced value to a replicated one: operand 0 is unreduced over {"tp"}, operand 1 is not}}
  %2 = nn.add %1, %b : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %r = dist.all_reduce sum %2 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// The same, as the linear's own bias.
dist.mesh @mesh = <["tp"=4]>
func.func @bias_of_linear_on_every_rank(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>},
    %b: tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{adds its bias on every rank of {"tp"}, over which the product is unreduced}}
  %1 = nn.linear %0, %down bias %b : (tensor<8x16xf32>, tensor<16x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %r = dist.all_reduce sum %1 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A nonlinear op on an unreduced value.
dist.mesh @mesh = <["tp"=4]>
func.func @nonlinear_of_unreduced(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{operand 0 is unreduced over {"tp"} from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{is not linear in operand 0, which is unreduced over {"tp"}}}
  %2 = nn.gelu %1 : tensor<8x16xf32>
  %r = dist.all_reduce sum %2 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// Two unreduced values multiplied.
dist.mesh @mesh = <["tp"=4]>
func.func @product_of_unreduced(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{multiplies two unreduced values: operand 0 over {"tp"}, operand 1 over {"tp"}}}
  %2 = nn.mul %1, %1 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %r = dist.all_reduce sum %2 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// An explicit cast to a narrower type of an unreduced value.
dist.mesh @mesh = <["tp"=4]>
func.func @narrowing_cast_of_unreduced(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xbf16>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{from here on}}
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{is not linear in operand 0, which is unreduced over {"tp"}}}
  %2 = nn.cast %1 : (tensor<8x16xf32>) -> tensor<8x16xbf16>
  %r = dist.all_reduce sum %2 axes ["tp"] : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
  return %r : tensor<8x16xbf16>
}

// -----

// A norm over a sharded feature dimension without its reduction.
dist.mesh @mesh = <["tp"=4]>
func.func @norm_of_sharded_features(
    // expected-note@below {{is from here, and has layout [{}, {"tp"}]}}
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x64xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{needs the whole of a dimension of operand 0 that is sharded over {"tp"}}}
  %r = nn.rms_norm %x eps 1.0e-05 : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// Unmasked padding read by a softmax.
dist.mesh @mesh = <["tp"=4]>
func.func @softmax_reads_padding(
    %x: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x13xf32>})
    -> (tensor<16x13xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x13xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %0 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<16x4xf32>) -> tensor<16x16xf32>
  // expected-error@below {{reads the padding behind the 13 true of 16 rows: expected minus infinity, got zero}}
  %1 = nn.softmax %0 dim 1 : tensor<16x16xf32>
  %r = nn.slice %1 starts [0, 0] limits [16, 13] strides [1, 1] : (tensor<16x16xf32>) -> tensor<16x13xf32>
  return %r : tensor<16x13xf32>
}

// -----

// Unmasked padding read as keys.
dist.mesh @mesh = <["tp"=4]>
func.func @keys_in_padding(
    %q: tensor<1x2x16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x16x8xf32>},
    %k: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}, {}]>, dist.global = tensor<1x2x13x8xf32>})
    -> (tensor<1x2x16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{is from here}}
  %0 = dist.all_gather %k axes ["tp"] dims [2] : (tensor<1x2x4x8xf32>) -> tensor<1x2x16x8xf32>
  // expected-error@below {{reads the padding behind the 13 true of 16 rows, which is zero, as keys: expected kv_length to mask it}}
  %r = nn.attention %q, %0, %0 scale 1.0 : (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x16x8xf32>
  return %r : tensor<1x2x16x8xf32>
}

// -----

// Padding that kv_length lets through.
dist.mesh @mesh = <["tp"=4]>
func.func @kv_length_beyond_padding(
    %q: tensor<1x2x16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x16x8xf32>},
    %k: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}, {}]>, dist.global = tensor<1x2x13x8xf32>})
    -> (tensor<1x2x16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{is from here}}
  %0 = dist.all_gather %k axes ["tp"] dims [2] : (tensor<1x2x4x8xf32>) -> tensor<1x2x16x8xf32>
  // expected-error@below {{counts padding as keys: expected a kv_length of at most the 13 true keys, got 14}}
  %r = nn.attention %q, %0, %0 scale 1.0 {kv_length = 14 : i64} : (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x16x8xf32>
  return %r : tensor<1x2x16x8xf32>
}

// -----

// Padding counted in a mean.
dist.mesh @mesh = <["tp"=4]>
func.func @mean_counts_padding(
    %x: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x13xf32>})
    -> (tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %0 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<16x4xf32>) -> tensor<16x16xf32>
  // expected-error@below {{reads the padding behind the 13 true of 16 rows, which is zero, and would count it in the mean}}
  %r = nn.reduce mean %0 dims [1] : (tensor<16x16xf32>) -> tensor<16xf32>
  return %r : tensor<16xf32>
}

// -----

// Padding that is no longer zero read by a sum.
dist.mesh @mesh = <["tp"=4]>
func.func @sum_reads_changed_padding(
    %x: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x13xf32>})
    -> (tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %0 = nn.exp %x : tensor<16x4xf32>
  // expected-error@below {{reads the padding behind the 13 true of 16 rows: expected zero, got positive}}
  %1 = nn.reduce sum %0 dims [1] : (tensor<16x4xf32>) -> tensor<16xf32>
  %r = dist.all_reduce sum %1 axes ["tp"] : (tensor<16xf32>) -> tensor<16xf32>
  return %r : tensor<16xf32>
}

// -----

// A collective under control flow that depends on the rank.
dist.mesh @mesh = <["tp"=4]>
func.func @collective_under_rank_condition(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %1 = nn.linear %0, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-note@below {{the coordinate is from here}}
  %i = dist.axis_index ["tp"] : tensor<i64>
  %zero = nn.constant dense<0> : tensor<i64>
  %c = nn.compare eq %i, %zero : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %first = tensor.extract %c[] : tensor<i1>
  %r = scf.if %first -> tensor<8x16xf32> {
    // expected-error@below {{is a collective under control flow that depends on the rank's coordinate along {"tp"}: not all ranks would issue it}}
    %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
    scf.yield %2 : tensor<8x16xf32>
  } else {
    scf.yield %x : tensor<8x16xf32>
  }
  return %r : tensor<8x16xf32>
}

// -----

// A value that depends on the rank, mixed into data.
dist.mesh @mesh = <["tp"=4]>
func.func @coordinate_in_data(
    %x: tensor<8x16xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xi64>})
    -> (tensor<8x16xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xi64>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{the coordinate is from here}}
  %i = dist.axis_index ["tp"] : tensor<i64>
  // expected-error@below {{mixes a value that depends on the rank's coordinate along {"tp"} into data}}
  %r = nn.add %x, %i : (tensor<8x16xi64>, tensor<i64>) -> tensor<8x16xi64>
  return %r : tensor<8x16xi64>
}

// -----

// A result in another layout than promised.
dist.mesh @mesh = <["tp"=4]>
func.func @result_in_another_layout(
    // expected-note@below {{is from here, and has layout [{"tp"}, {}]}}
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x64xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{result 0: expected layout [{}, {"tp"}], which the signature promises, got [{"tp"}, {}]; expected global shape 8x64, got 32x16}}
  return %x : tensor<8x16xf32>
}

// -----

// Chunks gathered along the wrong dimension.
dist.mesh @mesh = <["tp"=4]>
func.func @gather_of_wrong_dimension(
    // expected-note@below {{is from here, and has layout [{"tp"}, {}]}}
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    -> (tensor<8x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x64xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{gathers dimension 1 of operand 0 over {"tp"}, which do not shard it: it is sharded over {}}}
  %r = dist.all_gather %x axes ["tp"] dims [1] : (tensor<8x16xf32>) -> tensor<8x64xf32>
  return %r : tensor<8x64xf32>
}

// -----

// Chunks gathered in the wrong order.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @gather_in_wrong_order(
    // expected-note@below {{is from here, and has layout [{"dp", "tp"}, {}]}}
    %x: tensor<2x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<16x16xf32>})
    -> (tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{gathers dimension 0 of operand 0 over {"tp", "dp"}, which are not the minor-most of {"dp", "tp"}: chunks would be out of order}}
  %r = dist.all_gather %x axes ["tp", "dp"] dims [0] : (tensor<2x16xf32>) -> tensor<16x16xf32>
  return %r : tensor<16x16xf32>
}

// -----

// Operands sharded differently.
dist.mesh @mesh = <["tp"=4]>
func.func @operands_sharded_differently(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>},
    // expected-note@below {{is from here, and has layout [{}, {}]}}
    %y: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{dimension 0 of operand 1: expected layout [{"tp"}] of true size 32 as in operand 0, got [{}] of 8}}
  %r = nn.add %x, %y : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// One axis for two dimensions: each rank would have a block of the diagonal.
dist.mesh @mesh = <["tp"=4]>
func.func @one_axis_for_two_dimensions(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{axes {"tp"} shard two dimensions that the op does not tie}}
  %r = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A chunk of a vocabulary without its offset.
dist.mesh @mesh = <["tp"=4]>
func.func @vocabulary_without_offset(
    %ids: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>},
    // expected-note@below {{is from here, and has layout [{"tp"}, {}]}}
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{reads a table whose rows are sharded over {"tp"} without an offset}}
  %0 = nn.embedding %ids, %up : (tensor<8xi64>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %r = dist.all_reduce sum %0 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A chunk of a vocabulary with another chunk's size.
dist.mesh @mesh = <["tp"=4]>
func.func @vocabulary_offset_of_another_chunk(
    %ids: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 2 is from here}}
  %o = dist.axis_index ["tp"] chunk 8 : tensor<i64>
  // expected-error@below {{expected an offset of 16 rows a rank, got 8}}
  %0 = nn.embedding %ids, %up offset %o : (tensor<8xi64>, tensor<16x16xf32>, tensor<i64>) -> tensor<8x16xf32>
  %r = dist.all_reduce sum %0 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A chunk of a vocabulary, its padding counted as rows.
dist.mesh @mesh = <["tp"=4]>
func.func @vocabulary_padding_counted(
    %ids: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>},
    // expected-note@below {{operand 1 is from here}}
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<61x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %o = dist.axis_index ["tp"] chunk 16 : tensor<i64>
  // expected-error@below {{expected an offset in a table of 61 rows, got 64}}
  %0 = nn.embedding %ids, %up offset %o {nn.table_rows = 64 : i64} : (tensor<8xi64>, tensor<16x16xf32>, tensor<i64>) -> tensor<8x16xf32>
  %r = dist.all_reduce sum %0 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// A slice that reads padding.
dist.mesh @mesh = <["tp"=4]>
func.func @slice_reads_padding(
    %x: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x13xf32>})
    -> (tensor<16x14xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x14xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %0 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<16x4xf32>) -> tensor<16x16xf32>
  // expected-error@below {{expected to read at most the 13 true rows of dimension 1, got a limit of 14}}
  %r = nn.slice %0 starts [0, 0] limits [16, 14] strides [1, 1] : (tensor<16x16xf32>) -> tensor<16x14xf32>
  return %r : tensor<16x14xf32>
}

// -----

// Padding masked behind the wrong row.
dist.mesh @mesh = <["tp"=4]>
func.func @padding_masked_behind_wrong_row(
    // expected-note@below {{is from here, and has layout [{}, {"tp"}]}}
    %x: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x13xf32>})
    -> (tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x13xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{expected to mask dimension 1 behind its 13 true rows, got 12}}
  %r = dist.mask_padding %x axes ["tp"] dim 1 size 12 value 0.0 : tensor<16x4xf32>
  return %r : tensor<16x4xf32>
}

// -----

// A permutation that fits no layout.
dist.mesh @mesh = <["tp"=4]>
func.func @permutation_without_layout(
    // expected-note@below {{is from here, and has layout [{"tp"}, {}]}}
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{leaves the chunks of operand 0, which has layout [{"tp"}, {}], in an order that fits no layout}}
  %r = dist.permute %x axes ["tp"] pairs [[1, 0], [2, 1], [0, 2], [3, 3]] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}

// -----

// Chunks that were shifted are out of place.
dist.mesh @mesh = <["tp"=4]>
func.func @shifted_chunks_returned(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{is from here, and has layout [(32{"tp"} shifted by 1), {}]}}
  %r = dist.permute %x axes ["tp"] shift 1 : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // expected-error@below {{result 0: expected layout [{"tp"}, {}], which the signature promises, got [(32{"tp"} shifted by 1), {}]}}
  return %r : tensor<8x16xf32>
}

// -----

// A redistribution from another layout.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @redistribute_from_another_layout(
    // expected-note@below {{is from here, and has layout [{"dp", "tp"}, {}]}}
    %x: tensor<4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<32x16xf32>})
    -> (tensor<32x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"dp", "tp"}]>, dist.global = tensor<32x16xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{expected operand 0 as [{"tp", "dp"}, {}], got layout [{"dp", "tp"}, {}]}}
  %r = dist.redistribute %x from [#dist.sharding<@mesh, [{"tp", "dp"}, {}]>] to [#dist.sharding<@mesh, [{}, {"dp", "tp"}]>] : (tensor<4x16xf32>) -> tensor<32x2xf32>
  return %r : tensor<32x2xf32>
}

// -----

// Six ranks as 2 x 3, said to be 3 x 2: as many chunks, but others.
dist.mesh @mesh = <["x"=6]>
func.func @redistribute_from_another_cut(
    // expected-note@below {{is from here, and has layout [{"x":(1)2}, {"x":(2)3}]}}
    %x: tensor<4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}]>, dist.global = tensor<7x5xf32>})
    -> (tensor<4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}]>, dist.global = tensor<7x5xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{expected operand 0 as [{"x":(3)2}, {"x":(1)3}], got layout [{"x":(1)2}, {"x":(2)3}]}}
  %r = dist.redistribute %x from [#dist.sharding<@mesh, [{"x":(3)2}, {"x":(1)3}]>] to [#dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}]>] : (tensor<4x2xf32>) -> tensor<4x2xf32>
  return %r : tensor<4x2xf32>
}

// -----

// And left in another cut than the signature promises.
dist.mesh @mesh = <["x"=6]>
func.func @redistribute_to_another_cut(%x: tensor<4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}]>, dist.global = tensor<7x5xf32>})
    -> (tensor<3x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"x":(1)3}, {"x":(3)2}]>, dist.global = tensor<7x5xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{is from here, and has layout [{"x":(2)3}, {"x":(1)2}]}}
  %r = dist.redistribute %x from [#dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}]>] to [#dist.sharding<@mesh, [{"x":(2)3}, {"x":(1)2}]>] : (tensor<4x2xf32>) -> tensor<3x3xf32>
  // expected-error@below {{result 0}}
  return %r : tensor<3x3xf32>
}

// -----

// A collective under nested control flow, of which one condition depends on the rank.
dist.mesh @mesh = <["tp"=4]>
func.func @collective_under_nested_condition(
    %x: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{the coordinate is from here}}
  %i = dist.axis_index ["tp"] : tensor<i64>
  %j = tensor.extract %i[] : tensor<i64>
  %three = arith.constant 3 : i64
  %c = arith.cmpi eq, %j, %three : i64
  %t = arith.constant true
  scf.if %c {
    scf.if %t {
      // expected-error@below {{is a collective under control flow that depends on the rank's coordinate along {"tp"}: not all ranks would issue it}}
      %0 = dist.permute %x axes ["tp"] shift 1 : (tensor<8xf32>) -> tensor<8xf32>
    }
  }
  return %x : tensor<8xf32>
}

// -----

// A result of such control flow that would differ between ranks.
dist.mesh @mesh = <["tp"=4]>
func.func @result_of_rank_condition(
    %x: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %i = dist.axis_index ["tp"] : tensor<i64>
  %j = tensor.extract %i[] : tensor<i64>
  %three = arith.constant 3 : i64
  %c = arith.cmpi eq, %j, %three : i64
  // expected-error@below {{result 0: expected different parts along {"tp"}, between whose ranks the condition differs, got a replicated one}}
  %r = scf.if %c -> tensor<8xf32> {
    %0 = nn.neg %x : tensor<8xf32>
    scf.yield %0 : tensor<8xf32>
  } else {
    scf.yield %x : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}

// -----

// Branches that leave a result in different layouts.
dist.mesh @mesh = <["tp"=4]>
func.func @branches_in_different_layouts(
    %x: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>},
    %y: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<32xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %t = arith.constant true
  // expected-error@below {{result 0: expected one layout from both branches, got [{}] and [{"tp"}]}}
  %r = scf.if %t -> tensor<8xf32> {
    scf.yield %x : tensor<8xf32>
  } else {
    scf.yield %y : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}

// -----

// A reshape that is read in two ways at once: as heads, and as a row's chunk.
dist.mesh @mesh = <["tp"=4]>
func.func @reshape_with_two_meanings(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x64xf32>},
    %y: tensor<8x1x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}]>, dist.global = tensor<8x1x64xf32>})
    -> (tensor<8x1x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<8x4x16xf32>}, tensor<8x1x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}]>, dist.global = tensor<8x1x64xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{the operand is from here}}
  %0 = nn.reshape %x : (tensor<8x16xf32>) -> tensor<8x1x16xf32>
  // expected-error@below {{reads operand 0 otherwise than its other users do}}
  %1 = nn.rms_norm %0 eps 1.0e-05 : (tensor<8x1x16xf32>) -> tensor<8x1x16xf32>
  %2 = nn.neg %0 : tensor<8x1x16xf32>
  %3 = nn.sub %2, %y : (tensor<8x1x16xf32>, tensor<8x1x16xf32>) -> tensor<8x1x16xf32>
  return %1, %3 : tensor<8x1x16xf32>, tensor<8x1x16xf32>
}

// -----

// An op that nothing is known of.
dist.mesh @mesh = <["tp"=4]>
func.func @unknown_op(
    %x: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{has no factor rule: the layouts of its results cannot be derived}}
  %r = tensor.empty() : tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// An offset that is computed from the coordinate, into a table that all ranks have.
dist.mesh @mesh = <["tp"=2]>
func.func @coordinate_offset_into_whole_table(
    %ids: tensor<3xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<3xi64>},
    %table: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x4xf32>})
    -> (tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{the coordinate is from here}}
  %i = dist.axis_index ["tp"] chunk 4 : tensor<i64>
  %twice = nn.add %i, %i : (tensor<i64>, tensor<i64>) -> tensor<i64>
  // expected-error@below {{mixes a value that depends on the rank's coordinate along {"tp"} into data}}
  %r = nn.embedding %ids, %table offset %twice : (tensor<3xi64>, tensor<8x4xf32>, tensor<i64>) -> tensor<3x4xf32>
  return %r : tensor<3x4xf32>
}

// -----

// A coordinate that control flow hands on.
dist.mesh @mesh = <["tp"=2]>
func.func @coordinate_through_control_flow(
    %x: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>})
    -> (tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>})
    attributes {dist.spmd = @mesh} {
  %always = arith.constant true
  %i = dist.axis_index ["tp"] : tensor<i64>
  %r = scf.if %always -> tensor<i64> {
    scf.yield %i : tensor<i64>
  } else {
    scf.yield %x : tensor<i64>
  }
  // expected-error@below {{result 0 differs between ranks}}
  return %r : tensor<i64>
}

// -----

// A condition that differs between ranks that share a part.
dist.mesh @mesh = <["tp"=4]>
func.func @condition_differs_within_group(
    %x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}]>, dist.global = tensor<8xf32>},
    %y: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}]>, dist.global = tensor<8xf32>})
    -> (tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %i = dist.axis_index ["tp"] : tensor<i64>
  %coordinate = tensor.extract %i[] : tensor<i64>
  %one = arith.constant 1 : i64
  %c = arith.cmpi eq, %coordinate, %one : i64
  // expected-error@below {{result 0: expected different parts along {"tp"}, between whose ranks the condition differs, got a replicated one}}
  %r = scf.if %c -> tensor<4xf32> {
    scf.yield %x : tensor<4xf32>
  } else {
    scf.yield %y : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}

// -----

// Rows that are alike are gathered, but their columns differ between the ranks.
dist.mesh @mesh = <["tp"=2]>
func.func @gather_of_equal_rows(
    %x: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    -> (tensor<4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %rows = nn.broadcast %x : (tensor<2xf32>) -> tensor<2x2xf32>
  // expected-error@below {{gathers dimension 0 of operand 0 over {"tp"}, which do not shard it}}
  %r = dist.all_gather %rows axes ["tp"] dims [0] : (tensor<2x2xf32>) -> tensor<4x2xf32>
  return %r : tensor<4x2xf32>
}

// -----

// The same within one dimension.
dist.mesh @mesh = <["tp"=2]>
func.func @gather_of_equal_rows_within_a_dimension(
    %x: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [(4, 4{"tp"})]>, dist.global = tensor<16xf32>})
    attributes {dist.spmd = @mesh} {
  %rows = nn.broadcast %x : (tensor<2xf32>) -> tensor<2x2xf32>
  // expected-note@below {{operand 0 is from here}}
  %flat = nn.reshape %rows : (tensor<2x2xf32>) -> tensor<4xf32>
  // expected-error@below {{gathers dimension 0 of operand 0 over {"tp"}, which are not the minor-most of {"tp"}}}
  %r = dist.all_gather %flat axes ["tp"] dims [0] : (tensor<4xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// One step around four ranks is not one along each of two axes.
dist.mesh @mesh = <["tp"=4]>
func.func @shift_along_two_axes(
    %x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xf32>})
    -> (tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  %own = dist.slice %x axes ["tp"] dims [0] shift 1 : (tensor<4xf32>) -> tensor<1xf32>
  // expected-note@below {{operand 0 is from here}}
  %a = nn.reshape %own : (tensor<1xf32>) -> tensor<1x1xf32>
  // expected-error@below {{leaves the chunks of operand 0, which has layout}}
  %b = dist.permute %a axes ["tp":(1)2] shift 1 : (tensor<1x1xf32>) -> tensor<1x1xf32>
  %c = dist.permute %b axes ["tp":(2)2] shift 1 : (tensor<1x1xf32>) -> tensor<1x1xf32>
  %r = nn.reshape %c : (tensor<1x1xf32>) -> tensor<1xf32>
  return %r : tensor<1xf32>
}

// -----

// An element for two ranks, which moved to two others.
dist.mesh @mesh = <["a"=2, "b"=2]>
func.func @element_moved_to_other_ranks(
    %x: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a", "b"}]>, dist.global = tensor<4xf32>},
    %y: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a"}]>, dist.global = tensor<2xf32>})
    -> (tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a", "b"}]>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 1 is from here}}
  %moved = dist.permute %y axes ["a"] shift 1 : (tensor<1xf32>) -> tensor<1xf32>
  // expected-error@below {{dimension 0 of operand 1: expected layout [{"a", "b"}] of true size 4 as in operand 0, got [(2{"a"} shifted by 1)] of 2}}
  %r = nn.add %x, %moved : (tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32>
  return %r : tensor<1xf32>
}

// -----

// The sum over ranks of ones is not one.
dist.mesh @mesh = <["dp"=2]>
func.func @open_ones()
    -> (tensor<4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"dp"}>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{operand 0 is from here}}
  %z = nn.constant dense<1.0> : tensor<4xf32>
  // expected-error@+1 {{result 0: expected layout [{}] unreduced {"dp"}, which the signature promises, got [{}]}}
  return %z : tensor<4xf32>
}

// -----

// Equal elements below three others: the ranks repeat each of the three 7 times, and no op slices.
dist.mesh @mesh = <["tp"=2]>
func.func @repeated_on_each_rank(%x: tensor<21xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<42xf32>},
    %h: tensor<3xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<3xf32>})
    -> (tensor<21xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<42xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %h : (tensor<3xf32>) -> tensor<3x1xf32>
  %1 = nn.broadcast %0 : (tensor<3x1xf32>) -> tensor<3x7xf32>
  // expected-note@below {{operand 1 is from here}}
  %2 = nn.reshape %1 : (tensor<3x7xf32>) -> tensor<21xf32>
  // expected-error@below {{dimension 0 of operand 1: expected layout [{"tp"}] of true size 42 as in operand 0, got [(3, 7)] of 21}}
  %3 = nn.add %x, %2 : (tensor<21xf32>, tensor<21xf32>) -> tensor<21xf32>
  return %3 : tensor<21xf32>
}

// -----

// Runs of three of 14 rows, and runs of seven of three rows: 42 elements, and 21.
dist.mesh @mesh = <["tp"=2]>
func.func @crossing_runs(%x: tensor<7xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<14xf32>},
    %h: tensor<3xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<3xf32>})
    -> (tensor<21xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<42xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %x : (tensor<7xf32>) -> tensor<7x1xf32>
  %1 = nn.broadcast %0 : (tensor<7x1xf32>) -> tensor<7x3xf32>
  %2 = nn.reshape %1 : (tensor<7x3xf32>) -> tensor<21xf32>
  %3 = nn.reshape %h : (tensor<3xf32>) -> tensor<3x1xf32>
  %4 = nn.broadcast %3 : (tensor<3x1xf32>) -> tensor<3x7xf32>
  // expected-note@below {{operand 1 is from here}}
  %5 = nn.reshape %4 : (tensor<3x7xf32>) -> tensor<21xf32>
  // expected-error@below {{dimension 0 of operand 1: expected layout [(14{"tp"}, 3)] of true size 42 as in operand 0, got [(3, 7)] of 21}}
  %6 = nn.add %2, %5 : (tensor<21xf32>, tensor<21xf32>) -> tensor<21xf32>
  return %6 : tensor<21xf32>
}

// -----

// Two elements stand for groups of four. Of three, a group would begin within the first chunk.
dist.mesh @mesh = <["a"=2, "b"=2]>
func.func @groups_of_padded_elements(
    %x: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a"}]>, dist.global = tensor<2xf32>},
    // expected-note@below {{operand 1 is from here}}
    %y: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a", "b"}]>, dist.global = tensor<3xf32>})
    -> (tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a", "b"}]>, dist.global = tensor<3xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{dimension 0 of operand 1: expected layout [{"a"}] of true size 2 as in operand 0, got [{"a", "b"}] of 3}}
  %r = nn.add %x, %y : (tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32>
  return %r : tensor<1xf32>
}

// -----

// Two elements do not broadcast against four.
dist.mesh @mesh = <["a"=2, "b"=2]>
func.func @groups_of_an_elementwise_op(
    %x: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a"}]>, dist.global = tensor<2xf32>},
    // expected-note@below {{operand 1 is from here}}
    %y: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a", "b"}]>, dist.global = tensor<4xf32>})
    -> (tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"a", "b"}]>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{dimension 0 of operand 1: expected layout [{"a"}] of true size 2 as in operand 0, got [{"a", "b"}] of 4}}
  %r = nn.add %x, %y : (tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32>
  return %r : tensor<1xf32>
}
