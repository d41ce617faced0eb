// RUN: sharding-opt %s --differentiate="loss=loss parameters=*" --recompute="mode=none" | FileCheck %s

// The backward pass drops what the forward pass dropped: the ops have the same index, seed, step and stream.

// CHECK-LABEL: func.func @main
// CHECK-DAG: %[[S:.*]] = nn.read @random.seed
// CHECK-DAG: %[[N:.*]] = nn.read @random.step
// CHECK-DAG: %[[I:.*]] = nn.iota
// CHECK: %[[Y:.*]] = nn.dropout %{{.*}} at %[[I]] seed %[[S]] step %[[N]] probability 2.500000e-01 stream 3
// CHECK: %[[DY:.*]] = nn.dropout %{{.*}} at %[[I]] seed %[[S]] step %[[N]] probability 2.500000e-01 stream 3 : {{.*}} -> tensor<8xf32>
// CHECK: %[[DW:.*]] = nn.mul %[[DY]], %arg0
// CHECK: return %{{.*}}, %[[DW]]
nn.state @random.seed {fill = 0 : i64} : tensor<i64>
nn.state @random.step {fill = 0 : i64} : tensor<i64>
func.func @main(%x: tensor<8xf32> {nn.input = "x"}, %w: tensor<8xf32> {nn.parameter = "w"}) -> (tensor<f32> {nn.output = "loss"}) {
  %s = nn.read @random.seed : tensor<i64>
  %n = nn.read @random.step : tensor<i64>
  %i = nn.iota dim 0 : tensor<8xi64>
  %0 = nn.mul %x, %w : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %1 = nn.dropout %0 at %i seed %s step %n probability 0.25 stream 3 : (tensor<8xf32>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<8xf32>
  %2 = nn.mul %1, %1 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = nn.reduce sum %2 dims [0] : (tensor<8xf32>) -> tensor<f32>
  return %3 : tensor<f32>
}
