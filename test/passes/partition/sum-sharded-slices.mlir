// RUN: sharding-opt %s --sum-sharded-slices --split-input-file | FileCheck %s
// RUN: sharding-opt %s --sum-sharded-slices --remarks=applied,declined --split-input-file 2>&1 >/dev/null | FileCheck %s --check-prefix=REMARK
// RUN: sharding-opt %s --sum-sharded-slices --partition --verify-placement --split-input-file | FileCheck %s --check-prefix=SPMD

// The last token: its rank has it, the others have zero.
// REMARK: remark: [sum-sharded-slices] applied: 1 of 14 elements of a dimension over 2 ranks are summed: a sum sends 128 bytes and holds 1 x a chunk, a gather 896 and 2 x a chunk
// CHECK-LABEL: @last(
// CHECK-SAME: %[[X:.*]]: tensor<1x14x32xf32>
// CHECK: %[[T:.*]] = nn.constant {{.*}}dense<13> : tensor<i64>
// CHECK: %[[I:.*]] = nn.iota dim 0 {dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 2{"ring"})]>} : tensor<14xi64>
// CHECK: %[[C:.*]] = nn.reshape %[[I]] {dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 2{"ring"}), {}]>} : (tensor<14xi64>) -> tensor<14x1xi64>
// CHECK: %[[M:.*]] = nn.compare eq %[[C]], %[[T]]
// CHECK: %[[Z:.*]] = nn.constant {{.*}}dense<0.000000e+00> : tensor<f32>
// CHECK: %[[S:.*]] = nn.select %[[M]], %[[X]], %[[Z]] {dist.sharding = #dist.sharding<@mesh, [{}, (14 pad 16 zigzag 2{"ring"}), {}]>}
// CHECK: %[[R:.*]] = nn.reduce sum %[[S]] dims [1] {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, keep_dims, nn.id = 7 : i64}
// CHECK: return %[[R]]
// Positions are cut like the tokens; the condition of padding is false, so nothing else is masked.
// SPMD-LABEL: @last(
// SPMD: %[[I:.*]] = nn.iota dim 0 : tensor<14xi64>
// SPMD: %[[C:.*]] = dist.slice {{.*}} -> tensor<8xi64>
// SPMD: %[[M:.*]] = nn.compare eq {{.*}} -> tensor<8x1xi1>
// SPMD: dist.positions <14 pad 16 zigzag 2{"ring"}> : tensor<8xi64>
// SPMD: %[[T:.*]] = nn.and %{{.*}}, %[[M]] : (tensor<8x1xi1>, tensor<8x1xi1>) -> tensor<8x1xi1>
// SPMD: %[[S:.*]] = nn.select %[[T]], %{{.*}} -> tensor<1x8x32xf32>
// SPMD-NEXT: %[[P:.*]] = nn.reduce sum %[[S]] dims [1] {keep_dims} : (tensor<1x8x32xf32>) -> tensor<1x1x32xf32>
// SPMD-NEXT: %[[R:.*]] = dist.all_reduce sum %[[P]] axes ["ring"] {nn.id = 7 : i64}
// SPMD-NEXT: return %[[R]]
dist.mesh @mesh = <["ring"=2]>
func.func @last(%x: tensor<1x14x32xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, (14 pad 16 zigzag 2{"ring"}), {}]>})
    -> (tensor<1x1x32xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>}) {
  %y = nn.slice %x starts [0, 13, 0] limits [1, 14, 32] strides [1, 1, 1] {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, nn.id = 7 : i64} : (tensor<1x14x32xf32>) -> tensor<1x1x32xf32>
  return %y : tensor<1x1x32xf32>
}

// -----

// Several, with a stride; what the slice takes of other dimensions it takes first.
// REMARK: remark: [sum-sharded-slices] applied: 2 of 12 elements of a dimension over 4 ranks are summed: a sum sends 96 bytes and holds 2 x a chunk, a gather 288 and 4 x a chunk
// CHECK-LABEL: @strided(
// CHECK-SAME: %[[X:.*]]: tensor<2x12x8xf32>
// CHECK: %[[F:.*]] = nn.slice %[[X]] starts [0, 0, 3] limits [2, 12, 7] strides [1, 1, 1] {dist.sharding = #dist.sharding<@mesh, [{}, {"ring", "ulysses"}, {}]>}
// CHECK: nn.constant {{.*}}dense<{{\[\[\[}}4]], {{\[\[}}9]]]> : tensor<2x1x1xi64>
// CHECK: %[[G:.*]] = nn.reshape %[[F]] {{.*}} : (tensor<2x12x4xf32>) -> tensor<2x1x12x4xf32>
// CHECK: %[[S:.*]] = nn.select %{{.*}}, %[[G]], {{.*}} -> tensor<2x2x12x4xf32>
// CHECK: nn.reduce sum %[[S]] dims [2] {{.*}} : (tensor<2x2x12x4xf32>) -> tensor<2x2x4xf32>
// SPMD-LABEL: @strided(
// SPMD: nn.slice %{{.*}} starts [0, 0, 3] limits [2, 3, 7]
// SPMD: dist.all_reduce sum %{{.*}} axes ["ring", "ulysses"] : (tensor<2x2x4xf32>)
dist.mesh @mesh = <["ring"=2, "ulysses"=2]>
func.func @strided(%x: tensor<2x12x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"ring", "ulysses"}, {}]>})
    -> (tensor<2x2x4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>}) {
  %y = nn.slice %x starts [0, 4, 3] limits [2, 10, 7] strides [1, 5, 1] {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>} : (tensor<2x12x8xf32>) -> tensor<2x2x4xf32>
  return %y : tensor<2x2x4xf32>
}

// -----

// An index for each sequence of the batch: compared once a token, not once a feature.
// CHECK-LABEL: @each(
// CHECK-SAME: %[[X:.*]]: tensor<4x12x8xbf16> {{.*}}, %[[N:.*]]: tensor<4x1x1xi64>
// The lookup fails where an index is out of range.
// CHECK: %[[T:.*]] = nn.iota dim 0 {dist.sharding = #dist.sharding<@mesh, [{}]>} : tensor<12xi64>
// CHECK: %[[G:.*]] = nn.gather %[[T]], %[[N]] dim 0 {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>}
// CHECK: %[[P:.*]] = nn.reshape %[[G]] {{.*}} : (tensor<4x1x1xi64>) -> tensor<4x1x1x1xi64>
// CHECK: nn.compare eq %{{.*}}, %[[P]] {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {"ring"}, {}]>} : (tensor<12x1xi64>, tensor<4x1x1x1xi64>) -> tensor<4x1x12x1xi1>
// CHECK: nn.reduce sum %{{.*}} dims [2] {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>} : (tensor<4x1x12x8xbf16>) -> tensor<4x1x8xbf16>
// SPMD-LABEL: @each(
// SPMD: nn.compare {{.*}} -> tensor<2x1x6x1xi1>
// SPMD: dist.all_reduce sum %{{.*}} axes ["ring"] : (tensor<2x1x8xbf16>)
dist.mesh @mesh = <["dp"=2, "ring"=2]>
func.func @each(%x: tensor<4x12x8xbf16> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"ring"}, {}]>},
                %n: tensor<4x1x1xi64> {nn.input = "n", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>})
    -> (tensor<4x1x8xbf16> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>}) {
  %i = nn.broadcast %n {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>} : (tensor<4x1x1xi64>) -> tensor<4x1x8xi64>
  %y = nn.take_along %x, %i dim 1 {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>} : (tensor<4x12x8xbf16>, tensor<4x1x8xi64>) -> tensor<4x1x8xbf16>
  return %y : tensor<4x1x8xbf16>
}

// -----

// Rows by index, of a dimension that is the last.
// CHECK-LABEL: @rows(
// CHECK: %[[P:.*]] = nn.reshape %{{.*}} : (tensor<2xi32>) -> tensor<2x1xi32>
// CHECK: nn.iota dim 0 {dist.sharding = #dist.sharding<@mesh, [{"ring"}]>} : tensor<12xi32>
// CHECK: nn.compare eq %{{.*}}, %[[P]] {dist.sharding = #dist.sharding<@mesh, [{}, {"ring"}]>} : (tensor<12xi32>, tensor<2x1xi32>) -> tensor<2x12xi1>
// CHECK: nn.reduce sum %{{.*}} dims [2] {{.*}} : (tensor<8x2x12xi64>) -> tensor<8x2xi64>
// SPMD-LABEL: @rows(
// SPMD-NOT: all_gather
// SPMD: return
dist.mesh @mesh = <["ring"=2]>
func.func @rows(%x: tensor<8x12xi64> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"ring"}]>},
                %n: tensor<2xi32> {nn.input = "n", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<8x2xi64> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %y = nn.gather %x, %n dim 1 {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<8x12xi64>, tensor<2xi32>) -> tensor<8x2xi64>
  return %y : tensor<8x2xi64>
}

// -----

// Two sharded dimensions, one after the other.
// CHECK-LABEL: @corner(
// CHECK-NOT: nn.slice
// CHECK: nn.reduce sum %{{.*}} dims [1] {{.*}} : (tensor<8x12xf32>) -> tensor<8x1xf32>
// CHECK-NOT: nn.slice
// CHECK: return
// SPMD-LABEL: @corner(
// SPMD-NOT: all_gather
// SPMD: return
dist.mesh @mesh = <["a"=2, "b"=3]>
func.func @corner(%x: tensor<8x12xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"a"}, {"b"}]>})
    -> (tensor<1x1xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %y = nn.slice %x starts [7, 4] limits [8, 5] strides [1, 1] {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<8x12xf32>) -> tensor<1x1xf32>
  return %y : tensor<1x1xf32>
}

// -----

// More elements than ranks, a sum of more bytes, booleans, and dimensions that are not shared.
// REMARK: remark: [sum-sharded-slices] declined: 3 of 12 elements of a dimension over 2 ranks are gathered: a sum sends 96 bytes and holds 3 x a chunk, a gather 192 and 2 x a chunk
// REMARK: remark: [sum-sharded-slices] declined: 2 of 3 elements of a dimension over 2 ranks are gathered: a sum sends 16 bytes and holds 2 x a chunk, a gather 16 and 2 x a chunk
// REMARK-NOT: remark
// CHECK-LABEL: @left(
// CHECK-NOT: nn.reduce
// CHECK: return
// SPMD-LABEL: @left(
dist.mesh @mesh = <["ring"=2]>
func.func @left(%x: tensor<12x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"ring"}, {}]>},
                %z: tensor<3x2xf32> {nn.input = "z", dist.sharding = #dist.sharding<@mesh, [{"ring"}, {}]>},
                %b: tensor<12x8xi1> {nn.input = "b", dist.sharding = #dist.sharding<@mesh, [{"ring"}, {}]>})
    -> (tensor<3x8xf32> {nn.output = "y"}, tensor<2x2xf32> {nn.output = "u"}, tensor<1x8xi1> {nn.output = "v"}, tensor<12x1xf32> {nn.output = "w", dist.sharding = #dist.sharding<@mesh, [{"ring"}, {}]>}) {
  %y = nn.slice %x starts [4, 0] limits [7, 8] strides [1, 1] {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<12x8xf32>) -> tensor<3x8xf32>
  %u = nn.slice %z starts [0, 0] limits [2, 2] strides [1, 1] {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<3x2xf32>) -> tensor<2x2xf32>
  %v = nn.slice %b starts [4, 0] limits [5, 8] strides [1, 1] {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<12x8xi1>) -> tensor<1x8xi1>
  %w = nn.slice %x starts [0, 2] limits [12, 3] strides [1, 1] {dist.sharding = #dist.sharding<@mesh, [{"ring"}, {}]>} : (tensor<12x8xf32>) -> tensor<12x1xf32>
  return %y, %u, %v, %w : tensor<3x8xf32>, tensor<2x2xf32>, tensor<1x8xi1>, tensor<12x1xf32>
}
