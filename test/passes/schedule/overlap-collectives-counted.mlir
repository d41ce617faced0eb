// True rows of groups travel beside the product of a rank's own rows.
// RUN: sharding-opt %s --parallelize="overlap=on" --schedule --verify-placement | FileCheck %s
// RUN: sharding-opt %s --parallelize="overlap=off" --schedule | FileCheck %s --check-prefix=OFF

// CHECK: %[[GATHER:.+]] = rt.start
// CHECK-NEXT: ^bb0
// CHECK-NEXT: dist.all_gather_v
// CHECK-NOT: rt.wait
// CHECK: nn.linear
// CHECK: rt.wait %[[GATHER]]
// CHECK: dist.reduce_scatter_v

// OFF: dist.all_gather_v
// OFF-NEXT: rt.yield
// OFF-NEXT: }
// OFF-NEXT: rt.wait
!x = tensor<16x8xf32>
!n = tensor<4xi64>
!s = tensor<10x8xf32>
!h = tensor<10x32xf32>
!a = tensor<32x8xf32>
!b = tensor<8x32xf32>
!c = tensor<8x8xf32>
dist.mesh @mesh = <["tp"=4]>
func.func @main(%x: !x {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                %n: !n {nn.input = "n", dist.sharding = #dist.sharding<@mesh, [{}]>},
                %a: !a {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                %b: !b {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                %c: !c {nn.parameter = "c", dist.sharding = #dist.sharding<@mesh, [{}, {}]>})
    -> (!x {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) {
  %0 = dist.compact %x counts %n tokens 4 rows 10 dim 0 : (!x, !n) -> !s
  %1 = nn.linear %0, %a : (!s, !a) -> !h
  %2 = nn.relu %1 : !h
  %3 = nn.linear %2, %b : (!h, !b) -> !s
  %4 = dist.expand %3 counts %n tokens 4 rows 10 dim 0 : (!s, !n) -> !x
  %5 = nn.linear %x, %c : (!x, !c) -> !x
  %6 = nn.relu %5 : !x
  %7 = nn.linear %6, %c : (!x, !c) -> !x
  %8 = nn.add %7, %4 : (!x, !x) -> !x
  return %8 : !x
}
