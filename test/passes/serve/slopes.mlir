// RUN: sharding-opt %s --serve="page-size=4 requests=2 buckets=4" | FileCheck %s

// A bias that grows with the position of the key is slopes of the distance; its constant term goes.

// CHECK: %[[EACH:.*]] = nn.constant dense<{{\[\[\[5.000000e-01\]\], \[\[2.500000e-01\]\]\]}}> : tensor<2x1x1xf32>
// CHECK: %[[SLOPES:.*]] = nn.reshape %{{.*}} : (tensor<1x2x1x1xf32>) -> tensor<2xf32>
// CHECK: nn.paged_attention {{.*}} slopes %[[SLOPES]] scale
func.func @main(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"})
    -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.reshape %0 : (tensor<1x6x8xf32>) -> tensor<1x6x2x4xf32>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x6x2x4xf32>) -> tensor<1x2x6x4xf32>
  %3 = nn.iota dim 2 : tensor<1x1x6xi64>
  %4 = nn.constant dense<-5> : tensor<i64>
  %5 = nn.add %3, %4 : (tensor<1x1x6xi64>, tensor<i64>) -> tensor<1x1x6xi64>
  %6 = nn.cast %5 : (tensor<1x1x6xi64>) -> tensor<1x1x6xf32>
  %7 = nn.constant dense<[[[5.0e-1]], [[2.5e-1]]]> : tensor<2x1x1xf32>
  %8 = nn.mul %7, %6 : (tensor<2x1x1xf32>, tensor<1x1x6xf32>) -> tensor<2x1x6xf32>
  %9 = nn.attention %2, %2, %2 bias %8 scale 0.5 {causal} : (tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<2x1x6xf32>) -> tensor<1x2x6x4xf32>
  %10 = nn.transpose %9 [0, 2, 1, 3] : (tensor<1x2x6x4xf32>) -> tensor<1x6x2x4xf32>
  %11 = nn.reshape %10 : (tensor<1x6x2x4xf32>) -> tensor<1x6x8xf32>
  %12 = nn.linear %11, %e : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  return %12 : tensor<1x6x9xf32>
}
