// RUN: sharding-opt %s --split-input-file --pack-elements | FileCheck %s

// CHECK: nn.state @pages {fill = 34 : i8} : tensor<4x4xi8>
nn.state @pages {fill = 1.0 : f4E2M1FN} : tensor<4x8xf4E2M1FN>
// CHECK-LABEL: func.func @main(%arg0: tensor<4x4xi8> {nn.input = "x"}, %arg1: tensor<4x8xi8>
func.func @main(%x: tensor<4x8xf4E2M1FN> {nn.input = "x"}, %y: tensor<4x8xi8> {nn.input = "y"})
    -> (tensor<4x8xf4E2M1FN> {nn.output = "z"}) {
  // The even element is the low half of a byte: 0.5 is 1, 1.0 is 2, 6.0 is 7, -0.5 is 9.
  // CHECK: nn.constant dense<{{\[\[}}33, -105]]> : tensor<1x2xi8>
  %c = nn.constant dense<[[0.5, 1.0, 6.0, -0.5]]> : tensor<1x4xf4E2M1FN>
  // CHECK: nn.read @pages : tensor<4x4xi8>
  %0 = nn.read @pages : tensor<4x8xf4E2M1FN>
  // CHECK: nn.slice {{.*}} starts [1, 1] limits [3, 3] strides [1, 1] : (tensor<4x4xi8>) -> tensor<2x2xi8>
  %1 = nn.slice %0 starts [1, 2] limits [3, 6] strides [1, 1] : (tensor<4x8xf4E2M1FN>) -> tensor<2x4xf4E2M1FN>
  // CHECK: nn.concat {{.*}} dim 1 : (tensor<1x2xi8>, tensor<1x2xi8>) -> tensor<1x4xi8>
  %2 = nn.concat %c, %c dim 1 : (tensor<1x4xf4E2M1FN>, tensor<1x4xf4E2M1FN>) -> tensor<1x8xf4E2M1FN>
  // CHECK: nn.reshape {{.*}} : (tensor<4x4xi8>) -> tensor<8x2xi8>
  %3 = nn.reshape %0 : (tensor<4x8xf4E2M1FN>) -> tensor<8x4xf4E2M1FN>
  // Codes of a byte stay.
  // CHECK: nn.transpose {{.*}} [1, 0] : (tensor<4x8xi8>) -> tensor<8x4xi8>
  %4 = nn.transpose %y [1, 0] : (tensor<4x8xi8>) -> tensor<8x4xi8>
  return %0 : tensor<4x8xf4E2M1FN>
}

// -----

// Layouts that state sizes count bytes, too.

#split = #dist.sharding<@mesh, [{}, (2, 12{"tp"})]>
#rows = #dist.sharding<@mesh, [{"tp"}, {}]>
#columns = #dist.sharding<@mesh, [{}, {"tp"}]>
dist.mesh @mesh = <["tp"=2]>
// CHECK-LABEL: func.func @layouts
// CHECK-SAME: dist.global = tensor<4x12xi8>, dist.sharding = #dist.sharding<@mesh, [{}, (2, 6{"tp"})]>
func.func @layouts(%x: tensor<4x12xf4E2M1FN> {nn.input = "x", dist.sharding = #split, dist.global = tensor<4x24xf4E2M1FN>},
                   %y: tensor<2x8xf4E2M1FN> {nn.input = "y", dist.sharding = #rows, dist.global = tensor<4x8xf4E2M1FN>})
    -> (tensor<4x12xf4E2M1FN> {nn.output = "z", dist.sharding = #split, dist.global = tensor<4x24xf4E2M1FN>})
    attributes {dist.spmd = @mesh} {
  // CHECK: dist.redistribute {{.*}} : (tensor<2x4xi8>) -> tensor<4x2xi8>
  %0 = dist.redistribute %y from [#rows] to [#columns] : (tensor<2x8xf4E2M1FN>) -> tensor<4x4xf4E2M1FN>
  // CHECK: dist.mask_padding {{.*}} size 3 value 0.000000e+00 : tensor<4x2xi8>
  %1 = dist.mask_padding %0 axes ["tp"] dim 1 size 6 value 0.0 : tensor<4x4xf4E2M1FN>
  return %x : tensor<4x12xf4E2M1FN>
}
