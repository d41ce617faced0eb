// RUN: sharding-opt %s --order-updates -split-input-file | FileCheck %s

// The update comes as soon as the gradient is there, and the rate with it. The old value has been read.

nn.state @w : tensor<4x8xf32>
// CHECK-LABEL: func.func @hoisted
// CHECK: nn.tanh
// CHECK: nn.softmax
// CHECK: nn.neg {{.+}} : tensor<f32>
// CHECK: nn.sub
// CHECK: nn.exp
func.func @hoisted(%w: tensor<4x8xf32> {nn.state = "w"}, %x: tensor<4x8xf32> {nn.input = "x"}, %r: tensor<f32> {nn.input = "r"})
    -> (tensor<4x8xf32> {nn.output = "y"}, tensor<4x8xf32> {nn.state = "w"}) {
  %0 = rt.kernel %w : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %5 = nn.tanh %a : tensor<4x8xf32>
    rt.yield %5 : tensor<4x8xf32>
  }
  %1 = rt.kernel %0 : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %5 = nn.softmax %a dim 1 : tensor<4x8xf32>
    rt.yield %5 : tensor<4x8xf32>
  }
  %2 = rt.kernel %0 : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %5 = nn.exp %a : tensor<4x8xf32>
    rt.yield %5 : tensor<4x8xf32>
  }
  %3 = rt.kernel %r : (tensor<f32>) -> tensor<f32> {
  ^bb0(%a: tensor<f32>):
    %5 = nn.neg %a : tensor<f32>
    rt.yield %5 : tensor<f32>
  }
  %4 = rt.kernel %w, %1, %3 : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>, %c: tensor<f32>):
    %5 = nn.mul %b, %c : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    %6 = nn.sub %a, %5 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %6 : tensor<4x8xf32>
  }
  return %2, %4 : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// A later launch reads the old value, so the update stays behind it.

nn.state @w : tensor<4x8xf32>
// CHECK-LABEL: func.func @read_later
// CHECK: nn.softmax
// CHECK: nn.exp
// CHECK: nn.sub
func.func @read_later(%w: tensor<4x8xf32> {nn.state = "w"}, %x: tensor<4x8xf32> {nn.input = "x"})
    -> (tensor<4x8xf32> {nn.output = "y"}, tensor<4x8xf32> {nn.state = "w"}) {
  %0 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.softmax %a dim 1 : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  %1 = rt.kernel %w : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.exp %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  %2 = rt.kernel %w, %0 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>):
    %3 = nn.sub %a, %b : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  return %1, %2 : tensor<4x8xf32>, tensor<4x8xf32>
}
