// RUN: sharding-opt %s --join-fetches | FileCheck %s
// RUN: sharding-opt %s --join-fetches="ahead=1" | FileCheck %s --check-prefix=ONE

// A launch without bytes takes 1 ms, and the weights of 4 x 4 take 0.032 ms. The one of 128 x 4 takes 1.024 ms: it is small, but a
// launch with another one would take more memory than the largest weight, so it travels alone. So does the gather behind it.
// Gradients wait for the last one. The op that reads the first waits with it.

#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
!x = tensor<4x4xf32>
!s = tensor<2x4xf32>
!l = tensor<128x4xf32>
!t = tensor<64x4xf32>
!y = tensor<4x128xf32>
dist.mesh @mesh = <["gtp"=2 {bandwidth = 1.0e6, latency = 1.0e-3}]>

// CHECK-LABEL: func.func @gathers
// CHECK: [[G:%.+]]:2 = dist.all_gather %arg1, %arg2 axes ["gtp"] dims [0, 0] role weights
// CHECK-NEXT: [[X:%.+]] = nn.linear %arg0, [[G]]#0
// CHECK-NEXT: [[Y:%.+]] = nn.linear [[X]], [[G]]#1
// CHECK-NEXT: [[L:%.+]] = dist.all_gather %arg3 axes
// CHECK-NEXT: [[Z:%.+]] = nn.linear [[Y]], [[L]]
// CHECK-NEXT: dist.all_gather %arg4 axes
// ONE-LABEL: func.func @gathers
// ONE-COUNT-4: dist.all_gather {{%[a-z0-9]+}} axes
func.func @gathers(%x: !x {dist.sharding = #whole, dist.global = !x},
                   %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                   %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x},
                   %l: !t {nn.parameter = "l", dist.sharding = #shard, dist.global = !l},
                   %c: !s {nn.parameter = "c", dist.sharding = #shard, dist.global = !x})
    -> (!y {dist.sharding = #whole, dist.global = !y}, !x {dist.sharding = #whole, dist.global = !x})
    attributes {dist.spmd = @mesh} {
  %ga = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
  %0 = nn.linear %x, %ga : (!x, !x) -> !x
  %gb = dist.all_gather %b axes ["gtp"] dims [0] role weights : (!s) -> !x
  %1 = nn.linear %0, %gb : (!x, !x) -> !x
  %gl = dist.all_gather %l axes ["gtp"] dims [0] role weights : (!t) -> !l
  %2 = nn.linear %1, %gl : (!x, !l) -> !y
  %gc = dist.all_gather %c axes ["gtp"] dims [0] role weights : (!s) -> !x
  %3 = nn.linear %1, %gc : (!x, !x) -> !x
  return %2, %3 : !y, !x
}

// The sum of three gradients of 4 x 4 exceeds the largest one, of 8 x 4.

// CHECK-LABEL: func.func @scatters
// CHECK: nn.weight_grad
// CHECK-NEXT: nn.weight_grad
// CHECK-NEXT: [[S:%.+]]:2 = dist.reduce_scatter sum {{.*}} dims [0, 0] role gradients
// CHECK-NEXT: nn.add [[S]]#0
// CHECK: dist.reduce_scatter sum {{%[a-z0-9]+}} axes
// CHECK: dist.reduce_scatter sum {{%[a-z0-9]+}} axes
// ONE-LABEL: func.func @scatters
// ONE-COUNT-3: dist.reduce_scatter
func.func @scatters(%x: !x {dist.sharding = #shard, dist.global = tensor<8x4xf32>},
                    %s: !s {dist.sharding = #shard, dist.global = !x})
    -> (!s {dist.sharding = #shard, dist.global = !x}, !s {dist.sharding = #shard, dist.global = !x},
        !s {dist.sharding = #shard, dist.global = !x}, !x {dist.sharding = #shard, dist.global = tensor<8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %a = nn.weight_grad %x, %x : (!x, !x) -> !x
  %sa = dist.reduce_scatter sum %a axes ["gtp"] dims [0] role gradients : (!x) -> !s
  %0 = nn.add %sa, %s : (!s, !s) -> !s
  %b = nn.weight_grad %x, %x : (!x, !x) -> !x
  %sb = dist.reduce_scatter sum %b axes ["gtp"] dims [0] role gradients : (!x) -> !s
  %c = nn.weight_grad %x, %x : (!x, !x) -> !x
  %sc = dist.reduce_scatter sum %c axes ["gtp"] dims [0] role gradients : (!x) -> !s
  %d = nn.concat %a, %b dim 0 : (!x, !x) -> tensor<8x4xf32>
  %sd = dist.reduce_scatter sum %d axes ["gtp"] dims [0] role gradients : (tensor<8x4xf32>) -> !x
  return %0, %sb, %sc, %sd : !s, !s, !s, !x
}

// The scatters join first, so the exchange that reads the first of them moves behind the other exchange.

#columns = #dist.sharding<@mesh, [{}, {"gtp"}]>
!c = tensor<4x2xf32>

// CHECK-LABEL: func.func @moved
// CHECK: [[S:%.+]]:2 = dist.reduce_scatter sum
// CHECK-NEXT: [[E:%.+]]:2 = dist.all_to_all %arg1, [[S]]#0 axes ["gtp"] from [0, 0] to [1, 1] role gradients
// CHECK: return [[E]]#1, [[E]]#0, [[S]]#1
func.func @moved(%x: !x {dist.sharding = #shard, dist.global = tensor<8x4xf32>},
                 %s: !s {dist.sharding = #shard, dist.global = !x})
    -> (!c {dist.sharding = #columns, dist.global = !x}, !c {dist.sharding = #columns, dist.global = !x},
        !s {dist.sharding = #shard, dist.global = !x}, !x {dist.sharding = #shard, dist.global = tensor<8x4xf32>})
    attributes {dist.spmd = @mesh} {
  %a = nn.weight_grad %x, %x : (!x, !x) -> !x
  %sa = dist.reduce_scatter sum %a axes ["gtp"] dims [0] role gradients : (!x) -> !s
  %xa = dist.all_to_all %sa axes ["gtp"] from [0] to [1] role gradients : (!s) -> !c
  %xs = dist.all_to_all %s axes ["gtp"] from [0] to [1] role gradients : (!s) -> !c
  %b = nn.weight_grad %x, %x : (!x, !x) -> !x
  %sb = dist.reduce_scatter sum %b axes ["gtp"] dims [0] role gradients : (!x) -> !s
  %w = nn.concat %b, %b dim 0 : (!x, !x) -> tensor<8x4xf32>
  %sw = dist.reduce_scatter sum %w axes ["gtp"] dims [0] role gradients : (tensor<8x4xf32>) -> !x
  return %xa, %xs, %sb, %sw : !c, !c, !s, !x
}
