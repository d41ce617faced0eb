// RUN: sharding-opt %s --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --mlir-print-op-generic | sharding-opt --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --canonicalize | FileCheck %s --check-prefix=FOLD
// RUN: sharding-opt %s --pass-pipeline="builtin.module(func.func(expand-ops))" | FileCheck %s --check-prefix=EXPAND

// CHECK-LABEL: func.func @gradient
// CHECK: nn.gradient %{{.*}} of "up.weight" : (tensor<f32>) -> tensor<16x8xf32>
func.func @gradient(%x: tensor<2x16x8xbf16> {nn.input = "x"}, %w: tensor<16x8xbf16> {nn.parameter = "up.weight"}) -> tensor<16x8xf32> {
  %0 = nn.cast %x : (tensor<2x16x8xbf16>) -> tensor<2x16x8xf32>
  %1 = nn.reduce sum %0 dims [0, 1, 2] : (tensor<2x16x8xf32>) -> tensor<f32>
  %2 = nn.gradient %1 of "up.weight" : (tensor<f32>) -> tensor<16x8xf32>
  return %2 : tensor<16x8xf32>
}

// CHECK-LABEL: func.func @weight_grad
// CHECK: nn.weight_grad %arg0, %arg1 : (tensor<2x7x16xbf16>, tensor<2x7x8xbf16>) -> tensor<16x8xf32>
// CHECK: nn.weight_grad %arg2, %arg2 : (tensor<4xf64>, tensor<4xf64>) -> tensor<4x4xf64>
func.func @weight_grad(%dy: tensor<2x7x16xbf16>, %x: tensor<2x7x8xbf16>, %y: tensor<4xf64>) -> (tensor<16x8xf32>, tensor<4x4xf64>) {
  %0 = nn.weight_grad %dy, %x : (tensor<2x7x16xbf16>, tensor<2x7x8xbf16>) -> tensor<16x8xf32>
  %1 = nn.weight_grad %y, %y : (tensor<4xf64>, tensor<4xf64>) -> tensor<4x4xf64>
  return %0, %1 : tensor<16x8xf32>, tensor<4x4xf64>
}

// CHECK-LABEL: func.func @scatter_add
// CHECK: nn.scatter_add %arg0, %arg1 dim 1 : (tensor<5x2x7x8xf16>, tensor<2x7xi64>) -> tensor<5x32x8xf32>
// CHECK: nn.scatter_add %arg0, %arg2 dim 3 {along} : (tensor<5x2x7x8xf16>, tensor<5x2x7x8xi32>) -> tensor<5x2x7x3xf32>
// CHECK: nn.scatter_add %arg0, %arg1 offset %arg3 dim 1 {nn.table_rows = 61 : i64}
func.func @scatter_add(%u: tensor<5x2x7x8xf16>, %i: tensor<2x7xi64>, %j: tensor<5x2x7x8xi32>, %o: tensor<i64>)
    -> (tensor<5x32x8xf32>, tensor<5x2x7x3xf32>, tensor<5x32x8xf32>) {
  %0 = nn.scatter_add %u, %i dim 1 : (tensor<5x2x7x8xf16>, tensor<2x7xi64>) -> tensor<5x32x8xf32>
  %1 = nn.scatter_add %u, %j dim 3 {along} : (tensor<5x2x7x8xf16>, tensor<5x2x7x8xi32>) -> tensor<5x2x7x3xf32>
  %2 = nn.scatter_add %u, %i offset %o dim 1 {nn.table_rows = 61 : i64} : (tensor<5x2x7x8xf16>, tensor<2x7xi64>, tensor<i64>) -> tensor<5x32x8xf32>
  return %0, %1, %2 : tensor<5x32x8xf32>, tensor<5x2x7x3xf32>, tensor<5x32x8xf32>
}

// CHECK-LABEL: func.func @pad
// CHECK: nn.pad %arg0 low [0, 1] high [0, 2] interior [1, 0] : (tensor<2x3xf32>) -> tensor<3x6xf32>
// FOLD-LABEL: func.func @pad
// FOLD-COUNT-1: nn.pad
// FOLD-NOT: nn.pad
// FOLD: return %{{.*}}, %arg0
// No target has a kernel. Zeros are joined to the elements.
// EXPAND-LABEL: func.func @pad
// EXPAND-NOT: nn.pad
// EXPAND: %[[S:.*]] = nn.reshape %arg0 : (tensor<2x3xf32>) -> tensor<2x1x3xf32>
// EXPAND: %[[Z:.*]] = nn.constant dense<0.000000e+00> : tensor<2x1x3xf32>
// EXPAND: %[[C:.*]] = nn.concat %[[S]], %[[Z]] dim 1
// EXPAND: %[[R:.*]] = nn.reshape %[[C]] : (tensor<2x2x3xf32>) -> tensor<4x3xf32>
// EXPAND: %[[T:.*]] = nn.slice %[[R]] starts [0, 0] limits [3, 3]
// EXPAND: %[[L:.*]] = nn.constant dense<0.000000e+00> : tensor<3x1xf32>
// EXPAND: %[[H:.*]] = nn.constant dense<0.000000e+00> : tensor<3x2xf32>
// EXPAND: nn.concat %[[L]], %[[T]], %[[H]] dim 1 : {{.*}} -> tensor<3x6xf32>
func.func @pad(%x: tensor<2x3xf32>) -> (tensor<3x6xf32>, tensor<2x3xf32>) {
  %0 = nn.pad %x low [0, 1] high [0, 2] interior [1, 0] : (tensor<2x3xf32>) -> tensor<3x6xf32>
  %1 = nn.pad %x low [0, 0] high [0, 0] interior [0, 0] : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0, %1 : tensor<3x6xf32>, tensor<2x3xf32>
}
