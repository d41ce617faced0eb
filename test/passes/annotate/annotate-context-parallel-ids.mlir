// RUN: sharding-opt %s --annotate-context-parallel="ring=ring order=contiguous" --propagate-shardings --sum-sharded-slices --partition --verify-placement | FileCheck %s

// Where the last token is that is no padding follows from all ids: every rank has
// them, and cuts those that it embeds.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[IDS:.*]]: tensor<2x8xi64>
// CHECK-NOT: all_gather
// CHECK: %[[OWN:.*]] = dist.slice %[[IDS]] axes ["ring"] dims [1] : (tensor<2x8xi64>) -> tensor<2x4xi64>
// CHECK: nn.embedding %[[OWN]]
// CHECK: nn.reduce max %[[IDS]] dims [1]
// CHECK: nn.reduce sum {{.*}} -> tensor<2x1x8xf32>
// CHECK: dist.all_reduce sum {{.*}} axes ["ring"] : (tensor<2x1x8xf32>)
// CHECK-NOT: all_gather
// CHECK: return
dist.mesh @mesh = <["ring"=2]>
func.func @main(%ids: tensor<2x8xi64> {nn.input = "ids"}, %w: tensor<9x8xf32> {nn.parameter = "w"})
    -> (tensor<2x1x8xf32> {nn.output = "y"}) {
  %x = nn.embedding %ids, %w : (tensor<2x8xi64>, tensor<9x8xf32>) -> tensor<2x8x8xf32>
  %x1 = nn.reshape %x : (tensor<2x8x8xf32>) -> tensor<2x8x2x4xf32>
  %x2 = nn.transpose %x1 [0, 2, 1, 3] : (tensor<2x8x2x4xf32>) -> tensor<2x2x8x4xf32>
  %o = nn.attention %x2, %x2, %x2 scale 0.5 {causal} : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
  %o1 = nn.transpose %o [0, 2, 1, 3] : (tensor<2x2x8x4xf32>) -> tensor<2x8x2x4xf32>
  %h = nn.reshape %o1 : (tensor<2x8x2x4xf32>) -> tensor<2x8x8xf32>
  %n = nn.reduce max %ids dims [1] {keep_dims} : (tensor<2x8xi64>) -> tensor<2x1xi64>
  %n1 = nn.reshape %n : (tensor<2x1xi64>) -> tensor<2x1x1xi64>
  %n2 = nn.broadcast %n1 : (tensor<2x1x1xi64>) -> tensor<2x1x8xi64>
  %y = nn.take_along %h, %n2 dim 1 : (tensor<2x8x8xf32>, tensor<2x1x8xi64>) -> tensor<2x1x8xf32>
  return %y : tensor<2x1x8xf32>
}
