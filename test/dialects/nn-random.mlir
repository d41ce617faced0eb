// RUN: sharding-opt %s --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --parallelize="mesh=dp=2" --verify-placement | FileCheck %s --check-prefix=SPMD

// CHECK: nn.random at %{{.*}} seed %{{.*}} step %{{.*}} stream 3 : (tensor<6xi64>, tensor<i64>, tensor<i64>) -> tensor<6xf32>

// A rank draws the numbers of its own elements: it has their global indices.
// SPMD: %[[I:.*]] = dist.slice %{{.*}} axes ["dp"] dims [0] : (tensor<6xi64>) -> tensor<3xi64>
// SPMD: nn.random at %[[I]] seed %{{.*}} step %{{.*}} stream 3 : (tensor<3xi64>, tensor<i64>, tensor<i64>) -> tensor<3xf32>
func.func @main(%x: tensor<6xf32> {nn.input = "x"}, %s: tensor<i64> {nn.input = "s"}, %n: tensor<i64> {nn.input = "n"}) -> (tensor<6xf32> {nn.output = "y"}) {
  %i = nn.iota dim 0 : tensor<6xi64>
  %u = nn.random at %i seed %s step %n stream 3 : (tensor<6xi64>, tensor<i64>, tensor<i64>) -> tensor<6xf32>
  %y = nn.mul %x, %u : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  return %y : tensor<6xf32>
}
