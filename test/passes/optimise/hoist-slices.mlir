// RUN: sharding-opt %s --hoist-slices --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s --hoist-slices -split-input-file --remarks=applied 2>&1 | FileCheck %s --check-prefix=REMARK

// A mask of segments: a rank takes its rows, and in each step of a ring some keys.
// REMARK: remark: [hoist-slices] applied: dist.slice moves up past nn.compare: its operands have fewer bytes to slice
// REMARK: remark: [hoist-slices] applied: dist.slice moves up past nn.select: its operands have fewer bytes to slice
// CHECK-LABEL: func.func @segments
dist.mesh @mesh = <["ring"=2]>
func.func @segments(
    %q: tensor<1x2x32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x64x8xf32>},
    %s: tensor<1x64xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x64xi64>})
    -> (tensor<1x2x32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x64x8xf32>})
    attributes {dist.spmd = @mesh} {
  // CHECK: %[[R:.*]] = nn.reshape %{{.*}} -> tensor<1x1x64x1xi64>
  // CHECK: %[[ROWS:.*]] = dist.slice %[[R]] axes ["ring"] dims [2] : (tensor<1x1x64x1xi64>) -> tensor<1x1x32x1xi64>
  // CHECK: %[[K:.*]] = nn.reshape %{{.*}} -> tensor<1x1x1x64xi64>
  // CHECK-DAG: %[[K0:.*]] = dist.slice %[[K]] axes ["ring"] dims [3] : (tensor<1x1x1x64xi64>) -> tensor<1x1x1x32xi64>
  // CHECK-DAG: %[[K1:.*]] = dist.slice %[[K]] axes ["ring"] dims [3] shift 1 : (tensor<1x1x1x64xi64>) -> tensor<1x1x1x32xi64>
  %r = nn.reshape %s : (tensor<1x64xi64>) -> tensor<1x1x64x1xi64>
  %k = nn.reshape %s : (tensor<1x64xi64>) -> tensor<1x1x1x64xi64>
  // CHECK-NOT: tensor<1x1x64x64xi1>
  // CHECK-DAG: %[[S0:.*]] = nn.compare eq %[[ROWS]], %[[K0]] {{.*}} -> tensor<1x1x32x32xi1>
  // CHECK-DAG: %[[S1:.*]] = nn.compare eq %[[ROWS]], %[[K1]] {{.*}} -> tensor<1x1x32x32xi1>
  %same = nn.compare eq %r, %k {nn.id = 1 : i64} : (tensor<1x1x64x1xi64>, tensor<1x1x1x64xi64>) -> tensor<1x1x64x64xi1>
  %own = dist.slice %same axes ["ring"] dims [2] : (tensor<1x1x64x64xi1>) -> tensor<1x1x32x64xi1>
  %zero = nn.constant dense<0.0> : tensor<1x1x1x64xf32>
  %lowest = nn.constant dense<0xFF800000> : tensor<f32>
  // CHECK-DAG: %[[LOW:.*]] = nn.constant dense<0xFF800000> : tensor<f32>
  // CHECK-DAG: %[[B0:.*]] = nn.select %[[S0]], %{{.*}}, %[[LOW]]
  // CHECK-DAG: %[[B1:.*]] = nn.select %[[S1]], %{{.*}}, %[[LOW]]
  %b = nn.select %own, %zero, %lowest : (tensor<1x1x32x64xi1>, tensor<1x1x1x64xf32>, tensor<f32>) -> tensor<1x1x32x64xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x1x32x64xf32>) -> tensor<1x1x32x32xf32>
  // CHECK: nn.attention %{{.*}} bias %[[B0]]
  %o0, %l0 = nn.attention %q, %q, %q bias %b0 scale 1.0 : (tensor<1x2x32x8xf32>, tensor<1x2x32x8xf32>, tensor<1x2x32x8xf32>, tensor<1x1x32x32xf32>) -> (tensor<1x2x32x8xf32>, tensor<1x2x32xf32>)
  %p = dist.permute %q axes ["ring"] shift 1 : (tensor<1x2x32x8xf32>) -> tensor<1x2x32x8xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x1x32x64xf32>) -> tensor<1x1x32x32xf32>
  // CHECK: nn.attention %{{.*}} bias %[[B1]]
  %o1, %l1 = nn.attention %q, %p, %p bias %b1 scale 1.0 : (tensor<1x2x32x8xf32>, tensor<1x2x32x8xf32>, tensor<1x2x32x8xf32>, tensor<1x1x32x32xf32>) -> (tensor<1x2x32x8xf32>, tensor<1x2x32xf32>)
  %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (tensor<1x2x32x8xf32>, tensor<1x2x32xf32>, tensor<1x2x32x8xf32>, tensor<1x2x32xf32>) -> (tensor<1x2x32x8xf32>, tensor<1x2x32xf32>)
  return %o : tensor<1x2x32x8xf32>
}

// -----

// Padding and another order move along; through transposes and stretching.
// CHECK-LABEL: func.func @ordered
// CHECK: %[[P:.*]] = dist.pad %{{.*}} dims [0] : (tensor<13xf32>) -> tensor<16xf32>
// CHECK: %[[R:.*]] = dist.reorder %[[P]] dim 0
// CHECK: %[[S:.*]] = dist.slice %[[R]] axes ["tp"] dims [0] : (tensor<16xf32>) -> tensor<8xf32>
// CHECK: %[[B:.*]] = nn.broadcast %[[S]] : (tensor<8xf32>) -> tensor<32x8xf32>
// CHECK: %[[T:.*]] = nn.transpose %[[B]] [1, 0] : (tensor<32x8xf32>) -> tensor<8x32xf32>
// CHECK: return %[[T]]
dist.mesh @mesh = <["tp"=2]>
func.func @ordered(%x: tensor<13xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<13xf32>})
    -> (tensor<8x32xf32> {dist.sharding = #dist.sharding<@mesh, [(13 pad 16 zigzag 2{"tp"}), {}]>, dist.global = tensor<13x32xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.broadcast %x : (tensor<13xf32>) -> tensor<32x13xf32>
  %1 = nn.transpose %0 [1, 0] : (tensor<32x13xf32>) -> tensor<13x32xf32>
  %2 = dist.pad %1 dims [0] : (tensor<13x32xf32>) -> tensor<16x32xf32>
  %3 = dist.reorder %2 dim 0 from <13 pad 16> to <13 pad 16 zigzag 2> : tensor<16x32xf32>
  %4 = dist.slice %3 axes ["tp"] dims [0] : (tensor<16x32xf32>) -> tensor<8x32xf32>
  return %4 : tensor<8x32xf32>
}

// -----

// Nothing is gained where operands are as large, or the whole is needed, too.
// CHECK-LABEL: func.func @stays
// CHECK: %[[A:.*]] = nn.add
// CHECK: dist.slice %[[A]]
// CHECK: %[[B:.*]] = nn.broadcast
// CHECK: dist.slice %[[B]]
dist.mesh @mesh = <["tp"=2]>
func.func @stays(
    %x: tensor<16x32xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x32xf32>},
    %y: tensor<32xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<32xf32>})
    -> (tensor<8x32xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x32xf32>},
        tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>},
        tensor<16x32xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x32xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.add %x, %x : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %1 = dist.slice %0 axes ["tp"] dims [0] : (tensor<16x32xf32>) -> tensor<8x32xf32>
  %2 = nn.broadcast %y : (tensor<32xf32>) -> tensor<16x32xf32>
  %3 = dist.slice %2 axes ["tp"] dims [1] : (tensor<16x32xf32>) -> tensor<16x16xf32>
  return %1, %3, %2 : tensor<8x32xf32>, tensor<16x16xf32>, tensor<16x32xf32>
}

// -----

// A part of a constant, or of a value that is one element, would not tell padding from the 13 true
// elements. A slice that appends no padding moves.
// CHECK-LABEL: func.func @true_sizes
// CHECK: %[[ONES:.*]] = nn.neg %{{.*}} : tensor<13xf32>
// CHECK: %[[PAD:.*]] = dist.pad %[[ONES]] dims [0] : (tensor<13xf32>) -> tensor<14xf32>
// CHECK: %[[S:.*]] = dist.slice %[[PAD]]
// CHECK: nn.reduce sum %[[S]]
// CHECK: %[[E:.*]] = nn.neg %{{.*}} : tensor<13xf32>
// CHECK: %[[P:.*]] = dist.slice %[[E]] axes ["tp"] dims [0] : (tensor<13xf32>) -> tensor<7xf32>
// CHECK: nn.reduce sum %[[P]]
// CHECK: %[[B:.*]] = nn.broadcast %{{.*}} : (tensor<8xf32>) -> tensor<32x8xf32>
// CHECK: return %{{.*}}, %{{.*}}, %[[B]]
dist.mesh @mesh = <["tp"=2]>
func.func @true_sizes(
    %x: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<1xf32>},
    %y: tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>})
    -> (tensor<f32> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<f32>},
        tensor<f32> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<f32>},
        tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<32x16xf32>})
    attributes {dist.spmd = @mesh} {
  %one = nn.constant dense<1.0> : tensor<13xf32>
  %0 = nn.neg %one : tensor<13xf32>
  %1 = dist.pad %0 dims [0] : (tensor<13xf32>) -> tensor<14xf32>
  %2 = dist.slice %1 axes ["tp"] dims [0] : (tensor<14xf32>) -> tensor<7xf32>
  %3 = nn.reduce sum %2 dims [0] : (tensor<7xf32>) -> tensor<f32>
  %4 = dist.all_reduce sum %3 axes ["tp"] : (tensor<f32>) -> tensor<f32>
  %b = nn.broadcast %x : (tensor<1xf32>) -> tensor<13xf32>
  %5 = nn.neg %b : tensor<13xf32>
  %6 = dist.slice %5 axes ["tp"] dims [0] : (tensor<13xf32>) -> tensor<7xf32>
  %7 = nn.reduce sum %6 dims [0] : (tensor<7xf32>) -> tensor<f32>
  %8 = dist.all_reduce sum %7 axes ["tp"] : (tensor<f32>) -> tensor<f32>
  %9 = nn.broadcast %y : (tensor<16xf32>) -> tensor<32x16xf32>
  %10 = dist.slice %9 axes ["tp"] dims [1] : (tensor<32x16xf32>) -> tensor<32x8xf32>
  return %4, %8, %10 : tensor<f32>, tensor<f32>, tensor<32x8xf32>
}

// -----

// Padding that is zero after the move, too: the slice moves.
// CHECK-LABEL: func.func @padding_that_stays_zero
// CHECK: %[[S:.*]] = dist.slice %{{.*}} axes ["tp"] dims [0] : (tensor<13xf32>) -> tensor<7xf32>
// CHECK: nn.broadcast %[[S]] : (tensor<7xf32>) -> tensor<32x7xf32>
dist.mesh @mesh = <["tp"=2]>
func.func @padding_that_stays_zero(
    %x: tensor<13xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<13xf32>})
    -> (tensor<32xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<32xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.broadcast %x : (tensor<13xf32>) -> tensor<32x13xf32>
  %1 = dist.slice %0 axes ["tp"] dims [1] : (tensor<32x13xf32>) -> tensor<32x7xf32>
  %2 = nn.reduce sum %1 dims [1] : (tensor<32x7xf32>) -> tensor<32xf32>
  %3 = dist.all_reduce sum %2 axes ["tp"] : (tensor<32xf32>) -> tensor<32xf32>
  return %3 : tensor<32xf32>
}

// -----

// The sum reads the padding of its operand as zeros. Behind a move past the addition it would be
// ones: the slice stays.
// CHECK-LABEL: func.func @padding_that_is_read
// CHECK: %[[A:.*]] = nn.add %{{.*}}, %{{.*}} : (tensor<32x13xf32>, tensor<32x13xf32>)
// CHECK: %[[S:.*]] = dist.slice %[[A]]
// CHECK: nn.reduce sum %[[S]]
dist.mesh @mesh = <["tp"=2]>
func.func @padding_that_is_read(
    %x: tensor<13xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<13xf32>})
    -> (tensor<32xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<32xf32>})
    attributes {dist.spmd = @mesh} {
  %one = nn.constant dense<1.0> : tensor<32x13xf32>
  %0 = nn.broadcast %x : (tensor<13xf32>) -> tensor<32x13xf32>
  %1 = nn.add %0, %one : (tensor<32x13xf32>, tensor<32x13xf32>) -> tensor<32x13xf32>
  %2 = dist.slice %1 axes ["tp"] dims [1] : (tensor<32x13xf32>) -> tensor<32x7xf32>
  %3 = nn.reduce sum %2 dims [1] : (tensor<32x7xf32>) -> tensor<32xf32>
  %4 = dist.all_reduce sum %3 axes ["tp"] : (tensor<32xf32>) -> tensor<32xf32>
  return %4 : tensor<32xf32>
}

// -----

// Rows of the result are no rows of the broadcast value, whose boundaries differ.
// CHECK-LABEL: func.func @other_boundaries
// CHECK: %[[R:.*]] = nn.reshape %{{.*}} : (tensor<5x6xf32>) -> tensor<6x5xf32>
// CHECK: dist.slice %[[R]]
dist.mesh @mesh = <["y"=2]>
func.func @other_boundaries(
    %x: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<6xf32>})
    -> (tensor<3x1xf32> {dist.sharding = #dist.sharding<@mesh, [{"y"}, {}]>, dist.global = tensor<6x1xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.broadcast %x : (tensor<6xf32>) -> tensor<5x6xf32>
  %1 = nn.reshape %0 : (tensor<5x6xf32>) -> tensor<6x5xf32>
  %2 = dist.slice %1 axes ["y"] dims [0] : (tensor<6x5xf32>) -> tensor<3x5xf32>
  %3 = nn.reduce max %2 dims [1] {keep_dims} : (tensor<3x5xf32>) -> tensor<3x1xf32>
  return %3 : tensor<3x1xf32>
}

// -----

// Equal elements that a rank counts. Above the broadcast, no reader of the slice tells how many there are on all
// ranks.
// CHECK-LABEL: func.func @equal_rows
// CHECK: nn.broadcast {{.*}} -> tensor<4x3x4xf32>
// CHECK-NEXT: dist.slice
// CHECK-NEXT: dist.all_to_all
dist.mesh @mesh = <["tp"=4]>
func.func @equal_rows(
    %x: tensor<1x3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp":(2)2}]>, dist.global = tensor<1x3x8xf32>},
    %y: tensor<1x3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>, dist.global = tensor<4x3x8xf32>})
    -> (tensor<1x3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>, dist.global = tensor<4x3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.broadcast %x : (tensor<1x3x4xf32>) -> tensor<4x3x4xf32>
  %1 = dist.slice %0 axes ["tp":(1)2] dims [0] : (tensor<4x3x4xf32>) -> tensor<2x3x4xf32>
  %2 = dist.all_to_all %1 axes ["tp":(2)2] from [2] to [0] : (tensor<2x3x4xf32>) -> tensor<1x3x8xf32>
  %3 = nn.add %2, %y : (tensor<1x3x8xf32>, tensor<1x3x8xf32>) -> tensor<1x3x8xf32>
  return %3 : tensor<1x3x8xf32>
}

// -----

// A slice of the backward pass moves up into the forward pass, and loses its mark: the backward
// pass begins at the first op that has it. Two slices that differ in their marks alone
// are one.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: %[[X:[a-z0-9]*]]: tensor<64xi1>
// CHECK: %[[SLICE:.*]] = dist.slice %[[X]] axes ["ring"] dims [0] : (tensor<64xi1>) -> tensor<32xi1>
// CHECK-NEXT: %[[S:.*]] = nn.cast %[[SLICE]] : (tensor<32xi1>) -> tensor<32xf32>
// CHECK-NEXT: %[[Y:.*]] = nn.exp %[[S]] : tensor<32xf32>
// CHECK-NEXT: %[[Z:.*]] = nn.mul %[[S]], %[[Y]] {nn.backward}
// CHECK-NEXT: return %[[Z]]
dist.mesh @mesh = <["ring"=2]>
func.func @backward(%x: tensor<64xi1> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<64xi1>})
    -> (tensor<32xf32> {dist.sharding = #dist.sharding<@mesh, [{"ring"}]>, dist.global = tensor<64xf32>})
    attributes {dist.spmd = @mesh} {
  %n = nn.cast %x : (tensor<64xi1>) -> tensor<64xf32>
  %s = dist.slice %n axes ["ring"] dims [0] : (tensor<64xf32>) -> tensor<32xf32>
  %y = nn.exp %s : tensor<32xf32>
  %b = dist.slice %n axes ["ring"] dims [0] {nn.backward} : (tensor<64xf32>) -> tensor<32xf32>
  %z = nn.mul %b, %y {nn.backward} : (tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32>
  return %z : tensor<32xf32>
}
