// RUN: sharding-opt %s --parallelize="mesh=tp=2" --verify-placement | FileCheck %s

// Shards of the rows hold whole blocks, and their scales.
// CHECK-LABEL: func.func @whole(
// CHECK-SAME: tensor<256x256xf8E4M3FN> {dist.global = tensor<512x256xf8E4M3FN>
// CHECK-SAME: tensor<2x2xf32> {dist.global = tensor<4x2xf32>
// CHECK: nn.dequantize %{{.*}} {block = [128, 128]} : (tensor<256x256xf8E4M3FN>, tensor<2x2xf32>) -> tensor<256x256xf32>
func.func @whole(%x: tensor<4x256xf32> {nn.input = "x"}, %c: tensor<512x256xf8E4M3FN> {nn.parameter = "c"}, %s: tensor<4x2xf32> {nn.parameter = "s"})
    -> (tensor<4x512xf32> {nn.output = "y"}) {
  %w = nn.dequantize %c, %s {block = [128, 128]} : (tensor<512x256xf8E4M3FN>, tensor<4x2xf32>) -> tensor<512x256xf32>
  %y = nn.linear %x, %w : (tensor<4x256xf32>, tensor<512x256xf32>) -> tensor<4x512xf32>
  return %y : tensor<4x512xf32>
}

// Shards are made of parts of 32 rows. A rank has all scales, and takes those of its parts. Columns, which are whole, keep
// their blocks.
// CHECK-LABEL: func.func @parts(
// CHECK-SAME: tensor<160x192xf8E4M3FN> {dist.global = tensor<320x192xf8E4M3FN>
// CHECK-SAME: tensor<3x2xf32> {dist.global = tensor<3x2xf32>
// CHECK: %[[ALL:.*]] = nn.slice %{{.*}} limits [10, 2]
// CHECK: %[[OWN:.*]] = dist.slice %[[ALL]] axes ["tp"] dims [0] : (tensor<10x2xf32>) -> tensor<5x2xf32>
// CHECK: nn.dequantize %{{.*}}, %[[OWN]] {block = [32, 128]} : (tensor<160x192xf8E4M3FN>, tensor<5x2xf32>) -> tensor<160x192xf32>
func.func @parts(%x: tensor<4x192xf32> {nn.input = "x"}, %c: tensor<320x192xf8E4M3FN> {nn.parameter = "codes"}, %s: tensor<3x2xf32> {nn.parameter = "scales"})
    -> (tensor<4x320xf32> {nn.output = "y"}) {
  %w = nn.dequantize %c, %s {block = [128, 128]} : (tensor<320x192xf8E4M3FN>, tensor<3x2xf32>) -> tensor<320x192xf32>
  %y = nn.linear %x, %w : (tensor<4x192xf32>, tensor<320x192xf32>) -> tensor<4x320xf32>
  return %y : tensor<4x320xf32>
}
