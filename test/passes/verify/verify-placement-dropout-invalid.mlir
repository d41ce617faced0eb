// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// A ring whose steps drop what one rank would drop.
dist.mesh @mesh = <["r"=2]>
func.func @right(
    %q: tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>},
    %s: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>},
    %t: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>})
    -> (tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %i = nn.iota dim 2 : tensor<1x2x8xi64>
  %j = nn.iota dim 0 : tensor<8xi64>
  %r = dist.slice %i axes ["r"] dims [2] : (tensor<1x2x8xi64>) -> tensor<1x2x4xi64>
  %k0 = dist.slice %j axes ["r"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %o0, %l0 = nn.attention %q, %q, %q drop_at %r, %k0 seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  %m = dist.permute %q axes ["r"] shift 1 : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %k1 = dist.slice %j axes ["r"] dims [0] shift 1 : (tensor<8xi64>) -> tensor<4xi64>
  %o1, %l1 = nn.attention %q, %m, %m drop_at %r, %k1 seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x4xf32>
}

// -----

// Weights are dropped by the indices of another chunk.
dist.mesh @mesh = <["r"=2]>
func.func @other_chunk(
    %q: tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>},
    %s: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>},
    %t: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>})
    -> (tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %i = nn.iota dim 2 : tensor<1x2x8xi64>
  %j = nn.iota dim 0 : tensor<8xi64>
  %r = dist.slice %i axes ["r"] dims [2] : (tensor<1x2x8xi64>) -> tensor<1x2x4xi64>
  // expected-note@below {{operand 4 is from here, and has layout [{"r"}]}}
  %k0 = dist.slice %j axes ["r"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %o0, %l0 = nn.attention %q, %q, %q drop_at %r, %k0 seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  %m = dist.permute %q axes ["r"] shift 1 : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %k1 = dist.slice %j axes ["r"] dims [0] shift 1 : (tensor<8xi64>) -> tensor<4xi64>
  // expected-error@below {{dimension 0 of operand 4: expected layout [(8{"r"} shifted by 1)] of true size 8 as in operand 1, got [{"r"}] of 8}}
  %o1, %l1 = nn.attention %q, %m, %m drop_at %r, %k0 seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x4xf32>
}

// -----

// The steps have different seeds.
dist.mesh @mesh = <["r"=2]>
func.func @other_seed(
    %q: tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>},
    %s: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>},
    %t: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>})
    -> (tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %i = nn.iota dim 2 : tensor<1x2x8xi64>
  %j = nn.iota dim 0 : tensor<8xi64>
  %r = dist.slice %i axes ["r"] dims [2] : (tensor<1x2x8xi64>) -> tensor<1x2x4xi64>
  %k0 = dist.slice %j axes ["r"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %o0, %l0 = nn.attention %q, %q, %q drop_at %r, %k0 seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  %m = dist.permute %q axes ["r"] shift 1 : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %k1 = dist.slice %j axes ["r"] dims [0] shift 1 : (tensor<8xi64>) -> tensor<4xi64>
  // expected-note@below {{operand 2 is from here}}
  %o1, %l1 = nn.attention %q, %m, %m drop_at %r, %k1 seed %t step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{merges parts of different attentions}}
  %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x4xf32>
}

// -----

// The steps have different streams.
dist.mesh @mesh = <["r"=2]>
func.func @other_stream(
    %q: tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>},
    %s: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>},
    %t: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>})
    -> (tensor<1x2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %i = nn.iota dim 2 : tensor<1x2x8xi64>
  %j = nn.iota dim 0 : tensor<8xi64>
  %r = dist.slice %i axes ["r"] dims [2] : (tensor<1x2x8xi64>) -> tensor<1x2x4xi64>
  %k0 = dist.slice %j axes ["r"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %o0, %l0 = nn.attention %q, %q, %q drop_at %r, %k0 seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  %m = dist.permute %q axes ["r"] shift 1 : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %k1 = dist.slice %j axes ["r"] dims [0] shift 1 : (tensor<8xi64>) -> tensor<4xi64>
  // expected-note@below {{operand 2 is from here}}
  %o1, %l1 = nn.attention %q, %m, %m drop_at %r, %k1 seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 2 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{merges parts of different attentions}}
  %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x4xf32>
}

// -----

// An index that counts from 0 on each rank.
dist.mesh @mesh = <["a"=2]>
func.func @local_index(
    %x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"a"}]>, dist.global = tensor<8xf32>},
    %s: tensor<i64> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i64>})
    -> (tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"a"}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 1 is from here, and has layout [{}]}}
  %i = nn.iota dim 0 : tensor<4xi64>
  // expected-error@below {{dimension 0 of operand 1: expected layout [{"a"}] of true size 8 as in operand 0, got [{}] of 4}}
  %y = nn.dropout %x at %i seed %s step %s probability 0.25 stream 3 : (tensor<4xf32>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
