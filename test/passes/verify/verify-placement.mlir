// RUN: sharding-opt %s --verify-placement --split-input-file | sharding-opt --split-input-file | FileCheck %s

// Megatron's MLP: column-parallel, row-parallel, one reduction.
// CHECK-LABEL: func.func @mlp
dist.mesh @mesh = <["tp"=4]>
func.func @mlp(
    %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x64xf32>},
    %bias: tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %up : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %1 = nn.gelu %0 : tensor<8x16xf32>
  %2 = nn.linear %1, %down : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %3 = dist.all_reduce sum %2 axes ["tp"] : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %4 = nn.add %3, %bias : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %5 = nn.add %x, %4 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %5 : tensor<8x16xf32>
}

// -----

// The same with the residual stream sharded by token, 13 tokens on 4 ranks; the
// hidden dimension padded as well.
// CHECK-LABEL: func.func @sequence_parallel
dist.mesh @mesh = <["tp"=4]>
func.func @sequence_parallel(
    %x: tensor<4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x16xf32>},
    %norm: tensor<16xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<16xf32>},
    %up: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<62x16xf32>},
    %down: tensor<16x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x62xf32>})
    -> (tensor<4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.rms_norm %x weight %norm eps 1.0e-05 : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x16xf32>) -> tensor<16x16xf32>
  %2 = nn.linear %1, %up : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %3 = nn.silu %2 : tensor<16x16xf32>
  %4 = nn.linear %3, %down : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %5 = dist.reduce_scatter sum %4 axes ["tp"] dims [0] : (tensor<16x16xf32>) -> tensor<4x16xf32>
  %6 = nn.add %x, %5 : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  return %6 : tensor<4x16xf32>
}

// -----

// Attention: 6 query heads on 2 key heads; one key head a pair of ranks, groups
// of 3 padded to 4. Tokens are stripped after the gather, padded before the
// scatter.
// CHECK-LABEL: func.func @attention
dist.mesh @mesh = <["tp"=4]>
func.func @attention(
    %x: tensor<2x4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x13x16xf32>},
    %wq: tensor<24x16xf32> {dist.sharding = #dist.sharding<@mesh, [(2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 12), {}]>, dist.global = tensor<72x16xf32>},
    %wk: tensor<12x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}]>, dist.global = tensor<24x16xf32>},
    %wv: tensor<12x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}]>, dist.global = tensor<24x16xf32>},
    %wo: tensor<16x24xf32> {dist.sharding = #dist.sharding<@mesh, [{}, (2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 12)]>, dist.global = tensor<16x72xf32>},
    %qn: tensor<12xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<12xf32>})
    -> (tensor<2x4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x13x16xf32>})
    attributes {dist.spmd = @mesh} {
  %g = dist.all_gather %x axes ["tp"] dims [1] : (tensor<2x4x16xf32>) -> tensor<2x16x16xf32>
  %a = nn.slice %g starts [0, 0, 0] limits [2, 13, 16] strides [1, 1, 1] : (tensor<2x16x16xf32>) -> tensor<2x13x16xf32>
  %q0 = nn.linear %a, %wq : (tensor<2x13x16xf32>, tensor<24x16xf32>) -> tensor<2x13x24xf32>
  %k0 = nn.linear %a, %wk : (tensor<2x13x16xf32>, tensor<12x16xf32>) -> tensor<2x13x12xf32>
  %v0 = nn.linear %a, %wv : (tensor<2x13x16xf32>, tensor<12x16xf32>) -> tensor<2x13x12xf32>
  %q1 = nn.reshape %q0 : (tensor<2x13x24xf32>) -> tensor<2x13x2x12xf32>
  %k1 = nn.reshape %k0 : (tensor<2x13x12xf32>) -> tensor<2x13x1x12xf32>
  %v1 = nn.reshape %v0 : (tensor<2x13x12xf32>) -> tensor<2x13x1x12xf32>
  %k2 = nn.rms_norm %k1 weight %qn eps 1.0e-06 : (tensor<2x13x1x12xf32>, tensor<12xf32>) -> tensor<2x13x1x12xf32>
  %q = nn.transpose %q1 [0, 2, 1, 3] : (tensor<2x13x2x12xf32>) -> tensor<2x2x13x12xf32>
  %k = nn.transpose %k2 [0, 2, 1, 3] : (tensor<2x13x1x12xf32>) -> tensor<2x1x13x12xf32>
  %v = nn.transpose %v1 [0, 2, 1, 3] : (tensor<2x13x1x12xf32>) -> tensor<2x1x13x12xf32>
  %o0 = nn.attention %q, %k, %v scale 2.5e-01 {causal} : (tensor<2x2x13x12xf32>, tensor<2x1x13x12xf32>, tensor<2x1x13x12xf32>) -> tensor<2x2x13x12xf32>
  %o1 = nn.transpose %o0 [0, 2, 1, 3] : (tensor<2x2x13x12xf32>) -> tensor<2x13x2x12xf32>
  %o2 = nn.reshape %o1 : (tensor<2x13x2x12xf32>) -> tensor<2x13x24xf32>
  %o3 = nn.linear %o2, %wo : (tensor<2x13x24xf32>, tensor<16x24xf32>) -> tensor<2x13x16xf32>
  %o4 = dist.pad %o3 dims [1] : (tensor<2x13x16xf32>) -> tensor<2x16x16xf32>
  %o5 = dist.reduce_scatter sum %o4 axes ["tp"] dims [1] : (tensor<2x16x16xf32>) -> tensor<2x4x16xf32>
  %r = nn.add %x, %o5 : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  return %r : tensor<2x4x16xf32>
}

// -----

// A vocabulary in chunks; generated positions, replicated and then sliced.
// CHECK-LABEL: func.func @embedding
dist.mesh @mesh = <["tp"=4]>
func.func @embedding(
    %ids: tensor<1x13xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x13xi64>},
    %table: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<30x16xf32>},
    %positions: tensor<64x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<64x16xf32>})
    -> (tensor<1x4x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<1x13x16xf32>})
    attributes {dist.spmd = @mesh} {
  %o = dist.axis_index ["tp"] chunk 8 : tensor<i64>
  %0 = nn.embedding %ids, %table offset %o {nn.table_rows = 30 : i64} : (tensor<1x13xi64>, tensor<8x16xf32>, tensor<i64>) -> tensor<1x13x16xf32>
  %1 = dist.pad %0 dims [1] : (tensor<1x13x16xf32>) -> tensor<1x16x16xf32>
  %2 = dist.reduce_scatter sum %1 axes ["tp"] dims [1] : (tensor<1x16x16xf32>) -> tensor<1x4x16xf32>
  %p = nn.iota dim 1 : tensor<1x13xi64>
  %q = dist.slice %p axes ["tp"] dims [1] : (tensor<1x13xi64>) -> tensor<1x4xi64>
  %r = nn.embedding %q, %positions : (tensor<1x4xi64>, tensor<64x16xf32>) -> tensor<1x4x16xf32>
  %s = nn.add %2, %r : (tensor<1x4x16xf32>, tensor<1x4x16xf32>) -> tensor<1x4x16xf32>
  return %s : tensor<1x4x16xf32>
}

// -----

// Chunks of rows with padding at their tail, cut and joined again.
// CHECK-LABEL: func.func @chunks
dist.mesh @mesh = <["tp"=4]>
func.func @chunks(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = nn.slice %0 starts [0, 0] limits [8, 8] strides [1, 1] : (tensor<16x8xf32>) -> tensor<8x8xf32>
  %2 = nn.slice %0 starts [8, 0] limits [16, 8] strides [1, 1] : (tensor<16x8xf32>) -> tensor<8x8xf32>
  %3 = nn.concat %1, %2 dim 0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %4 = dist.slice %3 axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}

// -----

// Attention around a ring: parts over chunks of the keys, in zigzag order, padded.
dist.mesh @mesh = <["ring"=4]>
func.func @ring(%arg0: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x14x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, (14 pad 16 zigzag 4{"ring"}), {}]>}, %arg1: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x14x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, (14 pad 16 zigzag 4{"ring"}), {}]>}, %arg2: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x14x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, (14 pad 16 zigzag 4{"ring"}), {}]>}) -> (tensor<1x2x4x8xf32> {dist.global = tensor<1x2x14x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, (14 pad 16 zigzag 4{"ring"}), {}]>}) attributes {dist.spmd = @mesh} {
  %0 = dist.positions <14 pad 16 zigzag 4{"ring"}> : tensor<4xi64>
  %result, %lse = nn.attention %arg0, %arg1, %arg2 positions %0, %0 scale 5.000000e-01 {causal, window_left = 9 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %1:2 = dist.permute %arg1, %arg2 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %2 = dist.positions <14 pad 16 zigzag 4{"ring"}> shift 1 : tensor<4xi64>
  %result_0, %lse_1 = nn.attention %arg0, %1#0, %1#1 positions %0, %2 scale 5.000000e-01 {causal, window_left = 9 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_2, %lse_3 = nn.merge_attention %result, %lse, %result_0, %lse_1 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %3:2 = dist.permute %1#0, %1#1 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %4 = dist.positions <14 pad 16 zigzag 4{"ring"}> shift 2 : tensor<4xi64>
  %result_4, %lse_5 = nn.attention %arg0, %3#0, %3#1 positions %0, %4 scale 5.000000e-01 {causal, window_left = 9 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_6, %lse_7 = nn.merge_attention %result_2, %lse_3, %result_4, %lse_5 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %5:2 = dist.permute %3#0, %3#1 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %6 = dist.positions <14 pad 16 zigzag 4{"ring"}> shift 3 : tensor<4xi64>
  %result_8, %lse_9 = nn.attention %arg0, %5#0, %5#1 positions %0, %6 scale 5.000000e-01 {causal, window_left = 9 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_10, %lse_11 = nn.merge_attention %result_6, %lse_7, %result_8, %lse_9 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %result_10 : tensor<1x2x4x8xf32>
}


// -----

// The mask and the bias go with the keys of each step.
dist.mesh @mesh = <["ring"=4]>
func.func @ring_masks(%arg0: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x14x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, (14 pad 16 zigzag 4{"ring"}), {}]>}, %arg1: tensor<1x14xi1> {dist.global = tensor<1x14xi1>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>}, %arg2: tensor<1x2x14x14xf32> {dist.global = tensor<1x2x14x14xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>}) -> (tensor<1x2x4x8xf32> {dist.global = tensor<1x2x14x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, (14 pad 16 zigzag 4{"ring"}), {}]>}) attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg2 : (tensor<1x2x14x14xf32>) -> tensor<2x14x14xf32>
  %1 = dist.pad %0 dims [1] : (tensor<2x14x14xf32>) -> tensor<2x16x14xf32>
  %2 = dist.reorder %1 dim 1 from <14 pad 16> to <14 pad 16 zigzag 4> : tensor<2x16x14xf32>
  %3 = dist.slice %2 axes ["ring"] dims [1] : (tensor<2x16x14xf32>) -> tensor<2x4x14xf32>
  %4 = nn.reshape %3 : (tensor<2x4x14xf32>) -> tensor<1x2x4x14xf32>
  %5 = dist.pad %arg1 dims [1] : (tensor<1x14xi1>) -> tensor<1x16xi1>
  %6 = dist.reorder %5 dim 1 from <14 pad 16> to <14 pad 16 zigzag 4> : tensor<1x16xi1>
  %7 = dist.pad %4 dims [3] : (tensor<1x2x4x14xf32>) -> tensor<1x2x4x16xf32>
  %8 = dist.reorder %7 dim 3 from <14 pad 16> to <14 pad 16 zigzag 4> : tensor<1x2x4x16xf32>
  %9 = dist.positions <14 pad 16 zigzag 4{"ring"}> : tensor<4xi64>
  %10 = dist.slice %6 axes ["ring"] dims [1] : (tensor<1x16xi1>) -> tensor<1x4xi1>
  %11 = dist.slice %8 axes ["ring"] dims [3] : (tensor<1x2x4x16xf32>) -> tensor<1x2x4x4xf32>
  %result, %lse = nn.attention %arg0, %arg0, %arg0 key_padding %10 bias %11 positions %9, %9 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x4xi1>, tensor<1x2x4x4xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %12:2 = dist.permute %arg0, %arg0 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %13 = dist.slice %6 axes ["ring"] dims [1] shift 1 : (tensor<1x16xi1>) -> tensor<1x4xi1>
  %14 = dist.slice %8 axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x16xf32>) -> tensor<1x2x4x4xf32>
  %15 = dist.positions <14 pad 16 zigzag 4{"ring"}> shift 1 : tensor<4xi64>
  %result_0, %lse_1 = nn.attention %arg0, %12#0, %12#1 key_padding %13 bias %14 positions %9, %15 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x4xi1>, tensor<1x2x4x4xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_2, %lse_3 = nn.merge_attention %result, %lse, %result_0, %lse_1 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %16:2 = dist.permute %12#0, %12#1 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %17 = dist.slice %6 axes ["ring"] dims [1] shift 2 : (tensor<1x16xi1>) -> tensor<1x4xi1>
  %18 = dist.slice %8 axes ["ring"] dims [3] shift 2 : (tensor<1x2x4x16xf32>) -> tensor<1x2x4x4xf32>
  %19 = dist.positions <14 pad 16 zigzag 4{"ring"}> shift 2 : tensor<4xi64>
  %result_4, %lse_5 = nn.attention %arg0, %16#0, %16#1 key_padding %17 bias %18 positions %9, %19 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x4xi1>, tensor<1x2x4x4xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_6, %lse_7 = nn.merge_attention %result_2, %lse_3, %result_4, %lse_5 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %20:2 = dist.permute %16#0, %16#1 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %21 = dist.slice %6 axes ["ring"] dims [1] shift 3 : (tensor<1x16xi1>) -> tensor<1x4xi1>
  %22 = dist.slice %8 axes ["ring"] dims [3] shift 3 : (tensor<1x2x4x16xf32>) -> tensor<1x2x4x4xf32>
  %23 = dist.positions <14 pad 16 zigzag 4{"ring"}> shift 3 : tensor<4xi64>
  %result_8, %lse_9 = nn.attention %arg0, %20#0, %20#1 key_padding %21 bias %22 positions %9, %23 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x4xi1>, tensor<1x2x4x4xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_10, %lse_11 = nn.merge_attention %result_6, %lse_7, %result_8, %lse_9 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %result_10 : tensor<1x2x4x8xf32>
}

// -----

// Keys go around a ring only to ranks that see them: others lack their chunk.
// CHECK-LABEL: func.func @ring_causal
dist.mesh @mesh = <["ring"=4]>
func.func @ring_causal(%arg0: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x16x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>}, %arg1: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x16x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>}, %arg2: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x16x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>}) -> (tensor<1x2x4x8xf32> {dist.global = tensor<1x2x16x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>}) attributes {dist.spmd = @mesh} {
  %0 = dist.positions <16{"ring"}> : tensor<4xi64>
  %1 = dist.positions <16{"ring"}> : tensor<4xi64>
  %result, %lse = nn.attention %arg0, %arg1, %arg2 positions %0, %1 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %2:2 = dist.permute %arg1, %arg2 axes ["ring"] pairs [[0, 1], [1, 2], [2, 3]] : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %3 = dist.positions <16{"ring"}> shift 1 : tensor<4xi64>
  %result_0, %lse_1 = nn.attention %arg0, %2#0, %2#1 positions %0, %3 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_2, %lse_3 = nn.merge_attention %result, %lse, %result_0, %lse_1 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %4:2 = dist.permute %2#0, %2#1 axes ["ring"] pairs [[1, 2], [2, 3]] : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %5 = dist.positions <16{"ring"}> shift 2 : tensor<4xi64>
  %result_4, %lse_5 = nn.attention %arg0, %4#0, %4#1 positions %0, %5 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_6, %lse_7 = nn.merge_attention %result_2, %lse_3, %result_4, %lse_5 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %6:2 = dist.permute %4#0, %4#1 axes ["ring"] pairs [[2, 3]] : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %7 = dist.positions <16{"ring"}> shift 3 : tensor<4xi64>
  %result_8, %lse_9 = nn.attention %arg0, %6#0, %6#1 positions %0, %7 scale 5.000000e-01 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %result_10, %lse_11 = nn.merge_attention %result_6, %lse_7, %result_8, %lse_9 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %result_10 : tensor<1x2x4x8xf32>
}

// -----

// Padded queries of padded heads whose bias is minus infinity see nothing: that is zero.
// CHECK-LABEL: func.func @masked_corner
dist.mesh @mesh = <["r"=2, "u"=2]>
func.func @masked_corner(
    %x: tensor<1x2x4x8xf32> {nn.parameter = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"u"}, {"r"}, {}]>, dist.global = tensor<1x3x7x8xf32>},
    %m: tensor<7x7xi1> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<7x7xi1>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"r"}, {"u"}, {}]>, dist.global = tensor<1x3x7x8xf32>})
    attributes {dist.spmd = @mesh} {
  %zero = nn.constant dense<0.0> : tensor<f32>
  %hidden = nn.constant dense<0xFF800000> : tensor<f32>
  %wide = dist.pad %m dims [1] : (tensor<7x7xi1>) -> tensor<7x8xi1>
  %own = dist.slice %wide axes ["r"] dims [0] : (tensor<7x8xi1>) -> tensor<4x8xi1>
  %bias = nn.select %own, %zero, %hidden : (tensor<4x8xi1>, tensor<f32>, tensor<f32>) -> tensor<4x8xf32>
  %p = dist.positions <7 pad 8{"r"}> : tensor<4xi64>
  %places = dist.positions <7 pad 8> : tensor<8xi64>
  %k = dist.all_gather %x axes ["r"] dims [2] : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x8xf32>
  %o = nn.attention %x, %k, %k bias %bias positions %p, %places scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<4x8xf32>, tensor<4xi64>, tensor<8xi64>) -> tensor<1x2x4x8xf32>
  %y = dist.redistribute %o from [#dist.sharding<@mesh, [{}, {"u"}, {"r"}, {}]>] to [#dist.sharding<@mesh, [{}, {"r"}, {"u"}, {}]>] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %q = dist.positions <7 pad 8{"u"}> : tensor<4xi64>
  %v = dist.all_gather %y axes ["u"] dims [2] : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x8xf32>
  %r = nn.attention %y, %v, %v positions %q, %places scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<4xi64>, tensor<8xi64>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A softmax over classes on two ranks, 7 of 8 true: a maximum and a sum are exchanged.
// CHECK-LABEL: func.func @sharded_softmax
dist.mesh @mesh = <["tp"=2]>
func.func @sharded_softmax(%x: tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x7xf32>})
    -> (tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x7xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.mask_padding %x axes ["tp"] dim 1 size 7 value 0xFFF0000000000000 : tensor<4x4xf32>
  %1 = nn.reduce max %0 dims [1] {keep_dims} : (tensor<4x4xf32>) -> tensor<4x1xf32>
  %2 = dist.all_reduce max %1 axes ["tp"] : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %3 = nn.sub %x, %2 : (tensor<4x4xf32>, tensor<4x1xf32>) -> tensor<4x4xf32>
  %4 = nn.exp %3 : tensor<4x4xf32>
  %5 = dist.mask_padding %4 axes ["tp"] dim 1 size 7 value 0.0 : tensor<4x4xf32>
  %6 = nn.reduce sum %5 dims [1] {keep_dims} : (tensor<4x4xf32>) -> tensor<4x1xf32>
  %7 = dist.all_reduce sum %6 axes ["tp"] : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %8 = nn.div %4, %7 : (tensor<4x4xf32>, tensor<4x1xf32>) -> tensor<4x4xf32>
  return %8 : tensor<4x4xf32>
}

// -----

// Two ranks of three have two of the four features: one of two, times two.
// CHECK-LABEL: func.func @coordinate_of_a_padded_chunk
dist.mesh @mesh = <["x"=3]>
func.func @coordinate_of_a_padded_chunk(
    %a: tensor<4x8x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"x"}]>, dist.global = tensor<4x8x4xf32>},
    %w: tensor<2x17xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x17xf32>})
    -> (tensor<2x4x4x17xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, (4, 2 pad 3{"x"}), {}]>, dist.global = tensor<2x4x8x17xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %a : (tensor<4x8x2xf32>) -> tensor<2x4x4x2xf32>
  %1 = nn.linear %0, %w {in_out} : (tensor<2x4x4x2xf32>, tensor<2x17xf32>) -> tensor<2x4x4x17xf32>
  return %1 : tensor<2x4x4x17xf32>
}

// -----

// A reshape that keeps the local shape moves a coordinate to the dimension before.
// CHECK-LABEL: func.func @reshape_moves_coordinate
dist.mesh @mesh = <["x"=3]>
func.func @reshape_moves_coordinate(%a: tensor<12x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>, dist.global = tensor<12x6xf32>})
    -> (tensor<12x2xf32> {dist.sharding = #dist.sharding<@mesh, [(12, 3{"x"}), {}]>, dist.global = tensor<36x2xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %a : (tensor<12x2xf32>) -> tensor<12x2xf32>
  return %0 : tensor<12x2xf32>
}

// -----

// 12 padded to 16 over three axes is 3 padded to 4 over two of them, times 4 over the third.
// CHECK-LABEL: func.func @reshape_splits_padded
dist.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
func.func @reshape_splits_padded(%a: tensor<5x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, (12 pad 16{"y", "x", "z"})]>, dist.global = tensor<5x12xf32>})
    -> (tensor<5x1x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"y", "x"}, {}]>, dist.global = tensor<5x3x4xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %a : (tensor<5x2xf32>) -> tensor<5x1x2xf32>
  %1 = dist.all_gather %0 axes ["z"] dims [2] : (tensor<5x1x2xf32>) -> tensor<5x1x4xf32>
  return %1 : tensor<5x1x4xf32>
}

// -----

// The rows of a chunk join the dimensions behind, where the boundaries are others: 16{y} is 2{y}
// times 8, and 3 padded to 4 stays so.
dist.mesh @mesh = <["y"=2]>
// CHECK-LABEL: func.func @chunks_with_other_boundaries
func.func @chunks_with_other_boundaries(
    %a: tensor<8x9x2xf32> {dist.global = tensor<16x9x2xf32>, dist.sharding = #dist.sharding<@mesh, [{"y"}, {}, {}]>},
    %b: tensor<4x17x4x3xf32> {dist.global = tensor<6x17x4x3xf32>, dist.sharding = #dist.sharding<@mesh, [{"y"}, {}, {}, {}]>})
    -> (tensor<1x9x16xf32> {dist.global = tensor<2x9x16xf32>, dist.sharding = #dist.sharding<@mesh, [{"y"}, {}, {}]>},
        tensor<1x2x17x6x4xf32> {dist.global = tensor<1x3x17x6x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"y"}, {}, {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %a : (tensor<8x9x2xf32>) -> tensor<1x9x16xf32>
  %1 = nn.reshape %b : (tensor<4x17x4x3xf32>) -> tensor<1x2x17x6x4xf32>
  return %0, %1 : tensor<1x9x16xf32>, tensor<1x2x17x6x4xf32>
}
