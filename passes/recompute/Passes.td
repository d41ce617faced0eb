//===- Passes.td - recompute -------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_RECOMPUTE_PASSES_TD
#define MESHWRIGHT_PASSES_RECOMPUTE_PASSES_TD

include "mlir/Pass/PassBase.td"

def RecomputePass : Pass<"recompute", "::mlir::ModuleOp"> {
  let summary = "compute values of the forward pass again where the backward pass needs them";
  let description = [{
    Requires SPMD functions; leaves other functions alone. Guarantees the same results. A function
    with ops that carry `nn.backward` has a backward pass. The marks are removed at the end, in
    all functions.

    The forward pass is cut into segments where few bytes are alive, such as between layers. The
    cuts are those for which the values that cross them, and the values that the backward pass
    needs of the largest segment, are fewest bytes together. Values that cross a cut are kept. The
    others are computed again, by copies of the ops of their segment. `dist.after` orders the
    copies behind a cotangent that enters the segment from behind, and behind the gradients of
    weights of the segment behind. Without it they would only repeat the forward pass early. The last segment is left alone, because the backward pass begins
    there.

    Copies have the operands of their originals, and so the same bits: dropout depends on seed,
    step and index. Ops with effects are not copied, and neither is a value that the function
    returns.

    - `none` copies nothing.
    - `full` copies all segments but the last.
    - `auto` without `memory-ceiling` copies nothing: a kernel that reads a cheap value computes
      it itself (see `form-kernels`), and other copies cost more time than the memory is worth. With
      a ceiling, it repeats first the ops of a segment that neither multiply matrices nor
      communicate, or the whole segment, by bytes saved for each second of the cost model. It stops
      at the first choice for which the schedule keeps to the ceiling. If none does, it takes all
      of them, and `check-memory` says what they need.

    Before:
    ```mlir
    %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %1 = nn.exp %0 : tensor<4x8xf32>
    %2 = nn.linear %1, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    // ... the rest of the forward pass; the cut is here ...
    %g = nn.mul %5, %6 {nn.backward} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %dw = nn.weight_grad %g, %1 {nn.backward} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    ```
    After, with `mode=full`:
    ```mlir
    %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %1 = nn.exp %0 : tensor<4x8xf32>
    %2 = nn.linear %1, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    // ...
    %g = nn.mul %5, %6 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %7 = dist.after %x, %g : tensor<4x8xf32>, tensor<4x8xf32>
    %8 = nn.linear %7, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %9 = nn.exp %8 : tensor<4x8xf32>
    %dw = nn.weight_grad %g, %9 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    ```
  }];
  let options = [
    Option<"mode", "mode", "::meshwright::RecomputeMode",
           /*default=*/"::meshwright::RecomputeMode::Auto",
           "none, full, or auto: as few values as the memory ceiling allows">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
           "the most bytes that a rank may use; 0: any">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
