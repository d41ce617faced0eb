// RUN: sharding-opt %s --serve="page-size=4 requests=3 buckets=2,5 groups=2" | FileCheck %s

// Groups are a dimension of pages, of attention and of the choice of last tokens.

// CHECK: module attributes {nn.serving = {deal = 1 : i64, groups = 2 : i64, max_length = 6 : i64, page_size = 4 : i64, pages = 6 : i64, requests = 3 : i64, vocabulary = 9 : i64}}
// CHECK-DAG: nn.state @cache.layer.keys {fill = 0.000000e+00 : f32, role = "cache"} : tensor<2x6x4x2x4xf32>
// CHECK-DAG: nn.state @"cache.layer@1.values" {fill = 0.000000e+00 : f32, role = "cache"} : tensor<2x6x4x2x4xf32>
// CHECK-LABEL: func.func @"tokens=2"
// CHECK-LABEL: func.func @"tokens=5"
// CHECK-SAME: (%[[TOKENS:[a-z0-9]+]]: tensor<2x5xi64> {nn.input = "tokens"}, %{{[a-z0-9]+}}: tensor<2x5xi64> {nn.input = "positions"}, %[[SLOTS:[a-z0-9]+]]: tensor<2x5xi64> {nn.input = "slots"}, %[[TABLES:[a-z0-9]+]]: tensor<2x3x2xi64> {nn.input = "tables"}, %[[STARTS:[a-z0-9]+]]: tensor<2x4xi64> {nn.input = "starts"}, %[[LENGTHS:[a-z0-9]+]]: tensor<2x3xi64> {nn.input = "lengths"}
// CHECK-SAME: -> (tensor<2x3xi64> {nn.output = "next"}, tensor<2x3x9xf32> {nn.output = "logits"})
func.func @main(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"})
    -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
  // CHECK: %[[IDS:.*]] = nn.reshape %[[TOKENS]] : (tensor<2x5xi64>) -> tensor<1x10xi64>
  // CHECK: %[[ENDS:.*]] = nn.slice %[[STARTS]] starts [0, 1] limits [2, 4] strides [1, 1]
  // CHECK: %[[LAST:.*]] = nn.maximum
  // CHECK: nn.embedding %[[IDS]]
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.reshape %0 : (tensor<1x6x8xf32>) -> tensor<1x6x2x4xf32>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x6x2x4xf32>) -> tensor<1x2x6x4xf32>
  // CHECK: %[[KEYS:.*]] = nn.page_write %{{.*}}, %{{.*}}, %[[SLOTS]] : (tensor<2x6x4x2x4xf32>, tensor<2x5x2x4xf32>, tensor<2x5xi64>)
  // CHECK: nn.write @cache.layer.keys, %[[KEYS]]
  // CHECK: nn.paged_attention %{{.*}}, %[[KEYS]], %{{.*}} tables %[[TABLES]] starts %[[STARTS]] lengths %[[LENGTHS]] scale 5.000000e-01 : (tensor<2x5x2x4xf32>
  %3 = nn.attention %2, %2, %2 scale 0.5 {causal} : (tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>) -> tensor<1x2x6x4xf32> loc("layer")
  %4 = nn.attention %3, %3, %3 scale 0.5 {causal} : (tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>, tensor<1x2x6x4xf32>) -> tensor<1x2x6x4xf32> loc("layer")
  // CHECK: nn.write @"cache.layer@1.values"
  %5 = nn.transpose %4 [0, 2, 1, 3] : (tensor<1x2x6x4xf32>) -> tensor<1x6x2x4xf32>
  %6 = nn.reshape %5 : (tensor<1x6x2x4xf32>) -> tensor<1x6x8xf32>
  // The head computes one row for each request of each group.
  // CHECK: nn.take_along %{{.*}}, %{{.*}} dim {{.*}} -> tensor<{{.*}}2x3{{.*}}>
  // CHECK: nn.linear %{{.*}} : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  // CHECK: nn.reduce max
  // CHECK: nn.reduce min
  %7 = nn.linear %6, %e : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  return %7 : tensor<1x6x9xf32>
}
