// RUN: sharding-opt %s --verify-placement --split-input-file | sharding-opt --split-input-file | FileCheck %s

// Ulysses' exchange: from tokens to heads and back.
// CHECK-LABEL: func.func @all_to_all
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @all_to_all(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<32x8xf32>})
    -> (tensor<16x2xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, dist.global = tensor<32x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<32x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_to_all %x axes ["tp"] from [0] to [1] : (tensor<4x8xf32>) -> tensor<16x2xf32>
  %1 = dist.all_to_all %0 axes ["tp"] from [1] to [0] : (tensor<16x2xf32>) -> tensor<4x8xf32>
  return %0, %1 : tensor<16x2xf32>, tensor<4x8xf32>
}

// -----

// A permute that exchanges the roles of two axes, of chunks and of parts of a
// sum alike; a shift of parts leaves their sum.
// CHECK-LABEL: func.func @permute
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @permute(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<16x8xf32>},
                   %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}], unreduced = {"tp"}>, dist.global = tensor<8x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp", "dp"}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>, dist.global = tensor<8x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}], unreduced = {"tp"}>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0:2 = dist.permute %x, %y axes ["dp", "tp"] pairs [[0, 0], [1, 2], [2, 1], [3, 3]] : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
  %1 = dist.permute %y axes ["tp"] shift 1 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0#0, %0#1, %1 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// The two layouts of a redistribution may be written on meshes of their own.
// CHECK-LABEL: func.func @redistribute
dist.mesh @mesh = <["x"=4, "y"=2]>
dist.mesh @other = <["a"=2, "b"=4]>
func.func @redistribute(%x: tensor<8x16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"y"}, {}, {"x"}]>, dist.global = tensor<16x16x16xf32>})
    -> (tensor<16x8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"x":(1)2}, {"x":(2)2, "y"}]>, dist.global = tensor<16x16x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{"y"}, {}, {"x"}]>] to [#dist.sharding<@other, [{}, {"a"}, {"b"}]>] : (tensor<8x16x4xf32>) -> tensor<16x8x4xf32>
  return %0 : tensor<16x8x4xf32>
}

// -----

// Between cuts of the ranks that do not fit, each side padded as it needs.
// CHECK-LABEL: func.func @crossing
dist.mesh @mesh = <["x"=6]>
func.func @crossing(%x: tensor<4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}]>, dist.global = tensor<7x5xf32>})
    -> (tensor<3x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"x":(1)3}, {"x":(3)2}]>, dist.global = tensor<7x5xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}]>] to [#dist.sharding<@mesh, [{"x":(1)3}, {"x":(3)2}]>] : (tensor<4x2xf32>) -> tensor<3x3xf32>
  return %0 : tensor<3x3xf32>
}

// -----

// Logits over a vocabulary in chunks: maxima and sums of one number a row. The
// padding of the vocabulary is masked where it is read.
// CHECK-LABEL: func.func @sharded_softmax
dist.mesh @mesh = <["tp"=4]>
func.func @sharded_softmax(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x30xf32>})
    -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x30xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.mask_padding %x axes ["tp"] dim 1 size 30 value 0xFFF0000000000000 : tensor<8x8xf32>
  %1 = nn.reduce max %0 dims [1] {keep_dims} : (tensor<8x8xf32>) -> tensor<8x1xf32>
  %2 = dist.all_reduce max %1 axes ["tp"] : (tensor<8x1xf32>) -> tensor<8x1xf32>
  %3 = nn.sub %0, %2 : (tensor<8x8xf32>, tensor<8x1xf32>) -> tensor<8x8xf32>
  %4 = nn.exp %3 : tensor<8x8xf32>
  %5 = nn.reduce sum %4 dims [1] {keep_dims} : (tensor<8x8xf32>) -> tensor<8x1xf32>
  %6 = dist.all_reduce sum %5 axes ["tp"] : (tensor<8x1xf32>) -> tensor<8x1xf32>
  %7 = nn.div %4, %6 : (tensor<8x8xf32>, tensor<8x1xf32>) -> tensor<8x8xf32>
  return %7 : tensor<8x8xf32>
}

// -----

// A residual may join a partial sum as one part of it; a reduction over two axes
// may be taken one at a time, and parts may be scaled by what all ranks know.
// CHECK-LABEL: func.func @partial
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @partial(%x: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"dp", "tp"}]>, dist.global = tensor<8x32xf32>},
                   %w: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"dp", "tp"}]>, dist.global = tensor<16x32xf32>},
                   %r: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<2x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
  %1 = nn.mul %0, %r : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = dist.partial %r axes ["dp", "tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %3 = nn.add %1, %2 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %4 = dist.all_reduce sum %3 axes ["dp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %5 = dist.reduce_scatter sum %4 axes ["tp"] dims [0] : (tensor<8x16xf32>) -> tensor<2x16xf32>
  return %5 : tensor<2x16xf32>
}

// -----

// Control flow on a rank's coordinate, with nothing to wait for inside: each
// rank's chunk is from one branch or the other.
// CHECK-LABEL: func.func @branch
dist.mesh @mesh = <["tp"=4]>
func.func @branch(%x: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x4xf32>})
    -> (tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x4xf32>})
    attributes {dist.spmd = @mesh} {
  %i = dist.axis_index ["tp"] : tensor<i64>
  %zero = nn.constant dense<0> : tensor<i64>
  %c = nn.compare eq %i, %zero : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %first = tensor.extract %c[] : tensor<i1>
  %r = scf.if %first -> tensor<8x4xf32> {
    %0 = nn.neg %x : tensor<8x4xf32>
    scf.yield %0 : tensor<8x4xf32>
  } else {
    scf.yield %x : tensor<8x4xf32>
  }
  return %r : tensor<8x4xf32>
}

// -----

// Heads repeated for attention that is spelt out: each of 2 key heads serves 4
// query heads, on 8 ranks one each. Masks and splats suit every layout.
// CHECK-LABEL: func.func @repeated_heads
dist.mesh @mesh = <["tp"=8]>
func.func @repeated_heads(%q: tensor<5x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<5x64xf32>},
                          %k: tensor<5x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp":(1)2}]>, dist.global = tensor<5x16xf32>},
                          %wo: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<5x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<5x16xf32>})
    attributes {dist.spmd = @mesh} {
  %q1 = nn.reshape %q : (tensor<5x8xf32>) -> tensor<5x1x8xf32>
  %q2 = nn.transpose %q1 [1, 0, 2] : (tensor<5x1x8xf32>) -> tensor<1x5x8xf32>
  %k1 = nn.reshape %k : (tensor<5x8xf32>) -> tensor<5x1x1x8xf32>
  %k2 = nn.broadcast %k1 : (tensor<5x1x1x8xf32>) -> tensor<5x1x1x8xf32>
  %k3 = nn.reshape %k2 : (tensor<5x1x1x8xf32>) -> tensor<5x1x8xf32>
  %k4 = nn.transpose %k3 [1, 0, 2] : (tensor<5x1x8xf32>) -> tensor<1x5x8xf32>
  %s = nn.matmul %q2, %k4 {transpose_rhs} : (tensor<1x5x8xf32>, tensor<1x5x8xf32>) -> tensor<1x5x5xf32>
  %two = nn.constant dense<2.0> : tensor<1x5x5xf32>
  %t = nn.div %s, %two : (tensor<1x5x5xf32>, tensor<1x5x5xf32>) -> tensor<1x5x5xf32>
  %p = nn.softmax %t dim 2 : tensor<1x5x5xf32>
  %o = nn.matmul %p, %k4 : (tensor<1x5x5xf32>, tensor<1x5x8xf32>) -> tensor<1x5x8xf32>
  %o1 = nn.transpose %o [1, 0, 2] : (tensor<1x5x8xf32>) -> tensor<5x1x8xf32>
  %o2 = nn.reshape %o1 : (tensor<5x1x8xf32>) -> tensor<5x8xf32>
  %o3 = nn.linear %o2, %wo : (tensor<5x8xf32>, tensor<16x8xf32>) -> tensor<5x16xf32>
  %r = dist.all_reduce sum %o3 axes ["tp"] : (tensor<5x16xf32>) -> tensor<5x16xf32>
  return %r : tensor<5x16xf32>
}

// -----

// Equal elements stay equal for any true size of the dimension.
// CHECK-LABEL: func.func @redistribute_equal_elements
dist.mesh @mesh = <["x"=2, "y"=3]>
func.func @redistribute_equal_elements()
    -> (tensor<1x3xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>, dist.global = tensor<1x4xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.constant dense<0.5> : tensor<1x1xf32>
  %1 = dist.redistribute %0 from [#dist.sharding<@mesh, [{}, {"y", "x"}]>] to [#dist.sharding<@mesh, [{}, {"x"}]>] : (tensor<1x1xf32>) -> tensor<1x3xf32>
  return %1 : tensor<1x3xf32>
}

// -----

// A gather over axes that are not the minor-most ones leaves rows of every stride, as a product
// of factors. Rows 2 and 6 are together here.
// CHECK-LABEL: func.func @gather_major_axes
dist.mesh @mesh = <["x"=4, "y"=2]>
func.func @gather_major_axes(%b: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"y", "x"}]>, dist.global = tensor<8xf32>})
    -> (tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [(2, 4{"x"})]>, dist.global = tensor<8xf32>},
        tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [(4{"y", "x":(1)2}, 2)]>, dist.global = tensor<8xf32>},
        tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [(2{"y"}, 2, 2{"x":(2)2})]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %b axes ["y"] dims [0] : (tensor<1xf32>) -> tensor<2xf32>
  %1 = dist.all_gather %b axes ["x":(2)2] dims [0] : (tensor<1xf32>) -> tensor<2xf32>
  %2 = dist.all_gather %b axes ["x":(1)2] dims [0] : (tensor<1xf32>) -> tensor<2xf32>
  return %0, %1, %2 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
}

// -----

// 2 padded to 4 is 1 padded to 2, times 2.
// CHECK-LABEL: func.func @padded_product
dist.mesh @mesh = <["x"=2, "y"=2]>
func.func @padded_product(
    %a: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [(1 pad 2{"x"}, 2{"y"})]>, dist.global = tensor<2xf32>},
    %b: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [(2 pad 4{"x", "y"})]>, dist.global = tensor<2xf32>},
    %c: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [(1 pad 2{"x"}, 2)]>, dist.global = tensor<2xf32>},
    %d: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [(2 pad 4{"x"})]>, dist.global = tensor<2xf32>})
    -> (tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [(2 pad 4{"x", "y"})]>, dist.global = tensor<2xf32>},
        tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [(2 pad 4{"x"})]>, dist.global = tensor<2xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.add %a, %b : (tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32>
  %1 = nn.add %c, %d : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %0, %1 : tensor<1xf32>, tensor<2xf32>
}

// -----

// A chunk at its place is a part of a sum over the ranks that have the others. Its padding stays the
// tail.
// CHECK-LABEL: func.func @place
dist.mesh @mesh = <["dp"=2, "ring"=4]>
func.func @place(%x: tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"ring"}]>, dist.global = tensor<6x15xf32>})
    -> (tensor<3x15xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}], unreduced = {"ring"}>, dist.global = tensor<6x15xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["ring"] shift 1 : (tensor<3x4xf32>) -> tensor<3x4xf32>
  %1 = dist.place %0 axes ["ring"] dim 1 shifts [1] : (tensor<3x4xf32>) -> tensor<3x16xf32>
  %2 = nn.slice %1 starts [0, 0] limits [3, 15] strides [1, 1] : (tensor<3x16xf32>) -> tensor<3x15xf32>
  return %2 : tensor<3x15xf32>
}

// -----

// The second chunk begins within a pair of equal elements.
// CHECK-LABEL: func.func @chunk_of_pairs
dist.mesh @mesh = <["tp"=2]>
func.func @chunk_of_pairs(%x: tensor<7xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<7xf32>})
    -> (tensor<7xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<14xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %x : (tensor<7xf32>) -> tensor<7x1xf32>
  %1 = nn.broadcast %0 : (tensor<7x1xf32>) -> tensor<7x2xf32>
  %2 = nn.reshape %1 : (tensor<7x2xf32>) -> tensor<14xf32>
  %3 = dist.slice %2 axes ["tp"] dims [0] : (tensor<14xf32>) -> tensor<7xf32>
  return %3 : tensor<7xf32>
}
