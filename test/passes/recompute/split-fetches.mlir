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

// A gather in steps: a rank takes its part of a whole weight, exchanges it, and gathers. All steps are repeated.

dist.mesh @two = <["dp"=2, "gtp"=2]>
#rows = #dist.sharding<@two, [{"gtp"}, {}]>
#all = #dist.sharding<@two, [{}, {}]>

// KEEP-LABEL: func.func @steps
// CHECK-LABEL: func.func @steps
// CHECK-SAME: [[A:%[a-z0-9]+]]: tensor<2x4xf32> {{{.*}}nn.parameter = "a"}
// CHECK: dist.all_gather [[A]] {{.*}} {dist.phase = "forward"}
// CHECK-NEXT: dist.slice
// CHECK-NEXT: dist.all_to_all {{.*}} {dist.phase = "forward"}
// CHECK-NEXT: dist.all_gather {{.*}} {dist.phase = "forward"}
// CHECK: [[G:%.+]] = dist.all_gather [[A]] {{.*}} {dist.phase = "backward"}
// CHECK-NEXT: [[P:%.+]] = dist.slice [[G]]
// CHECK-NEXT: [[E:%.+]] = dist.all_to_all [[P]] {{.*}} {dist.phase = "backward"}
// CHECK-NEXT: [[W:%.+]] = dist.all_gather [[E]] {{.*}} {dist.phase = "backward"}
// CHECK-NEXT: nn.linear {{.*}}, [[W]]
func.func @steps(%x: !x {dist.sharding = #all, dist.global = !x}, %a: !s {nn.parameter = "a", dist.sharding = #rows, dist.global = !x},
                 %b: !s {nn.parameter = "b", dist.sharding = #rows, dist.global = !x},
                 %c: !s {nn.parameter = "c", dist.sharding = #rows, dist.global = !x})
    -> (!x {dist.sharding = #all, dist.global = !x}) attributes {dist.spmd = @two} {
  %ga = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
  %pa = dist.slice %ga axes ["dp"] dims [1] : (!x) -> tensor<4x2xf32>
  %ea = dist.all_to_all %pa axes ["dp"] from [1] to [0] role weights : (tensor<4x2xf32>) -> !s
  %wa = dist.all_gather %ea axes ["dp"] dims [0] role weights : (!s) -> !x
  %0 = nn.linear %x, %wa : (!x, !x) -> !x
  %gb = dist.all_gather %b axes ["gtp"] dims [0] role weights : (!s) -> !x
  %1 = nn.linear %0, %gb : (!x, !x) -> !x
  %gc = dist.all_gather %c axes ["gtp"] dims [0] role weights : (!s) -> !x
  %2 = nn.linear %1, %gc : (!x, !x) -> !x
  %3 = nn.linear %2, %wa {nn.backward} : (!x, !x) -> !x
  return %3 : !x
}
