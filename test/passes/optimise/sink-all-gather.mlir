// RUN: sharding-opt %s --decompose-all-reduce --sink-all-gather --split-input-file | FileCheck %s
// RUN: sharding-opt %s --decompose-all-reduce=when=on --sink-all-gather --verify-placement --split-input-file | FileCheck %s 
// RUN: sharding-opt %s --decompose-all-reduce --sink-all-gather --report-decisions --split-input-file 2>&1 -o /dev/null | FileCheck %s --check-prefix=LOG

// Two layers. The residual stream stays on the shard from the first reduction to
// the end; a cast and a reshape do not stop the gather.
// CHECK-LABEL: func.func @layers
// CHECK: %[[SUM:.*]] = dist.reduce_scatter sum {{.*}} -> tensor<4x8xf32>
// CHECK: %[[BIASED:.*]] = nn.add %[[SUM]], %arg3 {{.*}} -> tensor<4x8xf32>
// CHECK: %[[OWN:.*]] = dist.slice %arg0 {{.*}} -> tensor<4x8xf32>
// CHECK: %[[RESIDUAL:.*]] = nn.add %[[OWN]], %[[BIASED]] {{.*}} -> tensor<4x8xf32>
// CHECK-NOT: dist.all_gather
// CHECK: nn.rms_norm {{.*}} -> tensor<4x8xf32>
// CHECK: nn.cast {{.*}} -> tensor<4x8xbf16>
// CHECK: nn.reshape {{.*}} -> tensor<1x4x8xbf16>
// CHECK: dist.all_gather {{.*}} dims [1] : (tensor<1x4x8xbf16>) -> tensor<1x16x8xbf16>
// CHECK: nn.linear
// CHECK-NOT: dist.all_gather
// CHECK: %[[NEXT:.*]] = dist.reduce_scatter sum {{.*}} -> tensor<4x8xf32>
// CHECK: nn.add %[[RESIDUAL]], %[[NEXT]] {{.*}} -> tensor<4x8xf32>
// CHECK: nn.rms_norm {{.*}} -> tensor<4x8xf32>
// CHECK: dist.all_gather {{.*}} -> tensor<16x8xf32>
// CHECK-NEXT: return
// LOG: [sink-all-gather] applied: all-gather moves past 7 ops, which run on the shard
// LOG: [sink-all-gather] applied: all-gather moves past 1 op
dist.mesh @mesh = <["tp"=4]>
func.func @layers(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>},
    %bias: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>},
    %n: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %a1 = nn.relu %a0 : tensor<16x4xf32>
  %a2 = nn.linear %a1, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %a3 = dist.all_reduce sum %a2 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %a4 = nn.add %a3, %bias : (tensor<16x8xf32>, tensor<8xf32>) -> tensor<16x8xf32>
  %r = nn.add %x, %a4 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %h = nn.rms_norm %r weight %n eps 1.0e-05 : (tensor<16x8xf32>, tensor<8xf32>) -> tensor<16x8xf32>
  %c = nn.cast %h : (tensor<16x8xf32>) -> tensor<16x8xbf16>
  %u = nn.cast %up : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %k = nn.reshape %c : (tensor<16x8xbf16>) -> tensor<1x16x8xbf16>
  %b0 = nn.linear %k, %u : (tensor<1x16x8xbf16>, tensor<4x8xbf16>) -> tensor<1x16x4xbf16>
  %b1 = nn.cast %b0 : (tensor<1x16x4xbf16>) -> tensor<1x16x4xf32>
  %b2 = nn.reshape %b1 : (tensor<1x16x4xf32>) -> tensor<16x4xf32>
  %b3 = nn.linear %b2, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %b4 = dist.all_reduce sum %b3 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %y = nn.add %r, %b4 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %z = nn.rms_norm %y weight %n eps 1.0e-05 : (tensor<16x8xf32>, tensor<8xf32>) -> tensor<16x8xf32>
  return %z : tensor<16x8xf32>
}

// -----

// Two norms of one value: it is gathered once, before them.
// CHECK-LABEL: func.func @two_norms
// CHECK: %[[FIRST:.*]] = dist.reduce_scatter
// CHECK: %[[SHARD:.*]] = nn.add %{{.*}}, %[[FIRST]] {{.*}} -> tensor<4x8xf32>
// CHECK: %[[WHOLE:.*]] = dist.all_gather %[[SHARD]]
// CHECK: nn.rms_norm %[[WHOLE]]
// CHECK: nn.layer_norm %[[WHOLE]]
// CHECK: %[[SECOND:.*]] = dist.reduce_scatter
// CHECK: nn.add %[[SHARD]], %[[SECOND]] {{.*}} -> tensor<4x8xf32>
// CHECK: dist.all_gather
// CHECK-NEXT: return
// LOG: declined: all-gather stays above nn.rms_norm: more bytes would be gathered behind it
dist.mesh @mesh = <["tp"=4]>
func.func @two_norms(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>},
    %n: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %a1 = nn.relu %a0 : tensor<16x4xf32>
  %a2 = nn.linear %a1, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %a3 = dist.all_reduce sum %a2 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %r = nn.add %x, %a3 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %p = nn.rms_norm %r weight %n eps 1.0e-05 : (tensor<16x8xf32>, tensor<8xf32>) -> tensor<16x8xf32>
  %q = nn.layer_norm %r weight %n eps 1.0e-05 : (tensor<16x8xf32>, tensor<8xf32>) -> tensor<16x8xf32>
  %b0 = nn.linear %p, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %b1 = nn.linear %q, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %b2 = nn.mul %b0, %b1 : (tensor<16x4xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
  %b3 = nn.linear %b2, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %b4 = dist.all_reduce sum %b3 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %y = nn.add %r, %b4 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %z = nn.relu %y : tensor<16x8xf32>
  return %z : tensor<16x8xf32>
}

// -----

// Past two projections to narrower values, on 18 tokens padded to 20.
// CHECK-LABEL: func.func @narrowing
// CHECK: dist.pad {{.*}} -> tensor<1x20x64xf32>
// CHECK: %[[SUM:.*]] = dist.reduce_scatter {{.*}} -> tensor<1x5x64xf32>
// CHECK: %[[STREAM:.*]] = nn.add %{{.*}}, %[[SUM]] {{.*}} -> tensor<1x5x64xf32>
// CHECK: %[[NORM:.*]] = nn.rms_norm %[[STREAM]] weight %arg7 {{.*}} -> tensor<1x5x64xf32>
// CHECK: nn.linear %[[NORM]], %arg3 {{.*}} -> tensor<1x5x16xf32>
// CHECK: dist.all_gather {{.*}} -> tensor<1x20x16xf32>
// CHECK: nn.slice {{.*}} -> tensor<1x18x16xf32>
// CHECK: nn.linear %[[NORM]], %arg4 {{.*}} -> tensor<1x5x8xf32>
// CHECK: dist.all_gather {{.*}} -> tensor<1x20x8xf32>
// LOG: applied: all-gather moves past a projection with a whole weight (gather_above_seconds = 3.8
dist.mesh @mesh = <["tp"=4]>
func.func @narrowing(
    %x: tensor<1x18x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x18x64xf32>},
    %o: tensor<64x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<64x64xf32>},
    %h: tensor<1x18x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}]>, dist.global = tensor<1x18x64xf32>},
    %qa: tensor<16x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x64xf32>},
    %kva: tensor<8x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x64xf32>},
    %qb: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %kvb: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x8xf32>},
    %n: tensor<64xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<64xf32>})
    -> (tensor<1x18x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}]>, dist.global = tensor<1x18x64xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %h, %o : (tensor<1x18x16xf32>, tensor<64x16xf32>) -> tensor<1x18x64xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<1x18x64xf32>) -> tensor<1x18x64xf32>
  %2 = nn.add %x, %1 : (tensor<1x18x64xf32>, tensor<1x18x64xf32>) -> tensor<1x18x64xf32>
  %3 = nn.rms_norm %2 weight %n eps 1.0e-05 : (tensor<1x18x64xf32>, tensor<64xf32>) -> tensor<1x18x64xf32>
  %4 = nn.linear %3, %qa : (tensor<1x18x64xf32>, tensor<16x64xf32>) -> tensor<1x18x16xf32>
  %5 = nn.linear %3, %kva : (tensor<1x18x64xf32>, tensor<8x64xf32>) -> tensor<1x18x8xf32>
  %7 = nn.linear %4, %qb : (tensor<1x18x16xf32>, tensor<16x16xf32>) -> tensor<1x18x16xf32>
  %8 = nn.linear %5, %kvb : (tensor<1x18x8xf32>, tensor<16x8xf32>) -> tensor<1x18x16xf32>
  %9 = nn.mul %7, %8 : (tensor<1x18x16xf32>, tensor<1x18x16xf32>) -> tensor<1x18x16xf32>
  return %9 : tensor<1x18x16xf32>
}

// -----

// A batch of flattened sequences: the tokens are a part of the merged dimension.
// CHECK-LABEL: func.func @flattened
// CHECK: dist.reduce_scatter {{.*}} dims [1] : (tensor<2x8x8xf32>) -> tensor<2x2x8xf32>
// CHECK: %[[SHARD:.*]] = nn.relu {{.*}} : tensor<4x8xf32>
// CHECK: %[[SPLIT:.*]] = nn.reshape %[[SHARD]] : (tensor<4x8xf32>) -> tensor<2x2x8xf32>
// CHECK: %[[WHOLE:.*]] = dist.all_gather %[[SPLIT]] axes ["tp"] dims [1] : (tensor<2x2x8xf32>) -> tensor<2x8x8xf32>
// CHECK: nn.reshape %[[WHOLE]] : (tensor<2x8x8xf32>) -> tensor<16x8xf32>
dist.mesh @mesh = <["tp"=4]>
func.func @flattened(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %1 = nn.linear %0, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %2 = nn.reshape %1 : (tensor<16x8xf32>) -> tensor<2x8x8xf32>
  %3 = dist.all_reduce sum %2 axes ["tp"] : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %4 = nn.reshape %3 : (tensor<2x8x8xf32>) -> tensor<16x8xf32>
  %5 = nn.relu %4 : tensor<16x8xf32>
  %6 = nn.linear %5, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  return %6 : tensor<16x4xf32>
}

// -----

// Each rank of "dp" has one sequence of 7 tokens, padded to 8. Flattened, they are the
// tail of a dimension that "dp" shards at its head: sequence and tokens are told apart
// to strip the padding. The residual is cut in the same way.
// CHECK-LABEL: func.func @one_sequence
// CHECK: %[[SHARD:.*]] = nn.reshape %arg0 : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
// CHECK: %[[ONE:.*]] = nn.reshape %arg1 : (tensor<7x8xf32>) -> tensor<1x7x8xf32>
// CHECK: %[[OWN:.*]] = dist.slice %[[ONE]] axes ["tp"] dims [1] : (tensor<1x7x8xf32>) -> tensor<1x4x8xf32>
// CHECK: %[[FLAT:.*]] = nn.reshape %[[OWN]] : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
// CHECK: %[[SUM:.*]] = nn.add %[[SHARD]], %[[FLAT]] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK: %[[SPLIT:.*]] = nn.reshape %[[SUM]] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
// CHECK: %[[WHOLE:.*]] = dist.all_gather %[[SPLIT]] axes ["tp"] dims [1] : (tensor<1x4x8xf32>) -> tensor<1x8x8xf32>
// CHECK: %[[TRUE:.*]] = nn.slice %[[WHOLE]] {{.*}} -> tensor<1x7x8xf32>
// CHECK: %[[ROWS:.*]] = nn.reshape %[[TRUE]] : (tensor<1x7x8xf32>) -> tensor<7x8xf32>
// CHECK: return %[[ROWS]]
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @one_sequence(
    %x: tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}, {}]>, dist.global = tensor<2x7x8xf32>},
    %r: tensor<7x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<14x8xf32>})
    -> (tensor<7x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<14x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<1x4x8xf32>) -> tensor<1x8x8xf32>
  %1 = nn.slice %0 starts [0, 0, 0] limits [1, 7, 8] strides [1, 1, 1] : (tensor<1x8x8xf32>) -> tensor<1x7x8xf32>
  %2 = nn.reshape %1 : (tensor<1x7x8xf32>) -> tensor<7x8xf32>
  %3 = nn.add %2, %r : (tensor<7x8xf32>, tensor<7x8xf32>) -> tensor<7x8xf32>
  return %3 : tensor<7x8xf32>
}

// -----

// The same if another axis shards the dimensions below the tokens.
// CHECK-LABEL: func.func @sharded_below
// CHECK: %[[RELU:.*]] = nn.relu {{.*}} : tensor<16xf32>
// CHECK: %[[SPLIT:.*]] = nn.reshape %[[RELU]] : (tensor<16xf32>) -> tensor<4x4xf32>
// CHECK: %[[WHOLE:.*]] = dist.all_gather %[[SPLIT]] axes ["tp"] dims [0] : (tensor<4x4xf32>) -> tensor<8x4xf32>
// CHECK: %[[TRUE:.*]] = nn.slice %[[WHOLE]] {{.*}} -> tensor<7x4xf32>
// CHECK: %[[FLAT:.*]] = nn.reshape %[[TRUE]] : (tensor<7x4xf32>) -> tensor<28xf32>
// CHECK: return %[[FLAT]]
dist.mesh @mesh = <["x"=2, "tp"=2]>
func.func @sharded_below(
    %x: tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {"x"}]>, dist.global = tensor<7x8xf32>})
    -> (tensor<28xf32> {dist.sharding = #dist.sharding<@mesh, [(7, 8{"x"})]>, dist.global = tensor<56xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x4xf32>) -> tensor<8x4xf32>
  %1 = nn.slice %0 starts [0, 0] limits [7, 4] strides [1, 1] : (tensor<8x4xf32>) -> tensor<7x4xf32>
  %2 = nn.reshape %1 : (tensor<7x4xf32>) -> tensor<28xf32>
  %3 = nn.relu %2 : tensor<28xf32>
  return %3 : tensor<28xf32>
}

// -----

// The whole value is needed at once: the gather stays.
// CHECK-LABEL: func.func @needed_whole
// CHECK: dist.all_gather
// CHECK-NEXT: nn.linear
// LOG: declined: all-gather stays: its users need the whole value (bytes = 384 B
dist.mesh @mesh = <["tp"=4]>
func.func @needed_whole(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = nn.linear %0, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  return %1 : tensor<16x4xf32>
}

// -----

// The slice pads with zeros, which the product needs: the padding of the shard is infinite.
// CHECK-LABEL: func.func @reader_of_zeros(
// CHECK:      %[[RSQRT:.*]] = nn.rsqrt
// CHECK-NEXT: %[[ADD:.*]] = nn.add %[[RSQRT]]
// CHECK-NEXT: %[[GATHER:.*]] = dist.all_gather %[[ADD]] axes ["x"] dims [1]
// CHECK-NEXT: %[[STRIP:.*]] = nn.slice %[[GATHER]] starts [0, 0] limits [4, 17]
// CHECK-NEXT: %[[CUT:.*]] = dist.slice %[[STRIP]] axes ["x"] dims [1]
// CHECK-NEXT: nn.linear %[[CUT]]
dist.mesh @mesh = <["x"=2]>
func.func @reader_of_zeros(
    %x: tensor<4x9xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>, dist.global = tensor<4x17xf32>},
    %b: tensor<f32> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<f32>},
    %w: tensor<5x9xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>, dist.global = tensor<5x17xf32>})
    -> (tensor<4x5xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x5xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.rsqrt %x : tensor<4x9xf32>
  %1 = dist.all_gather %0 axes ["x"] dims [1] : (tensor<4x9xf32>) -> tensor<4x18xf32>
  %2 = nn.slice %1 starts [0, 0] limits [4, 17] strides [1, 1] : (tensor<4x18xf32>) -> tensor<4x17xf32>
  %3 = nn.add %2, %b : (tensor<4x17xf32>, tensor<f32>) -> tensor<4x17xf32>
  %4 = dist.slice %3 axes ["x"] dims [1] : (tensor<4x17xf32>) -> tensor<4x9xf32>
  %5 = nn.linear %4, %w : (tensor<4x9xf32>, tensor<5x9xf32>) -> tensor<4x5xf32>
  %6 = dist.all_reduce sum %5 axes ["x"] : (tensor<4x5xf32>) -> tensor<4x5xf32>
  return %6 : tensor<4x5xf32>
}

// -----

// The sum reads zeros behind the pad. The shard has others there: the pad stays.
// CHECK-LABEL: func.func @pad_that_is_read
// CHECK: dist.all_gather
// CHECK: %[[P:.*]] = dist.pad
// CHECK: %[[S:.*]] = dist.slice %[[P]]
// CHECK: nn.reduce sum %[[S]]
dist.mesh @mesh = <["x"=2], device = "h100">
func.func @pad_that_is_read(
    %x: tensor<2x5xf32> {dist.sharding = #dist.sharding<@mesh, [{"x"}, {}]>, dist.global = tensor<3x5xf32>})
    -> (tensor<5xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<5xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.exp %x : tensor<2x5xf32>
  %1 = dist.all_gather %0 axes ["x"] dims [0] : (tensor<2x5xf32>) -> tensor<4x5xf32>
  %2 = nn.slice %1 starts [0, 0] limits [3, 5] strides [1, 1] : (tensor<4x5xf32>) -> tensor<3x5xf32>
  %3 = nn.neg %2 : tensor<3x5xf32>
  %4 = dist.pad %3 dims [0] : (tensor<3x5xf32>) -> tensor<4x5xf32>
  %5 = dist.slice %4 axes ["x"] dims [0] : (tensor<4x5xf32>) -> tensor<2x5xf32>
  %6 = nn.reduce sum %5 dims [0] : (tensor<2x5xf32>) -> tensor<5xf32>
  %7 = dist.all_reduce sum %6 axes ["x"] : (tensor<5xf32>) -> tensor<5xf32>
  return %7 : tensor<5xf32>
}

// -----

// A slice with a shift takes the chunk of another rank, not the shard.
// CHECK-LABEL: func.func @shifted_chunk
// CHECK: %[[WHOLE:.*]] = dist.all_gather %arg0
// CHECK: %[[NEXT:.*]] = dist.slice %[[WHOLE]] axes ["tp"] dims [0] shift 1
// CHECK: dist.permute %[[NEXT]]
dist.mesh @mesh = <["tp"=4]>
func.func @shifted_chunk(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.slice %0 axes ["tp"] dims [0] shift 1 : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %2 = dist.permute %1 axes ["tp"] shift 3 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

// Each rank has one token of each sequence. A reshape of its own moves the tokens out of the rows for
// the gather, though the values before both reshapes have its shape.
// CHECK-LABEL: func.func @one_token_a_rank
// CHECK: %[[MAX:.*]] = nn.reduce max {{.*}} -> tensor<3x1xf32>
// CHECK: %[[ROWS:.*]] = nn.reshape %[[MAX]] : (tensor<3x1xf32>) -> tensor<3xf32>
// CHECK: %[[TOKENS:.*]] = nn.reshape %[[ROWS]] : (tensor<3xf32>) -> tensor<3x1xf32>
// CHECK: dist.all_gather %[[TOKENS]] axes ["tp"] dims [1]
dist.mesh @mesh = <["tp"=4]>
func.func @one_token_a_rank(%x: tensor<3x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<3x3x8xf32>})
    -> (tensor<9xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<9xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<3x1x8xf32>) -> tensor<3x4x8xf32>
  %1 = nn.slice %0 starts [0, 0, 0] limits [3, 3, 8] strides [1, 1, 1] : (tensor<3x4x8xf32>) -> tensor<3x3x8xf32>
  %2 = nn.reshape %1 : (tensor<3x3x8xf32>) -> tensor<9x8xf32>
  %3 = nn.reduce max %2 dims [1] {keep_dims} : (tensor<9x8xf32>) -> tensor<9x1xf32>
  %4 = nn.reshape %3 : (tensor<9x1xf32>) -> tensor<9xf32>
  return %4 : tensor<9xf32>
}

// -----

// The tokens of a rank are below one half of the dimension. A reshape takes the half out of it.
// CHECK-LABEL: func.func @one_half_a_rank
// CHECK: %[[NEG:.*]] = nn.neg
// CHECK: %[[ROW:.*]] = nn.reshape %[[NEG]] : (tensor<1x2xf32>) -> tensor<1x1x2xf32>
// CHECK: %[[FLAT:.*]] = nn.reshape %[[ROW]] : (tensor<1x1x2xf32>) -> tensor<2xf32>
// CHECK: %[[HALF:.*]] = nn.reshape %[[FLAT]] : (tensor<2xf32>) -> tensor<1x2xf32>
// CHECK: dist.all_gather %[[HALF]] axes ["dp"] dims [1]
dist.mesh @mesh = <["dp"=4, "tp"=2]>
func.func @one_half_a_rank(%x: tensor<1x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, (2{"tp"}, 5 pad 8{"dp"})]>, dist.global = tensor<1x10xf32>})
    -> (tensor<5xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<10xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.neg %x : tensor<1x2xf32>
  %1 = nn.reshape %0 : (tensor<1x2xf32>) -> tensor<1x1x2xf32>
  %2 = dist.all_gather %1 axes ["dp"] dims [2] : (tensor<1x1x2xf32>) -> tensor<1x1x8xf32>
  %3 = nn.slice %2 starts [0, 0, 0] limits [1, 1, 5] strides [1, 1, 1] : (tensor<1x1x8xf32>) -> tensor<1x1x5xf32>
  %4 = nn.reshape %3 : (tensor<1x1x5xf32>) -> tensor<5xf32>
  return %4 : tensor<5xf32>
}

// -----

// Rows that are all equal do not show how many there are on the other ranks. The slice states it as the
// gathered operand shows it.
// CHECK-LABEL: func.func @slice_of_equal_rows
// CHECK: %[[EQUAL:.*]] = nn.linear
// CHECK: %[[OWN:.*]] = dist.slice %[[EQUAL]] {{.*}}dist.operands = [#dist.sharding<@mesh, [(4 pad 6{"dp"}), {?}]>]
// CHECK: nn.add %arg0, %[[OWN]]
dist.mesh @mesh = <["dp"=2, "tp"=3]>
func.func @slice_of_equal_rows(
    %x: tensor<1x10xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<4x10xf32>},
    %w: tensor<10x10xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<10x10xf32>})
    -> (tensor<1x10xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<4x10xf32>})
    attributes {dist.spmd = @mesh} {
  %whole = dist.all_gather %x axes ["tp"] dims [0] : (tensor<1x10xf32>) -> tensor<3x10xf32>
  %c = nn.constant dense<1.0> : tensor<3x10xf32>
  %y = nn.linear %c, %w : (tensor<3x10xf32>, tensor<10x10xf32>) -> tensor<3x10xf32>
  %a = nn.add %whole, %y : (tensor<3x10xf32>, tensor<3x10xf32>) -> tensor<3x10xf32>
  %t = nn.tanh %a : tensor<3x10xf32>
  %s = dist.slice %t axes ["tp"] dims [0] : (tensor<3x10xf32>) -> tensor<1x10xf32>
  return %s : tensor<1x10xf32>
}

// -----

// A gather of equal rows states how many there are. So does the gather that takes its place.
// CHECK-LABEL: func.func @gather_of_equal_rows
// CHECK: nn.tanh {{.*}} : tensor<2x6xf32>
// CHECK: dist.all_gather {{.*}}dist.operands = [#dist.sharding<@mesh, [(5 pad 6{"tp"}), {?}]>]
dist.mesh @mesh = <["tp"=3]>
func.func @gather_of_equal_rows(
    %x: tensor<5x6xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<5x6xf32>},
    %w: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<6xf32>})
    -> (tensor<5x6xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<5x6xf32>})
    attributes {dist.spmd = @mesh} {
  %own = nn.broadcast %w : (tensor<6xf32>) -> tensor<2x6xf32>
  %all = dist.all_gather %own axes ["tp"] dims [0] {dist.operands = [#dist.sharding<@mesh, [(5 pad 6{"tp"}), {?}]>]} : (tensor<2x6xf32>) -> tensor<6x6xf32>
  %t = nn.tanh %all : tensor<6x6xf32>
  %true = nn.slice %t starts [0, 0] limits [5, 6] strides [1, 1] : (tensor<6x6xf32>) -> tensor<5x6xf32>
  %r = nn.add %true, %x : (tensor<5x6xf32>, tensor<5x6xf32>) -> tensor<5x6xf32>
  return %r : tensor<5x6xf32>
}

// -----

// The layout that an op states of an operand becomes that of the shard.
// CHECK-LABEL: func.func @stated_operand
// CHECK: %[[Y:.*]] = nn.relu %arg0 {dist.operands = [#dist.sharding<@mesh, [(8{"tp"}), {?}]>]} : tensor<2x8xf32>
// CHECK-NOT: dist.all_gather
// CHECK: return %[[Y]]
dist.mesh @mesh = <["tp"=4]>
func.func @stated_operand(
    %x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %whole = dist.all_gather %x axes ["tp"] dims [0] : (tensor<2x8xf32>) -> tensor<8x8xf32>
  %y = nn.relu %whole {dist.operands = [#dist.sharding<@mesh, [(8), {?}]>]} : tensor<8x8xf32>
  %own = dist.slice %y axes ["tp"] dims [0] : (tensor<8x8xf32>) -> tensor<2x8xf32>
  return %own : tensor<2x8xf32>
}

// -----

// A gather of a saved value stays where it is, one of data moves.
// CHECK-LABEL: func.func @roles
// CHECK: %[[SAVED:.*]] = dist.all_gather %arg0 axes ["tp"] dims [0] role saved : (tensor<4x8xf32>) -> tensor<16x8xf32>
// CHECK: nn.relu %[[SAVED]] : tensor<16x8xf32>
// CHECK: %[[SHARD:.*]] = nn.relu %arg0 : tensor<4x8xf32>
// CHECK: dist.all_gather %[[SHARD]] axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
dist.mesh @mesh = <["tp"=4]>
func.func @roles(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] role saved : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = nn.relu %0 : tensor<16x8xf32>
  %2 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %3 = nn.relu %2 : tensor<16x8xf32>
  return %1, %3 : tensor<16x8xf32>, tensor<16x8xf32>
}
