// RUN: sharding-opt %s | sharding-opt | FileCheck %s

dist.mesh @mesh = <["tp"=4]>

// CHECK-LABEL: @replicas
// CHECK: dist.compact %{{.*}} counts %{{.*}} tokens 3 rows 4 dim 0
// CHECK: dist.expand %{{.*}} counts %{{.*}} tokens 3 rows 4 dim 0
func.func @replicas(%x: tensor<12x2xf32>, %n: tensor<4xi64>) -> tensor<12x2xf32> {
  %0 = dist.compact %x counts %n tokens 3 rows 4 dim 0 : (tensor<12x2xf32>, tensor<4xi64>) -> tensor<8x2xf32>
  %1 = dist.expand %0 counts %n tokens 3 rows 4 dim 0 : (tensor<8x2xf32>, tensor<4xi64>) -> tensor<12x2xf32>
  return %1 : tensor<12x2xf32>
}

// A gather of all rows does not undo a slice of true ones.

// CHECK-LABEL: @kept
// CHECK: dist.slice
// CHECK: dist.all_gather_v %{{.*}} axes ["tp"] tokens 4 rows 8 dims [1]
// CHECK: dist.reduce_scatter_v sum %{{.*}} axes ["tp"] tokens 4 rows 8 dims [1]
func.func @kept(%x: tensor<1x8x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x8x2xf32>}, %n: tensor<2xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<2xi64>}) -> (tensor<1x2x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x2x2xf32>}, tensor<1x8x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x8x2xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.slice %x axes ["tp"] dims [1] : (tensor<1x8x2xf32>) -> tensor<1x2x2xf32>
  %1, %m = dist.all_gather_v %0, %n axes ["tp"] tokens 4 rows 8 dims [1] : (tensor<1x2x2xf32>, tensor<2xi64>) -> (tensor<1x8x2xf32>, tensor<2xi64>)
  %2, %k = dist.reduce_scatter_v sum %1, %m axes ["tp"] tokens 4 rows 8 dims [1] : (tensor<1x8x2xf32>, tensor<2xi64>) -> (tensor<1x2x2xf32>, tensor<2xi64>)
  return %2, %1 : tensor<1x2x2xf32>, tensor<1x8x2xf32>
}
