// RUN: sharding-opt %s -canonicalize -split-input-file --verify-roundtrip | FileCheck %s

// CHECK-LABEL: func.func @identities
// CHECK-SAME: [[X:%.+]]: tensor<2x3xf32>
func.func @identities(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = nn.reshape %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = nn.transpose %0 [0, 1] : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %2 = nn.slice %1 starts [0, 0] limits [2, 3] strides [1, 1] : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %3 = nn.broadcast %2 : (tensor<2x3xf32>) -> tensor<2x3xf32>
  // CHECK-NEXT: return [[X]]
  return %3 : tensor<2x3xf32>
}

// -----

// CHECK-LABEL: func.func @reshape_of_reshape
// CHECK-SAME: [[X:%.+]]: tensor<2x3x4xf32>
func.func @reshape_of_reshape(%x: tensor<2x3x4xf32>) -> (tensor<6x4xf32>, tensor<2x3x4xf32>) {
  %0 = nn.reshape %x : (tensor<2x3x4xf32>) -> tensor<24xf32>
  // CHECK-NEXT: [[Y:%.+]] = nn.reshape [[X]] : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
  %1 = nn.reshape %0 : (tensor<24xf32>) -> tensor<6x4xf32>
  %2 = nn.reshape %1 : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
  // CHECK-NEXT: return [[Y]], [[X]]
  return %1, %2 : tensor<6x4xf32>, tensor<2x3x4xf32>
}

// -----

// CHECK-LABEL: func.func @transpose_of_transpose
// CHECK-SAME: [[X:%.+]]: tensor<2x3x4xf32>
func.func @transpose_of_transpose(%x: tensor<2x3x4xf32>) -> (tensor<4x3x2xf32>, tensor<2x3x4xf32>) {
  %0 = nn.transpose %x [1, 2, 0] : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
  // CHECK-NEXT: [[Y:%.+]] = nn.transpose [[X]] [2, 1, 0]
  %1 = nn.transpose %0 [1, 0, 2] : (tensor<3x4x2xf32>) -> tensor<4x3x2xf32>
  %2 = nn.transpose %0 [2, 0, 1] : (tensor<3x4x2xf32>) -> tensor<2x3x4xf32>
  // CHECK-NEXT: return [[Y]], [[X]]
  return %1, %2 : tensor<4x3x2xf32>, tensor<2x3x4xf32>
}

// -----

// A transpose that keeps the type is not the identity.
// CHECK-LABEL: func.func @square
func.func @square(%x: tensor<3x3xf32>) -> tensor<3x3xf32> {
  // CHECK: nn.transpose
  %0 = nn.transpose %x [1, 0] : (tensor<3x3xf32>) -> tensor<3x3xf32>
  return %0 : tensor<3x3xf32>
}

// -----

// CHECK-LABEL: func.func @constants
func.func @constants() -> (tensor<5x6xf32>, tensor<3x2xi64>) {
  // CHECK-DAG: [[A:%.+]] = nn.constant dense<1.000000e+00> : tensor<5x6xf32>
  // CHECK-DAG: [[B:%.+]] = nn.constant dense<{{\[\[}}0, 1], [2, 3], [4, 5]]> : tensor<3x2xi64>
  // CHECK: return [[A]], [[B]]
  %0 = nn.constant dense<1.0> : tensor<4x1xf32>
  %1 = nn.slice %0 starts [1, 0] limits [2, 1] strides [1, 1] : (tensor<4x1xf32>) -> tensor<1x1xf32>
  %2 = nn.broadcast %1 : (tensor<1x1xf32>) -> tensor<6x5xf32>
  %3 = nn.transpose %2 [1, 0] : (tensor<6x5xf32>) -> tensor<5x6xf32>
  %4 = nn.constant dense<[[0, 1, 2], [3, 4, 5]]> : tensor<2x3xi64>
  %5 = nn.reshape %4 : (tensor<2x3xi64>) -> tensor<3x2xi64>
  return %3, %5 : tensor<5x6xf32>, tensor<3x2xi64>
}

// -----

// A sharding that a user states stays.
dist.mesh @mesh = <["tp"=2]>
// CHECK-LABEL: func.func @annotated
func.func @annotated(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  // CHECK: nn.reshape {{.*}}dist.sharding
  %0 = nn.reshape %x {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
