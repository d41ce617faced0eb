// RUN: sharding-opt %s --split-input-file --combine-collectives | FileCheck %s

// With groups of ranks, two gathers of a value of which a rank has one row of the outer dimension are
// one. So are two scatters, with padding of the inner dimension before them.

// CHECK-LABEL: func.func @gather
// CHECK: nn.reshape {{.*}} -> tensor<3x8xf32>
// CHECK-NEXT: dist.all_gather {{.*}} axes ["tp"] dims [0] : (tensor<3x8xf32>) -> tensor<12x8xf32>
// CHECK-NEXT: nn.reshape {{.*}} -> tensor<2x6x8xf32>
// CHECK-NEXT: nn.slice {{.*}} -> tensor<2x5x8xf32>
dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 4 : i64, groups = 2 : i64, own_head = true}}
func.func @gather(%x: tensor<1x3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {"tp":(2)2}, {}]>, dist.global = tensor<2x5x8xf32>})
    -> (tensor<2x5x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<2x5x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp":(2)2] dims [1] : (tensor<1x3x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.slice %0 starts [0, 0, 0] limits [1, 5, 8] strides [1, 1, 1] : (tensor<1x6x8xf32>) -> tensor<1x5x8xf32>
  %2 = dist.all_gather %1 axes ["tp":(1)2] dims [0] : (tensor<1x5x8xf32>) -> tensor<2x5x8xf32>
  return %2 : tensor<2x5x8xf32>
}

// -----

// CHECK-LABEL: func.func @scatter
// CHECK: dist.pad {{.*}} dims [1] : (tensor<2x5x8xf32>) -> tensor<2x6x8xf32>
// CHECK-NEXT: nn.reshape {{.*}} -> tensor<12x8xf32>
// CHECK-NEXT: dist.reduce_scatter sum {{.*}} axes ["tp"] dims [0] : (tensor<12x8xf32>) -> tensor<3x8xf32>
// CHECK-NEXT: nn.reshape {{.*}} -> tensor<1x3x8xf32>
dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 4 : i64, groups = 2 : i64, own_head = true}}
func.func @scatter(%x: tensor<2x5x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}]>, dist.global = tensor<2x5x16xf32>},
                   %w: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<1x3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {"tp":(2)2}, {}]>, dist.global = tensor<2x5x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<2x5x4xf32>, tensor<8x4xf32>) -> tensor<2x5x8xf32>
  %1 = dist.reduce_scatter sum %0 axes ["tp":(1)2] dims [0] : (tensor<2x5x8xf32>) -> tensor<1x5x8xf32>
  %2 = dist.pad %1 dims [1] : (tensor<1x5x8xf32>) -> tensor<1x6x8xf32>
  %3 = dist.reduce_scatter sum %2 axes ["tp":(2)2] dims [1] : (tensor<1x6x8xf32>) -> tensor<1x3x8xf32>
  return %3 : tensor<1x3x8xf32>
}

// -----

// Chunks of two rows do not follow each other.

// CHECK-LABEL: func.func @rows
// CHECK-COUNT-2: dist.all_gather
dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 4 : i64, groups = 2 : i64, own_head = true}}
func.func @rows(%x: tensor<2x3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {"tp":(2)2}, {}]>, dist.global = tensor<4x6x8xf32>})
    -> (tensor<4x6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<4x6x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp":(2)2] dims [1] : (tensor<2x3x8xf32>) -> tensor<2x6x8xf32>
  %1 = dist.all_gather %0 axes ["tp":(1)2] dims [0] : (tensor<2x6x8xf32>) -> tensor<4x6x8xf32>
  return %1 : tensor<4x6x8xf32>
}

// -----

// A reshape between two gathers that drops a dimension of one row changes no chunk.

// CHECK-LABEL: func.func @dropped
// CHECK: nn.reshape {{.*}} -> tensor<3x8xf32>
// CHECK-NEXT: dist.all_gather {{.*}} axes ["tp"] dims [0] : (tensor<3x8xf32>) -> tensor<12x8xf32>
// CHECK-NEXT: nn.reshape {{.*}} -> tensor<2x6x8xf32>
// CHECK-NEXT: nn.slice {{.*}} -> tensor<2x5x8xf32>
// CHECK-NEXT: nn.reshape {{.*}} -> tensor<10x8xf32>
// CHECK-NOT: dist.all_gather
dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 4 : i64, groups = 2 : i64, own_head = true}}
func.func @dropped(%x: tensor<1x3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {"tp":(2)2}, {}]>, dist.global = tensor<2x5x8xf32>})
    -> (tensor<10x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<10x8xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp":(2)2] dims [1] : (tensor<1x3x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.slice %0 starts [0, 0, 0] limits [1, 5, 8] strides [1, 1, 1] : (tensor<1x6x8xf32>) -> tensor<1x5x8xf32>
  %2 = nn.reshape %1 : (tensor<1x5x8xf32>) -> tensor<5x8xf32>
  %3 = dist.all_gather %2 axes ["tp":(1)2] dims [0] : (tensor<5x8xf32>) -> tensor<10x8xf32>
  return %3 : tensor<10x8xf32>
}
