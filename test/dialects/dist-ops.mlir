// RUN: sharding-opt %s --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s -split-input-file --mlir-print-op-generic | sharding-opt -split-input-file | FileCheck %s

// CHECK: dist.mesh @mesh = <["dp"=2, "tp"=4]>
dist.mesh @mesh = <["dp"=2, "tp"=4]>
// CHECK: dist.mesh @linked = <["host"=2 {bandwidth = 5.000000e+10, latency = {{.*}}}, "tp"=8 {bandwidth = 4.500000e+11}], device = "h100">
dist.mesh @linked = <["host"=2 {bandwidth = 5.0e10, latency = 1.0e-5}, "tp"=8 {bandwidth = 4.5e11}], device = "h100">
// CHECK: dist.mesh @roles = <["host"=2 {bandwidth = 5.000000e+10, roles = [data, ring], order = contiguous}, "sp"=4 {roles = [ulysses]}, "x"=2 {roles = []}], device = "h100">
dist.mesh @roles = <["host"=2 {order = contiguous, roles = [ring, data], bandwidth = 5.0e10}, "sp"=4 {roles = [ulysses]}, "x"=2 {roles = []}], device = "h100">
// CHECK: dist.mesh @stages = <["ranks"=6]> {dist.stages = {draft = #dist.mesh<["dp"=3 {roles = [data]}, "sp"=2 {roles = [ring], order = zigzag}]>, target = #dist.mesh<["dp"=2, "tp"=3]>}}
dist.mesh @stages = <["ranks"=6]> {dist.stages = {draft = #dist.mesh<["dp"=3 {roles = [data]}, "sp"=2 {roles = [ring], order = zigzag}]>, target = #dist.mesh<["dp"=2, "tp"=3]>}}
// CHECK: dist.mesh @one = <[]>
dist.mesh @one = <[]>

// Shardings in a global program.
// CHECK-LABEL: func.func @global
// CHECK-SAME: #dist.sharding<@mesh, [{"dp"}, {"tp", ?}, {}]>
// CHECK-SAME: #dist.sharding<@one, [{}, {?}]>
// CHECK-SAME: #dist.sharding<@mesh, [{"tp":(2)2}, {"tp":(1)2, ?}], unreduced = {"dp"}>
// CHECK-SAME: #dist.sharding<@mesh, [{"tp", "dp"}, {}]>
// CHECK-SAME: #dist.sharding<@mesh, [{}, {"dp"}], unreduced = max {"tp":(2)2}>
// CHECK-SAME: #dist.sharding<@mesh, [(2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 12), {}]>
func.func @global(%a: tensor<8x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp", ?}, {}]>},
                  %b: tensor<8x8xf32> {dist.sharding = #dist.sharding<@one, [{}, {?}]>},
                  %c: tensor<8x8xf32>,
                  %d: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(2)2}, {"tp":(1)2, ?}], unreduced = {"dp"}>},
                  %e: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp", "dp"}, {}], unreduced = max {}>},
                  %f: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}], unreduced = max {"tp":(2)2}>},
                  %g: tensor<72x8xf32> {dist.sharding = #dist.sharding<@mesh, [(2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 12), {}]>},
                  %h: tensor<2x1x2x4xf32>, %i: tensor<2x1x2xf32>) {
  // CHECK: nn.neg {{.*}} {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>}
  %0 = nn.neg %c {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>} : tensor<8x8xf32>
  // CHECK: nn.neg {{.*}} {dist.sharding = [#dist.sharding<@mesh, [{}, {"tp"}]>]}
  %1 = nn.neg %c {dist.sharding = [#dist.sharding<@mesh, [{}, {"tp"}]>]} : tensor<8x8xf32>
  // CHECK: nn.merge_attention {{.*}} {dist.sharding = [#dist.sharding<@mesh, [{"dp"}, {}, {}, {}]>, unit]}
  %m, %l = nn.merge_attention %h, %i, %h, %i {dist.sharding = [#dist.sharding<@mesh, [{"dp"}, {}, {}, {}]>, unit]} : (tensor<2x1x2x4xf32>, tensor<2x1x2xf32>, tensor<2x1x2x4xf32>, tensor<2x1x2xf32>) -> (tensor<2x1x2x4xf32>, tensor<2x1x2xf32>)
  // CHECK: dist.constrain {{%.+}} <@mesh, [{"dp"}, {"tp"}]> : tensor<8x8xf32>
  %2 = dist.constrain %1 <@mesh, [{"dp"}, {"tp"}]> : tensor<8x8xf32>
  return
}

// CHECK-LABEL: func.func @collectives
// CHECK-SAME: [[X:%.+]]: tensor<4x8xf32> {dist.global = tensor<4x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>}
func.func @collectives(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>})
    attributes {dist.spmd = @mesh} {
  // CHECK: dist.all_reduce sum [[X]] axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.all_reduce max [[X]], [[X]] axes ["dp", "tp":(2)2] : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
  %1:2 = dist.all_reduce max %x, %x axes ["dp", "tp":(2)2] : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
  // CHECK: dist.reduce_scatter sum [[X]], [[X]] axes ["tp"] dims [0, 1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<1x8xf32>, tensor<4x2xf32>)
  %2:2 = dist.reduce_scatter sum %x, %x axes ["tp"] dims [0, 1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<1x8xf32>, tensor<4x2xf32>)
  // CHECK: dist.all_gather [[X]] axes ["tp"] dims [1] role weights : (tensor<4x8xf32>) -> tensor<4x32xf32>
  %role0 = dist.all_gather %x axes ["tp"] dims [1] role weights : (tensor<4x8xf32>) -> tensor<4x32xf32>
  // CHECK: dist.permute [[X]] axes ["tp"] shift 1 role saved : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %role1 = dist.permute %x axes ["tp"] shift 1 role saved : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.permute [[X]] axes ["tp"] shift 1 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %role2 = dist.permute %x axes ["tp"] shift 1 role data : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.all_gather [[X]] axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x32xf32>
  %3 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x32xf32>
  // CHECK: dist.all_to_all [[X]] axes ["dp", "tp"] from [0] to [1] : (tensor<4x8xf32>) -> tensor<32x1xf32>
  %4 = dist.all_to_all %x axes ["dp", "tp"] from [0] to [1] : (tensor<4x8xf32>) -> tensor<32x1xf32>
  // CHECK: dist.permute [[X]] axes ["tp"] shift -1 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = dist.permute %x axes ["tp"] shift -1 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.permute [[X]] axes ["dp"] pairs {{\[\[}}1, 0], [0, 1]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %6 = dist.permute %x axes ["dp"] pairs [[1, 0], [0, 1]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.permute [[X]] axes ["tp"] pairs {{\[\[}}0, 1], [2, 3]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %partial = dist.permute %x axes ["tp"] pairs [[0, 1], [2, 3]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.redistribute [[X]] from [#dist.sharding<@mesh, [{"dp"}, {}]>] to [#dist.sharding<@mesh, [{}, {"tp"}]>] : (tensor<4x8xf32>) -> tensor<8x2xf32>
  %7 = dist.redistribute %x from [#dist.sharding<@mesh, [{"dp"}, {}]>] to [#dist.sharding<@mesh, [{}, {"tp"}]>] : (tensor<4x8xf32>) -> tensor<8x2xf32>
  // CHECK: dist.slice [[X]] axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x3xf32>
  %8 = dist.slice %x axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x3xf32>
  // CHECK: dist.partial [[X]] axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %9 = dist.partial %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.partial max [[X]] axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %maximum = dist.partial max %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: dist.place [[X]], [[X]] axes ["tp"] dim 1 shifts [0, -1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x32xf32>
  %place = dist.place %x, %x axes ["tp"] dim 1 shifts [0, -1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x32xf32>
  // CHECK: dist.pad [[X]] dims [0, 1] : (tensor<4x8xf32>) -> tensor<6x9xf32>
  %10 = dist.pad %x dims [0, 1] : (tensor<4x8xf32>) -> tensor<6x9xf32>
  // CHECK: dist.after [[X]], [[X]] : tensor<4x8xf32>, tensor<4x8xf32>
  %after = dist.after %x, %x : tensor<4x8xf32>, tensor<4x8xf32>
  // CHECK: dist.mask_padding [[X]] axes ["tp"] dim 0 size 13 value 0xFFF0000000000000 : tensor<4x8xf32>
  %11 = dist.mask_padding %x axes ["tp"] dim 0 size 13 value 0xFFF0000000000000 : tensor<4x8xf32>
  // CHECK: dist.axis_index ["tp"] : tensor<i64>
  %12 = dist.axis_index ["tp"] : tensor<i64>
  // CHECK: dist.axis_index ["dp", "tp"] chunk 128 : tensor<i64>
  %13 = dist.axis_index ["dp", "tp"] chunk 128 : tensor<i64>
  return
}
