// RUN: sharding-opt %s --build-steps="optimizer=sgd loss-scale=1024" --verify-roundtrip | FileCheck %s --check-prefixes=CHECK,FIXED
// RUN: sharding-opt %s --build-steps="optimizer=sgd loss-scale=65536 growth-interval=2000" | FileCheck %s --check-prefixes=CHECK,GROWS
// RUN: not sharding-opt %s --build-steps="loss-scale=-1" 2>&1 | FileCheck %s --check-prefix=NEGATIVE

// NEGATIVE: loss_scale: expected a number from 0 on, got -1.000000

// The gradient is that of the loss in f32 times the scale, and is divided by it in f32. A step in
// which it is not finite leaves the master and the parameter as they are.

// FIXED: nn.state @loss_scale {fill = 1.024000e+03 : f32, role = "optimizer"} : tensor<f32>
// GROWS: nn.state @loss_scale {fill = 6.553600e+04 : f32, role = "optimizer"} : tensor<f32>
// CHECK: nn.state @skipped_steps {fill = 0 : i64, role = "optimizer"} : tensor<i64>
// GROWS: nn.state @loss_scale.growth_tracker {fill = 0 : i64, role = "optimizer"} : tensor<i64>
// FIXED-NOT: growth_tracker
// CHECK-LABEL: func.func @step
// CHECK: %[[LOSS:.+]] = nn.reduce sum
// CHECK: %[[SCALE:.+]] = nn.read @loss_scale : tensor<f32>
// CHECK: %[[WIDE:.+]] = nn.cast %[[LOSS]] : (tensor<f16>) -> tensor<f32>
// CHECK: %[[SCALED:.+]] = nn.mul %[[WIDE]], %[[SCALE]]
// CHECK: %[[G:.+]] = nn.gradient %[[SCALED]] of "w" : (tensor<f32>) -> tensor<4xf32>
// CHECK: %[[INVERSE:.+]] = nn.div
// CHECK: %[[SIZE:.+]] = nn.abs %[[G]]
// CHECK: %[[FINITE:.+]] = nn.compare lt %[[SIZE]]
// CHECK: nn.select %[[FINITE]]
// CHECK: %[[MISSES:.+]] = nn.reduce sum
// CHECK: %[[OWN:.+]] = nn.mul %[[G]], %[[INVERSE]]
// CHECK: %[[TAKEN:.+]] = nn.compare eq %[[MISSES]]
// CHECK: nn.write @skipped_steps
// GROWS: nn.write @loss_scale,
// GROWS: nn.write @loss_scale.growth_tracker,
// CHECK: %[[OLD:.+]] = nn.read @master.w
// CHECK: nn.mul %[[OWN]]
// CHECK: %[[NEXT:.+]] = nn.sub %[[OLD]]
// CHECK: %[[MASTER:.+]] = nn.select %[[TAKEN]], %[[NEXT]], %[[OLD]]
// CHECK: nn.write @master.w, %[[MASTER]]
// CHECK: %[[NARROW:.+]] = nn.cast %[[NEXT]] : (tensor<4xf32>) -> tensor<4xf16>
// CHECK: %[[W:.+]] = nn.select %[[TAKEN]], %[[NARROW]]
// CHECK: nn.write @w, %[[W]]
// CHECK: return %[[LOSS]] : tensor<f16>
// CHECK-LABEL: func.func @evaluate
// CHECK-NOT: nn.read @loss_scale
func.func @main(%x: tensor<4xf16> {nn.input = "x"}, %w: tensor<4xf16> {nn.parameter = "w"})
    -> (tensor<f16> {nn.output = "loss"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %0 = nn.mul %x, %w : (tensor<4xf16>, tensor<4xf16>) -> tensor<4xf16>
  %1 = nn.reduce sum %0 dims [0] : (tensor<4xf16>) -> tensor<f16>
  %2 = nn.gradient %1 of "w" : (tensor<f16>) -> tensor<4xf32>
  return %1, %2 : tensor<f16>, tensor<4xf32>
}
