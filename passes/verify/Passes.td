//===- Passes.td - verifying what passes made --------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_VERIFY_PASSES_TD
#define MESHWRIGHT_PASSES_VERIFY_PASSES_TD

include "mlir/Pass/PassBase.td"

def VerifyPlacementPass : Pass<"verify-placement", "::mlir::func::FuncOp"> {
  let summary = "proves that a program's data lies where its ops need it, when they need it";
  let description = [{
    Derives how every value lies from the layouts of the arguments and reports
    the first op that does not fit: a reduction left out, done twice or over the
    wrong axes; an unreduced value in an op that is not linear or added to a
    reduced one; padding read where it counts; a collective that not all ranks
    issue; a result with another layout than promised.

    Of a function of launches it proves besides that each start has one wait,
    that collectives in flight on different streams share at most one rank, and,
    once buffers are planned, that nothing is written where a value lies that is
    needed later, or where a collective in flight reads or writes.

    Requires layouts on arguments and results (`dist.sharding`, `dist.global`)
    of functions with `dist.spmd`; of others only launches are looked at. Changes
    nothing.

    ```mlir
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(
        %x: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"} ]>, dist.global = tensor<8x64xf32>},
        %w: tensor<32x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"} ]>, dist.global = tensor<32x64xf32>})
        -> (tensor<8x32xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<8x32xf32>})
        attributes {dist.spmd = @mesh} {
      // error: 'nn.relu' op is not linear in operand 0, which is unreduced over {"tp"}
      %0 = nn.linear %x, %w : (tensor<8x16xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
      %1 = nn.relu %0 : tensor<8x32xf32>
      %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<8x32xf32>) -> tensor<8x32xf32>
      return %2 : tensor<8x32xf32>
    }
    ```
  }];
}

#endif
