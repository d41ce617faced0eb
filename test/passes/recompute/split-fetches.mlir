// RUN: sharding-opt %s --split-fetches | FileCheck %s
// RUN: sharding-opt %s --split-fetches=keep=on | FileCheck %s --check-prefix=KEEP
// RUN: sharding-opt %s --split-fetches="keep=auto memory-ceiling=100" | FileCheck %s

// A weight that is read again behind two others is gathered again, with the form that its readers need. One gather serves an op
// that is computed again and its backward pass.

#shard = #dist.sharding<@mesh, [{"gtp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
!x = tensor<4x4xf32>
!s = tensor<2x4xf32>
dist.mesh @mesh = <["gtp"=2]>

// CHECK-LABEL: func.func @main
// CHECK-SAME: [[A:%[a-z0-9]+]]: tensor<2x4xf32> {{{.*}}nn.parameter = "a"}
// CHECK: dist.all_gather [[A]] {{.*}} role weights {dist.phase = "forward"}
// CHECK-NEXT: nn.transpose
// CHECK-COUNT-2: dist.all_gather
// CHECK: [[G:%.+]] = dist.all_gather [[A]] {{.*}} role weights {dist.phase = "recompute"}
// CHECK-NEXT: [[T:%.+]] = nn.transpose [[G]]
// CHECK-NEXT: nn.linear {{.*}}, [[T]]
// CHECK-NOT: dist.all_gather [[A]]
// CHECK: nn.linear {{.*}}, [[T]]
// CHECK-NOT: nn.backward
// KEEP-COUNT-3: dist.all_gather
// KEEP-NOT: dist.all_gather
// KEEP-NOT: nn.backward
func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x}, %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x},
                %c: !s {nn.parameter = "c", dist.sharding = #shard, dist.global = !x})
    -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
  %ga = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
  %t = nn.transpose %ga [1, 0] : (!x) -> !x
  %0 = nn.linear %x, %t : (!x, !x) -> !x
  %gb = dist.all_gather %b axes ["gtp"] dims [0] role weights : (!s) -> !x
  %1 = nn.linear %0, %gb : (!x, !x) -> !x
  %gc = dist.all_gather %c axes ["gtp"] dims [0] role weights : (!s) -> !x
  %2 = nn.linear %1, %gc : (!x, !x) -> !x
  %3 = nn.exp %2 {nn.backward} : !x
  %4 = nn.linear %3, %t : (!x, !x) -> !x
  %5 = nn.linear %4, %gb : (!x, !x) -> !x
  %6 = nn.linear %5, %gc {nn.backward} : (!x, !x) -> !x
  %7 = nn.linear %6, %t {nn.backward} : (!x, !x) -> !x
  return %7 : !x
}
