//===- Passes.td - plan ------------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLAN_PASSES_TD
#define MESHWRIGHT_PASSES_PLAN_PASSES_TD

include "mlir/Pass/PassBase.td"

def ChoosePlanPass : Pass<"choose-plan", "::mlir::ModuleOp"> {
  let summary = "choose a mesh and options by finished plans, and parallelize";
  let description = [{
    Requires a global program without shardings, and options of `--parallelize` that ask the
    planner: `ranks`, `mesh=auto` or `objective`. Plans candidates on copies, takes the best by
    the time and the memory of the finished plan, and runs the pipeline of `--parallelize` with
    its options. The decision log has the plans that were compared.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x"},
                    %w: tensor<8x8xf32> {nn.parameter = "w"})
        -> (tensor<4x8xf32> {nn.output = "y"}) {
      %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      return %0 : tensor<4x8xf32>
    }
    ```
    After, with `--choose-plan="request='ranks=2'"`:
    ```mlir
    dist.mesh @mesh = <["dp"=2], device = "h100">
    func.func @main(
        %x: tensor<2x8xf32> {dist.global = tensor<4x8xf32>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {} ]>,
                             nn.input = "x"},
        %w: tensor<8x8xf32> {dist.global = tensor<8x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {} ]>,
                             nn.parameter = "w"})
        -> (tensor<2x8xf32> {dist.global = tensor<4x8xf32>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {} ]>,
                             nn.output = "y"}) attributes {dist.spmd = @mesh} {
      %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
      return %0 : tensor<2x8xf32>
    }
    ```
  }];
  let options = [Option<"request", "request", "std::string", /*default=*/"\"ranks=1\"",
                        "options of --parallelize">];
}

#endif
