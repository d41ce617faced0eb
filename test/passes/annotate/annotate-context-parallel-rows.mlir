// RUN: sharding-opt %s --annotate-context-parallel="ring=ring" | FileCheck %s
// RUN: sharding-opt %s --parallelize="context-parallel={ring=ring}" | FileCheck %s --check-prefix=SPMD

// Four rows of two pixels on a ring of eight: the ring pads the rows to eight. Axes alone
// would cut the eight pixels over it.

// CHECK: tensor<1x8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, (4 pad 8{"ring"}, 2), {}]>
// SPMD: tensor<1x2x16xf32> {dist.global = tensor<1x8x16xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"ring"}, {}]>
dist.mesh @mesh = <["ring"=8]>
func.func @main(%x: tensor<1x8x16xf32> {nn.input = "x"}) -> (tensor<1x1x4x32xf32> {nn.output = "y"}) {
  %0 = nn.reshape %x : (tensor<1x8x16xf32>) -> tensor<1x1x4x32xf32>
  %1 = nn.attention %0, %0, %0 scale 0.25 : (tensor<1x1x4x32xf32>, tensor<1x1x4x32xf32>, tensor<1x1x4x32xf32>) -> tensor<1x1x4x32xf32>
  return %1 : tensor<1x1x4x32xf32>
}
