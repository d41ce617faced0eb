// RUN: sharding-opt %s --split-fused-linears | FileCheck %s

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x8xf32>
// CHECK-SAME: %[[Q:[a-z0-9]+]]: tensor<16x8xf32> {nn.parameter = "qk", nn.parameter_offsets = array<i64: 0, 0>}
// CHECK-SAME: %[[K:[a-z0-9]+]]: tensor<8x8xf32> {nn.parameter = "qk", nn.parameter_offsets = array<i64: 16, 0>}
// CHECK: %[[A:.*]] = nn.linear %[[X]], %[[Q]]
// CHECK: nn.reshape %[[A]] {nn.id = 3 : i64} : (tensor<4x16xf32>) -> tensor<4x4x4xf32>
// CHECK: %[[B:.*]] = nn.linear %[[X]], %[[K]]
// CHECK: nn.reshape %[[B]] {nn.id = 4 : i64} : (tensor<4x8xf32>) -> tensor<4x2x4xf32>
// CHECK-NOT: nn.slice
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<24x8xf32> {nn.parameter = "qk"})
    -> (tensor<4x4x4xf32> {nn.output = "q"}, tensor<4x2x4xf32> {nn.output = "k"}) {
  %y = nn.linear %x, %w {nn.id = 1 : i64} : (tensor<4x8xf32>, tensor<24x8xf32>) -> tensor<4x24xf32>
  %z = nn.reshape %y {nn.id = 2 : i64} : (tensor<4x24xf32>) -> tensor<4x6x4xf32>
  %q = nn.slice %z starts [0, 0, 0] limits [4, 4, 4] strides [1, 1, 1] {nn.id = 3 : i64} : (tensor<4x6x4xf32>) -> tensor<4x4x4xf32>
  %k = nn.slice %z starts [0, 4, 0] limits [4, 6, 4] strides [1, 1, 1] {nn.id = 4 : i64} : (tensor<4x6x4xf32>) -> tensor<4x2x4xf32>
  return %q, %k : tensor<4x4x4xf32>, tensor<4x2x4xf32>
}
