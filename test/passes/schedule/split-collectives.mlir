// RUN: sharding-opt %s --split-input-file --split-collectives="when=on chunks=2" --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --split-input-file --split-collectives --report-decisions 2>&1 -o /dev/null | FileCheck %s --check-prefix=LOG

// The products on either side of an all-reduce: one chunk is summed while the
// other is computed. On this mesh a rank computes much slower than it sends.

// CHECK-LABEL: func.func @all_reduce
// CHECK: %[[X0:.*]] = nn.slice %arg0 starts [0, 0] limits [16, 8] strides [1, 1]
// CHECK: %[[A0:.*]] = nn.linear %[[X0]], %arg1
// CHECK: %[[R0:.*]] = dist.all_reduce sum %[[A0]] axes ["tp"] : (tensor<16x16xf32>)
// CHECK: %[[X1:.*]] = nn.slice %arg0 starts [16, 0] limits [32, 8] strides [1, 1]
// CHECK: %[[A1:.*]] = nn.linear %[[X1]], %arg1
// CHECK: %[[R1:.*]] = dist.all_reduce sum %[[A1]] axes ["tp"] : (tensor<16x16xf32>)
// CHECK: %[[S0:.*]] = nn.relu %[[R0]]
// CHECK: %[[B0:.*]] = nn.linear %[[S0]], %arg2
// CHECK: %[[S1:.*]] = nn.relu %[[R1]]
// CHECK: %[[B1:.*]] = nn.linear %[[S1]], %arg2
// CHECK: %[[Y:.*]] = nn.concat %[[B0]], %[[B1]] dim 0
// CHECK: return %[[Y]]
// LOG: applied: collectives and the products around them run in chunks of their rows
// LOG-SAME: exposed_before_seconds
dist.mesh @mesh = <["tp"=4], device = "flops_f32=1e9 memory_bandwidth=1e12 link_bandwidth=1e9">
func.func @all_reduce(
    %x: tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<32x32xf32>},
    %w: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>, nn.parameter = "w"},
    %v: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>, nn.parameter = "v"})
    -> (tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<32x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<32x8xf32>, tensor<16x8xf32>) -> tensor<32x16xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<32x16xf32>) -> tensor<32x16xf32>
  %2 = nn.relu %1 : tensor<32x16xf32>
  %3 = nn.linear %2, %v : (tensor<32x16xf32>, tensor<8x16xf32>) -> tensor<32x8xf32>
  return %3 : tensor<32x8xf32>
}

// -----

// 13 tokens on 4 ranks: chunks of 8 and of 5 rows, the latter padded to 8. In
// between each rank has a part of each chunk.

// CHECK-LABEL: func.func @reduce_scatter
// CHECK-NOT: dist.pad
// CHECK: dist.reduce_scatter {{.*}} : (tensor<8x16xf32>) -> tensor<2x16xf32>
// CHECK: nn.slice %arg0 starts [8, 0] limits [13, 8]
// CHECK: dist.pad {{.*}} : (tensor<5x16xf32>) -> tensor<8x16xf32>
// CHECK: dist.reduce_scatter {{.*}} : (tensor<8x16xf32>) -> tensor<2x16xf32>
// CHECK: nn.rms_norm {{.*}} -> tensor<2x16xf32>
// CHECK: %[[G0:.*]] = dist.all_gather {{.*}} : (tensor<2x16xf32>) -> tensor<8x16xf32>
// CHECK: %[[G1:.*]] = dist.all_gather {{.*}} : (tensor<2x16xf32>) -> tensor<8x16xf32>
// CHECK: nn.linear %[[G0]]
// CHECK: %[[T:.*]] = nn.slice %[[G1]] starts [0, 0] limits [5, 16]
// CHECK: nn.linear %[[T]]
// CHECK: nn.concat {{.*}} dim 0 : (tensor<8x8xf32>, tensor<5x8xf32>) -> tensor<13x8xf32>
dist.mesh @mesh = <["tp"=4]>
func.func @reduce_scatter(
    %x: tensor<13x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<13x32xf32>},
    %w: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>, nn.parameter = "w"},
    %v: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>, nn.parameter = "v"})
    -> (tensor<13x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<13x32xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<13x8xf32>, tensor<16x8xf32>) -> tensor<13x16xf32>
  %1 = dist.pad %0 dims [0] : (tensor<13x16xf32>) -> tensor<16x16xf32>
  %2 = dist.reduce_scatter sum %1 axes ["tp"] dims [0] : (tensor<16x16xf32>) -> tensor<4x16xf32>
  %3 = nn.rms_norm %2 eps 1.0e-6 : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %4 = dist.all_gather %3 axes ["tp"] dims [0] : (tensor<4x16xf32>) -> tensor<16x16xf32>
  %5 = nn.slice %4 starts [0, 0] limits [13, 16] strides [1, 1] : (tensor<16x16xf32>) -> tensor<13x16xf32>
  %6 = nn.linear %5, %v : (tensor<13x16xf32>, tensor<8x16xf32>) -> tensor<13x8xf32>
  return %6 : tensor<13x8xf32>
}

// -----

// A batch that is sharded over another axis: each cuts its own. Its single
// tokens cannot be cut.

// CHECK-LABEL: func.func @batch
// CHECK: %[[X:.*]] = nn.reshape %arg0 : (tensor<4x1x8xf32>) -> tensor<1x4x1x8xf32>
// CHECK: nn.slice %[[X]] starts [0, 0, 0, 0] limits [1, 2, 1, 8]
// CHECK: dist.all_reduce {{.*}} : (tensor<2x1x16xf32>)
// CHECK: nn.concat {{.*}} dim 1 : (tensor<1x2x1x16xf32>, tensor<1x2x1x16xf32>) -> tensor<1x4x1x16xf32>
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @batch(
    %x: tensor<4x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {"tp"}]>, dist.global = tensor<8x1x32xf32>},
    %w: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>, nn.parameter = "w"})
    -> (tensor<4x1x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<8x1x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<4x1x8xf32>, tensor<16x8xf32>) -> tensor<4x1x16xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<4x1x16xf32>) -> tensor<4x1x16xf32>
  return %1 : tensor<4x1x16xf32>
}

// -----

// The result promises each rank a chunk of its own.
// CHECK-LABEL: func.func @scattered
// CHECK: dist.reduce_scatter {{.*}} : (tensor<16x16xf32>) -> tensor<4x16xf32>
// LOG: declined: dist.reduce_scatter stays whole: rows that are scattered over {"tp"} leave the ops that can run in chunks
dist.mesh @mesh = <["tp"=4], device = "h100">
func.func @scattered(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>},
    %w: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>, nn.parameter = "w"})
    -> (tensor<4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x16xf32>
  %1 = dist.reduce_scatter sum %0 axes ["tp"] dims [0] : (tensor<16x16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}

// -----

// Few rows: reading the weights twice takes longer than the sum.
// LOG: declined: collectives stay whole: chunks take longer
// LOG-SAME: chunks = 2
dist.mesh @mesh = <["tp"=4], device = "h100">
func.func @small(
    %x: tensor<32x512xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<32x2048xf32>},
    %w: tensor<2048x512xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<2048x2048xf32>, nn.parameter = "w"})
    -> (tensor<32x2048xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<32x2048xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<32x512xf32>, tensor<2048x512xf32>) -> tensor<32x2048xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<32x2048xf32>) -> tensor<32x2048xf32>
  return %1 : tensor<32x2048xf32>
}

// -----

// Cores that exchange through shared memory do nothing beside it.
// LOG: declined: collectives stay whole: nothing runs beside them on this device
dist.mesh @mesh = <["tp"=4], device = "cpu">
func.func @cores(
    %x: tensor<512x512xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<512x2048xf32>},
    %w: tensor<2048x512xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<2048x2048xf32>, nn.parameter = "w"})
    -> (tensor<512x2048xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<512x2048xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<512x512xf32>, tensor<2048x512xf32>) -> tensor<512x2048xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<512x2048xf32>) -> tensor<512x2048xf32>
  return %1 : tensor<512x2048xf32>
}

// -----

// A weight that is gathered is no row of what flows through; neither is a sum
// over the rows next to a product of them.
// CHECK-LABEL: func.func @others
// CHECK: dist.all_gather %arg1 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
// CHECK: dist.all_reduce {{.*}} : (tensor<16xf32>)
// LOG-NOT: applied
dist.mesh @mesh = <["tp"=4]>
func.func @others(
    %x: tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<128x8xf32>},
    %w: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>, nn.parameter = "w"})
    -> (tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>})
    attributes {dist.spmd = @mesh} {
  %g = dist.all_gather %w axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %0 = nn.linear %x, %g : (tensor<32x8xf32>, tensor<16x8xf32>) -> tensor<32x16xf32>
  %1 = nn.reduce sum %0 dims [0] : (tensor<32x16xf32>) -> tensor<16xf32>
  %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<16xf32>) -> tensor<16xf32>
  return %2 : tensor<16xf32>
}

// -----

// Chunks of a rank's rows are no chunks of the sequence where its order is another.
// LOG: declined: dist.all_reduce stays whole: the rows are not in contiguous order where the ops that can run in chunks end
// CHECK-LABEL: func.func @zigzag
// CHECK-NEXT: nn.linear
// CHECK-NEXT: dist.all_reduce
// CHECK-NEXT: return

dist.mesh @mesh = <["ring"=2, "tp"=2], device = "flops_f32=1e9 link_bandwidth=1e9">
func.func @zigzag(
    %x: tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [(64 zigzag 2{"ring"}), {"tp"}]>, dist.global = tensor<64x16xf32>},
    %w: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x16xf32>})
    -> (tensor<32x16xf32> {dist.sharding = #dist.sharding<@mesh, [(64 zigzag 2{"ring"}), {}]>, dist.global = tensor<64x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<32x8xf32>, tensor<16x8xf32>) -> tensor<32x16xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<32x16xf32>) -> tensor<32x16xf32>
  return %1 : tensor<32x16xf32>
}

// -----

// Attention of Ulysses in chunks of two of four key/value heads, and the four queries
// that go with them, from the projections on: chunks of their weights. Three values
// travel in one launch.

// CHECK-LABEL: func.func @heads
// CHECK: %[[Q0:.*]] = nn.slice %arg1 starts [0, 0] limits [8, 8]
// CHECK: nn.linear %arg0, %[[Q0]] : (tensor<1x4x8xf32>, tensor<8x8xf32>) -> tensor<1x4x8xf32>
// CHECK: %[[K0:.*]] = nn.slice %arg2 starts [0, 0] limits [4, 8]
// CHECK: %[[B0:.*]] = nn.slice %arg3 starts [0] limits [4]
// CHECK: nn.linear %arg0, %[[K0]] bias %[[B0]] : (tensor<1x4x8xf32>, tensor<4x8xf32>, tensor<4xf32>) -> tensor<1x4x4xf32>
// CHECK: %[[A0:.*]]:3 = dist.all_to_all {{.*}} axes ["u"] from [2, 2, 2] to [1, 1, 1] : (tensor<1x4x4x2xf32>, tensor<1x2x4x2xf32>, tensor<1x2x4x2xf32>) -> (tensor<1x2x8x2xf32>, tensor<1x1x8x2xf32>, tensor<1x1x8x2xf32>)
// CHECK: nn.slice %arg1 starts [8, 0] limits [16, 8]
// CHECK: nn.slice %arg3 starts [4] limits [8]
// CHECK: %[[A1:.*]]:3 = dist.all_to_all
// CHECK: %[[O0:.*]] = nn.attention %[[A0]]#0, %[[A0]]#1, %[[A0]]#2 scale
// CHECK: %[[R0:.*]] = dist.all_to_all %[[O0]] axes ["u"] from [1] to [2] : (tensor<1x2x8x2xf32>) -> tensor<1x4x4x2xf32>
// CHECK: %[[O1:.*]] = nn.attention %[[A1]]#0, %[[A1]]#1, %[[A1]]#2 scale
// CHECK: %[[R1:.*]] = dist.all_to_all %[[O1]]
// CHECK: %[[Y:.*]] = nn.concat %[[R0]], %[[R1]] dim 1
// CHECK: nn.transpose %[[Y]]
// LOG: applied: collectives and the products around them run in chunks of their rows
// LOG-SAME: rows = 4
// LOG-SAME: collectives = 2
dist.mesh @mesh = <["u"=2], device = "flops_f32=1e8 link_bandwidth=1e7">
func.func @heads(
    %x: tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u"}, {}]>, dist.global = tensor<1x8x8xf32>},
    %wq: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>, nn.parameter = "q"},
    %wk: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>, nn.parameter = "k"},
    %bk: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>, nn.parameter = "b"},
    %wo: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>, nn.parameter = "o"})
    -> (tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u"}, {}]>, dist.global = tensor<1x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %wq : (tensor<1x4x8xf32>, tensor<16x8xf32>) -> tensor<1x4x16xf32>
  %1 = nn.reshape %0 : (tensor<1x4x16xf32>) -> tensor<1x4x8x2xf32>
  %q = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x4x8x2xf32>) -> tensor<1x8x4x2xf32>
  %2 = nn.linear %x, %wk bias %bk : (tensor<1x4x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<1x4x8xf32>
  %3 = nn.reshape %2 : (tensor<1x4x8xf32>) -> tensor<1x4x4x2xf32>
  %k = nn.transpose %3 [0, 2, 1, 3] : (tensor<1x4x4x2xf32>) -> tensor<1x4x4x2xf32>
  %4:3 = dist.all_to_all %q, %k, %k axes ["u"] from [2, 2, 2] to [1, 1, 1] : (tensor<1x8x4x2xf32>, tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>) -> (tensor<1x4x8x2xf32>, tensor<1x2x8x2xf32>, tensor<1x2x8x2xf32>)
  %5 = nn.attention %4#0, %4#1, %4#2 scale 0.5 {causal} : (tensor<1x4x8x2xf32>, tensor<1x2x8x2xf32>, tensor<1x2x8x2xf32>) -> tensor<1x4x8x2xf32>
  %6 = dist.all_to_all %5 axes ["u"] from [1] to [2] : (tensor<1x4x8x2xf32>) -> tensor<1x8x4x2xf32>
  %7 = nn.transpose %6 [0, 2, 1, 3] : (tensor<1x8x4x2xf32>) -> tensor<1x4x8x2xf32>
  %8 = nn.reshape %7 : (tensor<1x4x8x2xf32>) -> tensor<1x4x16xf32>
  %9 = nn.linear %8, %wo : (tensor<1x4x16xf32>, tensor<8x16xf32>) -> tensor<1x4x8xf32>
  return %9 : tensor<1x4x8xf32>
}

// -----

// A redistribute that scatters whole rows is in chunks like an all-to-all; one that
// moves an axis from among others is not.
// CHECK-LABEL: func.func @redistribute
// CHECK: dist.redistribute %arg2 {{.*}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK: dist.redistribute {{.*}} from [#dist.sharding<@mesh, [{}, {"u"}]>] to [#dist.sharding<@mesh, [{"u"}, {}]>] : (tensor<4x8xf32>) -> tensor<2x16xf32>
// CHECK: dist.redistribute {{.*}} : (tensor<4x8xf32>) -> tensor<2x16xf32>
// CHECK: dist.redistribute {{.*}} : (tensor<2x16xf32>) -> tensor<4x16xf32>
// CHECK: dist.redistribute {{.*}} : (tensor<2x16xf32>) -> tensor<4x16xf32>
// CHECK: nn.concat
// LOG: applied: collectives and the products around them run in chunks of their rows
// LOG: declined: dist.redistribute stays whole: its rows change their order
dist.mesh @mesh = <["u"=2, "t"=2], device = "flops_f32=1e9 link_bandwidth=1e9">
func.func @redistribute(
    %x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u"}]>, dist.global = tensor<8x16xf32>},
    %w: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>, nn.parameter = "w"},
    %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"u", "t"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"t", "u"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{}, {"u"}]>] to [#dist.sharding<@mesh, [{"u"}, {}]>] : (tensor<8x8xf32>) -> tensor<4x16xf32>
  %1 = dist.redistribute %0 from [#dist.sharding<@mesh, [{"u"}, {}]>] to [#dist.sharding<@mesh, [{}, {}]>] : (tensor<4x16xf32>) -> tensor<8x16xf32>
  %2 = nn.linear %1, %w : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
  %3 = dist.redistribute %y from [#dist.sharding<@mesh, [{"u", "t"}, {}]>] to [#dist.sharding<@mesh, [{"t", "u"}, {}]>] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2, %3 : tensor<8x8xf32>, tensor<4x8xf32>
}

// -----

// Parts of attention around a ring, in chunks of heads: their keys travel chunk by
// chunk, and each chunk has its own merge.

// CHECK-LABEL: func.func @ring
// CHECK: dist.permute {{.*}} : (tensor<1x1x4x2xf32>, tensor<1x1x4x2xf32>)
// CHECK: dist.permute {{.*}} : (tensor<1x1x4x2xf32>, tensor<1x1x4x2xf32>)
// CHECK: nn.merge_attention {{.*}} -> (tensor<1x1x4x2xf32>, tensor<1x1x4xf32>)
// CHECK: nn.merge_attention {{.*}} -> (tensor<1x1x4x2xf32>, tensor<1x1x4xf32>)
// CHECK: nn.concat {{.*}} dim 1
dist.mesh @mesh = <["r"=2], device = "flops_f32=1e8 link_bandwidth=1e7">
func.func @ring(
    %q: tensor<1x2x4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x2xf32>},
    %k: tensor<1x2x4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x2xf32>})
    -> (tensor<1x2x4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>, dist.global = tensor<1x2x8x2xf32>})
    attributes {dist.spmd = @mesh} {
  %a, %l = nn.attention %q, %k, %k scale 0.5 : (tensor<1x2x4x2xf32>, tensor<1x2x4x2xf32>, tensor<1x2x4x2xf32>) -> (tensor<1x2x4x2xf32>, tensor<1x2x4xf32>)
  %0:2 = dist.permute %k, %k axes ["r"] shift 1 : (tensor<1x2x4x2xf32>, tensor<1x2x4x2xf32>) -> (tensor<1x2x4x2xf32>, tensor<1x2x4x2xf32>)
  %b, %m = nn.attention %q, %0#0, %0#1 scale 0.5 : (tensor<1x2x4x2xf32>, tensor<1x2x4x2xf32>, tensor<1x2x4x2xf32>) -> (tensor<1x2x4x2xf32>, tensor<1x2x4xf32>)
  %o, %n = nn.merge_attention %a, %l, %b, %m : (tensor<1x2x4x2xf32>, tensor<1x2x4xf32>, tensor<1x2x4x2xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x2xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x2xf32>
}

// -----

// One launch of values without rows in common; two rows on two ranks.
// LOG: declined: dist.all_to_all stays whole: it is one launch of several values, and no rows are those of all
// LOG: declined: dist.all_to_all stays whole: expected at least 4 rows, got 2
// CHECK-LABEL: func.func @apart
// CHECK: dist.all_to_all {{.*}} : (tensor<4x2x4xf32>, tensor<4x2x4xf32>)
// CHECK: dist.all_to_all {{.*}} : (tensor<2x4x4xf32>)
dist.mesh @mesh = <["u"=2], device = "flops_f32=1e8 link_bandwidth=1e7">
func.func @apart(
    %x: tensor<4x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u"}, {}]>, dist.global = tensor<4x4x4xf32>},
    %y: tensor<4x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u"}, {}]>, dist.global = tensor<4x4x4xf32>},
    %z: tensor<2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u"}, {}]>, dist.global = tensor<2x8x4xf32>},
    %w: tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x4xf32>, nn.parameter = "w"})
    -> (tensor<2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"u"}, {}, {}]>, dist.global = tensor<4x4x4xf32>},
        tensor<2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"u"}, {}, {}]>, dist.global = tensor<4x4x4xf32>},
        tensor<2x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u"}, {}]>, dist.global = tensor<2x8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %0:2 = dist.all_to_all %x, %y axes ["u"] from [1, 1] to [0, 0] : (tensor<4x2x4xf32>, tensor<4x2x4xf32>) -> (tensor<2x4x4xf32>, tensor<2x4x4xf32>)
  %1 = nn.linear %0#0, %w : (tensor<2x4x4xf32>, tensor<4x4xf32>) -> tensor<2x4x4xf32>
  %2 = nn.linear %0#1, %w : (tensor<2x4x4xf32>, tensor<4x4xf32>) -> tensor<2x4x4xf32>
  %3 = dist.all_to_all %z axes ["u"] from [1] to [0] : (tensor<2x4x4xf32>) -> tensor<1x8x4xf32>
  %4 = nn.linear %3, %w : (tensor<1x8x4xf32>, tensor<4x4xf32>) -> tensor<1x8x4xf32>
  %5 = dist.all_to_all %4 axes ["u"] from [0] to [1] : (tensor<1x8x4xf32>) -> tensor<2x4x4xf32>
  return %1, %2, %5 : tensor<2x4x4xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>
}

// -----

// Ranks hold heads of a group of queries whose key another pair of ranks has: each
// rank's share of a chunk of heads would be heads of another group.
// LOG: declined: dist.all_to_all stays whole: nn.attention reads, beside its rows, a value that differs between the ranks of {"u"}, over which they are scattered
// CHECK-LABEL: func.func @groups
// CHECK: dist.all_to_all {{.*}} : (tensor<1x8x4x4xf32>) -> tensor<1x2x16x4xf32>
dist.mesh @mesh = <["u"=4], device = "flops_f32=1e9 link_bandwidth=1e9">
func.func @groups(
    %q: tensor<1x8x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"u"}, {}]>, dist.global = tensor<1x8x16x4xf32>},
    %k: tensor<1x1x16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"u":(1)2}, {}, {}]>, dist.global = tensor<1x2x16x4xf32>})
    -> (tensor<1x8x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"u"}, {}]>, dist.global = tensor<1x8x16x4xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_to_all %q axes ["u"] from [2] to [1] : (tensor<1x8x4x4xf32>) -> tensor<1x2x16x4xf32>
  %1 = nn.attention %0, %k, %k scale 0.5 : (tensor<1x2x16x4xf32>, tensor<1x1x16x4xf32>, tensor<1x1x16x4xf32>) -> tensor<1x2x16x4xf32>
  %2 = dist.all_to_all %1 axes ["u"] from [1] to [2] : (tensor<1x2x16x4xf32>) -> tensor<1x8x4x4xf32>
  return %2 : tensor<1x8x4x4xf32>
}

// -----

// All rows of the sum are equal. Two chunks that are joined would not show that, and the result
// promises each rank the rows of its own.
// CHECK-LABEL: func.func @equal_rows
// CHECK: dist.all_reduce {{.*}} : (tensor<4x16xf32>) -> tensor<4x16xf32>
// LOG: declined: dist.all_reduce stays whole: the rows are equal where the ops that can run in chunks end, which chunks do not show
dist.mesh @mesh = <["x"=2, "tp"=4], device = "h100">
func.func @equal_rows(
    %x: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<32xf32>},
    %w: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>, nn.parameter = "w"})
    -> (tensor<4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"x"}, {}]>, dist.global = tensor<7x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.broadcast %x : (tensor<8xf32>) -> tensor<4x8xf32>
  %1 = nn.linear %0, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %2 : tensor<4x16xf32>
}

// -----

// Products of one value before several collectives, which are cut by sequences and by tokens: each
// region has its own chunks of the value.
// CHECK-LABEL: func.func @two_places
// CHECK-DAG: nn.slice %arg3 starts [0, 0, 0] limits [1, 10, 2]
// CHECK-DAG: nn.slice %arg3 starts [0, 0, 0] limits [2, 5, 2]
dist.mesh @mesh = <["x"=4], device = "flops_f32=1e9 memory_bandwidth=1e12 link_bandwidth=1e9">
func.func @two_places(
    %a: tensor<2x2xf32> {dist.global = tensor<2x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>, nn.parameter = "a"},
    %b: tensor<2x4xf32> {dist.global = tensor<2x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x":(2)2}]>, nn.parameter = "b"},
    %w: tensor<8x1xf32> {dist.global = tensor<8x2xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x":(1)2}]>, nn.parameter = "w"},
    %x: tensor<2x10x2xf32> {dist.global = tensor<2x10x2xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>},
    %c: tensor<2x1x10x1xf32> {dist.global = tensor<2x4x10x1xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x"}, {}, {}]>})
    -> (tensor<2x4x10x2xf32> {dist.global = tensor<2x4x10x2xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %a {in_out} : (tensor<2x10x2xf32>, tensor<2x2xf32>) -> tensor<2x10x2xf32>
  %1 = nn.reshape %0 : (tensor<2x10x2xf32>) -> tensor<2x10x1x2xf32>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<2x10x1x2xf32>) -> tensor<2x1x10x2xf32>
  %3 = dist.slice %x axes ["x":(1)2] dims [2] : (tensor<2x10x2xf32>) -> tensor<2x10x1xf32>
  %4 = nn.linear %3, %w : (tensor<2x10x1xf32>, tensor<8x1xf32>) -> tensor<2x10x8xf32>
  %5 = dist.slice %4 axes ["x":(2)2] dims [0] : (tensor<2x10x8xf32>) -> tensor<1x10x8xf32>
  %6 = dist.reduce_scatter sum %5 axes ["x":(1)2] dims [2] : (tensor<1x10x8xf32>) -> tensor<1x10x4xf32>
  %7 = dist.all_to_all %6 axes ["x":(2)2] from [0] to [2] : (tensor<1x10x4xf32>) -> tensor<2x10x2xf32>
  %8 = nn.reshape %7 : (tensor<2x10x2xf32>) -> tensor<2x10x1x2xf32>
  %9 = nn.transpose %8 [0, 2, 1, 3] : (tensor<2x10x1x2xf32>) -> tensor<2x1x10x2xf32>
  %10 = nn.linear %x, %b {in_out} : (tensor<2x10x2xf32>, tensor<2x4xf32>) -> tensor<2x10x4xf32>
  %11 = dist.slice %10 axes ["x":(1)2] dims [2] : (tensor<2x10x4xf32>) -> tensor<2x10x2xf32>
  %12 = dist.permute %11 axes ["x"] pairs [[0, 0], [2, 1], [1, 2], [3, 3]] : (tensor<2x10x2xf32>) -> tensor<2x10x2xf32>
  %13 = nn.reshape %12 : (tensor<2x10x2xf32>) -> tensor<2x10x1x2xf32>
  %14 = nn.transpose %13 [0, 2, 1, 3] : (tensor<2x10x1x2xf32>) -> tensor<2x1x10x2xf32>
  %15:4 = dist.all_gather %2, %9, %14, %c axes ["x"] dims [1, 1, 1, 1] : (tensor<2x1x10x2xf32>, tensor<2x1x10x2xf32>, tensor<2x1x10x2xf32>, tensor<2x1x10x1xf32>) -> (tensor<2x4x10x2xf32>, tensor<2x4x10x2xf32>, tensor<2x4x10x2xf32>, tensor<2x4x10x1xf32>)
  %16 = nn.attention %15#0, %15#1, %15#2 bias %15#3 scale 0.7 {causal} : (tensor<2x4x10x2xf32>, tensor<2x4x10x2xf32>, tensor<2x4x10x2xf32>, tensor<2x4x10x1xf32>) -> tensor<2x4x10x2xf32>
  return %16 : tensor<2x4x10x2xf32>
}

// -----

// One region cuts features and joins them; another cuts the tokens of the joined value, of which
// each rank has its own.
// CHECK-LABEL: func.func @joined_and_cut
// CHECK: %[[J:.*]] = nn.concat %{{.*}} dim 2
// CHECK: %[[E:.*]] = nn.reshape %[[J]] : (tensor<4x4x2xf32>) -> tensor<4x1x4x2xf32>
// CHECK: nn.slice %[[E]] starts [0, 0, 0, 0] limits [4, 1, 2, 2]
dist.mesh @mesh = <["x"=2, "y"=2], device = "flops_f32=1e9 memory_bandwidth=1e12 link_bandwidth=1e9">
func.func @joined_and_cut(
    %a: tensor<5x1xf32> {dist.global = tensor<5x1xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>, nn.parameter = "a"},
    %i: tensor<4x4x2xi32> {dist.global = tensor<7x8x2xi32>, dist.sharding = #dist.sharding<@mesh, [{"y"}, {"x"}, {}]>},
    %v: tensor<4x8x12xf32> {dist.global = tensor<7x8x24xf32>, dist.sharding = #dist.sharding<@mesh, [{"y"}, {}, {"x"}]>},
    %x: tensor<7x8x1xf32> {dist.global = tensor<7x8x1xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>},
    %w: tensor<2x6xf32> {dist.global = tensor<2x24xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"y", "x"}]>})
    -> (tensor<7x8x1xf32> {dist.global = tensor<7x8x2xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"y"}]>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.slice %x axes ["x"] dims [0] : (tensor<7x8x1xf32>) -> tensor<4x8x1xf32>
  %1 = dist.slice %0 axes ["y"] dims [1] : (tensor<4x8x1xf32>) -> tensor<4x4x1xf32>
  %2 = nn.linear %1, %a : (tensor<4x4x1xf32>, tensor<5x1xf32>) -> tensor<4x4x5xf32>
  %3 = dist.permute %2 axes ["x", "y"] pairs [[0, 0], [2, 1], [1, 2], [3, 3]] : (tensor<4x4x5xf32>) -> tensor<4x4x5xf32>
  %4 = nn.take_along %3, %i dim 2 : (tensor<4x4x5xf32>, tensor<4x4x2xi32>) -> tensor<4x4x2xf32>
  %5 = dist.redistribute %w from [#dist.sharding<@mesh, [{}, {"y", "x"}]>] to [#dist.sharding<@mesh, [{}, {"x"}]>] : (tensor<2x6xf32>) -> tensor<2x12xf32>
  %6 = nn.linear %v, %5 : (tensor<4x8x12xf32>, tensor<2x12xf32>) -> tensor<4x8x2xf32>
  %7 = dist.reduce_scatter sum %6 axes ["x"] dims [1] : (tensor<4x8x2xf32>) -> tensor<4x4x2xf32>
  %8 = nn.add %7, %4 : (tensor<4x4x2xf32>, tensor<4x4x2xf32>) -> tensor<4x4x2xf32>
  %9 = dist.all_to_all %8 axes ["y"] from [0] to [2] : (tensor<4x4x2xf32>) -> tensor<8x4x1xf32>
  %10 = nn.slice %9 starts [0, 0, 0] limits [7, 4, 1] strides [1, 1, 1] : (tensor<8x4x1xf32>) -> tensor<7x4x1xf32>
  %11 = dist.all_gather %10 axes ["x"] dims [1] : (tensor<7x4x1xf32>) -> tensor<7x8x1xf32>
  return %11 : tensor<7x8x1xf32>
}
