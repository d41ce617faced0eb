// RUN: sharding-opt %s --bind-sizes --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --bind-sizes --bind-sizes | FileCheck %s

// The mean of both dimensions divides by both numbers, and by the features that the type counts.
// CHECK-LABEL: @mean
// CHECK-SAME: %[[B:[a-z0-9]+]]: tensor<i64> {nn.input = "b", nn.size = "batch"}
// CHECK-SAME: %[[N:[a-z0-9]+]]: tensor<i64> {nn.input = "n", nn.size = "tokens"}
func.func @mean(%x: tensor<4x24x8xf32> {nn.input = "x", nn.sizes = ["batch", "tokens", ""]},
                %b: tensor<i64> {nn.input = "b", nn.size = "batch"},
                %n: tensor<i64> {nn.input = "n", nn.size = "tokens"}) -> (tensor<f32>, tensor<4x24xf32>) {
  // CHECK: %[[COUNT:.*]] = nn.mul %[[B]], %[[N]]
  // CHECK: %[[SUM:.*]] = nn.reduce sum %{{.*}} dims [0, 1, 2]
  // CHECK: %[[WIDE:.*]] = nn.cast %[[COUNT]] : (tensor<i64>) -> tensor<f32>
  // CHECK: %[[EIGHT:.*]] = nn.constant dense<8.000000e+00>
  // CHECK: %[[ALL:.*]] = nn.mul %[[WIDE]], %[[EIGHT]]
  // CHECK: nn.div %[[SUM]], %[[ALL]]
  %0 = nn.reduce mean %x dims [0, 1, 2] : (tensor<4x24x8xf32>) -> tensor<f32>
  // CHECK: nn.reduce mean %{{.*}} dims [2]
  %1 = nn.reduce mean %x dims [2] : (tensor<4x24x8xf32>) -> tensor<4x24xf32>
  return %0, %1 : tensor<f32>, tensor<4x24xf32>
}

// CHECK-LABEL: @attention
// CHECK-SAME: %[[L:[a-z0-9]+]]: tensor<4xi64> {nn.input = "l"}
// CHECK-SAME: %[[N:[a-z0-9]+]]: tensor<i64> {nn.input = "n", nn.size = "tokens"}
func.func @attention(%q: tensor<4x2x5x8xf32> {nn.input = "q"},
                     %k: tensor<4x2x24x8xf32> {nn.input = "k", nn.sizes = ["", "", "tokens", ""]},
                     %l: tensor<4xi64> {nn.input = "l"},
                     %n: tensor<i64> {nn.input = "n", nn.size = "tokens"})
    -> (tensor<4x2x5x8xf32>, tensor<4x2x5x8xf32>, tensor<4x2x5x8xf32>) {
  // CHECK: %[[ROW:.*]] = nn.reshape %[[N]] : (tensor<i64>) -> tensor<1xi64>
  // CHECK: %[[ROWS:.*]] = nn.broadcast %[[ROW]] : (tensor<1xi64>) -> tensor<4xi64>
  // CHECK: nn.attention {{.*}} kv_lengths %[[ROWS]]
  %0 = nn.attention %q, %k, %k scale 0.5 : (tensor<4x2x5x8xf32>, tensor<4x2x24x8xf32>, tensor<4x2x24x8xf32>) -> tensor<4x2x5x8xf32>
  // CHECK: %[[LEAST:.*]] = nn.minimum %[[L]], %{{.*}} : (tensor<4xi64>, tensor<4xi64>)
  // CHECK: nn.attention {{.*}} kv_lengths %[[LEAST]]
  %1 = nn.attention %q, %k, %k kv_lengths %l scale 0.5 : (tensor<4x2x5x8xf32>, tensor<4x2x24x8xf32>, tensor<4x2x24x8xf32>, tensor<4xi64>) -> tensor<4x2x5x8xf32>
  // CHECK: nn.attention {{.*}} kv_lengths %{{.*}} {kv_length = 12 : i64}
  %2 = nn.attention %q, %k, %k scale 0.5 {kv_length = 12 : i64} : (tensor<4x2x5x8xf32>, tensor<4x2x24x8xf32>, tensor<4x2x24x8xf32>) -> tensor<4x2x5x8xf32>
  return %0, %1, %2 : tensor<4x2x5x8xf32>, tensor<4x2x5x8xf32>, tensor<4x2x5x8xf32>
}
