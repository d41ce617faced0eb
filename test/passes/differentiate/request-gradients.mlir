// RUN: sharding-opt %s --split-input-file --request-gradients --verify-roundtrip | FileCheck %s --check-prefixes=CHECK,ALL
// RUN: sharding-opt %s --split-input-file --request-gradients="loss=loss parameters=a.*,b frozen=a.s" | FileCheck %s --check-prefixes=CHECK,SOME

// Each parameter of float type has a gradient, in f32: a table of integers has none. The gradients
// are behind the outputs and before the state.

nn.state @steps : tensor<i64>
// CHECK-LABEL: func.func @main
// ALL-SAME: -> (tensor<1xf32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "y"}, tensor<4xf32> {nn.output = "grad.a.w"}, tensor<4xf32> {nn.output = "grad.a.s"}, tensor<4xf64> {nn.output = "grad.c"}, tensor<i64> {nn.state = "steps"})
// SOME-SAME: -> (tensor<1xf32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "y"}, tensor<4xf32> {nn.output = "grad.a.w"}, tensor<4xf64> {nn.output = "grad.c"}, tensor<i64> {nn.state = "steps"})
func.func @main(%x: tensor<4xf32> {nn.input = "x"}, %w: tensor<4xbf16> {nn.parameter = "a.w"},
                %table: tensor<4xi64> {nn.parameter = "a.table"}, %s: tensor<4xf32> {nn.parameter = "a.s"},
                %b: tensor<4xf64> {nn.parameter = "c", nn.aliases = ["b"]}, %steps: tensor<i64> {nn.state = "steps"})
    -> (tensor<1xf32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "y"}, tensor<i64> {nn.state = "steps"}) {
  %0 = nn.cast %w : (tensor<4xbf16>) -> tensor<4xf32>
  %1 = nn.mul %x, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: %[[LOSS:.*]] = nn.reduce sum
  %2 = nn.reduce sum %1 dims [0] {keep_dims} : (tensor<4xf32>) -> tensor<1xf32>
  // CHECK: nn.gradient %[[LOSS]] of "a.w" : (tensor<1xf32>) -> tensor<4xf32>
  return %2, %1, %steps : tensor<1xf32>, tensor<4xf32>, tensor<i64>
}

// -----

// A parameter that the function has in parts has one gradient, of the whole tensor.

// CHECK-LABEL: func.func @parts
// CHECK: %[[G:.*]] = nn.gradient %{{.*}} of "a.w" : (tensor<f32>) -> tensor<5x2xf32>
// CHECK: return %{{.*}}, %[[G]]
func.func @parts(%v: tensor<3x2xf32> {nn.parameter = "a.w", nn.parameter_offsets = array<i64: 2, 0>},
                 %u: tensor<2x2xf32> {nn.parameter = "a.w", nn.parameter_offsets = array<i64: 0, 0>},
                 %b: tensor<f32> {nn.parameter = "b"})
    -> (tensor<f32> {nn.output = "loss"}) {
  %0 = nn.reduce sum %v dims [0, 1] : (tensor<3x2xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
