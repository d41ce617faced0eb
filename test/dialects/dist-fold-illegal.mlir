// Folds leave programs as they are in which collectives do not undo each other; the
// placement proof refuses these for other reasons.
//
// RUN: sharding-opt %s --split-input-file --canonicalize | FileCheck %s

// Rank i holds chunk i - 1, so that chunks are gathered out of order.
// CHECK-LABEL: func.func @gather_of_shifted_slice
// CHECK: dist.slice
// CHECK: dist.all_gather
dist.mesh @mesh = <["tp"=4]>
func.func @gather_of_shifted_slice(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.slice %x axes ["tp"] dims [0] shift 1 : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  return %1 : tensor<16x8xf32>
}

// -----

// Rank 3 sends to none, so that its value is lost.
// CHECK-LABEL: func.func @permute_that_leaves_out
// CHECK-COUNT-2: dist.permute
dist.mesh @mesh = <["tp"=4]>
func.func @permute_that_leaves_out(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["tp"] pairs [[0, 1], [1, 2], [2, 3]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = dist.permute %0 axes ["tp"] pairs [[1, 0], [2, 1], [3, 2]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// -----

// A partial of a partial is zero on all ranks but one, as the first is, but not the value.
// CHECK-LABEL: func.func @partial_twice
// CHECK-COUNT-2: dist.partial
dist.mesh @mesh = <["tp"=4]>
func.func @partial_twice(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.partial %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = dist.partial %0 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
