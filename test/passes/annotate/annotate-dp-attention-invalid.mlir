// RUN: sharding-opt %s --split-input-file --annotate-dp-attention="groups=3" -verify-diagnostics

// Groups have equally many ranks.

// expected-error @+1 {{data-parallel-attention: expected a divisor of the 4 ranks of tensor parallelism ("tp"), got 3}}
dist.mesh @mesh = <["tp"=4]>
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}) -> tensor<4x8xf32> {
  return %x : tensor<4x8xf32>
}

// -----

// expected-error @+1 {{data-parallel-attention: expected a divisor of the 1 ranks of tensor parallelism, got 3}}
dist.mesh @mesh = <["dp"=3]>
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}) -> tensor<4x8xf32> {
  return %x : tensor<4x8xf32>
}

// -----

// A program that serves has a group for each group of ranks.

module attributes {nn.serving = {groups = 2 : i64, max_length = 8 : i64, page_size = 2 : i64, pages = 4 : i64, requests = 1 : i64, vocabulary = 9 : i64, deal = 1 : i64}} {
// expected-error @+1 {{data-parallel-attention: expected a program that serves 3 groups, 3 on each of 1 ranks of data parallelism, got 2}}
dist.mesh @mesh = <["tp"=6]>
func.func @main(%x: tensor<2x8xi64> {nn.input = "tokens"}) -> tensor<2x8xi64> {
  return %x : tensor<2x8xi64>
}
}

// -----

// The attribute of a mesh.

// expected-error @+1 {{'dist.dp_attention': expected divisors of 4 ranks, got 3}}
dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 4 : i64, groups = 3 : i64, own_head = true}}

// -----

// expected-error @+1 {{'dist.dp_attention': expected {groups, dense_tp, own_head} on a dist.mesh, got}}
dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {groups = 2 : i64}}
