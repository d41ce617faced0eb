// RUN: sharding-opt %s --split-input-file --absorb-latent-keys | FileCheck %s
// RUN: sharding-opt %s --split-input-file --absorb-latent-keys=ranks=4 --remarks=applied,declined -o /dev/null 2>&1 | FileCheck %s --check-prefix=LOG
// RUN: not sharding-opt %s --split-input-file --absorb-latent-keys=ranks=0 2>&1 | FileCheck %s --check-prefix=RANKS

// RANKS: error: ranks: expected at least 1, got 0

// Four heads of 6 + 2 columns of keys and 5 of values: 52 elements. The latent of 7 and the shared
// part of 2 are 9.
// LOG: remark: [absorb-latent-keys] applied: 9 columns are cached for a token in place of 4 kv heads: 0.69 times the elements, 1.23 times the arithmetic
// CHECK-LABEL: func.func @shared
// CHECK-SAME: %[[C:.*]]: tensor<1x9x7xf32>, %[[R:.*]]: tensor<1x1x9x2xf32>, %[[Q:.*]]: tensor<32x7xf32>, %[[W:.*]]: tensor<44x7xf32>
func.func @shared(%c: tensor<1x9x7xf32>, %r: tensor<1x1x9x2xf32>, %wq: tensor<32x7xf32>, %w: tensor<44x7xf32>) -> tensor<1x4x9x5xf32> {
  // CHECK: %[[QUERY:.*]] = nn.transpose {{.*}} -> tensor<1x4x9x8xf32>
  // CHECK: %[[LATENT:.*]] = nn.reshape %[[C]]
  // CHECK: %[[KEYS:.*]] = nn.concat %[[LATENT]], %[[R]] dim 3
  // CHECK: %[[VALUES:.*]] = nn.slice %[[KEYS]] starts [0, 0, 0, 0] limits [1, 1, 9, 7]
  // CHECK: %[[ROWS:.*]] = nn.slice {{.*}} starts [0, 0, 0] limits [4, 6, 7]
  // CHECK: %[[ABSORBED:.*]] = nn.matmul {{.*}}, %[[ROWS]] : (tensor<1x4x9x6xf32>, tensor<4x6x7xf32>)
  // CHECK: %[[SHARED:.*]] = nn.slice %[[QUERY]] starts [0, 0, 0, 6] limits [1, 4, 9, 8]
  // CHECK: %[[BOTH:.*]] = nn.concat %[[ABSORBED]], %[[SHARED]] dim 3
  // CHECK: %[[SUM:.*]] = nn.attention %[[BOTH]], %[[KEYS]], %[[VALUES]] scale 2.500000e-01 {causal}
  // CHECK: %[[OUT:.*]] = nn.slice {{.*}} starts [0, 6, 0] limits [4, 11, 7]
  // CHECK: nn.matmul %[[SUM]], %[[OUT]] {transpose_rhs}
  %0 = nn.linear %c, %wq : (tensor<1x9x7xf32>, tensor<32x7xf32>) -> tensor<1x9x32xf32>
  %1 = nn.reshape %0 : (tensor<1x9x32xf32>) -> tensor<1x9x4x8xf32>
  %q = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x9x4x8xf32>) -> tensor<1x4x9x8xf32>
  %2 = nn.linear %c, %w : (tensor<1x9x7xf32>, tensor<44x7xf32>) -> tensor<1x9x44xf32>
  %3 = nn.reshape %2 : (tensor<1x9x44xf32>) -> tensor<1x9x4x11xf32>
  %4 = nn.transpose %3 [0, 2, 1, 3] : (tensor<1x9x4x11xf32>) -> tensor<1x4x9x11xf32>
  %5 = nn.slice %4 starts [0, 0, 0, 0] limits [1, 4, 9, 6] strides [1, 1, 1, 1] : (tensor<1x4x9x11xf32>) -> tensor<1x4x9x6xf32>
  %v = nn.slice %4 starts [0, 0, 0, 6] limits [1, 4, 9, 11] strides [1, 1, 1, 1] : (tensor<1x4x9x11xf32>) -> tensor<1x4x9x5xf32>
  %6 = nn.broadcast %r : (tensor<1x1x9x2xf32>) -> tensor<1x4x9x2xf32>
  %k = nn.concat %5, %6 dim 3 : (tensor<1x4x9x6xf32>, tensor<1x4x9x2xf32>) -> tensor<1x4x9x8xf32>
  %o = nn.attention %q, %k, %v scale 0.25 {causal} : (tensor<1x4x9x8xf32>, tensor<1x4x9x8xf32>, tensor<1x4x9x5xf32>) -> tensor<1x4x9x5xf32>
  return %o : tensor<1x4x9x5xf32>
}

// -----

// One of four ranks has one head of 3 + 3 columns, no more than the latent of 7 would take.
// LOG: remark: [absorb-latent-keys] declined: 7 columns for a token would be cached in place of 4 kv heads: 1.17 times the elements, 2.33 times the arithmetic
// The heads' rows of the matrix are interleaved. Query heads share kv heads. The bias of the keys is
// dropped, that of the values added.
// CHECK-LABEL: func.func @interleaved
// CHECK-NOT: nn.linear
// CHECK: nn.transpose {{.*}} [1, 0, 2] : (tensor<3x4x7xf32>) -> tensor<4x3x7xf32>
// CHECK: nn.matmul {{.*}} : (tensor<1x4x2x9x3xf32>, tensor<4x1x3x7xf32>) -> tensor<1x4x2x9x7xf32>
// CHECK: nn.attention {{.*}} : (tensor<1x8x9x7xf32>, tensor<1x1x9x7xf32>, tensor<1x1x9x7xf32>) -> tensor<1x8x9x7xf32>
// CHECK: nn.add {{.*}} : (tensor<1x8x9x3xf32>, tensor<8x1x3xf32>)
func.func @interleaved(%c: tensor<1x9x7xf32>, %w: tensor<24x7xf32>, %b: tensor<24xf32>) -> tensor<1x8x9x3xf32> {
  %0 = nn.slice %c starts [0, 0, 0] limits [1, 9, 3] strides [1, 1, 1] : (tensor<1x9x7xf32>) -> tensor<1x9x3xf32>
  %1 = nn.reshape %0 : (tensor<1x9x3xf32>) -> tensor<1x1x9x3xf32>
  %q = nn.broadcast %1 : (tensor<1x1x9x3xf32>) -> tensor<1x8x9x3xf32>
  %2 = nn.linear %c, %w bias %b : (tensor<1x9x7xf32>, tensor<24x7xf32>, tensor<24xf32>) -> tensor<1x9x24xf32>
  %3 = nn.reshape %2 : (tensor<1x9x24xf32>) -> tensor<1x9x2x3x4xf32>
  %4 = nn.transpose %3 [0, 2, 4, 1, 3] : (tensor<1x9x2x3x4xf32>) -> tensor<1x2x4x9x3xf32>
  %5 = nn.slice %4 starts [0, 0, 0, 0, 0] limits [1, 1, 4, 9, 3] strides [1, 1, 1, 1, 1] : (tensor<1x2x4x9x3xf32>) -> tensor<1x1x4x9x3xf32>
  %6 = nn.slice %4 starts [0, 1, 0, 0, 0] limits [1, 2, 4, 9, 3] strides [1, 1, 1, 1, 1] : (tensor<1x2x4x9x3xf32>) -> tensor<1x1x4x9x3xf32>
  %k = nn.reshape %5 : (tensor<1x1x4x9x3xf32>) -> tensor<1x4x9x3xf32>
  %v = nn.reshape %6 : (tensor<1x1x4x9x3xf32>) -> tensor<1x4x9x3xf32>
  %o = nn.attention %q, %k, %v scale 0.25 {causal} : (tensor<1x8x9x3xf32>, tensor<1x4x9x3xf32>, tensor<1x4x9x3xf32>) -> tensor<1x8x9x3xf32>
  return %o : tensor<1x8x9x3xf32>
}

// -----

// Multi-head attention without positions. The hidden state of 8 columns is half of the elements of four
// heads of 2 + 2, but each head would work in all 8 columns.
// LOG: remark: [absorb-latent-keys] declined: 8 columns for a token would be cached in place of 4 kv heads
// CHECK-LABEL: func.func @wide
// CHECK: nn.attention {{.*}} : (tensor<1x4x9x2xf32>, tensor<1x4x9x2xf32>, tensor<1x4x9x2xf32>)
func.func @wide(%c: tensor<1x9x8xf32>, %wk: tensor<8x8xf32>, %wv: tensor<8x8xf32>) -> tensor<1x4x9x2xf32> {
  %0 = nn.linear %c, %wk : (tensor<1x9x8xf32>, tensor<8x8xf32>) -> tensor<1x9x8xf32>
  %1 = nn.reshape %0 : (tensor<1x9x8xf32>) -> tensor<1x9x4x2xf32>
  %k = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x9x4x2xf32>) -> tensor<1x4x9x2xf32>
  %2 = nn.linear %c, %wv : (tensor<1x9x8xf32>, tensor<8x8xf32>) -> tensor<1x9x8xf32>
  %3 = nn.reshape %2 : (tensor<1x9x8xf32>) -> tensor<1x9x4x2xf32>
  %v = nn.transpose %3 [0, 2, 1, 3] : (tensor<1x9x4x2xf32>) -> tensor<1x4x9x2xf32>
  %o = nn.attention %k, %k, %v scale 0.25 {causal} : (tensor<1x4x9x2xf32>, tensor<1x4x9x2xf32>, tensor<1x4x9x2xf32>) -> tensor<1x4x9x2xf32>
  return %o : tensor<1x4x9x2xf32>
}

// -----

// A soft cap does not take out the bias of the keys. Without a causal mask no cache serves.
// LOG-NOT: remark
// CHECK-LABEL: func.func @capped
// CHECK: nn.attention {{.*}} : (tensor<1x4x9x3xf32>, tensor<1x4x9x3xf32>
func.func @capped(%c: tensor<1x9x7xf32>, %w: tensor<12x7xf32>, %b: tensor<12xf32>) -> tensor<1x4x9x3xf32> {
  %0 = nn.linear %c, %w bias %b : (tensor<1x9x7xf32>, tensor<12x7xf32>, tensor<12xf32>) -> tensor<1x9x12xf32>
  %1 = nn.reshape %0 : (tensor<1x9x12xf32>) -> tensor<1x9x4x3xf32>
  %k = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x9x4x3xf32>) -> tensor<1x4x9x3xf32>
  %o = nn.attention %k, %k, %k scale 0.25 {causal, soft_cap = 5.0 : f64} : (tensor<1x4x9x3xf32>, tensor<1x4x9x3xf32>, tensor<1x4x9x3xf32>) -> tensor<1x4x9x3xf32>
  return %o : tensor<1x4x9x3xf32>
}

// CHECK-LABEL: func.func @later
// CHECK: nn.attention {{.*}} : (tensor<1x4x9x3xf32>, tensor<1x4x9x3xf32>
func.func @later(%c: tensor<1x9x7xf32>, %w: tensor<12x7xf32>) -> tensor<1x4x9x3xf32> {
  %0 = nn.linear %c, %w : (tensor<1x9x7xf32>, tensor<12x7xf32>) -> tensor<1x9x12xf32>
  %1 = nn.reshape %0 : (tensor<1x9x12xf32>) -> tensor<1x9x4x3xf32>
  %k = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x9x4x3xf32>) -> tensor<1x4x9x3xf32>
  %o = nn.attention %k, %k, %k scale 0.25 : (tensor<1x4x9x3xf32>, tensor<1x4x9x3xf32>, tensor<1x4x9x3xf32>) -> tensor<1x4x9x3xf32>
  return %o : tensor<1x4x9x3xf32>
}
