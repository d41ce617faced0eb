// RUN: sharding-opt %s --encode-fetches | FileCheck %s

#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#both = #dist.sharding<@mesh, [{"gtp"}, {"tp"}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2, "gtp"=2]>
nn.state @w {dist.sharding = #shard} : tensor<64x64xf32>
nn.state @v {dist.sharding = #shard} : tensor<64x64xf32>

// Trained weights: parts of the largest magnitudes first, then one all-reduce of both.
// CHECK-LABEL: func.func @trained
// CHECK-DAG: dist.largest %arg1
// CHECK-DAG: dist.largest %arg2
// CHECK: dist.all_reduce max %{{.*}}, %{{.*}} axes ["gtp"] : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
// CHECK-COUNT-2: dist.encode %arg{{[12]}} largest
// CHECK-NOT: dist.encode
// CHECK-NOT: dist.round
func.func @trained(%x: tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>},
                   %w: tensor<32x64xf32> {nn.state = "w", nn.parameter = "w", dist.sharding = #shard, dist.global = tensor<64x64xf32>},
                   %v: tensor<32x64xf32> {nn.state = "v", nn.parameter = "v", dist.sharding = #shard, dist.global = tensor<64x64xf32>})
    -> (tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %w axes ["gtp"] dims [0] role weights : (tensor<32x64xf32>) -> tensor<64x64xf32>
  %1 = dist.round %0 form <nvfp4> : tensor<64x64xf32>
  %2 = nn.linear %x, %1 : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  %3 = dist.all_gather %v axes ["gtp"] dims [0] role weights : (tensor<32x64xf32>) -> tensor<64x64xf32>
  %4 = dist.round %3 form <nvfp4> : tensor<64x64xf32>
  %5 = nn.linear %2, %4 : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  // The form of both directions.
  %6 = nn.linear %5, %4 {in_out} : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  return %6 : tensor<4x64xf32>
}

// A transposed weight is contracted along its rows. Padding behind the rows is not decoded.
// CHECK-LABEL: func.func @transposed
// CHECK: %[[CODES:.*]] = dist.encode %arg1 : (tensor<64x64xf32>) -> tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 0>>
// CHECK: %[[ALL:.*]] = dist.all_gather %[[CODES]]
// CHECK: %[[ROWS:.*]] = dist.decode %[[ALL]] : {{.*}} -> tensor<100x64xf32>
// CHECK: %[[TURNED:.*]] = nn.transpose %[[ROWS]] [1, 0]
// CHECK: nn.linear %arg0, %[[TURNED]]
func.func @transposed(%x: tensor<4x100xf32> {dist.sharding = #whole, dist.global = tensor<4x100xf32>},
                      %w: tensor<64x64xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [(100 pad 128{"gtp"}), {}]>, dist.global = tensor<100x64xf32>})
    -> (tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %w axes ["gtp"] dims [0] role weights : (tensor<64x64xf32>) -> tensor<128x64xf32>
  %1 = nn.slice %0 starts [0, 0] limits [100, 64] strides [1, 1] : (tensor<128x64xf32>) -> tensor<100x64xf32>
  %2 = dist.round %1 form <mxfp8> : tensor<100x64xf32>
  %3 = nn.transpose %2 [1, 0] : (tensor<100x64xf32>) -> tensor<64x100xf32>
  %4 = nn.linear %x, %3 : (tensor<4x100xf32>, tensor<64x100xf32>) -> tensor<4x64xf32>
  return %4 : tensor<4x64xf32>
}

// Shards that cut blocks are encoded where they are whole. Scales of rows need no whole blocks of rows.
// CHECK-LABEL: func.func @cut_blocks
// CHECK: dist.encode %arg1 : (tensor<8x64xf32>) -> tensor<8x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
// CHECK: %[[ALL:.*]] = dist.all_gather %arg1
// CHECK: dist.encode %[[ALL]] : (tensor<16x64xf32>) -> tensor<16x64xf8E4M3FN, #dist.form<mxfp8 along 0>>
func.func @cut_blocks(%x: tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>},
                      %w: tensor<8x64xf32> {nn.parameter = "w", dist.sharding = #shard, dist.global = tensor<16x64xf32>})
    -> (tensor<4x64xf32> {dist.sharding = #whole, dist.global = tensor<4x64xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %w axes ["gtp"] dims [0] role weights : (tensor<8x64xf32>) -> tensor<16x64xf32>
  %1 = dist.round %0 form <mxfp8> : tensor<16x64xf32>
  %2 = nn.linear %x, %1 : (tensor<4x64xf32>, tensor<16x64xf32>) -> tensor<4x16xf32>
  %3 = nn.linear %2, %1 {in_out} : (tensor<4x16xf32>, tensor<16x64xf32>) -> tensor<4x64xf32>
  return %3 : tensor<4x64xf32>
}

// In a global program the blocks are those of the parts that ranks use; the largest magnitude is that of
// the whole weight. Parts of whole blocks need no cut.
// CHECK-LABEL: func.func @parts
// CHECK-DAG: %[[TOP:.*]] = dist.encode %{{.*}} largest %[[ALL:.*]] : (tensor<12x20xf32>, tensor<f32>) -> tensor<12x20xf4E2M1FN, #dist.form<nvfp4>>
// CHECK-DAG: %[[BELOW:.*]] = dist.encode %{{.*}} largest %[[ALL]] : (tensor<12x20xf32>, tensor<f32>) -> tensor<12x20xf4E2M1FN, #dist.form<nvfp4>>
// CHECK-DAG: %[[ALL]] = dist.largest %arg1
// CHECK-DAG: dist.encode %arg2 : (tensor<32x24xf32>)
// CHECK-DAG: dist.decode %[[TOP]]
// CHECK-DAG: dist.decode %[[BELOW]]
// CHECK: %[[ROUNDED:.*]] = nn.concat {{.*}} dim 0 : (tensor<12x20xf32>, tensor<12x20xf32>) -> tensor<24x20xf32>
// CHECK: nn.linear %arg0, %[[ROUNDED]]
func.func @parts(%x: tensor<4x20xf32>, %w: tensor<24x20xf32> {nn.parameter = "w"},
                 %v: tensor<32x24xf32> {nn.parameter = "v"}) -> tensor<4x32xf32> {
  %0 = dist.fetch %w rows 2 align 16 form <nvfp4> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<24x20xf32>
  %1 = nn.linear %x, %0 : (tensor<4x20xf32>, tensor<24x20xf32>) -> tensor<4x24xf32>
  %2 = dist.fetch %v rows 2 align 16 form <nvfp4> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<32x24xf32>
  %3 = nn.linear %1, %2 : (tensor<4x24xf32>, tensor<32x24xf32>) -> tensor<4x32xf32>
  return %3 : tensor<4x32xf32>
}
