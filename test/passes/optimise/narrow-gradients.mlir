// RUN: sharding-opt %s --narrow-gradients --verify-placement | FileCheck %s

dist.mesh @mesh = <["dp"=2, "tp"=2, "gtp"=3]>

// A sum over other axes stays open. Parts of a weight that tensor parallelism cuts stay apart.
// CHECK-LABEL: func.func @parts
// CHECK: %[[NARROW:.*]] = nn.cast parts %arg0 {nn.backward} : (tensor<1x12x4xf32>) -> tensor<1x12x4xbf16>
// CHECK: %[[PARTS:.*]] = dist.parts %[[NARROW]] axes ["gtp"] {nn.backward} : (tensor<1x12x4xbf16>) -> tensor<1x1x12x4xbf16>
// CHECK: %[[MOVED:.*]] = dist.all_to_all %[[PARTS]] axes ["gtp"] from [0] to [2] role gradients {nn.backward} : (tensor<1x1x12x4xbf16>) -> tensor<3x1x4x4xbf16>
// CHECK: %[[WIDE:.*]] = nn.cast %[[MOVED]] {nn.backward}
// CHECK: nn.reduce sum %[[WIDE]] dims [0] {nn.backward} : (tensor<3x1x4x4xf32>) -> tensor<1x4x4xf32>
// CHECK-NOT: dist.reduce_scatter
func.func @parts(%g: tensor<1x12x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}], unreduced = {"dp", "gtp"}>, dist.global = tensor<2x12x4xf32>})
    -> (tensor<1x4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {"gtp"}, {}]>, dist.global = tensor<2x12x4xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.reduce_scatter sum %g axes ["gtp"] dims [1] role gradients {nn.backward} : (tensor<1x12x4xf32>) -> tensor<1x4x4xf32>
  %1 = dist.all_reduce sum %0 axes ["dp"] : (tensor<1x4x4xf32>) -> tensor<1x4x4xf32>
  return %1 : tensor<1x4x4xf32>
}

// Other values, and gradients of other types, travel as before.
// CHECK-LABEL: func.func @others
// CHECK: dist.reduce_scatter sum %arg0 axes ["gtp"] dims [0] :
// CHECK: dist.reduce_scatter sum %arg1 axes ["gtp"] dims [0] role gradients
// CHECK-NOT: nn.cast
func.func @others(%x: tensor<12x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"gtp"}>, dist.global = tensor<12x4xf32>},
                  %g: tensor<12x4xf64> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"gtp"}>, dist.global = tensor<12x4xf64>})
    -> (tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"gtp"}, {}]>, dist.global = tensor<12x4xf32>},
        tensor<4x4xf64> {dist.sharding = #dist.sharding<@mesh, [{"gtp"}, {}]>, dist.global = tensor<12x4xf64>}) attributes {dist.spmd = @mesh} {
  %0 = dist.reduce_scatter sum %x axes ["gtp"] dims [0] : (tensor<12x4xf32>) -> tensor<4x4xf32>
  %1 = dist.reduce_scatter sum %g axes ["gtp"] dims [0] role gradients : (tensor<12x4xf64>) -> tensor<4x4xf64>
  return %0, %1 : tensor<4x4xf32>, tensor<4x4xf64>
}
