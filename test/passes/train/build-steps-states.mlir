// RUN: sharding-opt %s --build-steps="optimizer=sgd microbatches=4" --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --build-steps="optimizer=sgd microbatches=4" --parallelize="mesh=dp=2" | FileCheck %s --check-prefix=SPMD

// A state that the program writes passes from one microbatch to the next in a transient copy. The step runs the last
// microbatch and writes the state itself.

// CHECK: nn.state @mean {fill = 1.000000e+00 : f32} : tensor<4xf32>
// CHECK: nn.state @microbatch.mean {fill = 0.000000e+00 : f32, transient} : tensor<4xf32>
// CHECK: nn.state @microbatch {fill = 0 : i64, transient} : tensor<i64>
// CHECK-LABEL: func.func @step
// CHECK-NOT: nn.read @mean
// CHECK: %[[OLD:.*]] = nn.read @microbatch.mean
// CHECK-NOT: nn.read @mean
// CHECK: %[[NEW:.*]] = nn.maximum %[[OLD]]
// CHECK: nn.write @mean, %[[NEW]]
// CHECK: %[[ZERO:.*]] = nn.constant dense<0> : tensor<i64>
// CHECK: nn.write @microbatch, %[[ZERO]]
// CHECK-LABEL: func.func private @repeated_step
// CHECK: %[[PASSED:.*]] = nn.read @microbatch.mean
// CHECK: %[[N:.*]] = nn.read @microbatch
// CHECK: %[[FIRST:.*]] = nn.compare eq %[[N]]
// CHECK: %[[STATE:.*]] = nn.read @mean
// CHECK: %[[OLD:.*]] = nn.select %[[FIRST]], %[[STATE]], %[[PASSED]]
// CHECK: %[[NEW:.*]] = nn.maximum %[[OLD]]
// CHECK-NOT: nn.write @mean
// CHECK: nn.write @microbatch.mean, %[[NEW]]
// CHECK: nn.write @microbatch,
// CHECK-LABEL: func.func @evaluate
// CHECK: nn.read @mean
// CHECK-NOT: nn.write @mean
// CHECK-NOT: microbatch

// The copy has the layout of the state, and is no sum over ranks.

// SPMD: nn.state @mean {dist.sharding = [[LAYOUT:.*]]>, fill
// SPMD: nn.state @microbatch.mean {dist.sharding = [[LAYOUT]]>, fill

nn.state @mean {fill = 1.0 : f32} : tensor<4xf32>
func.func @main(%x: tensor<6x4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %m = nn.read @mean : tensor<4xf32>
  %0 = nn.mul %x, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %1 = nn.reduce max %0 dims [0] : (tensor<6x4xf32>) -> tensor<4xf32>
  %2 = nn.maximum %m, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  nn.write @mean, %2 : tensor<4xf32>
  %3 = nn.reduce sum %0 dims [0, 1] : (tensor<6x4xf32>) -> tensor<f32>
  %4 = nn.gradient %3 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %3, %4 : tensor<f32>, tensor<4xf32>
}
