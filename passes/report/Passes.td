//===- Passes.td - report ----------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_REPORT_PASSES_TD
#define MESHWRIGHT_PASSES_REPORT_PASSES_TD

include "mlir/Pass/PassBase.td"

def ReportCommunicationPass : Pass<"report-communication", "::mlir::ModuleOp"> {
  let summary = "write what the SPMD program sends and holds, and why";
  let description = [{
    Requires one SPMD function, or one named `main`; leaves the module as it is.
    Writes a table of its collectives with the bytes each rank sends, memory per
    rank, a warning for each gather of a whole tensor, and the decisions of the
    passes that ran before: as JSON where the file's name ends in `.json`, else as
    text.

    ```mlir
    func.func @main(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>, dist.global = tensor<8x8xf32>, nn.input = "x"})
        -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<8x8xf32>, nn.output = "y"})
        attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<2x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }
    ```
    has the line `all_gather  tp  0  1  192 B  192 B  f32`.
  }];
  let options = [Option<"file", "file", "std::string", /*default=*/"",
                        "where to; the standard error if empty">];
}

def ReportDecisionsPass : Pass<"report-decisions", "::mlir::ModuleOp"> {
  let summary = "emit the decisions of earlier passes as remarks";
  let description = [{
    One remark a decision, at the place in the user's source: the pass, what it
    did or declined to, and the numbers compared. Leaves the module as it is.
  }];
  let options = [ListOption<"outcomes", "outcomes", "std::string",
                            "which: applied, declined, note; all if empty">];
}

#endif
