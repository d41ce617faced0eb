// RUN: sharding-opt %s --build-steps="optimizer=sgd seed=7" | FileCheck %s
// RUN: sharding-opt %s --build-steps="optimizer=sgd seed=7 microbatches=4" | FileCheck %s --check-prefix=PARTS

// A step drops by its seed and its number, and evaluation drops nothing.

// CHECK: nn.state @random.seed {fill = 7 : i64}
// CHECK: nn.state @random.step {fill = 0 : i64}
// CHECK-LABEL: func.func @step
// CHECK: nn.dropout
// CHECK: %[[N:.*]] = nn.read @random.step
// CHECK: %[[NEXT:.*]] = nn.add %[[N]]
// CHECK: nn.write @random.step, %[[NEXT]]
// CHECK-LABEL: func.func @evaluate
// CHECK-NOT: random
// CHECK-NOT: nn.dropout
// CHECK-NOT: drop_at

// Each microbatch has a number of its own: that of the step times 4, plus its own. The step runs the last.

// PARTS: nn.state @microbatch {fill = 0 : i64, transient}
// PARTS-LABEL: func.func @step
// PARTS: %[[N:.*]] = nn.read @random.step
// PARTS: %[[FOUR:.*]] = nn.constant dense<4> : tensor<i64>
// PARTS: %[[FIRST:.*]] = nn.mul %[[N]], %[[FOUR]]
// PARTS: %[[THREE:.*]] = nn.constant dense<3> : tensor<i64>
// PARTS: %[[NUMBER:.*]] = nn.add %[[FIRST]], %[[THREE]]
// PARTS: nn.dropout {{.*}} step %[[NUMBER]]
// PARTS: nn.attention {{.*}} step %[[NUMBER]]
// PARTS-DAG: nn.write @random.step
// PARTS-DAG: nn.write @microbatch
// PARTS-LABEL: func.func private @repeated_step
// PARTS: %[[N:.*]] = nn.read @random.step
// PARTS: %[[FOUR:.*]] = nn.constant dense<4> : tensor<i64>
// PARTS: %[[FIRST:.*]] = nn.mul %[[N]], %[[FOUR]]
// PARTS: %[[M:.*]] = nn.read @microbatch
// PARTS: %[[NUMBER:.*]] = nn.add %[[FIRST]], %[[M]]
// PARTS: nn.dropout {{.*}} step %[[NUMBER]]
// PARTS: nn.attention {{.*}} step %[[NUMBER]]
// PARTS: %[[M:.*]] = nn.read @microbatch
// PARTS: %[[NEXT:.*]] = nn.add %[[M]]
// PARTS: nn.write @microbatch, %[[NEXT]]
// PARTS-LABEL: func.func private @repeated_evaluate
// PARTS-NOT: random
// PARTS-NOT: microbatch

nn.state @random.seed {fill = 0 : i64} : tensor<i64>
nn.state @random.step {fill = 0 : i64} : tensor<i64>
func.func @main(%w: tensor<1x2x8x4xf32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<1x2x8x4xf32> {nn.output = "grad.w"}) {
  %s = nn.read @random.seed : tensor<i64>
  %n = nn.read @random.step : tensor<i64>
  %i = nn.iota dim 2 : tensor<1x2x8xi64>
  %j = nn.iota dim 0 : tensor<8xi64>
  %k = nn.iota dim 3 : tensor<1x2x8x4xi64>
  %d = nn.dropout %w at %k seed %s step %n probability 0.25 stream 0 : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  %o = nn.attention %d, %d, %d drop_at %i, %j seed %s step %n scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8xi64>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  %l = nn.reduce sum %o dims [0, 1, 2, 3] : (tensor<1x2x8x4xf32>) -> tensor<f32>
  %g = nn.gradient %l of "w" : (tensor<f32>) -> tensor<1x2x8x4xf32>
  return %l, %g : tensor<f32>, tensor<1x2x8x4xf32>
}
