// Rows of experts travel beside the products of an expert that all tokens share.
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp overlap=on" --schedule --verify-placement | FileCheck %s
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp overlap=off" --schedule | FileCheck %s --check-prefix=OFF
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp overlap=on target=gpu:sm_90a" --schedule | FileCheck %s --check-prefix=GPU

// Both launches have one stream. Numbers of rows are results of the first, so they are there behind its wait.
// CHECK-LABEL: func.func @main
// CHECK: %[[ROUTE:.+]]:3 = rt.kernel
// CHECK: nn.route
// CHECK: %[[SEND:.+]] = rt.start %{{.+}}, %[[ROUTE]]#0 stream [[STREAM:[0-9]+]]
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.send_rows {{.*}} {layer = 0 : i64, nn.expected_rows = 12 : i64}
// CHECK-NOT: rt.wait
// CHECK: nn.linear
// CHECK: %[[SENT:.+]]:3 = rt.wait %[[SEND]]
// CHECK: rt.kernel %[[SENT]]#0, %{{.+}}, %[[SENT]]#2
// CHECK: nn.grouped_product
// CHECK: %[[RETURN:.+]] = rt.start %{{.+}}, %[[SENT]]#1, %[[ROUTE]]#0 stream [[STREAM]]
// CHECK: nn.return_rows
// CHECK: rt.wait %[[RETURN]]
// CHECK: nn.sum_rows

// OFF: nn.send_rows
// OFF-NEXT: rt.yield
// OFF-NEXT: }
// OFF-NEXT: rt.wait
// OFF: nn.return_rows
// OFF-NEXT: rt.yield
// OFF-NEXT: }
// OFF-NEXT: rt.wait

// The host waits for the numbers, so no graph has such a launch, or is there before its wait.
// GPU: rt.graph_end
// GPU-NEXT: %[[SEND:.+]] = rt.start
// GPU-NEXT: ^bb0
// GPU-NEXT: nn.send_rows
// GPU-NOT: rt.graph
// GPU: rt.wait %[[SEND]]
// GPU-NEXT: rt.graph_begin
// GPU: rt.graph_end
// GPU-NEXT: %[[RETURN:.+]] = rt.start
// GPU-NEXT: ^bb0
// GPU-NEXT: nn.return_rows
// GPU-NOT: rt.graph
// GPU: rt.wait %[[RETURN]]
!x = tensor<4x6x16xf32>
!i = tensor<4x6x2xi64>
!w = tensor<8x16x16xf32>
!a = tensor<64x16xf32>
!b = tensor<16x64xf32>
!h = tensor<4x6x64xf32>
!r = tensor<8x4x6x16xf32, #nn.routed<2>>
func.func @main(%x: !x {nn.input = "x"}, %i: !i {nn.input = "i"}, %w: !w {nn.parameter = "w"},
                %a: !a {nn.parameter = "a"}, %b: !b {nn.parameter = "b"}) -> (!x {nn.output = "y"}) {
  %r = nn.dispatch %x, %i : (!x, !i) -> !r
  %p = nn.grouped_linear %r, %w : (!r, !w) -> !r
  %y = nn.combine %p, %i : (!r, !i) -> !x
  %h = nn.linear %x, %a : (!x, !a) -> !h
  %s = nn.silu %h : !h
  %z = nn.linear %s, %b : (!h, !b) -> !x
  %o = nn.add %y, %z : (!x, !x) -> !x
  return %o : !x
}
