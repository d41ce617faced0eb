// RUN: sharding-opt %s --build-steps="optimizer=sgd microbatches=2" --verify-roundtrip | FileCheck %s

// Each microbatch has all of an input whose dimension 0 is not the batch: by its size, or because the input says so.

// CHECK-LABEL: func.func @step
// CHECK-SAME: tensor<2x3xf32> {nn.input = "x"}
// CHECK-SAME: tensor<2xi64> {nn.input = "y"}
// CHECK-SAME: tensor<3xf32> {nn.batch = false, nn.input = "classes"}
// CHECK-SAME: tensor<2x3xf32> {nn.batch = false, nn.input = "queue"}
// CHECK-LABEL: func.func private @repeated_step
// CHECK-SAME: tensor<3xf32> {nn.batch = false, nn.input = "classes"}
// CHECK-SAME: tensor<2x3xf32> {nn.batch = false, nn.input = "queue"}
// CHECK-LABEL: func.func @evaluate
// CHECK-SAME: tensor<3xf32> {nn.batch = false, nn.input = "classes"}

func.func @main(%x: tensor<2x3xf32> {nn.input = "x"}, %y: tensor<2xi64> {nn.input = "y"}, %c: tensor<3xf32> {nn.input = "classes"},
                %q: tensor<2x3xf32> {nn.input = "queue", nn.batch = false}, %w: tensor<3xf32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<3xf32> {nn.output = "grad.w"}) {
  %0 = nn.mul %x, %w : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %1 = nn.mul %0, %c : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %2 = nn.add %1, %q : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %3 = nn.reduce sum %2 dims [0, 1] : (tensor<2x3xf32>) -> tensor<f32>
  %4 = nn.gradient %3 of "w" : (tensor<f32>) -> tensor<3xf32>
  return %3, %4 : tensor<f32>, tensor<3xf32>
}
