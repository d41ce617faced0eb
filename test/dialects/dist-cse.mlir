// RUN: sharding-opt %s --cse | FileCheck %s

// Equal collectives are one: the same kind, tensors, axes, dimensions and shift.
// CHECK-LABEL: func.func @equal
// CHECK-COUNT-1: dist.all_gather
// CHECK-NOT: dist.all_gather
// CHECK-COUNT-2: dist.slice
// CHECK-NOT: dist.slice
dist.mesh @mesh = <["tp"=4]>
func.func @equal(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %2 = nn.add %0, %1 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %3 = dist.slice %0 axes ["tp"] dims [0] shift 1 : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %4 = dist.slice %1 axes ["tp"] dims [0] shift 1 : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %5 = dist.slice %1 axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %6 = nn.add %3, %4 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %7 = dist.permute %6 axes ["tp"] shift 3 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %8 = nn.add %7, %5 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2, %8 : tensor<16x8xf32>, tensor<4x8xf32>
}

// Copies that wait for another value are not one with their original.
// CHECK-LABEL: func.func @copies
// CHECK-COUNT-2: nn.exp
func.func @copies(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.exp %x : tensor<4x8xf32>
  %1 = nn.mul %0, %y : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = dist.after %x, %1 : tensor<4x8xf32>, tensor<4x8xf32>
  %3 = nn.exp %2 : tensor<4x8xf32>
  %4 = nn.mul %1, %3 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}
