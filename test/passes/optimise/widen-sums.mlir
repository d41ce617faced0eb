// RUN: sharding-opt %s --widen-sums="types=f32" --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --widen-sums="types=f32" --verify-placement > %t



dist.mesh @mesh = <["tp"=2]>

// The product leaves in f32, and the reduction rounds once.
// CHECK-LABEL: func.func @product
// CHECK: %[[P:.*]] = nn.linear {{.*}} -> tensor<8x4xf32>
// CHECK-NEXT: %[[S:.*]] = dist.all_reduce sum %[[P]] axes ["tp"] : (tensor<8x4xf32>) -> tensor<8x4xf32>
// CHECK-NEXT: %[[R:.*]] = nn.cast %[[S]] : (tensor<8x4xf32>) -> tensor<8x4xbf16>
// CHECK-NEXT: return %[[R]]
func.func @product(
    %x: tensor<8x6xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x12xbf16>},
    %w: tensor<4x6xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x12xbf16>})
    -> (tensor<8x4xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x4xbf16>})
    attributes {dist.spmd = @mesh} {
  %p = nn.linear %x, %w : (tensor<8x6xbf16>, tensor<4x6xbf16>) -> tensor<8x4xbf16>
  %s = dist.all_reduce sum %p axes ["tp"] : (tensor<8x4xbf16>) -> tensor<8x4xbf16>
  return %s : tensor<8x4xbf16>
}

// Ops that add and move partial sums follow. A partial argument is cast.
// CHECK-LABEL: func.func @chain
// CHECK-SAME: %[[X:[^:]*]]: tensor<8x6xbf16>
// CHECK-SAME: %[[G:[^:]*]]: tensor<8x4xbf16>
// CHECK: %[[C:.*]] = nn.cast %[[G]] : (tensor<8x4xbf16>) -> tensor<8x4xf32>
// CHECK: %[[P:.*]] = nn.linear {{.*}} -> tensor<8x4xf32>
// CHECK-NEXT: %[[A:.*]] = nn.add %[[P]], %[[C]]
// CHECK-NEXT: %[[T:.*]] = nn.transpose %[[A]] [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
// CHECK-NEXT: %[[S:.*]] = dist.reduce_scatter sum %[[T]] {{.*}} -> tensor<2x8xf32>
// CHECK-NEXT: nn.cast %[[S]] : (tensor<2x8xf32>) -> tensor<2x8xbf16>
func.func @chain(
    %x: tensor<8x6xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x12xbf16>},
    %g: tensor<8x4xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<8x4xbf16>},
    %w: tensor<4x6xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x12xbf16>})
    -> (tensor<2x8xbf16> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<4x8xbf16>})
    attributes {dist.spmd = @mesh} {
  %p = nn.linear %x, %w : (tensor<8x6xbf16>, tensor<4x6xbf16>) -> tensor<8x4xbf16>
  %a = nn.add %p, %g : (tensor<8x4xbf16>, tensor<8x4xbf16>) -> tensor<8x4xbf16>
  %t = nn.transpose %a [1, 0] : (tensor<8x4xbf16>) -> tensor<4x8xbf16>
  %s = dist.reduce_scatter sum %t axes ["tp"] dims [0] : (tensor<4x8xbf16>) -> tensor<2x8xbf16>
  return %s : tensor<2x8xbf16>
}

// A sum over elements is one in f32.
// CHECK-LABEL: func.func @sum
// CHECK: %[[W:.*]] = nn.cast %{{.*}} : (tensor<8x6xf16>) -> tensor<8x6xf32>
// CHECK-NEXT: %[[S:.*]] = nn.reduce sum %[[W]] dims [1] : (tensor<8x6xf32>) -> tensor<8xf32>
// CHECK-NEXT: dist.all_reduce sum %[[S]] axes ["tp"] : (tensor<8xf32>) -> tensor<8xf32>
func.func @sum(
    %x: tensor<8x6xf16> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x12xf16>})
    -> (tensor<8xf16> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf16>})
    attributes {dist.spmd = @mesh} {
  %s = nn.reduce sum %x dims [1] : (tensor<8x6xf16>) -> tensor<8xf16>
  %r = dist.all_reduce sum %s axes ["tp"] : (tensor<8xf16>) -> tensor<8xf16>
  return %r : tensor<8xf16>
}

// Rows of a sharded table are exact, and all-gathers send rounded values.
// CHECK-LABEL: func.func @exact
// CHECK: dist.all_reduce sum %{{.*}} axes ["tp"] : (tensor<8xbf16>) -> tensor<8xbf16>
// CHECK: dist.all_gather %{{.*}} : (tensor<4xbf16>) -> tensor<8xbf16>
func.func @exact(
    %x: tensor<8xbf16> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<8xbf16>},
    %y: tensor<4xbf16> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<8xbf16>})
    -> (tensor<8xbf16> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xbf16>},
        tensor<8xbf16> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xbf16>})
    attributes {dist.spmd = @mesh} {
  %r = dist.all_reduce sum %x axes ["tp"] : (tensor<8xbf16>) -> tensor<8xbf16>
  %g = dist.all_gather %y axes ["tp"] dims [0] : (tensor<4xbf16>) -> tensor<8xbf16>
  return %r, %g : tensor<8xbf16>, tensor<8xbf16>
}
