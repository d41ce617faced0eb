// RUN: sharding-opt %s --split-input-file --verify-routings | FileCheck %s

// Rows of a token and their weights meet, and are summed by the choices that dispatched them. A constant is
// rows of every routing.
// CHECK-LABEL: func.func @layer
// CHECK: nn.combine
func.func @layer(%x: tensor<4x3xf32>, %v: tensor<4x1xf32>, %i: tensor<4x1xi64>) -> tensor<4x3xf32> {
  %half = nn.constant dense<0.5> : tensor<2x4x3xf32, #nn.routed<1>>
  %r = nn.dispatch %x, %i : (tensor<4x3xf32>, tensor<4x1xi64>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %d = nn.dispatch %v, %i {each} : (tensor<4x1xf32>, tensor<4x1xi64>) -> tensor<2x4xf32, #nn.routed<1>>
  %w = nn.reshape %d : (tensor<2x4xf32, #nn.routed<1>>) -> tensor<2x4x1xf32, #nn.routed<1>>
  %h = nn.mul %r, %half : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<2x4x3xf32, #nn.routed<1>>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %p = nn.mul %h, %w : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<2x4x1xf32, #nn.routed<1>>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %y = nn.combine %p, %i : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<4x1xi64>) -> tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}

// -----

// Equal ops choose the same experts, as a backward pass that computes them again does.
// CHECK-LABEL: func.func @again
func.func @again(%x: tensor<4x3xf32>, %g: tensor<4x3xf32>, %s: tensor<4x2xf32>) -> tensor<2x3x3xf32> {
  %i = nn.top_k %s {k = 1 : i64} : (tensor<4x2xf32>) -> tensor<4x1xi64>
  %n = nn.cast %i : (tensor<4x1xi64>) -> tensor<4x1xi32>
  %l = nn.limit %n {capacity = 3 : i64} : tensor<4x1xi32>
  %j = nn.top_k %s {k = 1 : i64} : (tensor<4x2xf32>) -> tensor<4x1xi64>
  %m = nn.cast %j : (tensor<4x1xi64>) -> tensor<4x1xi32>
  %k = nn.limit %m {capacity = 3 : i64} : tensor<4x1xi32>
  %r = nn.dispatch %x, %l : (tensor<4x3xf32>, tensor<4x1xi32>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %d = nn.dispatch %g, %k : (tensor<4x3xf32>, tensor<4x1xi32>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %w = nn.grouped_weight_grad %d, %r : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<2x4x3xf32, #nn.routed<1>>) -> tensor<2x3x3xf32>
  return %w : tensor<2x3x3xf32>
}

// -----

// Rows of one argument are of one routing.
// CHECK-LABEL: func.func @given
func.func @given(%r: tensor<2x4x3xf32, #nn.routed<1>>) -> tensor<2x3x3xf32> {
  %s = nn.silu %r : tensor<2x4x3xf32, #nn.routed<1>>
  %w = nn.grouped_weight_grad %s, %r : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<2x4x3xf32, #nn.routed<1>>) -> tensor<2x3x3xf32>
  return %w : tensor<2x3x3xf32>
}

// -----

// Two experts share the row of a token, which is dispatched to them by the choices that went with it. Narrow
// choices are the same.
// CHECK-LABEL: func.func @shared
func.func @shared(%x: tensor<5x3xf32>, %v: tensor<5x2xf32>, %i: tensor<5x2xi64>) -> (tensor<5x3xf32>, tensor<4x3x3xf32>) {
  %n = nn.cast %i : (tensor<5x2xi64>) -> tensor<5x2xi32>
  %g = nn.dispatch %x, %i : (tensor<5x3xf32>, tensor<5x2xi64>) -> tensor<2x5x3xf32, #nn.routed<2, shared = 2>>
  %j = nn.dispatch %n, %i : (tensor<5x2xi32>, tensor<5x2xi64>) -> tensor<2x5x2xi32, #nn.routed<2, shared = 2>>
  %r = nn.dispatch %g, %j : (tensor<2x5x3xf32, #nn.routed<2, shared = 2>>, tensor<2x5x2xi32, #nn.routed<2, shared = 2>>) -> tensor<4x5x3xf32, #nn.routed<2>>
  %d = nn.dispatch %v, %i {each} : (tensor<5x2xf32>, tensor<5x2xi64>) -> tensor<4x5xf32, #nn.routed<2>>
  %w = nn.reshape %d : (tensor<4x5xf32, #nn.routed<2>>) -> tensor<4x5x1xf32, #nn.routed<2>>
  %p = nn.mul %r, %w : (tensor<4x5x3xf32, #nn.routed<2>>, tensor<4x5x1xf32, #nn.routed<2>>) -> tensor<4x5x3xf32, #nn.routed<2>>
  %s = nn.combine %p, %j : (tensor<4x5x3xf32, #nn.routed<2>>, tensor<2x5x2xi32, #nn.routed<2, shared = 2>>) -> tensor<2x5x3xf32, #nn.routed<2, shared = 2>>
  %t = nn.add %s, %g : (tensor<2x5x3xf32, #nn.routed<2, shared = 2>>, tensor<2x5x3xf32, #nn.routed<2, shared = 2>>) -> tensor<2x5x3xf32, #nn.routed<2, shared = 2>>
  %y = nn.combine %t, %i : (tensor<2x5x3xf32, #nn.routed<2, shared = 2>>, tensor<5x2xi64>) -> tensor<5x3xf32>
  %dw = nn.grouped_weight_grad %p, %r : (tensor<4x5x3xf32, #nn.routed<2>>, tensor<4x5x3xf32, #nn.routed<2>>) -> tensor<4x3x3xf32>
  return %y, %dw : tensor<5x3xf32>, tensor<4x3x3xf32>
}
