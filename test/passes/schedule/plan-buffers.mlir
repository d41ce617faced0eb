// RUN: sharding-opt %s --form-kernels --plan-buffers -split-input-file | FileCheck %s

// An elementwise op writes over an operand without later users;
// softmax reads a whole column for each element, and is a kernel of its own.
// CHECK-LABEL: func.func @in_place
// CHECK-SAME: rt.arena = 256 : i64, rt.live = 256 : i64
func.func @in_place(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: rt.kernel %{{.*}} at [0]
  // CHECK: nn.softmax
  %0 = nn.softmax %x dim 0 : tensor<4x8xf32>
  // CHECK: rt.kernel %{{.*}} at [0]
  // CHECK: nn.exp
  %1 = nn.exp %0 : tensor<4x8xf32>
  // CHECK: rt.kernel %{{.*}} at [128]
  // CHECK: nn.softmax
  %2 = nn.softmax %1 dim 0 : tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

// Not over an argument, nor over what is read later, nor at another place, nor
// with other bytes.
// CHECK-LABEL: func.func @not_in_place
// CHECK-SAME: rt.arena = 448 : i64, rt.live = 448 : i64
func.func @not_in_place(%x: tensor<8x4xf32>) -> (tensor<4x8xf32>, tensor<8x4xf32>, tensor<8x4xi1>) {
  // CHECK: %[[A:.*]] = rt.kernel %{{.*}} at [0]
  %0 = nn.softmax %x dim 0 : tensor<8x4xf32>
  // CHECK: %[[T:.*]] = rt.kernel %[[A]] at [128]
  // CHECK: nn.transpose
  %1 = nn.transpose %0 [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  // CHECK: %[[S:.*]] = rt.kernel %[[A]]
  %2 = nn.softmax %0 dim 0 : tensor<8x4xf32>
  // CHECK: %[[C:.*]] = rt.kernel %[[A]], %[[S]]
  %3 = nn.compare lt %0, %2 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xi1>
  // CHECK: return %[[T]], %[[S]], %[[C]]
  return %1, %2, %3 : tensor<4x8xf32>, tensor<8x4xf32>, tensor<8x4xi1>
}

// -----

// The buffer of a view is needed as long as the view.
// CHECK-LABEL: func.func @views
// CHECK-SAME: rt.arena = 256 : i64
func.func @views(%x: tensor<4x8xf32>) -> (tensor<32xf32>, tensor<4x8xf32>) {
  %0 = nn.softmax %x dim 0 : tensor<4x8xf32>
  %1 = nn.reshape %0 : (tensor<4x8xf32>) -> tensor<32xf32>
  %2 = nn.exp %0 : tensor<4x8xf32>
  return %1, %2 : tensor<32xf32>, tensor<4x8xf32>
}

// -----

// In flight: operands and results of a start stay until the wait.
dist.mesh @mesh = <["tp"=4]>
// CHECK-LABEL: func.func @in_flight
// CHECK-SAME: rt.arena = 768 : i64, rt.live = 768 : i64
func.func @in_flight(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  // CHECK: %[[A:.*]] = rt.kernel %{{.*}} at [[AT:\[[0-9]+\]]]
  %0 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %4 = nn.exp %a : tensor<4x8xf32>
    rt.yield %4 : tensor<4x8xf32>
  }
  %f = rt.start %0 stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %4 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %4 : tensor<16x8xf32>
  }
  // Its own buffer, although only the collective needs the operand.
  // CHECK-NOT: rt.kernel %[[A]] at [[AT]]
  %1 = rt.kernel %0 : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %4 = nn.neg %a : tensor<4x8xf32>
    rt.yield %4 : tensor<4x8xf32>
  }
  %2 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  // Now it may go.
  %3 = rt.kernel %1 : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %4 = nn.softmax %a dim 1 : tensor<4x8xf32>
    rt.yield %4 : tensor<4x8xf32>
  }
  return %2, %3 : tensor<16x8xf32>, tensor<4x8xf32>
}

// -----

// One loop computes both results element by element, so each takes the place of an operand that both
// read. With a row reduction in the kernel, the second pass reads the row again.
// CHECK-LABEL: func.func @several
func.func @several(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  // CHECK: rt.kernel %{{.*}} at [0, 128]
  %0:2 = rt.kernel %x : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %1 = nn.softmax %a dim 1 : tensor<4x8xf32>
    %2 = nn.softmax %a dim 0 : tensor<4x8xf32>
    rt.yield %1, %2 : tensor<4x8xf32>, tensor<4x8xf32>
  }
  // CHECK: rt.kernel %{{.*}}, %{{.*}} at [0, 128]
  %3:2 = rt.kernel %0#0, %0#1 : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>):
    %1 = nn.exp %a : tensor<4x8xf32>
    %2 = nn.add %a, %b : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %1, %2 : tensor<4x8xf32>, tensor<4x8xf32>
  }
  // CHECK: rt.kernel %{{.*}}, %{{.*}} at [256, 384]
  %4:2 = rt.kernel %3#0, %3#1 : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>):
    %1 = nn.softmax %a dim 1 : tensor<4x8xf32>
    %2 = nn.add %a, %b : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %1, %2 : tensor<4x8xf32>, tensor<4x8xf32>
  }
  return %4#0, %4#1 : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// A merge of attention writes its result over the first part, and its log-sum-exp
// elsewhere: that of a row is read for each of its elements.
// CHECK-LABEL: func.func @merge
// CHECK-SAME: rt.arena = 1216 : i64, rt.live = 1216 : i64
func.func @merge(%q: tensor<1x1x4x32xf32>, %k: tensor<1x1x4x32xf32>) -> (tensor<1x1x4x32xf32>, tensor<1x1x4xf32>) {
  // CHECK: rt.kernel %{{.*}} at [0, 512]
  %0:2 = nn.attention %q, %k, %k scale 1.0 : (tensor<1x1x4x32xf32>, tensor<1x1x4x32xf32>, tensor<1x1x4x32xf32>) -> (tensor<1x1x4x32xf32>, tensor<1x1x4xf32>)
  // CHECK: rt.kernel %{{.*}} at [576, 1088]
  %1:2 = nn.attention %k, %q, %q scale 1.0 : (tensor<1x1x4x32xf32>, tensor<1x1x4x32xf32>, tensor<1x1x4x32xf32>) -> (tensor<1x1x4x32xf32>, tensor<1x1x4xf32>)
  // CHECK: rt.kernel %{{.*}} at [0, 1152]
  // CHECK: nn.merge_attention
  %2:2 = nn.merge_attention %0#0, %0#1, %1#0, %1#1 : (tensor<1x1x4x32xf32>, tensor<1x1x4xf32>, tensor<1x1x4x32xf32>, tensor<1x1x4xf32>) -> (tensor<1x1x4x32xf32>, tensor<1x1x4xf32>)
  return %2#0, %2#1 : tensor<1x1x4x32xf32>, tensor<1x1x4xf32>
}
