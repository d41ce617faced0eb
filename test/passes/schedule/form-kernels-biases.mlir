// RUN: sharding-opt %s --form-kernels --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels -split-input-file --remarks=applied,declined 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: sharding-opt %s --form-kernels=keep-probed -split-input-file | FileCheck %s --check-prefix=PROBED

// Segments of a packed sequence, which all queries and keys have one of: each attention
// computes the mask.
// REMARK: remark: [form-kernels] applied: nn.attention computes its bias, which is not in memory
// CHECK-LABEL: func.func @segments
// CHECK-SAME: (%[[Q:.*]]: tensor<1x2x64x8xf32>, %[[S:.*]]: tensor<1x64xi64>)
func.func @segments(%q: tensor<1x2x64x8xf32>, %s: tensor<1x64xi64>) -> tensor<1x2x64x8xf32> {
  // CHECK: %[[ROWS:.*]] = nn.reshape %[[S]] : (tensor<1x64xi64>) -> tensor<1x1x64x1xi64>
  // CHECK: %[[KEYS:.*]] = nn.reshape %[[S]] : (tensor<1x64xi64>) -> tensor<1x1x1x64xi64>
  %r = nn.reshape %s : (tensor<1x64xi64>) -> tensor<1x1x64x1xi64>
  %k = nn.reshape %s : (tensor<1x64xi64>) -> tensor<1x1x1x64xi64>
  %same = nn.compare eq %r, %k {nn.id = 1 : i64} : (tensor<1x1x64x1xi64>, tensor<1x1x1x64xi64>) -> tensor<1x1x64x64xi1>
  %zero = nn.constant dense<0.0> : tensor<f32>
  %lowest = nn.constant dense<0xFF800000> : tensor<f32>
  %b = nn.select %same, %zero, %lowest : (tensor<1x1x64x64xi1>, tensor<f32>, tensor<f32>) -> tensor<1x1x64x64xf32>
  // CHECK: %[[A:.*]] = rt.kernel %[[ROWS]], %[[KEYS]], %[[Q]] :
  // CHECK: nn.compare
  // CHECK: nn.select
  // CHECK: nn.attention
  // CHECK: rt.kernel %[[ROWS]], %[[KEYS]], %[[A]] :
  // CHECK: nn.compare
  // CHECK: nn.select
  // CHECK: nn.attention
  // A probed value is in memory.
  // PROBED: rt.kernel
  // PROBED: nn.compare
  // PROBED: rt.yield %{{.*}} : tensor<1x1x64x64xi1>
  %0 = nn.attention %q, %q, %q bias %b scale 1.0 : (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x1x64x64xf32>) -> tensor<1x2x64x8xf32>
  %1 = nn.attention %0, %0, %0 bias %b scale 1.0 : (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x1x64x64xf32>) -> tensor<1x2x64x8xf32>
  return %1 : tensor<1x2x64x8xf32>
}

// -----

// Padding of keys, stretched; a constant and indices are read by others, too.
// CHECK-LABEL: func.func @stretched
// CHECK: rt.kernel
// CHECK-DAG: nn.iota
// CHECK-DAG: nn.broadcast
// CHECK: nn.attention
// CHECK: rt.kernel
// CHECK-NEXT: nn.iota
// CHECK-NEXT: nn.exp
// CHECK-NOT: rt.kernel
func.func @stretched(%q: tensor<1x2x64x8xf32>, %p: tensor<1x1x1x64xf32>) -> (tensor<1x2x64x8xf32>, tensor<64xf32>) {
  %i = nn.iota dim 0 : tensor<64xf32>
  %w = nn.broadcast %p : (tensor<1x1x1x64xf32>) -> tensor<1x1x64x64xf32>
  %b = nn.add %w, %i : (tensor<1x1x64x64xf32>, tensor<64xf32>) -> tensor<1x1x64x64xf32>
  %0 = nn.attention %q, %q, %q bias %b scale 1.0 : (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x1x64x64xf32>) -> tensor<1x2x64x8xf32>
  %e = nn.exp %i : tensor<64xf32>
  return %0, %e : tensor<1x2x64x8xf32>, tensor<64xf32>
}

// -----

// One of the values has an element for each query and key already.
// REMARK: remark: [form-kernels] declined: nn.attention reads its bias from memory: an argument has an element for each query and key
// CHECK-LABEL: func.func @large
// CHECK: nn.add
// CHECK: rt.yield
// CHECK: rt.kernel
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.attention
func.func @large(%q: tensor<1x2x64x8xf32>, %p: tensor<64xf32>, %m: tensor<64x64xf32>) -> tensor<1x2x64x8xf32> {
  %b = nn.add %m, %p : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  %0 = nn.attention %q, %q, %q bias %b scale 1.0 : (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<64x64xf32>) -> tensor<1x2x64x8xf32>
  return %0 : tensor<1x2x64x8xf32>
}

// -----

// Exponentials would be computed once for each head.
// REMARK: remark: [form-kernels] declined: nn.attention reads its bias from memory: nn.exp has an element for each query and key
// CHECK-LABEL: func.func @costly
// CHECK: nn.exp
// CHECK: rt.yield
func.func @costly(%q: tensor<1x2x64x8xf32>, %p: tensor<64xf32>, %r: tensor<64x1xf32>) -> tensor<1x2x64x8xf32> {
  %s = nn.add %r, %p : (tensor<64x1xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  %e = nn.exp %s : tensor<64x64xf32>
  %b = nn.neg %e : tensor<64x64xf32>
  %0 = nn.attention %q, %q, %q bias %b scale 1.0 : (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<64x64xf32>) -> tensor<1x2x64x8xf32>
  return %0 : tensor<1x2x64x8xf32>
}

// -----

// The sum is a result of the program; so it is for both.
// REMARK: remark: [form-kernels] declined: nn.attention reads its bias from memory: nn.add is needed elsewhere, too
// REMARK: remark: [form-kernels] declined: nn.attention reads its bias from memory: nn.add is needed elsewhere, too
// CHECK-LABEL: func.func @shared
// CHECK: nn.add
// CHECK: rt.yield
// CHECK-COUNT-2: nn.attention %{{.*}}, %{{.*}}, %{{.*}} bias %arg
func.func @shared(%q: tensor<1x2x64x8xf32>, %p: tensor<64xf32>, %r: tensor<64x1xf32>) -> (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<64x64xf32>) {
  %s = nn.add %r, %p : (tensor<64x1xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  %b = nn.neg %s : tensor<64x64xf32>
  %0 = nn.attention %q, %q, %q bias %b scale 1.0 : (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<64x64xf32>) -> tensor<1x2x64x8xf32>
  %1 = nn.attention %q, %q, %q bias %s scale 1.0 : (tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<64x64xf32>) -> tensor<1x2x64x8xf32>
  return %0, %1, %s : tensor<1x2x64x8xf32>, tensor<1x2x64x8xf32>, tensor<64x64xf32>
}

// -----

// The operands of the bias are not smaller than the bias.
// REMARK: remark: [form-kernels] declined: nn.attention reads its bias from memory: it has 16 B, and its operands have 32 B
// CHECK-LABEL: func.func @small
// CHECK: nn.compare
// CHECK: rt.yield
func.func @small(%q: tensor<1x2x2x8xf32>, %r: tensor<2x1xi64>, %k: tensor<2xi64>) -> tensor<1x2x2x8xf32> {
  %s = nn.compare eq %r, %k : (tensor<2x1xi64>, tensor<2xi64>) -> tensor<2x2xi1>
  %b = nn.cast %s : (tensor<2x2xi1>) -> tensor<2x2xf32>
  %0 = nn.attention %q, %q, %q bias %b scale 1.0 : (tensor<1x2x2x8xf32>, tensor<1x2x2x8xf32>, tensor<1x2x2x8xf32>, tensor<2x2xf32>) -> tensor<1x2x2x8xf32>
  return %0 : tensor<1x2x2x8xf32>
}
