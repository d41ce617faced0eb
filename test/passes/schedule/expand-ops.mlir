// RUN: sharding-opt %s --pass-pipeline="builtin.module(func.func(expand-ops))" | FileCheck %s

// No target has a kernel for a loss. Other ops stay.
// CHECK-LABEL: func.func @main
// CHECK-NOT: nn.cross_entropy
// The labels are looked up in a table of the classes, which fails for a label that is no class.
// CHECK: %[[T:.*]] = nn.iota dim 0 : tensor<16xi64>
// CHECK: nn.gather %[[T]], %arg1 dim 0
// CHECK: nn.reduce max %arg0 dims [1] {keep_dims}
// CHECK: nn.log
// CHECK: %[[L:.*]] = nn.reshape {{.*}} {nn.id = 4 : i64}
// CHECK: nn.softmax
// CHECK: return %[[L]]
func.func @main(%z: tensor<4x16xf32>, %y: tensor<4xi64>) -> (tensor<4xf32>, tensor<4x16xf32>) {
  %l = nn.cross_entropy %z, %y dim 1 {nn.id = 4 : i64} : (tensor<4x16xf32>, tensor<4xi64>) -> tensor<4xf32>
  %s = nn.softmax %z dim 1 : tensor<4x16xf32>
  return %l, %s : tensor<4xf32>, tensor<4x16xf32>
}
