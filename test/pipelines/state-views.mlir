// RUN: sharding-opt %s --parallelize="" --schedule | FileCheck %s

// Rows of a view that merges the batch with sharded heads are replaced in the state, by indices and by
// slices.

// CHECK-LABEL: func.func @token
// CHECK: %[[VIEW:.*]] = nn.reshape %arg{{[0-9]+}} : (tensor<2x2x16x8xf32>) -> tensor<4x16x8xf32>
// CHECK: rt.kernel %[[VIEW]], {{.*}} over ["c"]
// CHECK-LABEL: func.func @prompt
// CHECK: %[[VIEW:.*]] = nn.reshape %arg{{[0-9]+}} : (tensor<2x2x16x8xf32>) -> tensor<4x16x8xf32>
// CHECK: nn.constant dense<[3, 4]>
// CHECK: rt.kernel %[[VIEW]], {{.*}} over ["c"]

dist.mesh @mesh = <["tp"=2]>
nn.state @c {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>} : tensor<2x4x16x8xf32>
func.func @token(%x: tensor<2x4x2x8xf32> {nn.input = "x"}, %i: tensor<2xi64> {nn.input = "i"}) -> (tensor<2xi64> {nn.output = "o"}) {
  %c = nn.read @c : tensor<2x4x16x8xf32>
  %m = nn.reshape %c : (tensor<2x4x16x8xf32>) -> tensor<8x16x8xf32>
  %y = nn.reshape %x : (tensor<2x4x2x8xf32>) -> tensor<8x2x8xf32>
  %1 = nn.index_copy %m, %i, %y dim 1 : (tensor<8x16x8xf32>, tensor<2xi64>, tensor<8x2x8xf32>) -> tensor<8x16x8xf32>
  %2 = nn.reshape %1 : (tensor<8x16x8xf32>) -> tensor<2x4x16x8xf32>
  nn.write @c, %2 : tensor<2x4x16x8xf32>
  return %i : tensor<2xi64>
}
func.func @prompt(%x: tensor<2x4x2x8xf32> {nn.input = "x"}) -> (tensor<1xf32> {nn.output = "o"}) {
  %c = nn.read @c : tensor<2x4x16x8xf32>
  %m = nn.reshape %c : (tensor<2x4x16x8xf32>) -> tensor<8x16x8xf32>
  %y = nn.reshape %x : (tensor<2x4x2x8xf32>) -> tensor<8x2x8xf32>
  %p = nn.slice %m starts [0, 0, 0] limits [8, 3, 8] strides [1, 1, 1] : (tensor<8x16x8xf32>) -> tensor<8x3x8xf32>
  %q = nn.slice %m starts [0, 5, 0] limits [8, 16, 8] strides [1, 1, 1] : (tensor<8x16x8xf32>) -> tensor<8x11x8xf32>
  %1 = nn.concat %p, %y, %q dim 1 : (tensor<8x3x8xf32>, tensor<8x2x8xf32>, tensor<8x11x8xf32>) -> tensor<8x16x8xf32>
  %2 = nn.reshape %1 : (tensor<8x16x8xf32>) -> tensor<2x4x16x8xf32>
  nn.write @c, %2 : tensor<2x4x16x8xf32>
  %o = nn.constant dense<1.0> : tensor<1xf32>
  return %o : tensor<1xf32>
}
