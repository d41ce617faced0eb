// RUN: sharding-opt %s --build-steps="optimizer=sgd microbatches=4" --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --build-steps="optimizer=sgd microbatches=4" --parallelize="mesh=dp=2" | FileCheck %s --check-prefix=SPMD

// A call of a step runs the program on chunks of rows, and the step on the last chunk. It sums gradients and scalar outputs in
// transient states, and takes means.

// CHECK: nn.state @w {role = "parameter"} : tensor<4xf32>
// CHECK: nn.state @grad.w {fill = 0.000000e+00 : f32, role = "gradient", transient} : tensor<4xf32>
// CHECK-LABEL: func.func @step
// CHECK-SAME: tensor<6x4xf32> {nn.input = "x"}
// CHECK-SAME: {nn.parameter = "w"}
// CHECK-SAME: nn.input = "lr"
// CHECK-SAME: -> (tensor<f32> {nn.output = "loss"}, tensor<6x4xf32> {nn.output = "rows"})
// CHECK-SAME: nn.call = #nn.call<[<@repeated_step chunks 3>, <@step>]>
// CHECK: %[[G:.*]] = nn.gradient
// CHECK: %[[SUM:.*]] = nn.read @grad.w
// CHECK: %[[ALL:.*]] = nn.add %[[SUM]], %[[G]]
// CHECK: %[[ZERO:.*]] = nn.constant dense<0.0{{.*}}> : tensor<4xf32>
// CHECK: nn.write @grad.w, %[[ZERO]]
// CHECK: %[[FOUR:.*]] = nn.constant dense<4.0{{.*}}> : tensor<f32>
// CHECK: nn.div %[[ALL]], %[[FOUR]]
// CHECK-DAG: nn.write @w
// CHECK-DAG: nn.write @sum.loss
// CHECK-LABEL: func.func private @repeated_step
// CHECK-SAME: -> (tensor<6x4xf32> {nn.output = "rows"})
// CHECK: %[[G:.*]] = nn.gradient
// CHECK: %[[SUM:.*]] = nn.read @grad.w
// CHECK: %[[NEXT:.*]] = nn.add %[[SUM]], %[[G]]
// CHECK: nn.write @grad.w, %[[NEXT]]
// CHECK: nn.write @sum.loss
// CHECK-LABEL: func.func @evaluate
// CHECK-SAME: nn.call = #nn.call<[<@repeated_evaluate chunks 3>, <@evaluate>]>
// CHECK-NOT: nn.gradient
// CHECK-LABEL: func.func private @repeated_evaluate
// CHECK-NOT: nn.gradient

// SPMD-LABEL: func.func @step
// SPMD: dist.all_reduce {{.*}}tensor<4xf32>
// SPMD-LABEL: func.func private @repeated_step
// SPMD-SAME: tensor<3x4xf32>

func.func @main(%x: tensor<6x4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<6x4xf32> {nn.output = "rows"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %0 = nn.mul %x, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %1 = nn.mul %0, %0 : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  %2 = nn.reduce sum %1 dims [0, 1] : (tensor<6x4xf32>) -> tensor<f32>
  %3 = nn.gradient %2 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %2, %0, %3 : tensor<f32>, tensor<6x4xf32>, tensor<4xf32>
}
