// RUN: sharding-opt %s --verify-placement --split-input-file | FileCheck %s

// No part of these sums is further from zero after the product, or both factors have bounds.

// CHECK-LABEL: func.func @half
dist.mesh @mesh = <["dp"=2]>
func.func @half(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = nn.constant dense<0.5> : tensor<f32>
  %s = nn.mul %x, %k : (tensor<3x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// CHECK-LABEL: func.func @minus_one
dist.mesh @mesh = <["dp"=2]>
func.func @minus_one(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = nn.constant dense<-1.0> : tensor<f32>
  %s = nn.mul %x, %k : (tensor<3x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// CHECK-LABEL: func.func @sigmoid
dist.mesh @mesh = <["dp"=2]>
func.func @sigmoid(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %e = nn.sigmoid %g : tensor<3x8xf32>
  %s = nn.mul %x, %e : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// CHECK-LABEL: func.func @the_sum_first
dist.mesh @mesh = <["dp"=2]>
func.func @the_sum_first(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %s = dist.all_reduce sum %x axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  %r = nn.mul %s, %g : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// CHECK-LABEL: func.func @sum_of_two
dist.mesh @mesh = <["dp"=2]>
func.func @sum_of_two(%x: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %g: tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %s = nn.add %x, %g : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// CHECK-LABEL: func.func @bounded
dist.mesh @mesh = <["dp"=2]>
func.func @bounded(%x: tensor<3x8xf32> {nn.parameter = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<3x8xf32>}, %w: tensor<8x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<3x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  %s = nn.linear %x, %w : (tensor<3x8xf32>, tensor<8x8xf32>) -> tensor<3x8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}
