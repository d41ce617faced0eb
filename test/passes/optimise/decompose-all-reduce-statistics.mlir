// RUN: sharding-opt %s --decompose-all-reduce=when=on --split-input-file | FileCheck %s

// A sum of each row, as a softmax over sharded columns takes it, stays whole where the tokens
// would be padded: 5 tokens on 4 ranks would send 8.
// CHECK-LABEL: func.func @rows
// CHECK: dist.all_reduce sum {{.*}} : (tensor<5x1xf32>)
// CHECK-NOT: dist.reduce_scatter
dist.mesh @mesh = <["tp"=4], device = "h100">
func.func @rows(
    %x: tensor<5x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<5x16xf32>})
    -> (tensor<5x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<5x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reduce sum %x dims [1] {keep_dims} : (tensor<5x4xf32>) -> tensor<5x1xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<5x1xf32>) -> tensor<5x1xf32>
  %2 = nn.log %1 : tensor<5x1xf32>
  %3 = nn.sub %x, %2 : (tensor<5x4xf32>, tensor<5x1xf32>) -> tensor<5x4xf32>
  return %3 : tensor<5x4xf32>
}

// -----

// As above, where the rows are in another dimension than the one that tokens mostly have.
// CHECK-LABEL: func.func @columns
// CHECK: dist.all_reduce sum {{.*}} : (tensor<1x5xf32>)
// CHECK-NOT: dist.reduce_scatter
dist.mesh @mesh = <["tp"=4], device = "h100">
func.func @columns(
    %x: tensor<4x5xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x5xf32>})
    -> (tensor<4x5xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x5xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reduce sum %x dims [0] {keep_dims} : (tensor<4x5xf32>) -> tensor<1x5xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<1x5xf32>) -> tensor<1x5xf32>
  %2 = nn.log %1 : tensor<1x5xf32>
  %3 = nn.sub %x, %2 : (tensor<4x5xf32>, tensor<1x5xf32>) -> tensor<4x5xf32>
  return %3 : tensor<4x5xf32>
}
