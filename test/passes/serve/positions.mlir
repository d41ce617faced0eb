// RUN: sharding-opt %s --serve="page-size=4 requests=2 buckets=2,8" | FileCheck %s

// Values of positions are computed for the tokens of a step. A sum over positions is a table, of which each
// token takes its row. So is a parameter, and a stored one, whose blocks of scales are counted from its first
// row. A step of as many tokens as there are positions takes rows of all values.

// CHECK-LABEL: func.func @"tokens=2"
// CHECK-SAME: %[[POSITIONS:[a-z0-9]+]]: tensor<1x2xi64> {nn.input = "positions"}
// CHECK-SAME: %[[TABLE:[a-z0-9]+]]: tensor<9x4xf32> {nn.parameter = "p"}
// CHECK: %[[ROWS:.*]] = nn.reshape %[[POSITIONS]] : (tensor<1x2xi64>) -> tensor<2xi64>
// CHECK: %[[SUMS:.*]] = nn.cumsum %{{.*}} : tensor<8x1xf32>
// CHECK: %[[OWN:.*]] = nn.slice %[[TABLE]] starts [1, 0] limits [9, 4] strides [1, 1]
// CHECK: %[[NUMBERS:.*]] = nn.cast %[[ROWS]] : (tensor<2xi64>) -> tensor<2xf32>
// CHECK: %[[COLUMN:.*]] = nn.reshape %[[NUMBERS]] : (tensor<2xf32>) -> tensor<2x1xf32>
// CHECK: %[[WAVES:.*]] = nn.cos %[[COLUMN]] : tensor<2x1xf32>
// CHECK: nn.mul %{{.*}}, %[[WAVES]] : (tensor<1x2x4xf32>, tensor<2x1xf32>)
// CHECK: nn.gather %[[SUMS]], %[[ROWS]] dim 0 : (tensor<8x1xf32>, tensor<2xi64>) -> tensor<2x1xf32>
// CHECK: nn.gather %[[OWN]], %[[ROWS]] dim 0 : (tensor<8x4xf32>, tensor<2xi64>) -> tensor<2x4xf32>
// CHECK: %[[STORED:.*]] = nn.dequantize %{{.*}} {block = [3, 4]} : (tensor<8x4xf8E4M3FN>, tensor<3x1xf32>) -> tensor<8x4xf32>
// CHECK: nn.gather %[[STORED]], %[[ROWS]] dim 0 : (tensor<8x4xf32>, tensor<2xi64>) -> tensor<2x4xf32>
// CHECK-LABEL: func.func @"tokens=8"
// CHECK: nn.cos %{{.*}} : tensor<8x1xf32>
// CHECK: nn.gather %{{.*}} dim 0 : (tensor<8x1xf32>, tensor<8xi64>) -> tensor<8x1xf32>
func.func @main(%ids: tensor<1x8xi64> {nn.input = "ids"}, %e: tensor<9x4xf32> {nn.parameter = "e"},
                %p: tensor<9x4xf32> {nn.parameter = "p"},
                %codes: tensor<8x4xf8E4M3FN> {nn.parameter = "codes"}, %scales: tensor<3x1xf32> {nn.parameter = "scales"}) -> (tensor<1x8x9xf32> {nn.output = "logits"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x8xi64>, tensor<9x4xf32>) -> tensor<1x8x4xf32>
  %number = nn.iota dim 0 : tensor<8x1xf32>
  %waves = nn.cos %number : tensor<8x1xf32>
  %sums = nn.cumsum %number dim 0 : tensor<8x1xf32>
  %own = nn.slice %p starts [1, 0] limits [9, 4] strides [1, 1] : (tensor<9x4xf32>) -> tensor<8x4xf32>
  %1 = nn.mul %0, %waves : (tensor<1x8x4xf32>, tensor<8x1xf32>) -> tensor<1x8x4xf32>
  %2 = nn.add %1, %sums : (tensor<1x8x4xf32>, tensor<8x1xf32>) -> tensor<1x8x4xf32>
  %3 = nn.add %2, %own : (tensor<1x8x4xf32>, tensor<8x4xf32>) -> tensor<1x8x4xf32>
  %stored = nn.dequantize %codes, %scales {block = [3, 4]} : (tensor<8x4xf8E4M3FN>, tensor<3x1xf32>) -> tensor<8x4xf32>
  %all = nn.add %3, %stored : (tensor<1x8x4xf32>, tensor<8x4xf32>) -> tensor<1x8x4xf32>
  %q = nn.reshape %all : (tensor<1x8x4xf32>) -> tensor<1x1x8x4xf32>
  %4 = nn.attention %q, %q, %q scale 0.5 {causal} : (tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>, tensor<1x1x8x4xf32>) -> tensor<1x1x8x4xf32>
  %5 = nn.reshape %4 : (tensor<1x1x8x4xf32>) -> tensor<1x8x4xf32>
  %6 = nn.linear %5, %e : (tensor<1x8x4xf32>, tensor<9x4xf32>) -> tensor<1x8x9xf32>
  return %6 : tensor<1x8x9xf32>
}
