// Experts run in chunks of their tokens where the rows of all tokens need more memory than the ceiling leaves.
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=60000 | FileCheck %s --check-prefix=ENOUGH
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=20000 --report-decisions 2>%t.log | FileCheck %s --check-prefix=LITTLE
// RUN: FileCheck %s --check-prefix=LOG --input-file=%t.log
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=20000 --schedule | FileCheck %s --check-prefix=PLAN
// RUN: not sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=1000 --schedule 2>&1 | FileCheck %s --check-prefix=LEAST

// ENOUGH-NOT: rt.expert_chunks
// LITTLE: rt.expert_chunks = 8
// LOG: experts run for one chunk of tokens after the other: the rows of all need more memory than the ceiling leaves
// PLAN-COUNT-8: nn.route
// PLAN-NOT: nn.route
// LEAST: error: 'main' needs {{[0-9]+}} bytes on a rank, {{.*}} expected at most 1000, the memory ceiling
!x = tensor<64x8xf32>
!i = tensor<64x2xi64>
!w = tensor<4x16x8xf32>
!v = tensor<4x8x16xf32>
!r = tensor<4x64x8xf32, #nn.routed<2>>
!h = tensor<4x64x16xf32, #nn.routed<2>>
#whole = #dist.sharding<@mesh, [{}, {}]>
#weight = #dist.sharding<@mesh, [{}, {}, {}]>
dist.mesh @mesh = <["ep"=1]>
func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x, nn.input = "x"}, %i: !i {dist.sharding = #whole, dist.global = !i, nn.input = "i"},
                %w: !w {dist.sharding = #weight, dist.global = !w, nn.parameter = "w"}, %v: !v {dist.sharding = #weight, dist.global = !v, nn.parameter = "v"})
    -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
  %r = nn.dispatch %x, %i : (!x, !i) -> !r
  %h = nn.grouped_linear %r, %w : (!r, !w) -> !h
  %a = nn.relu %h : !h
  %s = nn.grouped_linear %a, %v : (!h, !v) -> !r
  %y = nn.combine %s, %i : (!r, !i) -> !x
  return %y : !x
}
