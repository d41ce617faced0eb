// RUN: sharding-opt %s --differentiate="loss=loss parameters=*" --recompute="mode=none" | FileCheck %s

// CHECK: %[[O:.*]], %[[L:.*]] = nn.attention %{{.*}} drop_at %[[R:.*]], %[[K:.*]] seed %[[S:.*]] step %[[N:.*]] scale 5.000000e-01 {dropout = 2.500000e-01 : f64, stream = 1 : i64}
// CHECK: nn.attention_grad %{{.*}} drop_at %[[R]], %[[K]] seed %[[S]] step %[[N]] lse %[[L]] delta %{{.*}} cotangent %{{.*}} scale 5.000000e-01 {dropout = 2.500000e-01 : f64, nn.whole_keys, stream = 1 : i64}
func.func @main(%w: tensor<1x2x8x4xf32> {nn.parameter = "w"}, %s: tensor<i64> {nn.input = "s"}) -> (tensor<f32> {nn.output = "loss"}) {
  %i = nn.iota dim 2 : tensor<1x2x8xi64>
  %j = nn.iota dim 0 : tensor<8xi64>
  %o = nn.attention %w, %w, %w drop_at %i, %j seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8xi64>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  %l = nn.reduce sum %o dims [0, 1, 2, 3] : (tensor<1x2x8x4xf32>) -> tensor<f32>
  return %l : tensor<f32>
}
