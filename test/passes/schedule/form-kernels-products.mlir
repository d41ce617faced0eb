// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64-v4" --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64" -split-input-file | FileCheck %s --check-prefix=NONE
// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64-v4 keep-probed" -split-input-file | FileCheck %s --check-prefix=PROBED
// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64-v4" -split-input-file --remarks=declined 2>&1 | FileCheck %s --check-prefix=REMARK

// A gate that reads two products is done by the one that is there last; the bias
// and the cast belong to it.
// CHECK-LABEL: func.func @gated
// CHECK: %[[GATE:.*]] = rt.kernel %{{.*}}, %arg1 :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.linear
// CHECK-NEXT: rt.yield
// CHECK: %[[R:.*]] = rt.kernel %{{.*}}, %arg2, %arg3, %[[GATE]] : {{.*}} -> tensor<4x16xf32>
// CHECK: %[[UP:.*]] = nn.linear
// CHECK: %[[ACT:.*]] = nn.silu
// CHECK: %[[PRODUCT:.*]] = nn.mul %[[ACT]], %[[UP]]
// CHECK: %[[CAST:.*]] = nn.cast %[[PRODUCT]]
// CHECK: rt.yield %[[CAST]]
// CHECK-NOT: rt.kernel
// CHECK: return %[[R]]
// Without a kernel for products they are alone.
// NONE-LABEL: func.func @gated
// NONE-COUNT-3: rt.kernel
// Probed values are results of the same kernels.
// PROBED-LABEL: func.func @gated
// PROBED-COUNT-2: rt.kernel
// PROBED: %[[UP:.*]] = nn.linear
// PROBED: %[[ACT:.*]] = nn.silu
// PROBED: rt.yield %[[UP]], %[[ACT]],
// PROBED-NEXT: }
// PROBED-NEXT: return
func.func @gated(%x: tensor<4x8xbf16>, %g: tensor<16x8xbf16> {nn.parameter = "g"},
                 %u: tensor<16x8xbf16> {nn.parameter = "u"}, %b: tensor<16xbf16> {nn.parameter = "b"})
    -> tensor<4x16xf32> {
  %0 = nn.linear %x, %g {nn.id = 0 : i64} : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %1 = nn.linear %x, %u bias %b {nn.id = 1 : i64} : (tensor<4x8xbf16>, tensor<16x8xbf16>, tensor<16xbf16>) -> tensor<4x16xbf16>
  %2 = nn.silu %0 {nn.id = 2 : i64} : tensor<4x16xbf16>
  %3 = nn.mul %2, %1 : (tensor<4x16xbf16>, tensor<4x16xbf16>) -> tensor<4x16xbf16>
  %4 = nn.cast %3 : (tensor<4x16xbf16>) -> tensor<4x16xf32>
  return %4 : tensor<4x16xf32>
}

// -----

// Of a residual addition and the norm behind it the addition, which others read
// as well. A view may be between.
// CHECK-LABEL: func.func @residual
// CHECK: %[[H:.*]] = rt.kernel %arg0, %arg2, %arg1 : {{.*}} -> tensor<2x8x64xf32>
// CHECK: nn.linear
// CHECK: nn.reshape
// CHECK: nn.add
// CHECK: %[[N:.*]] = rt.kernel %[[H]], %arg3 :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.rms_norm
// CHECK-NEXT: rt.yield
// CHECK: return %[[H]], %[[N]]
func.func @residual(%x: tensor<16x64xf32>, %r: tensor<2x8x64xf32>, %p: tensor<64x64xf32> {nn.parameter = "p"},
                    %w: tensor<64xf32>) -> (tensor<2x8x64xf32>, tensor<2x8x64xf32>) {
  %0 = nn.linear %x, %p : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %1 = nn.reshape %0 : (tensor<16x64xf32>) -> tensor<2x8x64xf32>
  %h = nn.add %r, %1 : (tensor<2x8x64xf32>, tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
  %n = nn.rms_norm %h weight %w eps 1.0e-5 : (tensor<2x8x64xf32>, tensor<64xf32>) -> tensor<2x8x64xf32>
  return %h, %n : tensor<2x8x64xf32>, tensor<2x8x64xf32>
}

// -----

// The same without a reader of the sum: as many bytes either way.
// CHECK-LABEL: func.func @norm
// CHECK: rt.kernel %arg0, %arg2 :
// REMARK: nn.linear takes no further ops into its kernel: that would move {{.*}}B instead of
// CHECK: rt.kernel
// CHECK: nn.add
// CHECK: nn.rms_norm
func.func @norm(%x: tensor<16x64xf32>, %r: tensor<16x64xf32>, %p: tensor<64x64xf32> {nn.parameter = "p"},
                %w: tensor<64xf32>) -> tensor<16x64xf32> {
  %0 = nn.linear %x, %p : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %h = nn.add %r, %0 : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %n = nn.rms_norm %h weight %w eps 1.0e-5 : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
  return %n : tensor<16x64xf32>
}

// -----

// The other addend comes from the product in another way: it has to be there
// first.
// CHECK-LABEL: func.func @cycle
// CHECK: rt.kernel %arg0, %arg1 :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.linear
// CHECK-NEXT: rt.yield
// REMARK: nn.linear takes no further ops into its kernel: another operand of these ops depends on the product
func.func @cycle(%x: tensor<16x64xf32>, %p: tensor<64x64xf32> {nn.parameter = "p"}, %q: tensor<64x64xf32>)
    -> tensor<16x64xf32> {
  %0 = nn.linear %x, %p : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %1 = nn.linear %0, %q : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %2 = nn.add %0, %1 : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  return %2 : tensor<16x64xf32>
}

// -----

// Heads that are transposed, a weight that is
// computed: nothing joins.
// CHECK-LABEL: func.func @alone
// CHECK: nn.linear
// CHECK-NEXT: rt.yield
// CHECK: nn.transpose
// CHECK: nn.linear
// CHECK-NEXT: rt.yield
// CHECK: nn.relu
func.func @alone(%x: tensor<4x8xf32>, %p: tensor<16x8xf32> {nn.parameter = "p"}, %w: tensor<16x8xf32>)
    -> (tensor<16x4xf32>, tensor<4x16xf32>) {
  %0 = nn.linear %x, %p : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.transpose %0 [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>
  %2 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %3 = nn.relu %2 : tensor<4x16xf32>
  return %1, %3 : tensor<16x4xf32>, tensor<4x16xf32>
}

// -----

// Cheap ops ahead of products are done where these copy their rows, by each of
// them; one of them goes on with what it gives.
// CHECK-LABEL: func.func @operand
// CHECK: rt.kernel %arg0, %arg1, %arg2 : (tensor<2x8x64xf32>, tensor<64xf32>, tensor<32x64xbf16>) -> tensor<2x8x32xbf16>
// CHECK: nn.mul
// CHECK-NEXT: nn.cast
// CHECK-NEXT: nn.linear
// CHECK-NEXT: rt.yield
// CHECK: rt.kernel %arg0, %arg1, %arg3 :
// CHECK: nn.mul
// CHECK-NEXT: nn.cast
// CHECK-NEXT: nn.reshape
// CHECK-NEXT: nn.linear
// CHECK-NEXT: nn.silu
// CHECK-NEXT: rt.yield
// CHECK-NOT: rt.kernel
// CHECK: return
// Probed values are in memory.
// PROBED-LABEL: func.func @operand
// PROBED: nn.mul
// PROBED-NEXT: nn.cast
// PROBED-NEXT: rt.yield
// PROBED-COUNT-2: rt.kernel
func.func @operand(%x: tensor<2x8x64xf32>, %s: tensor<64xf32>, %p: tensor<32x64xbf16> {nn.parameter = "p"},
                   %q: tensor<48x64xbf16> {nn.parameter = "q"}) -> (tensor<2x8x32xbf16>, tensor<16x48xbf16>) {
  %0 = nn.mul %x, %s : (tensor<2x8x64xf32>, tensor<64xf32>) -> tensor<2x8x64xf32>
  %1 = nn.cast %0 {nn.id = 0 : i64} : (tensor<2x8x64xf32>) -> tensor<2x8x64xbf16>
  %v = nn.reshape %1 : (tensor<2x8x64xbf16>) -> tensor<16x64xbf16>
  %a = nn.linear %1, %p : (tensor<2x8x64xbf16>, tensor<32x64xbf16>) -> tensor<2x8x32xbf16>
  %b = nn.linear %v, %q : (tensor<16x64xbf16>, tensor<48x64xbf16>) -> tensor<16x48xbf16>
  %c = nn.silu %b : tensor<16x48xbf16>
  return %a, %c : tensor<2x8x32xbf16>, tensor<16x48xbf16>
}

// -----

// Each thread would compute the activation, read both buffers; another op reads
// the third.
// CHECK-LABEL: func.func @not_ahead
// CHECK-COUNT-6: rt.kernel
// CHECK: return
func.func @not_ahead(%x: tensor<16x64xf32>, %y: tensor<16x64xf32>, %p: tensor<32x64xf32> {nn.parameter = "p"})
    -> (tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x64xf32>) {
  %0 = nn.silu %x : tensor<16x64xf32>
  %a = nn.linear %0, %p : (tensor<16x64xf32>, tensor<32x64xf32>) -> tensor<16x32xf32>
  %1 = nn.add %x, %y : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %b = nn.linear %1, %p : (tensor<16x64xf32>, tensor<32x64xf32>) -> tensor<16x32xf32>
  %2 = nn.relu %y : tensor<16x64xf32>
  %c = nn.linear %2, %p : (tensor<16x64xf32>, tensor<32x64xf32>) -> tensor<16x32xf32>
  return %a, %b, %c, %2 : tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x64xf32>
}
