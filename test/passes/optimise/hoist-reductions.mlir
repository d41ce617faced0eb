// RUN: sharding-opt %s --hoist-reductions --verify-roundtrip | FileCheck %s

dist.mesh @mesh = <["dp"=2]>

// The sum of a gradient and of those of other microbatches is reduced as soon as the gradient is known.
// CHECK-LABEL: func.func @gradient
// CHECK: %[[G:.*]] = nn.weight_grad
// CHECK-NEXT: %[[S:.*]] = nn.add %{{.*}}, %[[G]]
// CHECK-NEXT: %[[R:.*]] = dist.reduce_scatter sum %[[S]]
// CHECK-NEXT: nn.linear
// CHECK-NEXT: nn.relu
func.func @gradient(
    %x: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<16x4xf32>},
    %w: tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x4xf32>},
    %sum: tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<4x4xf32>})
    -> (tensor<2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x4xf32>},
        tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<16x4xf32>})
    attributes {dist.spmd = @mesh} {
  %g = nn.weight_grad %x, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %y = nn.linear %x, %w {in_out} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %z = nn.relu %y : tensor<8x4xf32>
  %s = nn.add %sum, %g : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = dist.reduce_scatter sum %s axes ["dp"] dims [0] : (tensor<4x4xf32>) -> tensor<2x4xf32>
  return %r, %z : tensor<2x4xf32>, tensor<8x4xf32>
}

// An op that another one reads, too, stays, and so does the reduction behind it. A reduction of arguments waits for nothing.
// CHECK-LABEL: func.func @stays
// CHECK: nn.weight_grad
// CHECK-NEXT: nn.relu
// CHECK-NEXT: %[[S:.*]] = nn.add
// CHECK-NEXT: %[[R:.*]] = dist.reduce_scatter sum %[[S]]
// CHECK-NEXT: dist.all_reduce sum %{{.*}}
func.func @stays(
    %x: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<16x4xf32>},
    %sum: tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<4x4xf32>})
    -> (tensor<2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x4xf32>},
        tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x4xf32>},
        tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<4x4xf32>},
        tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<16x4xf32>})
    attributes {dist.spmd = @mesh} {
  %g = nn.weight_grad %x, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %z = nn.relu %x : tensor<8x4xf32>
  %s = nn.add %sum, %g : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = dist.reduce_scatter sum %s axes ["dp"] dims [0] : (tensor<4x4xf32>) -> tensor<2x4xf32>
  %t = dist.all_reduce sum %sum axes ["dp"] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r, %t, %s, %z : tensor<2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<8x4xf32>
}
