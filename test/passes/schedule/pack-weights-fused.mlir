// RUN: sharding-opt %s --pack-weights="target=cpu:x86-64-v4" | FileCheck %s

// A call that gives a weight another value packs it for one product that takes in the op behind it. No
// library has such a kernel.
// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[V:.*]]: tensor<16x8xf32>
// CHECK: %[[P:.*]] = rt.prepare %[[V]] <k = 8, n = 16, transposed = true, panel = 32> at update : tensor<16x8xf32>
// CHECK: rt.kernel %[[X]], %[[P]] :
// CHECK: rt.kernel %[[V]] :
nn.state @v {role = "parameter"} : tensor<16x8xf32>
func.func @step(%x: tensor<4x8xf32> {nn.input = "x"}, %v: tensor<16x8xf32> {nn.state = "v"})
    -> (tensor<4x16xf32>, tensor<16x8xf32> {nn.state = "v"}) {
  %0 = rt.kernel %x, %v : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32> {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<16x8xf32>):
    %2 = nn.linear %a, %b : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
    %3 = nn.relu %2 : tensor<4x16xf32>
    rt.yield %3 : tensor<4x16xf32>
  }
  %1 = rt.kernel %v : (tensor<16x8xf32>) -> tensor<16x8xf32> {
  ^bb0(%a: tensor<16x8xf32>):
    %2 = nn.neg %a : tensor<16x8xf32>
    rt.yield %2 : tensor<16x8xf32>
  }
  return %0, %1 : tensor<4x16xf32>, tensor<16x8xf32>
}
