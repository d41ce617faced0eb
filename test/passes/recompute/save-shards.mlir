// RUN: sharding-opt %s --save-shards=mode=on | FileCheck %s
// RUN: sharding-opt %s --save-shards | FileCheck %s --check-prefix=AUTO

// A value that both ranks hold, and the backward pass reads, is kept in halves. A view of it is made again. A value that the
// function returns stays whole, and so does one that the ranks do not divide.

#whole = #dist.sharding<@mesh, [{}, {}]>
#list = #dist.sharding<@mesh, [{}]>
!x = tensor<3x8xf32>
!y = tensor<24xf32>
dist.mesh @mesh = <["tp"=2]>

// CHECK-LABEL: func.func @main
// CHECK: [[E:%.+]] = nn.exp
// CHECK-NEXT: [[S:%.+]] = dist.slice [[E]] axes ["tp"] dims [1] : (tensor<3x8xf32>) -> tensor<3x4xf32>
// CHECK: [[R:%.+]] = nn.sin
// CHECK-NOT: dist.slice
// CHECK: [[C:%.+]] = nn.cos
// CHECK-NEXT: [[A:%.+]] = dist.after [[S]], [[C]]
// CHECK-NEXT: [[G:%.+]] = dist.all_gather [[A]] axes ["tp"] dims [1] role saved : (tensor<3x4xf32>) -> tensor<3x8xf32>
// CHECK-NEXT: [[V:%.+]] = nn.reshape [[G]]
// CHECK-NEXT: [[M:%.+]] = nn.mul [[C]], [[V]]
// CHECK-NEXT: nn.mul [[M]], [[R]]
// AUTO-NOT: dist.slice
func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x})
    -> (!y {dist.sharding = #list, dist.global = !y}, !y {dist.sharding = #list, dist.global = !y}) attributes {dist.spmd = @mesh} {
  %0 = nn.exp %x : !x
  %1 = nn.reshape %0 : (!x) -> !y
  %2 = nn.sin %1 : !y
  %3 = nn.cos %2 {nn.backward} : !y
  %4 = nn.mul %3, %1 {nn.backward} : (!y, !y) -> !y
  %5 = nn.mul %4, %2 {nn.backward} : (!y, !y) -> !y
  return %5, %2 : !y, !y
}
