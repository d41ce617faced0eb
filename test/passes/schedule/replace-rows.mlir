// RUN: sharding-opt %s --replace-rows | FileCheck %s

nn.state @s : tensor<8x4xf32>
nn.state @t : tensor<2x8x4xf32>

// CHECK-LABEL: func.func @last_rows
// CHECK-SAME: %[[S:.+]]: tensor<8x4xf32> {nn.state = "s"}, %[[X:.+]]: tensor<2x4xf32>
// CHECK: %[[I:.+]] = nn.constant dense<[6, 7]> : tensor<2xi64>
// CHECK: %[[R:.+]] = nn.index_copy %[[S]], %[[I]], %[[X]] dim 0
// CHECK-NEXT: return %[[R]]
func.func @last_rows(%s: tensor<8x4xf32> {nn.state = "s"}, %x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<8x4xf32> {nn.state = "s"}) {
  %0 = nn.slice %s starts [0, 0] limits [6, 4] strides [1, 1] : (tensor<8x4xf32>) -> tensor<6x4xf32>
  %1 = nn.concat %0, %x dim 0 : (tensor<6x4xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// Rows at both ends.

// CHECK-LABEL: func.func @ends
// CHECK: %[[N:.+]] = nn.concat %{{.+}}, %{{.+}} dim 1
// CHECK: %[[I:.+]] = nn.constant dense<[0, 7]> : tensor<2xi64>
// CHECK: nn.index_copy %{{.+}}, %[[I]], %[[N]] dim 1
func.func @ends(%t: tensor<2x8x4xf32> {nn.state = "t"}, %x: tensor<2x1x4xf32> {nn.input = "x"}) -> (tensor<2x8x4xf32> {nn.state = "t"}) {
  %0 = nn.slice %t starts [0, 1, 0] limits [2, 7, 4] strides [1, 1, 1] : (tensor<2x8x4xf32>) -> tensor<2x6x4xf32>
  %1 = nn.concat %x, %0, %x dim 1 : (tensor<2x1x4xf32>, tensor<2x6x4xf32>, tensor<2x1x4xf32>) -> tensor<2x8x4xf32>
  return %1 : tensor<2x8x4xf32>
}

// Rows that move, rows of another state, and more than half of the rows stay.

// CHECK-LABEL: func.func @moved
// CHECK-NOT: nn.index_copy
// CHECK: return
func.func @moved(%s: tensor<8x4xf32> {nn.state = "s"}, %x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<8x4xf32> {nn.state = "s"}) {
  %0 = nn.slice %s starts [2, 0] limits [8, 4] strides [1, 1] : (tensor<8x4xf32>) -> tensor<6x4xf32>
  %1 = nn.concat %0, %x dim 0 : (tensor<6x4xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @many
// CHECK-NOT: nn.index_copy
// CHECK: return
func.func @many(%s: tensor<8x4xf32> {nn.state = "s"}, %x: tensor<5x4xf32> {nn.input = "x"}) -> (tensor<8x4xf32> {nn.state = "s"}) {
  %0 = nn.slice %s starts [0, 0] limits [3, 4] strides [1, 1] : (tensor<8x4xf32>) -> tensor<3x4xf32>
  %1 = nn.concat %0, %x dim 0 : (tensor<3x4xf32>, tensor<5x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @output
// CHECK-NOT: nn.index_copy
// CHECK: return
func.func @output(%s: tensor<8x4xf32> {nn.state = "s"}, %x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<8x4xf32> {nn.output = "y"}) {
  %0 = nn.slice %s starts [0, 0] limits [6, 4] strides [1, 1] : (tensor<8x4xf32>) -> tensor<6x4xf32>
  %1 = nn.concat %0, %x dim 0 : (tensor<6x4xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
