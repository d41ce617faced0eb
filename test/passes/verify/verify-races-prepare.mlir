// RUN: sharding-opt %s --verify-placement | FileCheck %s

// A weight is packed before the call, so its old value may be overwritten before its readers.

// CHECK-LABEL: func.func @packed
// CHECK: rt.kernel {{.+}} over ["s"]
// CHECK: rt.prepare
nn.state @s : tensor<16x8xf32>
func.func @packed(%s: tensor<16x8xf32> {nn.state = "s"}, %x: tensor<4x8xf32> {nn.input = "x"})
    -> (tensor<4x16xf32> {nn.output = "y"}, tensor<16x8xf32> {nn.state = "s"})
    attributes {rt.arena = 256 : i64} {
  %0 = rt.kernel %s at [0] over ["s"] : (tensor<16x8xf32>) -> tensor<16x8xf32> {
  ^bb0(%a: tensor<16x8xf32>):
    %2 = nn.neg %a : tensor<16x8xf32>
    rt.yield %2 : tensor<16x8xf32>
  }
  %p = rt.prepare %s <k = 8, n = 16, transposed = true, panel = 32> at update : tensor<16x8xf32>
  %1 = rt.kernel %x, %p at [0] over [""] : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32> {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<16x8xf32>):
    %2 = nn.linear %a, %b : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
    rt.yield %2 : tensor<4x16xf32>
  }
  return %1, %0 : tensor<4x16xf32>, tensor<16x8xf32>
}
