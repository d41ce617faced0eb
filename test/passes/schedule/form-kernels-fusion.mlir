// RUN: sharding-opt %s --form-kernels --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels -split-input-file --remarks=declined 2>&1 | FileCheck %s --check-prefix=REMARK

// A residual addition and the norm behind it are one kernel, which gives the sum to
// those who read it later.
// CHECK-LABEL: func.func @add_norm
func.func @add_norm(%x: tensor<2x8x64xf32>, %y: tensor<2x8x64xf32>, %w: tensor<64xf32>, %p: tensor<64x64xf32>)
    -> (tensor<2x8x64xf32>, tensor<2x8x64xf32>) {
  // CHECK: %[[K:.*]]:2 = rt.kernel %{{.*}}, %{{.*}}, %{{.*}} : (tensor<2x8x64xf32>, tensor<2x8x64xf32>, tensor<64xf32>) -> (tensor<2x8x64xf32>, tensor<2x8x64xf32>)
  // CHECK: %[[H:.*]] = nn.add
  // CHECK: %[[N:.*]] = nn.rms_norm %[[H]]
  // CHECK: rt.yield %[[H]], %[[N]]
  %h = nn.add %x, %y : (tensor<2x8x64xf32>, tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
  %n = nn.rms_norm %h weight %w eps 1.0e-5 : (tensor<2x8x64xf32>, tensor<64xf32>) -> tensor<2x8x64xf32>
  // CHECK: %[[L:.*]] = rt.kernel %[[K]]#1
  %l = nn.linear %n, %p : (tensor<2x8x64xf32>, tensor<64x64xf32>) -> tensor<2x8x64xf32>
  // CHECK: rt.kernel %[[K]]#0, %[[L]], %{{.*}} : {{.*}} -> (tensor<2x8x64xf32>, tensor<2x8x64xf32>)
  %g = nn.add %h, %l : (tensor<2x8x64xf32>, tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
  %m = nn.layer_norm %g weight %w bias %w eps 1.0e-5 : (tensor<2x8x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<2x8x64xf32>
  return %g, %m : tensor<2x8x64xf32>, tensor<2x8x64xf32>
}

// -----

// A norm of heads, their transposition and their rotation.
// CHECK-LABEL: func.func @heads
// CHECK-COUNT-1: rt.kernel
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.rms_norm
// CHECK-NEXT: nn.transpose
// CHECK-NEXT: nn.rotary
// CHECK-NEXT: rt.yield
// CHECK-NOT: rt.kernel
func.func @heads(%x: tensor<1x8x4x16xf32>, %w: tensor<16xf32>, %c: tensor<1x1x8x16xf32>, %s: tensor<1x1x8x16xf32>) -> tensor<1x4x8x16xf32> {
  %0 = nn.rms_norm %x weight %w eps 1.0e-5 : (tensor<1x8x4x16xf32>, tensor<16xf32>) -> tensor<1x8x4x16xf32>
  %1 = nn.transpose %0 [0, 2, 1, 3] : (tensor<1x8x4x16xf32>) -> tensor<1x4x8x16xf32>
  %2 = nn.rotary %1, %c, %s : (tensor<1x4x8x16xf32>, tensor<1x1x8x16xf32>, tensor<1x1x8x16xf32>) -> tensor<1x4x8x16xf32>
  return %2 : tensor<1x4x8x16xf32>
}

// -----

// A gated activation with the casts around it; the view is in the kernel.
// CHECK-LABEL: func.func @gate
// CHECK-COUNT-1: rt.kernel
// CHECK-NOT: rt.kernel
func.func @gate(%g: tensor<8x32xbf16>, %u: tensor<8x32xbf16>) -> tensor<2x4x32xf32> {
  %0 = nn.silu %g : tensor<8x32xbf16>
  %1 = nn.mul %0, %u : (tensor<8x32xbf16>, tensor<8x32xbf16>) -> tensor<8x32xbf16>
  %2 = nn.reshape %1 : (tensor<8x32xbf16>) -> tensor<2x4x32xbf16>
  %3 = nn.cast %2 : (tensor<2x4x32xbf16>) -> tensor<2x4x32xf32>
  return %3 : tensor<2x4x32xf32>
}

// -----

// An exponential that each of many rows reads is computed once.
// CHECK-LABEL: func.func @once
// CHECK: %[[E:.*]] = rt.kernel
// CHECK: nn.exp
// CHECK: rt.kernel %{{.*}}, %[[E]]
// CHECK: nn.mul
// REMARK: remark: [form-kernels] declined: nn.exp does not join the kernel that reads it: it would be computed 8 times
func.func @once(%x: tensor<8x32xf32>, %y: tensor<32xf32>) -> tensor<8x32xf32> {
  %0 = nn.exp %y : tensor<32xf32>
  %1 = nn.mul %x, %0 : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
  return %1 : tensor<8x32xf32>
}

// -----

// Columns are not rows: what reduces them is a kernel of its own.
// CHECK-LABEL: func.func @columns
// CHECK: rt.kernel
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.exp
// CHECK-NEXT: rt.yield
// CHECK: rt.kernel
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.reduce
func.func @columns(%x: tensor<8x32xf32>) -> tensor<32xf32> {
  %0 = nn.exp %x : tensor<8x32xf32>
  %1 = nn.reduce sum %0 dims [0] : (tensor<8x32xf32>) -> tensor<32xf32>
  return %1 : tensor<32xf32>
}

// -----

// Rows of one op that are not rows of the other.
// CHECK-LABEL: func.func @rows
// CHECK-COUNT-2: rt.kernel
// REMARK: remark: [form-kernels] declined: nn.rms_norm does not join the kernel that reads it
func.func @rows(%x: tensor<8x32xf32>) -> tensor<32x8xf32> {
  %0 = nn.rms_norm %x eps 1.0e-5 : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %1 = nn.transpose %0 [1, 0] : (tensor<8x32xf32>) -> tensor<32x8xf32>
  %2 = nn.softmax %1 dim 1 : tensor<32x8xf32>
  return %2 : tensor<32x8xf32>
}

// -----

// Results of one kernel must not be needed to compute its operands.
// CHECK-LABEL: func.func @order
// CHECK: %[[A:.*]] = rt.kernel
// CHECK: nn.relu
// CHECK: %[[L:.*]] = rt.kernel %[[A]]
// CHECK: nn.linear
// CHECK: rt.kernel %[[A]], %[[L]]
func.func @order(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = nn.relu %x : tensor<8x8xf32>
  %1 = nn.linear %0, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = nn.add %0, %1 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
