// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64-v4" --pack-weights="target=cpu:x86-64-v4" --fuse-decodings="target=cpu:x86-64-v4" --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64-v4" -split-input-file --remarks=declined 2>&1 | FileCheck %s --check-prefix=REMARK

// A product that reads codes leaves what follows to another kernel: else its weight would be widened and packed.
// CHECK-LABEL: func.func @few_rows(
// CHECK-NOT: rt.prepare
// CHECK: rt.kernel
// CHECK: nn.dequantize
// CHECK-NEXT: nn.linear
// CHECK-NEXT: rt.yield
// CHECK: rt.kernel
// CHECK: nn.silu
// REMARK: nn.linear takes no further ops into its kernel: that would move 1.41 MiB instead of 672 KiB
func.func @few_rows(%x: tensor<64x128xf32> {nn.input = "x"}, %c: tensor<512x128xf8E4M3FN> {nn.parameter = "c"}, %s: tensor<4x1xf32> {nn.parameter = "s"})
    -> (tensor<64x512xf32> {nn.output = "y"}) {
  %w = nn.dequantize %c, %s {block = [128, 128]} : (tensor<512x128xf8E4M3FN>, tensor<4x1xf32>) -> tensor<512x128xf32>
  %y = nn.linear %x, %w : (tensor<64x128xf32>, tensor<512x128xf32>) -> tensor<64x512xf32>
  %z = nn.silu %y : tensor<64x512xf32>
  return %z : tensor<64x512xf32>
}

// -----

// Of so many rows the results are more bytes than the weight.
// CHECK-LABEL: func.func @many_rows(
// CHECK: rt.kernel
// CHECK: nn.dequantize
// CHECK: rt.prepare
// CHECK: rt.kernel
// CHECK: nn.linear
// CHECK-NEXT: nn.silu
func.func @many_rows(%x: tensor<320x128xf32> {nn.input = "x"}, %c: tensor<512x128xf8E4M3FN> {nn.parameter = "c"}, %s: tensor<4x1xf32> {nn.parameter = "s"})
    -> (tensor<320x512xf32> {nn.output = "y"}) {
  %w = nn.dequantize %c, %s {block = [128, 128]} : (tensor<512x128xf8E4M3FN>, tensor<4x1xf32>) -> tensor<512x128xf32>
  %y = nn.linear %x, %w : (tensor<320x128xf32>, tensor<512x128xf32>) -> tensor<320x512xf32>
  %z = nn.silu %y : tensor<320x512xf32>
  return %z : tensor<320x512xf32>
}

// -----

// Two products read this weight, so it is widened anyway.
// CHECK-LABEL: func.func @two_readers(
// CHECK: nn.linear
// CHECK-NEXT: nn.silu
func.func @two_readers(%x: tensor<64x128xf32> {nn.input = "x"}, %c: tensor<128x128xf8E4M3FN> {nn.parameter = "c"}, %s: tensor<1x1xf32> {nn.parameter = "s"})
    -> (tensor<64x128xf32> {nn.output = "y"}) {
  %w = nn.dequantize %c, %s {block = [128, 128]} : (tensor<128x128xf8E4M3FN>, tensor<1x1xf32>) -> tensor<128x128xf32>
  %y = nn.linear %x, %w : (tensor<64x128xf32>, tensor<128x128xf32>) -> tensor<64x128xf32>
  %z = nn.silu %y : tensor<64x128xf32>
  %t = nn.linear %z, %w : (tensor<64x128xf32>, tensor<128x128xf32>) -> tensor<64x128xf32>
  return %t : tensor<64x128xf32>
}

// -----

// The rows of experts are counted by the offsets, wherever they are among the operands.
// CHECK-LABEL: func.func @experts(
// CHECK: %[[ROUTE:.*]]:3 = rt.kernel
// CHECK: rt.kernel %{{.*}}, %[[ROUTE]]#0, %{{.*}}, %{{.*}} counted_by 1
// CHECK: nn.dequantize
// CHECK: nn.grouped_product
func.func @experts(%x: tensor<7x64xf32> {nn.input = "x"}, %i: tensor<7x2xi64> {nn.input = "i"}, %c: tensor<4x64x64xf8E4M3FN> {nn.parameter = "c"}, %s: tensor<4x1x1xf32> {nn.parameter = "s"})
    -> (tensor<7x64xf32> {nn.output = "y"}) {
  %w = nn.dequantize %c, %s {block = [1, 64, 64]} : (tensor<4x64x64xf8E4M3FN>, tensor<4x1x1xf32>) -> tensor<4x64x64xf32>
  %offsets, %choices, %places = nn.route %i {experts = 4 : i64} : (tensor<7x2xi64>) -> (tensor<5xi64>, tensor<14xi64>, tensor<7x2xi64>)
  %r = nn.take_rows %x, %choices {group = 2 : i64, tokens = 1 : i64} : (tensor<7x64xf32>, tensor<14xi64>) -> tensor<14x1x64xf32>
  %p = nn.grouped_product %r, %w, %offsets : (tensor<14x1x64xf32>, tensor<4x64x64xf32>, tensor<5xi64>) -> tensor<14x1x64xf32>
  %y = nn.sum_rows %p, %places : (tensor<14x1x64xf32>, tensor<7x2xi64>) -> tensor<7x64xf32>
  return %y : tensor<7x64xf32>
}
