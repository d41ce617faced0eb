// RUN: sharding-opt %s --split-input-file --serve="page-size=4 requests=2 buckets=4" | FileCheck %s

// A bias of the difference of positions is a table of the distances that the last query sees.

// CHECK: %[[KEYS:.*]] = nn.iota dim 1 : tensor<1x6xi64>
// CHECK: %[[LAST:.*]] = nn.constant dense<5> : tensor<1x1xi64>
// CHECK: %[[BACK:.*]] = nn.sub %[[KEYS]], %[[LAST]] : (tensor<1x6xi64>, tensor<1x1xi64>) -> tensor<1x6xi64>
// CHECK: nn.embedding %{{.*}}, %{{.*}} : (tensor<1x6xi64>, tensor<6x2xf32>) -> tensor<1x6x2xf32>
// CHECK: %[[TABLE:.*]] = nn.reshape %{{.*}} : (tensor<1x2x1x6xf32>) -> tensor<2x6xf32>
// CHECK: nn.paged_attention {{.*}} distances %[[TABLE]] scale
func.func @distances(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"},
                     %t: tensor<6x2xf32> {nn.parameter = "t"}) -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.reshape %0 : (tensor<1x6x8xf32>) -> tensor<1x6x2x4xf32>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x6x2x4xf32>) -> tensor<1x2x6x4xf32>
  %3 = nn.iota dim 0 : tensor<6x1xi64>
  %4 = nn.iota dim 1 : tensor<1x6xi64>
  %5 = nn.sub %4, %3 : (tensor<1x6xi64>, tensor<6x1xi64>) -> tensor<6x6xi64>
  %6 = nn.constant dense<0> : tensor<i64>
  %7 = nn.neg %5 : tensor<6x6xi64>
  %8 = nn.maximum %7, %6 : (tensor<6x6xi64>, tensor<i64>) -> tensor<6x6xi64>
  %9 = nn.embedding %8, %t : (tensor<6x6xi64>, tensor<6x2xf32>) -> tensor<6x6x2xf32>
  %10 = nn.transpose %9 [2, 0, 1] : (tensor<6x6x2xf32>) -> tensor<2x6x6xf32>
  %11 = nn.attention %2, %2, %2 bias %10 scale 0.5 {causal} : (tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<2x6x6xf32>) -> tensor<1x2x6x4xf32>
  %12 = nn.transpose %11 [0, 2, 1, 3] : (tensor<1x2x6x4xf32>) -> tensor<1x6x2x4xf32>
  %13 = nn.reshape %12 : (tensor<1x6x2x4xf32>) -> tensor<1x6x8xf32>
  %14 = nn.linear %13, %e : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  return %14 : tensor<1x6x9xf32>
}

// -----

// A bias of the position of the key is a table of positions.

// CHECK: %[[POSITIONS:.*]] = nn.reshape %{{.*}} : (tensor<1x2x1x6xf32>) -> tensor<2x1x6xf32>
// CHECK: nn.paged_attention {{.*}} distances %[[POSITIONS]] scale
func.func @positions(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"},
                     %t: tensor<2x1x6xf32> {nn.parameter = "t"}) -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.reshape %0 : (tensor<1x6x8xf32>) -> tensor<1x6x2x4xf32>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x6x2x4xf32>) -> tensor<1x2x6x4xf32>
  %3 = nn.attention %2, %2, %2 bias %t scale 0.5 {causal} : (tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<2x1x6xf32>) -> tensor<1x2x6x4xf32>
  %4 = nn.transpose %3 [0, 2, 1, 3] : (tensor<1x2x6x4xf32>) -> tensor<1x6x2x4xf32>
  %5 = nn.reshape %4 : (tensor<1x6x2x4xf32>) -> tensor<1x6x8xf32>
  %6 = nn.linear %5, %e : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  return %6 : tensor<1x6x9xf32>
}
