// RUN: sharding-opt %s | FileCheck %s

// Ops that only move elements take codes.

// CHECK: nn.state @pages : tensor<4x8xf8E8M0FNU>
nn.state @pages : tensor<4x8xf8E8M0FNU>
// CHECK: nn.state @zeros {fill = 0 : i8} : tensor<4x8xi8>
nn.state @zeros {fill = 0 : i8} : tensor<4x8xi8>
// CHECK: nn.state @ones {fill = 1.000000e+00 : f8E4M3FN} : tensor<4x8xf8E4M3FN>
nn.state @ones {fill = 1.0 : f8E4M3FN} : tensor<4x8xf8E4M3FN>

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4x8xf8E5M2> {nn.input = "x"}, %i: tensor<2xi64> {nn.input = "i"},
                %w: tensor<4x8xi8> {nn.parameter = "w"}) -> (tensor<8x4xf8E5M2> {nn.output = "y"}) {
  // CHECK: nn.read @pages : tensor<4x8xf8E8M0FNU>
  %p = nn.read @pages : tensor<4x8xf8E8M0FNU>
  // CHECK: nn.index_copy {{.*}} : (tensor<4x8xf8E8M0FNU>, tensor<2xi64>, tensor<2x8xf8E8M0FNU>) -> tensor<4x8xf8E8M0FNU>
  %s = nn.slice %p starts [0, 0] limits [2, 8] strides [1, 1] : (tensor<4x8xf8E8M0FNU>) -> tensor<2x8xf8E8M0FNU>
  %n = nn.index_copy %p, %i, %s dim 0 : (tensor<4x8xf8E8M0FNU>, tensor<2xi64>, tensor<2x8xf8E8M0FNU>) -> tensor<4x8xf8E8M0FNU>
  // CHECK: nn.write @pages
  nn.write @pages, %n : tensor<4x8xf8E8M0FNU>
  // CHECK: nn.gather {{.*}} -> tensor<2x8xi8>
  %g = nn.gather %w, %i dim 0 : (tensor<4x8xi8>, tensor<2xi64>) -> tensor<2x8xi8>
  // CHECK: nn.constant dense<-3> : tensor<2x8xi8>
  %c = nn.constant dense<-3> : tensor<2x8xi8>
  // CHECK: nn.concat {{.*}} -> tensor<4x8xi8>
  %j = nn.concat %g, %c dim 0 : (tensor<2x8xi8>, tensor<2x8xi8>) -> tensor<4x8xi8>
  // CHECK: nn.broadcast {{.*}} -> tensor<3x4x8xi8>
  %b = nn.broadcast %j : (tensor<4x8xi8>) -> tensor<3x4x8xi8>
  // CHECK: nn.reshape {{.*}} -> tensor<12x8xi8>
  %r = nn.reshape %b : (tensor<3x4x8xi8>) -> tensor<12x8xi8>
  // CHECK: nn.transpose {{.*}} -> tensor<8x4xf8E5M2>
  %t = nn.transpose %x [1, 0] : (tensor<4x8xf8E5M2>) -> tensor<8x4xf8E5M2>
  return %t : tensor<8x4xf8E5M2>
}
