// RUN: sharding-opt %s --split-input-file --pass-pipeline="builtin.module(propagate-shardings,partition,func.func(expand-ops,verify-placement))" | FileCheck %s

// The padding of an expansion has the state that the op states of its own: the partitioner masks by
// the op, and the proof reads the expansion.

// CHECK-LABEL: func.func @shifted_rows
// CHECK-NOT: nn.pad
// CHECK: nn.weight_grad
dist.mesh @mesh = <["dp"=2]>
func.func @shifted_rows(%x: tensor<3x5x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>},
                        %v: tensor<3x13x4xf32> {nn.input = "v", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>})
    -> (tensor<8x4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %c = nn.cos %x : tensor<3x5x8xf32>
  %p = nn.pad %c low [0, 1, 0] high [0, 3, 0] interior [0, 1, 0] : (tensor<3x5x8xf32>) -> tensor<3x13x8xf32>
  %y = nn.weight_grad %p, %v : (tensor<3x13x8xf32>, tensor<3x13x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

// -----

// CHECK-LABEL: func.func @weighted_losses
// CHECK-NOT: nn.cross_entropy
// CHECK: nn.reduce sum %{{.*}} dims [0]
dist.mesh @mesh = <["dp"=2]>
func.func @weighted_losses(%h: tensor<3x8xf32> {nn.parameter = "h", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                           %y: tensor<3xi64> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}]>},
                           %w: tensor<3xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"dp"}]>})
    -> (tensor<f32> {nn.output = "loss", dist.sharding = #dist.sharding<@mesh, []>}) {
  %l = nn.cross_entropy %h, %y dim 1 {label_smoothing = 0.1 : f64} : (tensor<3x8xf32>, tensor<3xi64>) -> tensor<3xf32>
  %m = nn.mul %l, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %s = nn.reduce sum %m dims [0] : (tensor<3xf32>) -> tensor<f32>
  return %s : tensor<f32>
}
