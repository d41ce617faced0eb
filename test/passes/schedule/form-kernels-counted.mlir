// RUN: sharding-opt %s --form-kernels=target=cpu:x86-64-v3 -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels=target=gpu:sm_90 -split-input-file | FileCheck %s

// Rows of experts, and what is computed of them row by row, are counted by the offsets of their routing. Sums over
// features keep rows. Sums of a token's rows do not.
// CHECK-LABEL: func.func @rows
func.func @rows(%x: tensor<7x16xf32>, %i: tensor<7x2xi64>, %w: tensor<8x32x16xf32>, %s: tensor<1x1x32xf32>) -> (tensor<7x32xf32>, tensor<14x1xf32>) {
  // CHECK: %[[ROUTE:.*]]:3 = rt.kernel %{{.*}} : (tensor<7x2xi64>) -> (tensor<9xi64>, tensor<14xi64>, tensor<7x2xi64>)
  %offsets, %choices, %places = nn.route %i {experts = 8 : i64} : (tensor<7x2xi64>) -> (tensor<9xi64>, tensor<14xi64>, tensor<7x2xi64>)
  // CHECK: %[[R:.*]] = rt.kernel %{{.*}}, %[[ROUTE]]#1, %[[ROUTE]]#0 counted_by 2
  // CHECK: nn.take_rows
  %r = nn.take_rows %x, %choices {group = 2 : i64, tokens = 1 : i64} : (tensor<7x16xf32>, tensor<14xi64>) -> tensor<14x1x16xf32>
  // CHECK: %[[Y:.*]] = rt.kernel %[[R]], %{{.*}}, %[[ROUTE]]#0 counted_by 2
  // CHECK: nn.grouped_product
  %y = nn.grouped_product %r, %w, %offsets : (tensor<14x1x16xf32>, tensor<8x32x16xf32>, tensor<9xi64>) -> tensor<14x1x32xf32>
  // CHECK: rt.kernel %[[Y]], %{{.*}}, %[[ROUTE]]#0 counted_by 2
  // CHECK: nn.silu
  // CHECK: nn.mul
  // CHECK: nn.reduce
  %0 = nn.silu %y : tensor<14x1x32xf32>
  %1 = nn.mul %0, %s : (tensor<14x1x32xf32>, tensor<1x1x32xf32>) -> tensor<14x1x32xf32>
  // CHECK: rt.kernel %{{.*}}, %[[ROUTE]]#2 : (
  // CHECK: nn.sum_rows
  %z = nn.sum_rows %1, %places : (tensor<14x1x32xf32>, tensor<7x2xi64>) -> tensor<7x32xf32>
  %t = nn.reduce sum %1 dims [2] : (tensor<14x1x32xf32>) -> tensor<14x1xf32>
  return %z, %t : tensor<7x32xf32>, tensor<14x1xf32>
}
