// RUN: sharding-opt %s --split-input-file --propagate-shardings --partition --verify-placement | FileCheck %s

// Each rank has the global indices of its elements. Dropout is linear, so it takes no part in the layout.

// CHECK-LABEL: func.func @elements
// CHECK: %[[ALL:.*]] = nn.iota dim 0 : tensor<8x1xi64>
// CHECK: %[[ROWS:.*]] = dist.slice %{{.*}} axes ["a"] dims [0] : (tensor<8x1xi64>) -> tensor<4x1xi64>
// CHECK: %[[I:.*]] = nn.add %{{.*}}, %{{.*}} : (tensor<4x1xi64>, tensor<1x6xi64>) -> tensor<4x6xi64>
// CHECK: nn.dropout %{{.*}} at %[[I]] seed %arg1 step %arg1 probability 2.500000e-01 stream 3 : (tensor<4x6xf32>
dist.mesh @mesh = <["a"=2]>
func.func @elements(%x: tensor<8x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"a"}, {}]>}, %s: tensor<i64> {nn.input = "s"})
    -> (tensor<8x6xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"a"}, {}]>}) {
  %r = nn.iota dim 0 : tensor<8x1xi64>
  %c = nn.iota dim 1 : tensor<1x6xi64>
  %w = nn.constant dense<6> : tensor<i64>
  %rw = nn.mul %r, %w : (tensor<8x1xi64>, tensor<i64>) -> tensor<8x1xi64>
  %i = nn.add %rw, %c : (tensor<8x1xi64>, tensor<1x6xi64>) -> tensor<8x6xi64>
  %y = nn.dropout %x at %i seed %s step %s probability 0.25 stream 3 : (tensor<8x6xf32>, tensor<8x6xi64>, tensor<i64>, tensor<i64>) -> tensor<8x6xf32>
  return %y : tensor<8x6xf32>
}

// -----

// Each step of a ring has the indices of its chunk of the keys.

// CHECK-LABEL: func.func @ring
// CHECK-DAG: %[[K:.*]] = nn.iota dim 0 : tensor<8xi64>
// CHECK-DAG: %[[R:.*]] = dist.slice %{{.*}} axes ["r"] dims [2] : (tensor<1x2x8xi64>) -> tensor<1x2x4xi64>
// CHECK: %[[K0:.*]] = dist.slice %[[K]] axes ["r"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
// CHECK: nn.attention {{.*}} drop_at %[[R]], %[[K0]] seed %arg2 step %arg2
// CHECK: %[[K1:.*]] = dist.slice %[[K]] axes ["r"] dims [0] shift 1 : (tensor<8xi64>) -> tensor<4xi64>
// CHECK: nn.attention {{.*}} drop_at %[[R]], %[[K1]] seed %arg2 step %arg2
dist.mesh @mesh = <["r"=2]>
func.func @ring(%q: tensor<1x2x8x4xf32> {nn.input = "q", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>},
    %k: tensor<1x2x8x4xf32> {nn.input = "k", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>},
    %s: tensor<i64> {nn.input = "s"})
    -> (tensor<1x2x8x4xf32> {nn.output = "o", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"r"}, {}]>}) {
  %i = nn.iota dim 2 : tensor<1x2x8xi64>
  %j = nn.iota dim 0 : tensor<8xi64>
  %kr = dist.constrain %k <@mesh, [{}, {}, {"r"}, {}]> : tensor<1x2x8x4xf32>
  %o = nn.attention %q, %kr, %kr drop_at %i, %j seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8xi64>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  return %o : tensor<1x2x8x4xf32>
}
