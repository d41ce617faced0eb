//===- PlanPasses.td - an order and buffers for launches ---*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PLANPASSES_TD
#define MESHWRIGHT_PASSES_SCHEDULE_PLANPASSES_TD

include "mlir/Pass/PassBase.td"

def PlanPrefetchPass : Pass<"plan-prefetch", "::mlir::func::FuncOp"> {
  let summary = "begins gathers of weights as late as their links allow";
  let description = [{
    Requires a function of launches in an order that keeps their dependences; guarantees the same
    results. `dist.after` on what a gather of a weight sends names the launch behind which it may
    begin: the last one that leaves its link the time, even if the gather takes twice its time. The gather
    then ends before its first reader, under a memory ceiling, and else before the kernel that reads the
    second weight before its own: ranks do not run in step. Gathers over one link take turns. Times are
    those of the cost model, with launches one after the other.

    `ahead` is the most weights, by their first readers, between the weight in use when a gather begins
    and its own; with 0 each gather begins when its first reader could.

    Before:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x4xf32>
    !s = tensor<2x4xf32>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %w: !s {nn.parameter = "w", dist.sharding = #shard, dist.global = !x})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %e = rt.kernel %x : (!x) -> !x {
      ^bb0(%a: !x):
        %0 = nn.exp %a : !x
        rt.yield %0 : !x
      }
      %f = rt.start %w stream 1 : (!s) -> !rt.future<!x> {
      ^bb0(%a: !s):
        %0 = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
        rt.yield %0 : !x
      }
      %g = rt.wait %f : !rt.future<!x>
      %y = rt.kernel %e, %g : (!x, !x) -> !x {
      ^bb0(%a: !x, %b: !x):
        %0 = nn.linear %a, %b : (!x, !x) -> !x
        rt.yield %0 : !x
      }
      return %y : !x
    }
    ```
    After, with `ahead=0`:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x4xf32>
    !s = tensor<2x4xf32>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %w: !s {nn.parameter = "w", dist.sharding = #shard, dist.global = !x})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %e = rt.kernel %x : (!x) -> !x {
      ^bb0(%a: !x):
        %0 = nn.exp %a : !x
        rt.yield %0 : !x
      }
      %1 = dist.after %w, %e : !s, !x
      %f = rt.start %1 stream 1 : (!s) -> !rt.future<!x> {
      ^bb0(%a: !s):
        %0 = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
        rt.yield %0 : !x
      }
      %g = rt.wait %f : !rt.future<!x>
      %y = rt.kernel %e, %g : (!x, !x) -> !x {
      ^bb0(%a: !x, %b: !x):
        %0 = nn.linear %a, %b : (!x, !x) -> !x
        rt.yield %0 : !x
      }
      return %y : !x
    }
    ```
  }];
  let options = [Option<"ahead", "ahead", "::meshwright::NumberOrAuto<0>",
                        /*default=*/"::meshwright::NumberOrAuto<0>()",
                        "the most weights that are gathered before the one in use; the function's "
                        "rt.prefetch goes before">];
  let dependentDialects = ["::meshwright::rt::RtDialect", "::meshwright::dist::DistDialect"];
}

def OverlapCollectivesPass : Pass<"overlap-collectives", "::mlir::func::FuncOp"> {
  let summary = "orders launches so that collectives run beside kernels";
  let description = [{
    Requires a function of launches; guarantees the same results. A collective starts as
    soon as its operands are there, and its wait comes before the first reader of its
    results. Of the kernels that could run, the one goes first from which a collective
    follows soonest. Several such orders are simulated, with collectives in time and late,
    and the one with the least time is kept. Values that move around a ring take two buffers
    by turns. Collectives of one stream keep one order on all ranks. Those over axes that overlap
    take turns in the simulation, also those of different streams. If links take the device's own
    time (see `overlap` in docs/devices.md), the order stays as it is.

    With a ceiling, the arguments (packed and unpacked) and the arena together stay within
    it: less overlaps then, down to the order with the smallest arena. If that is still too
    large, the pass fails with an error that names the bytes that are needed.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x8xf32>
    !y = tensor<16x8xf32>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: !x {dist.sharding = #rows, dist.global = !y})
        -> (!x {dist.sharding = #rows, dist.global = !y},
            !y {dist.sharding = #whole, dist.global = !y}) attributes {dist.spmd = @mesh} {
      %f = rt.start %x stream 1 : (!x) -> !rt.future<!y> {
      ^bb0(%a: !x):
        %0 = dist.all_gather %a axes ["tp"] dims [0] : (!x) -> !y
        rt.yield %0 : !y
      }
      %g = rt.wait %f : !rt.future<!y>
      %e = rt.kernel %x : (!x) -> !x {
      ^bb0(%a: !x):
        %0 = nn.exp %a : !x
        rt.yield %0 : !x
      }
      return %e, %g : !x, !y
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x8xf32>
    !y = tensor<16x8xf32>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: !x {dist.sharding = #rows, dist.global = !y})
        -> (!x {dist.sharding = #rows, dist.global = !y},
            !y {dist.sharding = #whole, dist.global = !y}) attributes {dist.spmd = @mesh} {
      %f = rt.start %x stream 1 : (!x) -> !rt.future<!y> {
      ^bb0(%a: !x):
        %0 = dist.all_gather %a axes ["tp"] dims [0] : (!x) -> !y
        rt.yield %0 : !y
      }
      %e = rt.kernel %x : (!x) -> !x {
      ^bb0(%a: !x):
        %0 = nn.exp %a : !x
        rt.yield %0 : !x
      }
      %g = rt.wait %f : !rt.future<!y>
      return %e, %g : !x, !y
    }
    ```
  }];
  let options = [Option<"when", "when", "::meshwright::OnOffAuto", /*default=*/"::meshwright::OnOffAuto::Auto",
                        "on; off: orders for the ceiling alone; auto: where links run beside the "
                        "device's work; the function's rt.overlap goes before">,
                 Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
                        "bytes of arguments, of their packing, and of the arena; the function's "
                        "rt.memory_ceiling if 0">];
  let dependentDialects = ["::meshwright::rt::RtDialect", "::meshwright::dist::DistDialect"];
}

def PlanBuffersPass : Pass<"plan-buffers", "::mlir::func::FuncOp"> {
  let summary = "gives every result of a launch its offset in the arena";
  let description = [{
    Requires a function of launches, planned or not. Guarantees that buffers that are needed
    at one time do not overlap: the operands and results of a launch are needed while it
    runs, those of a collective from its start to its wait. The function gets `rt.arena`,
    the bytes of the arena, and `rt.live`, the largest sum of buffers that are needed at
    once. No plan has a smaller arena than `rt.live`.

    A kernel of elementwise ops writes over an operand that it reads at the same index if no
    later launch needs the operand. Arguments of the function are never written, except
    states: a kernel writes the new value of a state over the state if no later launch needs
    the old one (`over`).

    Before:
    ```mlir
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %1 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
      ^bb0(%a: tensor<4x8xf32>):
        %2 = nn.neg %a : tensor<4x8xf32>
        rt.yield %2 : tensor<4x8xf32>
      }
      return %1 : tensor<4x8xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32>
        attributes {rt.arena = 128 : i64, rt.live = 128 : i64} {
      %1 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
      ^bb0(%a: tensor<4x8xf32>):
        %2 = nn.neg %a : tensor<4x8xf32>
        rt.yield %2 : tensor<4x8xf32>
      }
      return %1 : tensor<4x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def PlanGraphsPass : Pass<"plan-graphs", "::mlir::func::FuncOp"> {
  let summary = "marks launches that a device may record and repeat without the host";
  let description = [{
    Requires a function of launches in their final order. If the target's device can record
    graphs, guarantees that each launch is between `rt.graph_begin` and `rt.graph_end`, except
    where that cannot be. The host looks at a probed value behind its launch, so that launch is
    in no graph. Where rows of experts or true rows of groups move, the host waits for their numbers and gives messages
    their sizes, so these launches are in none. A collective may not be in flight where a graph begins or ends, so neither is
    one that is in flight there. Graphs are as long as that allows. Marks that
    were there before are removed. See docs/rationale/graphs.md.

    Before:
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %1 = rt.kernel %x at [0] : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.softmax %a dim 0 : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      %2 = rt.kernel %1 at [0] : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.neg %a : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      return %2 : tensor<4xf32>
    }
    ```
    After, with `target=gpu:sm_90a`:
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      rt.graph_begin
      %1 = rt.kernel %x at [0] : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.softmax %a dim 0 : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      %2 = rt.kernel %1 at [0] : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.neg %a : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      rt.graph_end
      return %2 : tensor<4xf32>
    }
    ```
  }];
  let options = [Option<"keepProbed", "keep-probed", "bool", /*default=*/"false",
                        "the host looks at every value that has an nn.id">,
                 Option<"target", "target", "std::string", /*default=*/"",
                        "the target that the program is for; the function's rt.target if empty">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

#endif
