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
    Times, memory and decisions of the schedule are those of a copy that is scheduled,
    unless the function is scheduled itself. A function that cannot be scheduled has
    no times. The report is JSON if the name of the file ends in `.json`, and text
    otherwise. A name of a page, which ends in `.html`, is an error.

    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(
        %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #rows, dist.global = tensor<8x8xf32>})
        -> (tensor<8x8xf32> {dist.sharding = #whole, dist.global = tensor<8x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<2x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }
    ```
    Prints:
    ```text
    plan for 4 ranks, mesh tp=4
      time      0.2 ns a run by the cost model: kernels 0.0 us, communication 0.2 ns, of which 0.2 ns shows
    memory, per rank
      weights                            0 B
      inputs and activations, at most  320 B
    collectives, per rank and run
      kind        axes  dims  count  bytes each  bytes  type and place
      all_gather  tp    0         1       192 B  192 B  f32
      total                       1              192 B
    warnings
      gathers the whole of a 8x8 tensor of f32 on every rank, 192 B
    ```
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
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    dist.mesh @mesh = <["tp"=2, "pp"=2]>
    func.func @main(%x: tensor<2x8xf32> {dist.sharding = #rows, dist.global = tensor<4x8xf32>})
        attributes {dist.spmd = @mesh} { return }
    ```
    Prints:
    ```text
    warning: mesh axis "pp" of size 2 shards nothing: all ranks along it do the same work
    ```
  }];
}

def ReportDecisionsPass : Pass<"report-decisions", "::mlir::ModuleOp"> {
  let summary = "emit the decisions of earlier passes as remarks";
  let description = [{
    Emits one remark for each decision, at its place in the user's source, with the
    pass, the message, and the numbers that the pass compared. Changes nothing.

    ```mlir
    dist.mesh @mesh = <["dp"=2]>
    func.func @main(%x: tensor<3x4xf32> {nn.input = "x"}) { return }
    ```
    Prints, with `--annotate-data-parallel --report-decisions`:
    ```text
    remark: [annotate-data-parallel] applied: a batch of 3 is split over 2 ranks of "dp"
    ```
  }];
  let options = [ListOption<"outcomes", "outcomes", "::meshwright::Outcome",
                            "which: applied, declined, note; all if empty">];
}

#endif
