// RUN: sharding-opt %s --differentiate="loss=loss parameters=w" --recompute="mode=none" --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --request-gradients="parameters=w" -o %t.mlir
// RUN: sharding-opt %t.mlir --parallelize="mesh=dp=2" | FileCheck %s --check-prefix=SPMD
// RUN: sharding-run %t.mlir --random-weights=1 --random-inputs=1 --parallelize="mesh=dp=2" --check
// RUN: sharding-run %t.mlir --random-weights=1 --random-inputs=1 --parallelize="mesh=tp=3" --check
// RUN: not sharding-opt %s --differentiate="loss=y" 2>&1 | FileCheck %s --check-prefix=SCALAR
// RUN: not sharding-opt %s --differentiate="parameters=u" 2>&1 | FileCheck %s --check-prefix=PATTERN
// RUN: not sharding-opt %s --differentiate="parameters=u[" 2>&1 | FileCheck %s --check-prefix=BRACKET
// RUN: not sharding-opt %s --differentiate="loss=2" 2>&1 | FileCheck %s --check-prefix=POSITION

// Gradients that a program states are replaced behind the policies. They are summed once over the
// ranks of the batch.

// SCALAR: error: loss 'y': expected a scalar, got 'tensor<6x8xf32>'
// PATTERN: error: pattern 'u' matches no parameter of float type of 'main' that has a gradient
// BRACKET: error: pattern 'u[' of parameters:
// POSITION: error: 'main' has no output '2' to differentiate: expected a position from 0 to 1, or one of 'loss', 'y'

// CHECK-LABEL: func.func @main
// CHECK-SAME: -> (tensor<f32> {nn.output = "loss"}, tensor<6x8xf32> {nn.output = "y"}, tensor<8x8xf32> {nn.output = "grad.w"})
// CHECK: %[[G:.*]] = nn.weight_grad %{{.*}}, %arg0 : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
// CHECK: return %{{.*}}, %{{.*}}, %[[G]]
// SPMD: %[[G:.*]] = nn.weight_grad %{{.*}}, %arg0 : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<8x8xf32>
// SPMD: dist.all_reduce sum
// SPMD-SAME: %[[G]]
// SPMD-NOT: dist.
// SPMD: return
func.func @main(%x: tensor<6x8xf32> {nn.input = "x"}, %w: tensor<8x8xf32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<6x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %1 = nn.mul %0, %0 : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  %2 = nn.reduce mean %1 dims [0, 1] : (tensor<6x8xf32>) -> tensor<f32>
  return %2, %0 : tensor<f32>, tensor<6x8xf32>
}
