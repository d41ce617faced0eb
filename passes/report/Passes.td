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
  let summary = "report the communication and the memory of an SPMD program";
  let description = [{
    Requires an SPMD function. Reports on the entry that the option names, else on the default
    entry: `main`, or the first public function. Changes nothing. The report has a
    table of the collectives with the bytes that each rank sends, the memory per rank,
    a warning for each gather of a whole tensor, and the decisions of earlier passes.
    It is JSON if the name of the file ends in `.json`, and text otherwise.

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
                        "the file to write; the standard error if empty">,
                 Option<"entry", "entry", "std::string", /*default=*/"",
                        "the entry to report on; the default entry if empty">];
}

def CheckMeshAxesPass : Pass<"check-mesh-axes", "::mlir::ModuleOp"> {
  let summary = "warn of mesh axes that shard nothing";
  let description = [{
    Warns of each axis of two or more ranks that no sharding and no collective of any
    SPMD function names: all ranks along it do the same work. The name may be a typo
    (`tpp=4`), or one that no policy looks for. The warning is a diagnostic and an
    entry of `warnings` in reports. Leaves the module as it is.

    ```mlir
    dist.mesh @mesh = <["tp"=2, "pp"=2]>
    func.func @main(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>, dist.global = tensor<4x8xf32>})
        attributes {dist.spmd = @mesh} { return }
    ```
    warns that axis "pp" shards nothing.
  }];
}

def ReportDecisionsPass : Pass<"report-decisions", "::mlir::ModuleOp"> {
  let summary = "emit the decisions of earlier passes as remarks";
  let description = [{
    Emits one remark for each decision, at its place in the user's source, with the
    pass, the message, and the numbers that the pass compared. Changes nothing.
  }];
  let options = [ListOption<"outcomes", "outcomes", "::meshwright::Outcome",
                            "which: applied, declined, note; all if empty">];
}

#endif
