// RUN: sharding-opt %s --split-input-file --verify-placement --verify-roundtrip | FileCheck %s

// Reshapes that keep the local order of elements and move coordinates to the dimension before.
// The likely candidates do not prove them, so the verifier tries the others.

// The padded coordinate of a 6 belongs to the dimension before it: 2 by 3.
// CHECK-LABEL: func.func @padded
dist.mesh @mesh = <["x"=8]>
func.func @padded(%arg0: tensor<2x2x16x13xf32> {dist.global = tensor<2x6x16x13xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x"}, {}, {}]>})
    -> (tensor<2x16x2x13xf32> {dist.global = tensor<6x16x2x13xf32>, dist.sharding = #dist.sharding<@mesh, [(2, 3 pad 8{"x"}), {}, {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<2x2x16x13xf32>) -> tensor<2x16x2x13xf32>
  return %0 : tensor<2x16x2x13xf32>
}

// -----

// A dimension of size 1 is between the coordinate and its dimension.
// CHECK-LABEL: func.func @skipped
dist.mesh @mesh = <["x"=6]>
func.func @skipped(%arg0: tensor<1x3x20xf32> {dist.global = tensor<1x3x40xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"x"}]>})
    -> (tensor<3x1x20xf32> {dist.global = tensor<6x1x20xf32>, dist.sharding = #dist.sharding<@mesh, [(3, 2 pad 6{"x"}), {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<1x3x20xf32>) -> tensor<3x1x20xf32>
  return %0 : tensor<3x1x20xf32>
}

// -----

// The digits of one coordinate belong to two dimensions.
// CHECK-LABEL: func.func @parts
dist.mesh @mesh = <["x"=4]>
func.func @parts(%arg0: tensor<3x7xf32> {dist.global = tensor<3x28xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<1x3x7x1xf32> {dist.global = tensor<1x6x14x1xf32>, dist.sharding = #dist.sharding<@mesh, [{}, (3, 2{"x":(1)2}), {"x":(2)2}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<3x7xf32>) -> tensor<1x3x7x1xf32>
  return %0 : tensor<1x3x7x1xf32>
}

// -----

// The coordinate follows padding of its new dimension.
// CHECK-LABEL: func.func @unequal
dist.mesh @mesh = <["x"=2, "y"=2]>
func.func @unequal(%arg0: tensor<1x1x5x7xf32> {dist.global = tensor<1x1x9x14xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"y"}, {"x"}]>})
    -> (tensor<5x7xf32> {dist.global = tensor<18x7xf32>, dist.sharding = #dist.sharding<@mesh, [(9 pad 10{"y"}, 2{"x"}), {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.reshape %arg0 : (tensor<1x1x5x7xf32>) -> tensor<5x7xf32>
  return %0 : tensor<5x7xf32>
}

// -----

// A dimension of one element that a constant stretches along is no boundary.
// CHECK-LABEL: func.func @one_element_between
dist.mesh @mesh = <["x"=2]>
func.func @one_element_between(
    %x: tensor<1x17x1x4xf32> {dist.global = tensor<1x17x1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>})
    -> (tensor<4x1x1x17xf32> {dist.global = tensor<4x1x1x17xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.constant dense<-0.5> : tensor<1x4xf32>
  %1 = nn.add %x, %0 : (tensor<1x17x1x4xf32>, tensor<1x4xf32>) -> tensor<1x17x1x4xf32>
  %2 = nn.reshape %1 : (tensor<1x17x1x4xf32>) -> tensor<4x1x1x17xf32>
  return %2 : tensor<4x1x1x17xf32>
}
