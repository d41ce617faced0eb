// RUN: sharding-opt %s --plan-prefetch | FileCheck %s
// RUN: sharding-opt %s --plan-prefetch="ahead=0" | FileCheck %s --check-prefix=NONE
// RUN: sharding-opt %s --plan-prefetch="ahead=1" | FileCheck %s --check-prefix=ONE

// Two gathers take the link in turn. Both take longer than a kernel, so the second one begins with the program, too, unless the
// option says that it may not be gathered before the first weight is in use, or in use itself.

#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
!x = tensor<64x64xf32>
!s = tensor<32x64xf32>
dist.mesh @mesh = <["gtp"=2 {bandwidth = 1.0e6, latency = 1.0e-3}]>

// CHECK-NOT: dist.after
// ONE: [[Y:%.+]] = rt.kernel %arg0 :
// ONE-NOT: dist.after
// ONE: rt.start %arg1
// ONE: [[Z:%.+]] = dist.after %arg2, [[Y]]
// ONE: rt.start [[Z]]
// NONE: [[Y:%.+]] = rt.kernel %arg0 :
// NONE: [[A:%.+]] = dist.after %arg1, [[Y]]
// NONE: rt.start [[A]]
// NONE: [[V:%.+]] = rt.kernel [[Y]],
// NONE: [[B:%.+]] = dist.after %arg2, [[V]]
// NONE: rt.start [[B]]
func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x}, %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x})
    -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
  %y = rt.kernel %x : (!x) -> !x {
  ^bb0(%0: !x):
    %1 = nn.exp %0 : !x
    rt.yield %1 : !x
  }
  %fa = rt.start %a stream 1 : (!s) -> !rt.future<!x> {
  ^bb0(%0: !s):
    %1 = dist.all_gather %0 axes ["gtp"] dims [0] role weights : (!s) -> !x
    rt.yield %1 : !x
  }
  %ga = rt.wait %fa : !rt.future<!x>
  %z = rt.kernel %y, %ga : (!x, !x) -> !x {
  ^bb0(%0: !x, %1: !x):
    %2 = nn.linear %0, %1 : (!x, !x) -> !x
    rt.yield %2 : !x
  }
  %fb = rt.start %b stream 1 : (!s) -> !rt.future<!x> {
  ^bb0(%0: !s):
    %1 = dist.all_gather %0 axes ["gtp"] dims [0] role weights : (!s) -> !x
    rt.yield %1 : !x
  }
  %gb = rt.wait %fb : !rt.future<!x>
  %u = rt.kernel %z, %gb : (!x, !x) -> !x {
  ^bb0(%0: !x, %1: !x):
    %2 = nn.linear %0, %1 : (!x, !x) -> !x
    rt.yield %2 : !x
  }
  return %u : !x
}
