// RUN: sharding-opt %s --split-input-file --build-steps="optimizer=sgd" --verify-roundtrip | FileCheck %s --check-prefixes=CHECK,SGD
// RUN: sharding-opt %s --split-input-file --build-steps="optimizer=sgd momentum=0.9 weight-decay=0.1" | FileCheck %s --check-prefixes=CHECK,MOMENTUM
// RUN: sharding-opt %s --split-input-file --build-steps="optimizer=adamw clip-norm=2" | FileCheck %s --check-prefixes=CHECK,ADAMW
// RUN: sharding-opt %s --split-input-file --build-steps="optimizer=adamw weight-decay=0.1" --parallelize="mesh=dp=2" | FileCheck %s --check-prefix=SPMD

// The parameter and the averages of the optimizer are states. A parameter that the loss does not depend on, or
// only through a comparison, has neither.

// CHECK: nn.state @w {role = "parameter"} : tensor<4xf32>
// CHECK-NOT: nn.state @unused
// SGD-NOT: nn.state @optimizer
// MOMENTUM: nn.state @optimizer.momentum_buffer.w {fill = 0.000000e+00 : f32, role = "optimizer"} : tensor<4xf32>
// ADAMW: nn.state @optimizer.step {fill = 0 : i64, role = "optimizer"} : tensor<i64>
// ADAMW: nn.state @optimizer.exp_avg.w {fill = 0.000000e+00 : f32, role = "optimizer"} : tensor<4xf32>
// ADAMW: nn.state @optimizer.exp_avg_sq.w {fill = 0.000000e+00 : f32, role = "optimizer"} : tensor<4xf32>
// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[W:[a-z0-9]*]]: tensor<4xf32> {nn.parameter = "w"}
// CHECK-SAME: %[[LR:[a-z0-9]*]]: tensor<f32> {nn.default = [[RATE:[0-9.eE+-]*]] : f32, nn.input = "lr"}) -> (tensor<f32> {nn.output = "loss"})
// CHECK: %[[G:.*]] = nn.gradient
// CHECK-NOT: nn.gradient
// SGD: %[[D:.*]] = nn.mul %[[G]], %[[LR]]
// SGD: %[[N:.*]] = nn.sub %[[W]], %[[D]]
// SGD: nn.write @w, %[[N]]
// MOMENTUM: %[[DECAY:.*]] = nn.mul %[[W]]
// MOMENTUM: %[[SUM:.*]] = nn.add %[[G]], %[[DECAY]]
// MOMENTUM: %[[OLD:.*]] = nn.read @optimizer.momentum_buffer.w
// MOMENTUM: %[[KEPT:.*]] = nn.mul %[[OLD]]
// MOMENTUM: %[[NEW:.*]] = nn.add %[[KEPT]], %[[SUM]]
// MOMENTUM: nn.write @optimizer.momentum_buffer.w, %[[NEW]]
// ADAMW: nn.sqrt
// ADAMW: nn.minimum
// ADAMW: nn.write @optimizer.step
// ADAMW: nn.write @optimizer.exp_avg.w
// ADAMW: nn.write @optimizer.exp_avg_sq.w
// ADAMW: nn.write @w
// CHECK: return
// CHECK-LABEL: func.func @evaluate
// CHECK-NOT: nn.gradient
// CHECK-NOT: nn.write
// CHECK: return

// One reduction of the gradient, and the states have the parameter's layout.
// SPMD: nn.state @w {dist.sharding = #dist.sharding<@mesh, [{}]>, role = "parameter"}
// SPMD-LABEL: func.func @step
// SPMD-NOT: nn.parameter = "w"
// SPMD: dist.all_reduce
// SPMD: dist.all_reduce
// SPMD-NOT: dist.all_reduce
// SPMD-LABEL: func.func @evaluate
func.func @main(%x: tensor<6x4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"},
                %u: tensor<4xf32> {nn.parameter = "unused"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "grad.w"}, tensor<4xf32> {nn.output = "grad.unused"}) {
  %0 = nn.mul %x, %w : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %positive = nn.compare gt %0, %u : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xi1>
  %1 = nn.select %positive, %0, %x : (tensor<6x4xi1>, tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  %2 = nn.reduce sum %1 dims [0, 1] : (tensor<6x4xf32>) -> tensor<f32>
  %3 = nn.gradient %2 of "w" : (tensor<f32>) -> tensor<4xf32>
  %4 = nn.gradient %2 of "unused" : (tensor<f32>) -> tensor<4xf32>
  return %2, %3, %4 : tensor<f32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A parameter in bf16 has a master in f32, which the step updates.

// CHECK: nn.state @w {role = "parameter"} : tensor<4xbf16>
// CHECK: nn.state @master.w {parameter = "w", role = "master"} : tensor<4xf32>
// CHECK-LABEL: func.func @step
// SGD: %[[M:.*]] = nn.read @master.w
// SGD: %[[N:.*]] = nn.sub %[[M]], %{{.*}} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// SGD: nn.write @master.w, %[[N]]
// SGD: %[[W:.*]] = nn.cast %[[N]] : (tensor<4xf32>) -> tensor<4xbf16>
// SGD: nn.write @w, %[[W]]
func.func @main(%x: tensor<4xbf16> {nn.input = "x"}, %w: tensor<4xbf16> {nn.parameter = "w"})
    -> (tensor<bf16> {nn.output = "loss"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %0 = nn.mul %x, %w : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xbf16>
  %1 = nn.reduce sum %0 dims [0] : (tensor<4xbf16>) -> tensor<bf16>
  %2 = nn.gradient %1 of "w" : (tensor<bf16>) -> tensor<4xf32>
  return %1, %2 : tensor<bf16>, tensor<4xf32>
}
