// RUN: sharding-opt %s --propagate-shardings --partition | FileCheck %s

// A fetch gathers the stored rows and drops their padding; a stow adds padding and scatters.

// CHECK-LABEL: func.func @odd
// CHECK-SAME: [[X:%.+]]: tensor<2x8xf32>
// CHECK-SAME: [[W:%.+]]: tensor<3x8xf32> {dist.global = tensor<5x8xf32>
// CHECK: [[G:%.+]] = dist.all_gather [[W]] axes ["gtp"] dims [0] role weights : (tensor<3x8xf32>) -> tensor<6x8xf32>
// CHECK-NEXT: [[U:%.+]] = nn.slice [[G]] starts [0, 0] limits [5, 8] strides [1, 1] : (tensor<6x8xf32>) -> tensor<5x8xf32>
// CHECK-NEXT: nn.linear [[X]], [[U]]
// CHECK: [[P:%.+]] = nn.weight_grad
// CHECK-NEXT: [[Z:%.+]] = dist.pad [[P]] dims [0] : (tensor<5x8xf32>) -> tensor<6x8xf32>
// CHECK-NEXT: [[R:%.+]] = dist.reduce_scatter sum [[Z]] axes ["gtp"] dims [0] role gradients : (tensor<6x8xf32>) -> tensor<3x8xf32>
// CHECK-NEXT: return {{.*}}, [[R]]
dist.mesh @mesh = <["dp"=2, "gtp"=2, "tp"=2]>
#rows = #dist.sharding<@mesh, [{"gtp"}, {}]>
func.func @odd(%x: tensor<4x8xf32> {dist.sharding = #rows}, %w: tensor<5x8xf32> {nn.parameter = "w", dist.sharding = #rows})
    -> (tensor<4x5xf32>, tensor<5x8xf32> {dist.sharding = #rows}) {
  %0 = dist.fetch %w : tensor<5x8xf32>
  %1 = nn.linear %x, %0 : (tensor<4x8xf32>, tensor<5x8xf32>) -> tensor<4x5xf32>
  %2 = nn.weight_grad %1, %x : (tensor<4x5xf32>, tensor<4x8xf32>) -> tensor<5x8xf32>
  %3 = dist.stow %2 {dist.sharding = #rows} : tensor<5x8xf32>
  return %1, %3 : tensor<4x5xf32>, tensor<5x8xf32>
}

// A part stays on the ranks that use it; the sum over dp comes behind the scatter, of the shard alone.

// CHECK-LABEL: func.func @parts
// CHECK: dist.all_gather {{.*}} axes ["gtp"] dims [0] role weights : (tensor<2x8xf32>) -> tensor<4x8xf32>
// CHECK-NOT: "tp"]
// CHECK: [[R:%.+]] = dist.reduce_scatter sum {{.*}} axes ["gtp"] dims [0] role gradients : (tensor<4x8xf32>) -> tensor<2x8xf32>
// CHECK-NEXT: dist.all_reduce sum [[R]] axes ["dp"] : (tensor<2x8xf32>) -> tensor<2x8xf32>
#batch = #dist.sharding<@mesh, [{"dp", "gtp"}, {}]>
#stored = #dist.sharding<@mesh, [{"tp", "gtp"}, {}]>
#used = #dist.sharding<@mesh, [{"tp"}, {}]>
func.func @parts(%x: tensor<4x8xf32> {dist.sharding = #batch}, %w: tensor<8x8xf32> {nn.parameter = "v", dist.sharding = #stored})
    -> (tensor<4x8xf32>, tensor<8x8xf32> {dist.sharding = #stored}) {
  %0 = dist.fetch %w rows 4 {dist.sharding = #used} : tensor<8x8xf32>
  %1 = nn.linear %x, %0 : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %2 = nn.weight_grad %1, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %3 = dist.stow %2 rows 4 {dist.sharding = #stored} : tensor<8x8xf32>
  return %1, %3 : tensor<4x8xf32>, tensor<8x8xf32>
}

// A shard has a multiple of `align` rows.

// CHECK-LABEL: func.func @aligned
// CHECK-SAME: tensor<4x8xf32> {dist.global = tensor<5x8xf32>
// CHECK: dist.all_gather {{.*}} : (tensor<4x8xf32>) -> tensor<8x8xf32>
// CHECK-NEXT: nn.slice {{.*}} limits [5, 8]
func.func @aligned(%x: tensor<4x8xf32> {dist.sharding = #rows}, %w: tensor<5x8xf32> {nn.parameter = "aligned", dist.sharding = #rows}) -> tensor<4x5xf32> {
  %0 = dist.fetch %w align 4 : tensor<5x8xf32>
  %1 = nn.linear %x, %0 : (tensor<4x8xf32>, tensor<5x8xf32>) -> tensor<4x5xf32>
  return %1 : tensor<4x5xf32>
}
