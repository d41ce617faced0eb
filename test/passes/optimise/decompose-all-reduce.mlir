// RUN: sharding-opt %s --decompose-all-reduce --split-input-file | FileCheck %s
// RUN: sharding-opt %s --decompose-all-reduce --report-decisions --split-input-file 2>&1 -o /dev/null | FileCheck %s --check-prefix=LOG

// CHECK-LABEL: func.func @mlp
// CHECK: %[[PARTIAL:.*]] = nn.linear {{.*}} -> tensor<16x8xf32>
// CHECK: %[[SHARD:.*]] = dist.reduce_scatter sum %[[PARTIAL]] axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
// CHECK: %[[WHOLE:.*]] = dist.all_gather %[[SHARD]] axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
// CHECK: nn.add %{{.*}}, %[[WHOLE]]
// LOG: [decompose-all-reduce] applied: all-reduce becomes reduce-scatter and all-gather over tokens (all_reduce_bytes = 768 B
dist.mesh @mesh = <["tp"=4]>
func.func @mlp(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %a1 = nn.relu %a0 : tensor<16x4xf32>
  %a2 = nn.linear %a1, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %a3 = dist.all_reduce sum %a2 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %y = nn.add %x, %a3 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}

// -----

// Nothing runs on the shard: one launch is better than two.
// CHECK-LABEL: func.func @nothing_follows
// CHECK: dist.all_reduce
// CHECK-NOT: dist.reduce_scatter
// LOG: declined: all-reduce stays whole: no user of it can run on a shard of the tokens
dist.mesh @mesh = <["tp"=4]>
func.func @nothing_follows(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %a1 = nn.relu %a0 : tensor<16x4xf32>
  %a2 = nn.linear %a1, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %a3 = dist.all_reduce sum %a2 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  return %a3 : tensor<16x8xf32>
}

// -----

// 17 tokens on 4 ranks: what padding sends is more than what a shard saves here.
// CHECK-LABEL: func.func @padding_costs
// CHECK: dist.all_reduce
// LOG: declined: all-reduce stays whole: padding and launches cost more{{.*}}padded_rows = 3
dist.mesh @mesh = <["tp"=4]>
func.func @padding_costs(
    %x: tensor<17x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<17x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<17x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<17x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a0 = nn.linear %x, %up : (tensor<17x8xf32>, tensor<4x8xf32>) -> tensor<17x4xf32>
  %a1 = nn.relu %a0 : tensor<17x4xf32>
  %a2 = nn.linear %a1, %down : (tensor<17x4xf32>, tensor<8x4xf32>) -> tensor<17x8xf32>
  %a3 = dist.all_reduce sum %a2 axes ["tp"] : (tensor<17x8xf32>) -> tensor<17x8xf32>
  %y = nn.add %x, %a3 : (tensor<17x8xf32>, tensor<17x8xf32>) -> tensor<17x8xf32>
  return %y : tensor<17x8xf32>
}

// -----

// On a device whose launches take long a small all-reduce stays.
// CHECK-LABEL: func.func @launch_costs
// CHECK: dist.all_reduce
// LOG: declined: all-reduce stays whole: the second launch costs more
dist.mesh @mesh = <["tp"=4], device = "h100">
func.func @launch_costs(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %a1 = nn.relu %a0 : tensor<16x4xf32>
  %a2 = nn.linear %a1, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %a3 = dist.all_reduce sum %a2 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %y = nn.add %x, %a3 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}

// -----

// Parallel branches, with biases, into one residual share a reduction.
// CHECK-LABEL: func.func @parallel_branches
// CHECK: %[[A:.*]] = nn.linear {{.*}} -> tensor<16x8xf32>
// CHECK: %[[B:.*]] = nn.linear {{.*}} -> tensor<16x8xf32>
// CHECK: %[[SUM:.*]] = nn.add %[[A]], %[[B]]
// CHECK: dist.reduce_scatter sum %[[SUM]]
// CHECK-NOT: dist.reduce_scatter
// CHECK: nn.id = 7
// CHECK-NOT: dist.reduce_scatter
// LOG: applied: 2 partial sums into one value share a reduction (bytes_before = 1.50 KiB, bytes_after = 768 B)
dist.mesh @mesh = <["tp"=4]>
func.func @parallel_branches(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %up: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>},
    %bias: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %a1 = nn.relu %a0 : tensor<16x4xf32>
  %a2 = nn.linear %a1, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %a3 = dist.all_reduce sum %a2 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %a4 = nn.add %a3, %bias : (tensor<16x8xf32>, tensor<8xf32>) -> tensor<16x8xf32>
  %b0 = nn.linear %x, %up : (tensor<16x8xf32>, tensor<4x8xf32>) -> tensor<16x4xf32>
  %b1 = nn.relu %b0 : tensor<16x4xf32>
  %b2 = nn.linear %b1, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %b3 = dist.all_reduce sum %b2 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %b4 = nn.add %b3, %bias : (tensor<16x8xf32>, tensor<8xf32>) -> tensor<16x8xf32>
  %s = nn.add %a4, %b4 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %y = nn.add %x, %s {nn.id = 7 : i64} : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %y : tensor<16x8xf32>
}

// -----

// Rows that are equal may stand for a part of a sharded dimension, which a shard of them would not.
// CHECK-LABEL: func.func @equal_rows
// CHECK: dist.all_reduce
// CHECK-NOT: dist.reduce_scatter
dist.mesh @mesh = <["tp"=2]>
func.func @equal_rows(
    %x: tensor<1x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<1x8xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<6x8xf32>})
    attributes {dist.spmd = @mesh} {
  %rows = nn.broadcast %x : (tensor<1x4xf32>) -> tensor<6x4xf32>
  %partial = nn.linear %rows, %down : (tensor<6x4xf32>, tensor<8x4xf32>) -> tensor<6x8xf32>
  %sum = dist.all_reduce sum %partial axes ["tp"] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %y = nn.relu %sum : tensor<6x8xf32>
  return %y : tensor<6x8xf32>
}

// -----

// The sum of gradients is no sum of tokens, and sums of two roles are not one.
// CHECK-LABEL: func.func @roles
// CHECK: dist.all_reduce sum %{{.*}} axes ["tp"] role gradients
// CHECK: dist.all_reduce sum %{{.*}} axes ["tp"] role saved
// CHECK-NOT: dist.reduce_scatter
// LOG: declined: all-reduce stays whole: its role is gradients, and only data has tokens
dist.mesh @mesh = <["tp"=4]>
func.func @roles(
    %x: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x16xf32>},
    %down: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x16xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] role gradients : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %2 = nn.linear %x, %down : (tensor<16x4xf32>, tensor<8x4xf32>) -> tensor<16x8xf32>
  %3 = dist.all_reduce sum %2 axes ["tp"] role saved : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %4 = nn.add %1, %3 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %5 = nn.relu %4 : tensor<16x8xf32>
  return %5 : tensor<16x8xf32>
}
