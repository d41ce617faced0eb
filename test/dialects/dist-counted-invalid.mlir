// RUN: sharding-opt %s --split-input-file --verify-diagnostics

func.func @no_numbers(%x: tensor<8x2xf32>, %n: tensor<2xf32>) {
  // expected-error@below {{'dist.compact' op expected the numbers of true rows to be a tensor of i64 with one dimension, got 'tensor<2xf32>'}}
  %0 = dist.compact %x counts %n tokens 4 rows 4 dim 0 : (tensor<8x2xf32>, tensor<2xf32>) -> tensor<4x2xf32>
  return
}

// -----

func.func @groups(%x: tensor<8x2xf32>, %n: tensor<3xi64>) {
  // expected-error@below {{'dist.compact' op expected 3 groups of 4 rows in dimension 0, got 8}}
  %0 = dist.compact %x counts %n tokens 4 rows 4 dim 0 : (tensor<8x2xf32>, tensor<3xi64>) -> tensor<4x2xf32>
  return
}

// -----

func.func @replicas(%x: tensor<6x2xf32>, %n: tensor<3xi64>) {
  // expected-error@below {{'dist.expand' op expected 3 rows for each replica of the groups in dimension 0, got 6}}
  %0 = dist.expand %x counts %n tokens 4 rows 3 dim 0 : (tensor<6x2xf32>, tensor<3xi64>) -> tensor<12x2xf32>
  return
}

// -----

func.func @features(%x: tensor<8x2xf32>, %n: tensor<2xi64>) {
  // expected-error@below {{'dist.compact' op expected operand and result to differ in dimension 0 alone}}
  %0 = dist.compact %x counts %n tokens 4 rows 4 dim 0 : (tensor<8x2xf32>, tensor<2xi64>) -> tensor<4x3xf32>
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @two_groups(%x: tensor<8x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x2xf32>}, %n: tensor<4xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xi64>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.all_gather_v' op expected each of 2 ranks to have an equal part of the 4 rows of one of 4 groups, got 8 rows}}
  %0, %m = dist.all_gather_v %x, %n axes ["tp"] tokens 4 rows 4 dims [0] : (tensor<8x2xf32>, tensor<4xi64>) -> (tensor<4x2xf32>, tensor<4xi64>)
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @capacity(%x: tensor<6x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<6x2xf32>}, %n: tensor<2xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<2xi64>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.reduce_scatter_v' op expected 4 rows of all groups in dimension 0, got 6}}
  %0, %m = dist.reduce_scatter_v sum %x, %n axes ["tp"] tokens 4 rows 4 dims [0] : (tensor<6x2xf32>, tensor<2xi64>) -> (tensor<4x2xf32>, tensor<2xi64>)
  return
}
