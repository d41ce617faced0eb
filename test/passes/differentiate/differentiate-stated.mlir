// RUN: sharding-opt %s --split-input-file --differentiate-gradients --verify-roundtrip | FileCheck %s

// The cotangent flows through the stated derivative alone. Its factor becomes an op of the backward
// pass, which computes it from %w: the forward pass keeps no value for it.

// CHECK-LABEL: func.func @stated
// CHECK: %[[Y:.*]] = nn.floor %arg0 : tensor<4xf32>
// CHECK-NEXT: %[[SUM:.*]] = nn.reduce sum %[[Y]]
// CHECK: %[[DY:.*]] = nn.broadcast
// CHECK-NEXT: %[[S:.*]] = nn.exp %arg0 {nn.backward}
// CHECK-NEXT: %[[G:.*]] = nn.mul %[[DY]], %[[S]] {nn.backward}
// CHECK-NEXT: return %[[SUM]], %[[G]]
func.func @stated(%w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<f32> {nn.output = "y"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %0 = nn.floor %w : tensor<4xf32>
  %1 = nn.stop_gradient %w : tensor<4xf32>
  %2 = nn.exp %1 : tensor<4xf32>
  %3 = nn.mul %w, %2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = nn.with_derivative %0 like %3 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %5 = nn.reduce sum %4 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %g = nn.gradient %5 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %5, %g : tensor<f32>, tensor<4xf32>
}

// -----

// A value that the forward pass reads, too, stays in it.

// CHECK-LABEL: func.func @shared
// CHECK: %[[E:.*]] = nn.exp %arg0 : tensor<4xf32>
// CHECK-NOT: nn.exp
// CHECK: nn.mul %{{.*}}, %[[E]] {nn.backward}
func.func @shared(%w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<4xf32> {nn.output = "e"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %0 = nn.stop_gradient %w : tensor<4xf32>
  %1 = nn.exp %0 : tensor<4xf32>
  %2 = nn.mul %w, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = nn.with_derivative %1 like %2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = nn.reduce sum %3 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %g = nn.gradient %4 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %1, %g : tensor<4xf32>, tensor<4xf32>
}

// -----

// Without gradients the value alone stays, in the shape and with the sharding of the op.

// CHECK-LABEL: func.func @plain
// CHECK-NEXT: %[[Y:.*]] = nn.broadcast %arg0
// CHECK-NEXT: %[[C:.*]] = dist.constrain %[[Y]] {{.*}}[{"dp"}, {}]
// CHECK-NEXT: return %[[C]]
dist.mesh @mesh = <["dp"=2]>
func.func @plain(%x: tensor<4xf32> {nn.input = "x"}, %y: tensor<2x1xf32> {nn.input = "y"}) -> (tensor<2x4xf32> {nn.output = "z"}) {
  %0 = nn.exp %y : tensor<2x1xf32>
  %1 = nn.with_derivative %x like %0 {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>} : (tensor<4xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}
