// RUN: sharding-opt %s --form-kernels --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels=keep-probed=true -split-input-file | FileCheck %s --check-prefix=PROBED

// Elementwise ops are one kernel; a cheap constant is made in it. Linears and ops
// that the runtime performs are launches of their own, views stay between them.
// CHECK-LABEL: func.func @kernels
// CHECK-SAME: %[[X:[a-z0-9]*]]: tensor<4x8xf32>, %[[W:[a-z0-9]*]]: tensor<8x8xf32>
// PROBED-LABEL: func.func @kernels
func.func @kernels(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<32xf32> {
  // CHECK-NEXT: %[[E:.*]] = rt.kernel %[[X]] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<4x8xf32>):
  // CHECK-NEXT: %[[C:.*]] = nn.constant dense<2.000000e+00>
  // CHECK-NEXT: %[[M:.*]] = nn.mul %[[A]], %[[C]] {nn.id = 7 : i64}
  // CHECK-NEXT: %[[EXP:.*]] = nn.exp %[[M]]
  // CHECK-NEXT: rt.yield %[[EXP]]
  // PROBED: %[[E:.*]]:2 = rt.kernel
  // PROBED: %[[M:.*]] = nn.mul
  // PROBED-NEXT: %[[EXP:.*]] = nn.exp
  // PROBED-NEXT: rt.yield %[[M]], %[[EXP]]
  // PROBED: rt.kernel %[[E]]#1
  %c = nn.constant dense<2.0> : tensor<f32>
  %0 = nn.mul %x, %c {nn.id = 7 : i64} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %1 = nn.exp %0 : tensor<4x8xf32>
  // CHECK: %[[L:.*]] = rt.kernel %[[E]], %[[W]] : (tensor<4x8xf32>, tensor<8x8xf32>)
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: nn.linear
  // CHECK-NEXT: rt.yield
  %2 = nn.linear %1, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK: %[[V:.*]] = nn.reshape %[[L]]
  %3 = nn.reshape %2 : (tensor<4x8xf32>) -> tensor<32xf32>
  // No op reads this one.
  // CHECK-NOT: nn.neg
  %dead = nn.neg %3 : tensor<32xf32>
  // CHECK: rt.kernel %[[V]]
  // CHECK: nn.relu
  %4 = nn.relu %3 : tensor<32xf32>
  return %4 : tensor<32xf32>
}

// -----

// An array is a constant of the program; an argument may be returned as it is.
// CHECK-LABEL: func.func @constants
// CHECK-SAME: %[[X:[a-z0-9]*]]: tensor<4xf32>
func.func @constants(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT: %[[C:.*]] = nn.constant dense<[1.0
  // CHECK-NEXT: %[[S:.*]] = rt.kernel %[[X]], %[[C]]
  %0 = nn.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %1 = nn.add %x, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: return %[[S]], %[[X]], %[[C]]
  return %1, %x, %0 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// Collectives whose groups cannot share two ranks get streams of their own; those
// over axes that overlap one of both are in one stream with it.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
// CHECK-LABEL: func.func @streams
func.func @streams(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, dist.global = tensor<8x32xf32>})
    -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>},
        tensor<4x32xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x32xf32>}) attributes {dist.spmd = @mesh} {
  // CHECK: %[[F:.*]] = rt.start %{{.*}} stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<8x8xf32>>
  // CHECK: dist.all_gather
  // CHECK: %[[A:.*]] = rt.wait %[[F]]
  %0 = dist.all_gather %x axes ["dp"] dims [0] : (tensor<4x8xf32>) -> tensor<8x8xf32>
  // CHECK: rt.start %{{.*}} stream 2
  %1 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x32xf32>
  // CHECK: return %[[A]]
  return %0, %1 : tensor<8x8xf32>, tensor<4x32xf32>
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// CHECK-LABEL: func.func @one_stream
func.func @one_stream(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, dist.global = tensor<8x32xf32>})
    -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>},
        tensor<8x32xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x32xf32>}) attributes {dist.spmd = @mesh} {
  // CHECK: rt.start %{{.*}} stream 1
  // CHECK: rt.start %{{.*}} stream 1
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: dist.redistribute
  %0 = dist.all_gather %x axes ["dp"] dims [0] : (tensor<4x8xf32>) -> tensor<8x8xf32>
  %1 = dist.redistribute %x from [#dist.sharding<@mesh, [{"dp"}, {"tp"}]>] to [#dist.sharding<@mesh, [{}, {}]>] : (tensor<4x8xf32>) -> tensor<8x32xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x32xf32>
}

// -----

// Each role has streams of its own, also over axes that overlap.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
// CHECK-LABEL: func.func @roles
func.func @roles(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, dist.global = tensor<8x32xf32>})
    -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>},
        tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>},
        tensor<4x32xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x32xf32>},
        tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>}) attributes {dist.spmd = @mesh} {
  // CHECK: rt.start %{{.*}} stream 1
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: dist.all_gather %{{.*}} axes ["dp"] dims [0] role weights
  %0 = dist.all_gather %x axes ["dp"] dims [0] role weights : (tensor<4x8xf32>) -> tensor<8x8xf32>
  // CHECK: rt.start %{{.*}} stream 2
  %1 = dist.all_gather %x axes ["dp"] dims [0] : (tensor<4x8xf32>) -> tensor<8x8xf32>
  // CHECK: rt.start %{{.*}} stream 3
  %2 = dist.all_gather %x axes ["tp"] dims [1] role weights : (tensor<4x8xf32>) -> tensor<4x32xf32>
  // CHECK: rt.start %{{.*}} stream 1
  %y = nn.neg %x : tensor<4x8xf32>
  %3 = dist.all_gather %y axes ["dp"] dims [0] role weights : (tensor<4x8xf32>) -> tensor<8x8xf32>
  return %0, %1, %2, %3 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<4x32xf32>, tensor<8x8xf32>
}

// -----

// A function that has launches stays as it is.
// CHECK-LABEL: func.func @formed
// CHECK-COUNT-1: rt.kernel
// CHECK-NOT: rt.kernel
func.func @formed(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = rt.kernel %x : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}
