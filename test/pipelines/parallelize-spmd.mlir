// RUN: sharding-opt %s --parallelize="sequence-parallel=on" | FileCheck %s
// RUN: sharding-opt %s --parallelize="mesh=dp=2,tp=4 sequence-parallel=on" | FileCheck %s
// RUN: not sharding-opt %s --parallelize="mesh=dp=4,tp=2" 2>&1 | FileCheck %s --check-prefix=MESH

// An SPMD program goes through the whole pipeline: its sums become reduce-scatters, and a
// mesh that differs from its own is an error.

// MESH: 'dist.mesh' op differs from the 'mesh' option #dist.mesh<["dp"=4, "tp"=2], device = "h100">: expected the module's own, #dist.mesh<["dp"=2, "tp"=4]>

// CHECK: dist.mesh @mesh = <["dp"=2, "tp"=4]>
// CHECK-NOT: all_reduce
// CHECK: dist.reduce_scatter
// CHECK: nn.rms_norm
// CHECK: dist.all_gather
// CHECK: dist.reduce_scatter
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @main(%x: tensor<2x8x16xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<4x8x16xf32>},
                %u: tensor<8x16xf32> {nn.parameter = "u", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<32x16xf32>},
                %d: tensor<16x8xf32> {nn.parameter = "d", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>})
    -> (tensor<2x8x16xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>, dist.global = tensor<4x8x16xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %u : (tensor<2x8x16xf32>, tensor<8x16xf32>) -> tensor<2x8x8xf32>
  %1 = nn.silu %0 : tensor<2x8x8xf32>
  %2 = nn.linear %1, %d : (tensor<2x8x8xf32>, tensor<16x8xf32>) -> tensor<2x8x16xf32>
  %3 = dist.all_reduce sum %2 axes ["tp"] : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %4 = nn.add %x, %3 : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %5 = nn.rms_norm %4 eps 1.0e-6 : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %6 = nn.linear %5, %u : (tensor<2x8x16xf32>, tensor<8x16xf32>) -> tensor<2x8x8xf32>
  %7 = nn.linear %6, %d : (tensor<2x8x8xf32>, tensor<16x8xf32>) -> tensor<2x8x16xf32>
  %8 = dist.all_reduce sum %7 axes ["tp"] : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %9 = nn.add %4, %8 : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  return %9 : tensor<2x8x16xf32>
}
