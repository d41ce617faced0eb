// RUN: sharding-opt %s --form-kernels --overlap-collectives="memory-ceiling=100000" --plan-buffers --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --form-kernels --overlap-collectives="memory-ceiling=900" --plan-buffers | FileCheck %s --check-prefix=TIGHT

// A launch without bytes takes 1 ms, and a weight of 4 x 4 takes 0.032 ms. Under a ceiling the two weights travel together, since both
// show otherwise. So do gradients, up to the bytes of the largest one.

// CHECK-LABEL: func.func @fits
// CHECK: [[F:%.+]] = rt.start %arg1, %arg2 stream
// CHECK: dist.all_gather %{{.*}}, %{{.*}} axes ["gtp"] dims [0, 0] role weights
// CHECK: [[G:%.+]]:2 = rt.wait [[F]]
// CHECK: rt.kernel %arg0, [[G]]#0
// CHECK: rt.kernel {{.*}}[[G]]#1
// CHECK: rt.start %{{.*}}, %{{.*}} stream
// CHECK: dist.reduce_scatter sum %{{.*}}, %{{.*}} axes ["gtp"] dims [0, 0] role gradients
// CHECK: rt.start %{{[0-9]+}} stream
// CHECK: dist.reduce_scatter sum %{{[a-z0-9]+}} axes ["gtp"] dims [0] role gradients
// CHECK-NOT: rt.start
// CHECK: return

// The least ceiling has no room for two gradients.

// TIGHT: rt.start %arg1, %arg2 stream
// TIGHT: rt.start %arg3 stream
// TIGHT-COUNT-3: dist.reduce_scatter sum %{{[a-z0-9]+}} axes ["gtp"] dims [0] role gradients
// TIGHT: return

#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
!x = tensor<4x4xf32>
!s = tensor<2x4xf32>
!y = tensor<4x16xf32>
!w = tensor<16x4xf32>
!v = tensor<8x4xf32>
!t = tensor<2x16xf32>
dist.mesh @mesh = <["gtp"=2 {bandwidth = 1.0e6, latency = 1.0e-3}]>
func.func @fits(%x: !x {dist.sharding = #shard, dist.global = tensor<8x4xf32>},
                %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x},
                %c: !v {nn.parameter = "c", dist.sharding = #shard, dist.global = !w})
    -> (!t {dist.sharding = #shard, dist.global = !y}, !s {dist.sharding = #shard, dist.global = !x},
        !s {dist.sharding = #shard, dist.global = !x})
    attributes {dist.spmd = @mesh} {
  %ga = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
  %0 = nn.linear %x, %ga : (!x, !x) -> !x
  %gb = dist.all_gather %b axes ["gtp"] dims [0] role weights : (!s) -> !x
  %1 = nn.linear %0, %gb : (!x, !x) -> !x
  %gc = dist.all_gather %c axes ["gtp"] dims [0] role weights : (!v) -> !w
  %2 = nn.linear %1, %gc : (!x, !w) -> !y
  %d = nn.weight_grad %x, %2 : (!x, !y) -> !y
  %sd = dist.reduce_scatter sum %d axes ["gtp"] dims [0] role gradients : (!y) -> !t
  %e = nn.weight_grad %x, %1 : (!x, !x) -> !x
  %se = dist.reduce_scatter sum %e axes ["gtp"] dims [0] role gradients : (!x) -> !s
  %f = nn.weight_grad %1, %0 : (!x, !x) -> !x
  %sf = dist.reduce_scatter sum %f axes ["gtp"] dims [0] role gradients : (!x) -> !s
  return %sd, %se, %sf : !t, !s, !s
}
