// RUN: sharding-opt %s --split-input-file --form-kernels --overlap-collectives --plan-buffers --verify-roundtrip | FileCheck %s

// The gather starts first of all, although it is written last, and is waited for
// behind the product that does not need it.

// CHECK-LABEL: func.func @gather
// CHECK: %[[F:.*]] = rt.start %arg1 stream 1
// CHECK: %[[A:.*]] = rt.kernel %arg0, %arg2
// CHECK: nn.linear
// CHECK: %[[G:.*]] = rt.wait %[[F]]
// CHECK: rt.kernel %[[A]], %[[G]]
// CHECK: nn.add

dist.mesh @mesh = <["tp"=4], device = "flops_f32=1e9 memory_bandwidth=1e12 link_bandwidth=1e9">
func.func @gather(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %w: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %1 = dist.all_gather %y axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %2 = nn.add %0, %1 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %2 : tensor<16x8xf32>
}

// -----

// Two chunks: the second is computed while the first is summed. The view of a
// sum does not wait before its reader does.

// CHECK-LABEL: func.func @chunks
// CHECK: nn.linear
// CHECK: %[[F0:.*]] = rt.start
// CHECK: nn.linear
// CHECK: %[[F1:.*]] = rt.start
// CHECK: %[[S0:.*]] = rt.wait %[[F0]]
// CHECK: %[[V0:.*]] = nn.reshape %[[S0]]
// CHECK: rt.kernel %[[V0]]
// CHECK: %[[S1:.*]] = rt.wait %[[F1]]
// CHECK: rt.kernel %[[S1]]
dist.mesh @mesh = <["tp"=4], device = "flops_f32=1e9 memory_bandwidth=1e12 link_bandwidth=1e9">
func.func @chunks(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x32xf32>},
    %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x32xf32>},
    %w: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>})
    -> (tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x4x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = nn.reshape %1 : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
  %3 = nn.softmax %2 dim 2 : tensor<1x4x8xf32>
  %4 = nn.linear %y, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %5 = dist.all_reduce sum %4 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %6 = nn.softmax %5 dim 1 : tensor<4x8xf32>
  return %3, %6 : tensor<1x4x8xf32>, tensor<4x8xf32>
}

// -----

// The same with room for three of the four values at once: the second sum starts
// when the first product and its sum are read.

// CHECK-LABEL: func.func @frugal
// CHECK-SAME: rt.arena = 384 : i64
// CHECK: rt.kernel
// CHECK: %[[F0:.*]] = rt.start
// CHECK: rt.kernel
// CHECK: %[[S0:.*]] = rt.wait %[[F0]]
// CHECK: rt.kernel
// CHECK: %[[F1:.*]] = rt.start
// CHECK: rt.wait %[[F1]]
dist.mesh @mesh = <["tp"=4], device = "flops_f32=1e9 memory_bandwidth=1e12 link_bandwidth=1e9">
func.func @frugal(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x32xf32>},
    %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x32xf32>},
    %w: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>})
    -> (tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}]>, dist.global = tensor<1x4x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>})
    attributes {dist.spmd = @mesh, rt.memory_ceiling = 896 : i64} {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = nn.reshape %1 : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
  %3 = nn.softmax %2 dim 2 : tensor<1x4x8xf32>
  %4 = nn.linear %y, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %5 = dist.all_reduce sum %4 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %6 = nn.softmax %5 dim 1 : tensor<4x8xf32>
  return %3, %6 : tensor<1x4x8xf32>, tensor<4x8xf32>
}

// -----

// Cores that exchange through shared memory: each waits where it starts.
// CHECK-LABEL: func.func @cores
// CHECK: %[[F:.*]] = rt.start
// CHECK-NOT: rt.kernel
// CHECK: rt.wait %[[F]]
// CHECK: rt.kernel
dist.mesh @mesh = <["tp"=4], device = "cpu">
func.func @cores(
    %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %y axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = nn.softmax %y dim 1 : tensor<4x8xf32>
  return %1, %0 : tensor<4x8xf32>, tensor<16x8xf32>
}

// -----

// A ring: the next step's keys and values travel while this step computes, from
// one of two places to the other, and the parts merge in place.

// CHECK-LABEL: func.func @ring
// CHECK: %[[F1:.*]] = rt.start %arg1, %arg2 stream 1 at [[A:\[.*\]]] :
// CHECK: rt.kernel %arg0, %arg1, %arg2 at [[[O:[0-9]+]], {{[0-9]+}}]
// CHECK: nn.attention
// CHECK: %[[W1:.*]]:2 = rt.wait %[[F1]]
// CHECK-NEXT: %[[F2:.*]] = rt.start %[[W1]]#0, %[[W1]]#1 stream 1 at [[B:\[.*\]]] :
// CHECK: rt.kernel %arg0, %[[W1]]#0, %[[W1]]#1
// CHECK: nn.attention
// CHECK: %[[W2:.*]]:2 = rt.wait %[[F2]]
// CHECK-NEXT: %[[F3:.*]] = rt.start %[[W2]]#0, %[[W2]]#1 stream 1 at [[A]] :
// CHECK: rt.kernel {{.*}} at [[[O]], {{[0-9]+}}]
// CHECK: nn.merge_attention
// CHECK: rt.kernel %arg0, %[[W2]]#0, %[[W2]]#1
// CHECK: nn.attention
// CHECK: rt.kernel {{.*}} at [[[O]], {{[0-9]+}}]
// CHECK: nn.merge_attention
// CHECK: %[[W3:.*]]:2 = rt.wait %[[F3]]
// CHECK-NEXT: rt.kernel %arg0, %[[W3]]#0, %[[W3]]#1

dist.mesh @mesh = <["ring"=4], device = "flops_f32=1e11 memory_bandwidth=3e10 link_bandwidth=1e9 launch=5e-6">
func.func @ring(
    %q: tensor<1x2x256x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x1024x64xf32>},
    %k: tensor<1x2x256x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x1024x64xf32>},
    %v: tensor<1x2x256x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x1024x64xf32>})
    -> (tensor<1x2x256x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x1024x64xf32>})
    attributes {dist.spmd = @mesh} {
  %o0, %l0 = nn.attention %q, %k, %v scale 0.125 : (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>)
  %kv1:2 = dist.permute %k, %v axes ["ring"] shift 1 : (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>)
  %o1, %l1 = nn.attention %q, %kv1#0, %kv1#1 scale 0.125 : (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>)
  %m1, %n1 = nn.merge_attention %o0, %l0, %o1, %l1 : (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>, tensor<1x2x256x64xf32>, tensor<1x2x256xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>)
  %kv2:2 = dist.permute %kv1#0, %kv1#1 axes ["ring"] shift 1 : (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>)
  %o2, %l2 = nn.attention %q, %kv2#0, %kv2#1 scale 0.125 : (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>)
  %m2, %n2 = nn.merge_attention %m1, %n1, %o2, %l2 : (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>, tensor<1x2x256x64xf32>, tensor<1x2x256xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>)
  %kv3:2 = dist.permute %kv2#0, %kv2#1 axes ["ring"] shift 1 : (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>)
  %o3, %l3 = nn.attention %q, %kv3#0, %kv3#1 scale 0.125 : (tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>, tensor<1x2x256x64xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>)
  %m3, %n3 = nn.merge_attention %m2, %n2, %o3, %l3 : (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>, tensor<1x2x256x64xf32>, tensor<1x2x256xf32>) -> (tensor<1x2x256x64xf32>, tensor<1x2x256xf32>)
  return %m3 : tensor<1x2x256x64xf32>
}
