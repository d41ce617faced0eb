// RUN: sharding-opt %s --split-input-file --verify-placement --verify-roundtrip | FileCheck %s

// Reshapes that keep the local order of elements and move coordinates to the dimension before.
// The likely candidates do not prove them, so the verifier tries the others.

// The padded coordinate of a 6 belongs to the dimension before it: 2 by 3.
// CHECK-LABEL: func.func @padded
dist.mesh @mesh = <["x"=8]>
func.func @padded(%arg0: tensor<2x2x16x13xf32> {dist.global = tensor<2x6x16x13xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x"}, {}, {}]>})
    -> (tensor<2x16x2x13xf32> {dist.global = tensor<6x16x2x13xf32>, dist.sharding = #dist.sharding<@mesh, [(2, 3 pad 8{"x"}), {}, {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<2x2x16x13xf32>) -> tensor<2x16x2x13xf32>
  return %0 : tensor<2x16x2x13xf32>
}

// -----

// A dimension of size 1 is between the coordinate and its dimension.
// CHECK-LABEL: func.func @skipped
dist.mesh @mesh = <["x"=6]>
func.func @skipped(%arg0: tensor<1x3x20xf32> {dist.global = tensor<1x3x40xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"x"}]>})
    -> (tensor<3x1x20xf32> {dist.global = tensor<6x1x20xf32>, dist.sharding = #dist.sharding<@mesh, [(3, 2 pad 6{"x"}), {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<1x3x20xf32>) -> tensor<3x1x20xf32>
  return %0 : tensor<3x1x20xf32>
}

// -----

// The digits of one coordinate belong to two dimensions.
// CHECK-LABEL: func.func @parts
dist.mesh @mesh = <["x"=4]>
func.func @parts(%arg0: tensor<3x7xf32> {dist.global = tensor<3x28xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<1x3x7x1xf32> {dist.global = tensor<1x6x14x1xf32>, dist.sharding = #dist.sharding<@mesh, [{}, (3, 2{"x":(1)2}), {"x":(2)2}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<3x7xf32>) -> tensor<1x3x7x1xf32>
  return %0 : tensor<1x3x7x1xf32>
}

// -----

// The coordinate follows padding of its new dimension.
// CHECK-LABEL: func.func @unequal
dist.mesh @mesh = <["x"=2, "y"=2]>
func.func @unequal(%arg0: tensor<1x1x5x7xf32> {dist.global = tensor<1x1x9x14xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"y"}, {"x"}]>})
    -> (tensor<5x7xf32> {dist.global = tensor<18x7xf32>, dist.sharding = #dist.sharding<@mesh, [(9 pad 10{"y"}, 2{"x"}), {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<1x1x5x7xf32>) -> tensor<5x7xf32>
  return %0 : tensor<5x7xf32>
}

// -----

// A dimension of one element that a constant stretches along is no boundary.
// CHECK-LABEL: func.func @one_element_between
dist.mesh @mesh = <["x"=2]>
func.func @one_element_between(
    %x: tensor<1x17x1x4xf32> {dist.global = tensor<1x17x1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>})
    -> (tensor<4x1x1x17xf32> {dist.global = tensor<4x1x1x17xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.constant dense<-0.5> : tensor<1x4xf32>
  %1 = nn.add %x, %0 : (tensor<1x17x1x4xf32>, tensor<1x4xf32>) -> tensor<1x17x1x4xf32>
  %2 = nn.reshape %1 : (tensor<1x17x1x4xf32>) -> tensor<4x1x1x17xf32>
  return %2 : tensor<4x1x1x17xf32>
}

// -----

// One of three equal elements is a row of each rank, too, since all rows have it.
// CHECK-LABEL: func.func @equal_rows
dist.mesh @mesh = <["dp"=8]>
func.func @equal_rows(
    %x: tensor<4x1xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}]>, dist.global = tensor<4x3xf32>},
    %c: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xf32>})
    -> (tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [(4, 3 pad 8{"dp"})]>, dist.global = tensor<12xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %c : (tensor<4xf32>) -> tensor<4x1xf32>
  %1 = nn.broadcast %0 : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %2 = nn.neg %1 : tensor<4x1xf32>
  %3 = nn.reshape %2 : (tensor<4x1xf32>) -> tensor<4xf32>
  %4 = nn.reshape %x : (tensor<4x1xf32>) -> tensor<4xf32>
  %5 = nn.mul %3, %4 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %5 : tensor<4xf32>
}

// -----

// The first operand has pairs of equal elements, the second one equal halves. The result has neither.
// CHECK-LABEL: func.func @pairs_and_halves
dist.mesh @mesh = <["tp"=2]>
func.func @pairs_and_halves(%x: tensor<21xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<21xf32>})
    -> (tensor<42xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<42xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %x : (tensor<21xf32>) -> tensor<21x1xf32>
  %1 = nn.broadcast %0 : (tensor<21x1xf32>) -> tensor<21x2xf32>
  %2 = nn.reshape %1 : (tensor<21x2xf32>) -> tensor<42xf32>
  %3 = nn.reshape %x : (tensor<21xf32>) -> tensor<1x21xf32>
  %4 = nn.broadcast %3 : (tensor<1x21xf32>) -> tensor<2x21xf32>
  %5 = nn.reshape %4 : (tensor<2x21xf32>) -> tensor<42xf32>
  %6 = nn.mul %2, %5 : (tensor<42xf32>, tensor<42xf32>) -> tensor<42xf32>
  return %6 : tensor<42xf32>
}

// -----

// Heads are two equal halves of three, one of which each rank has. Attention reads one value as
// queries, keys and values, so all have the same candidate.
// CHECK-LABEL: func.func @halves_of_heads
dist.mesh @mesh = <["dp"=3]>
func.func @halves_of_heads(
    %x: tensor<1x5x12xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<3x5x12xf32>},
    %c: tensor<1x2x5x12xf32> {dist.sharding = #dist.sharding<@mesh, [{}, (2, 3{"dp"}), {}, {}]>, dist.global = tensor<1x6x5x12xf32>})
    -> (tensor<1x2x5x12xf32> {dist.sharding = #dist.sharding<@mesh, [{}, (2, 3{"dp"}), {}, {}]>, dist.global = tensor<1x6x5x12xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %x : (tensor<1x5x12xf32>) -> tensor<1x1x5x12xf32>
  %1 = nn.broadcast %0 : (tensor<1x1x5x12xf32>) -> tensor<2x1x5x12xf32>
  %2 = nn.reshape %1 : (tensor<2x1x5x12xf32>) -> tensor<1x2x5x12xf32>
  %out, %lse = nn.attention %2, %2, %2 scale 1.0 : (tensor<1x2x5x12xf32>, tensor<1x2x5x12xf32>, tensor<1x2x5x12xf32>) -> (tensor<1x2x5x12xf32>, tensor<1x2x5xf32>)
  %3 = nn.mul %c, %out : (tensor<1x2x5x12xf32>, tensor<1x2x5x12xf32>) -> tensor<1x2x5x12xf32>
  %d = nn.reduce sum %3 dims [3] : (tensor<1x2x5x12xf32>) -> tensor<1x2x5xf32>
  %dq, %dk, %dv = nn.attention_grad %2, %2, %2 lse %lse delta %d cotangent %c scale 1.0 : (tensor<1x2x5x12xf32>, tensor<1x2x5x12xf32>, tensor<1x2x5x12xf32>, tensor<1x2x5xf32>, tensor<1x2x5xf32>, tensor<1x2x5x12xf32>) -> (tensor<1x2x5x12xf32>, tensor<1x2x5x12xf32>, tensor<1x2x5x12xf32>)
  return %dq : tensor<1x2x5x12xf32>
}

// -----

// Each of seven tokens twice, in chunks of four: a redistribute moves the padding along.
dist.mesh @mesh = <["dp"=2, "tp"=2]>
// CHECK-LABEL: func.func @repeated_rows
func.func @repeated_rows(%x: tensor<1x4x8x1xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}, {}, {}]>, dist.global = tensor<2x7x8x1xf32>})
    -> (tensor<2x112xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x112xf32>})
    attributes {dist.spmd = @mesh} {
  %b = nn.broadcast %x : (tensor<1x4x8x1xf32>) -> tensor<1x4x8x2xf32>
  %0 = nn.reshape %b : (tensor<1x4x8x2xf32>) -> tensor<64xf32>
  %1 = nn.reshape %0 : (tensor<64xf32>) -> tensor<1x64xf32>
  %2 = dist.redistribute %1 from [#dist.sharding<@mesh, [{"dp"}, {"tp"}]>] to [#dist.sharding<@mesh, [{}, {}]>] : (tensor<1x64xf32>) -> tensor<2x128xf32>
  %3 = nn.slice %2 starts [0, 0] limits [2, 112] strides [1, 1] : (tensor<2x128xf32>) -> tensor<2x112xf32>
  return %3 : tensor<2x112xf32>
}

// -----

// A coordinate along an axis of many digits stays in one piece.
// CHECK-LABEL: func.func @many_digits
dist.mesh @mesh = <["dp"=1024]>
func.func @many_digits(
    %x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<1024x8xf32>})
    -> (tensor<1x1x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}, {}]>, dist.global = tensor<1024x1x1x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %x {dist.results = [#dist.sharding<@mesh, [(1024{"dp"}), (1), (1), {?}]>]} : (tensor<1x8xf32>) -> tensor<1x1x1x8xf32>
  return %0 : tensor<1x1x1x8xf32>
}
