// RUN: sharding-opt %s --split-input-file --annotate-scatter-modes=mode=on | FileCheck %s

// A group of four ranks has two rows of the batch. Each rank has half of the tokens of one row, so that one launch
// gathers both dimensions.

// CHECK-LABEL: func.func @few_rows
// CHECK: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp":(1)4}, {"tp":(4)2}, {}]>
// CHECK: nn.add {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp":(1)4}, {"tp":(4)2}, {}]>
dist.mesh @mesh = <["tp"=8 {roles = [tensor]}]> {dist.dp_attention = {dense_tp = 8 : i64, groups = 2 : i64, own_head = true}}
func.func @few_rows(%x: tensor<4x6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {}]>},
                    %h: tensor<4x6x32xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {"tp":(2)4}]>},
                    %b: tensor<8x32xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}, {"tp":(2)4}]>})
    -> tensor<4x6x8xf32> {
  %0 = nn.linear %h, %b : (tensor<4x6x32xf32>, tensor<8x32xf32>) -> tensor<4x6x8xf32>
  %1 = nn.add %x, %0 : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  return %1 : tensor<4x6x8xf32>
}

// -----

// Tokens that do not divide are padded behind the rows of the batch, as they are without these.

// CHECK-LABEL: func.func @padded
// CHECK: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp":(1)4}, {"tp":(4)2}, {}]>
dist.mesh @mesh = <["tp"=8 {roles = [tensor]}]> {dist.dp_attention = {dense_tp = 8 : i64, groups = 2 : i64, own_head = true}}
func.func @padded(%x: tensor<4x7x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {}]>},
                  %h: tensor<4x7x32xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {"tp":(2)4}]>},
                  %b: tensor<8x32xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}, {"tp":(2)4}]>})
    -> tensor<4x7x8xf32> {
  %0 = nn.linear %h, %b : (tensor<4x7x32xf32>, tensor<8x32xf32>) -> tensor<4x7x8xf32>
  %1 = nn.add %x, %0 : (tensor<4x7x8xf32>, tensor<4x7x8xf32>) -> tensor<4x7x8xf32>
  return %1 : tensor<4x7x8xf32>
}

// -----

// Rows of the batch that neither divide the ranks nor are divided by them stay whole on the group.

// CHECK-LABEL: func.func @other_rows
// CHECK: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {"tp":(2)4}, {}]>
dist.mesh @mesh = <["tp"=8 {roles = [tensor]}]> {dist.dp_attention = {dense_tp = 8 : i64, groups = 2 : i64, own_head = true}}
func.func @other_rows(%x: tensor<6x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {}]>},
                      %h: tensor<6x8x32xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {"tp":(2)4}]>},
                      %b: tensor<8x32xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}, {"tp":(2)4}]>})
    -> tensor<6x8x8xf32> {
  %0 = nn.linear %h, %b : (tensor<6x8x32xf32>, tensor<8x32xf32>) -> tensor<6x8x8xf32>
  %1 = nn.add %x, %0 : (tensor<6x8x8xf32>, tensor<6x8x8xf32>) -> tensor<6x8x8xf32>
  return %1 : tensor<6x8x8xf32>
}
