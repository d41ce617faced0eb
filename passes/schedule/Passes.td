//===- Passes.td - from programs to launches ---------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PASSES_TD
#define MESHWRIGHT_PASSES_SCHEDULE_PASSES_TD

include "mlir/Pass/PassBase.td"

def FormKernels : Pass<"form-kernels", "::mlir::func::FuncOp"> {
  let summary = "groups the ops of a program into launches";
  let description = [{
    Takes an SPMD function or a global one without collectives, ops of `nn` and
    `dist` on tensors; leaves functions that have launches already as they are.
    Guarantees the same results: a function of `rt.kernel`, and of `rt.start`
    followed by its `rt.wait` for each collective. Constants and views
    (`nn.reshape`, `dist.constrain`) stay between them. Ops that nobody reads go.

    Collectives get the stream of their axes: those whose groups can share two
    or more ranks are in one stream, in order.

    ```mlir
    %1 = nn.neg %x : tensor<4x8xf32>
    %2 = nn.exp %1 : tensor<4x8xf32>
    %3 = dist.all_gather %2 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    ```
    becomes
    ```mlir
    %1 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = nn.neg %a : tensor<4x8xf32>
      %3 = nn.exp %2 : tensor<4x8xf32>
      rt.yield %3 : tensor<4x8xf32>
    }
    %f = rt.start %1 stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      rt.yield %2 : tensor<16x8xf32>
    }
    %4 = rt.wait %f : !rt.future<tensor<16x8xf32>>
    ```
  }];
  let options = [Option<"keepProbed", "keep-probed", "bool", /*default=*/"false",
                        "keep every value that has an nn.id between kernels, for --check">];
  let dependentDialects = ["::meshwright::rt::RtDialect", "::meshwright::nn::NnDialect",
                           "::meshwright::dist::DistDialect"];
}

def PlanBuffers : Pass<"plan-buffers", "::mlir::func::FuncOp"> {
  let summary = "gives every result of a launch its place in the arena";
  let description = [{
    Takes a function of launches, planned or not. Guarantees that buffers that
    are needed at one time do not overlap: a launch's operands and results are
    needed while it runs, those of a collective from its start to its wait. The
    function gets `rt.arena`, the bytes of all of them, and `rt.live`, the
    largest sum of what is needed at once, which no plan can stay below.

    A kernel of elementwise ops writes over an operand that it reads at the same
    index where nobody needs the operand later; arguments of the function are
    never written.

    ```mlir
    %1 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = nn.neg %a : tensor<4x8xf32>
      rt.yield %2 : tensor<4x8xf32>
    }
    ```
    becomes
    ```mlir
    %1 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = nn.neg %a : tensor<4x8xf32>
      rt.yield %2 : tensor<4x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

#endif
