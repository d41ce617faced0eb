//===- NnRandomOps.td - random numbers ----------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNRANDOMOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNRANDOMOPS_TD

include "meshwright/dialects/Nn/NnBase.td"

def Nn_F32Tensor : StaticShapeTensorOf<[F32]>;

def Nn_RandomOp : Nn_ElementwiseOp<"random"> {
  let summary = "a random number in [0, 1) for each element";
  let description = [{
    The number is a multiple of 2^-24: the upper 24 bits of the first word of Philox-4x32-10, whose
    key is the seed, and whose counter is the element's `index` (64 bits), the low 32 bits of the
    `step`, and the `stream`. The index broadcasts to the result; seed and step are scalars.

    ```mlir
    %u = nn.random at %i seed %s step %n stream 3 : (tensor<2x8xi64>, tensor<i64>, tensor<i64>) -> tensor<2x8xf32>
    ```
  }];
  let arguments = (ins Nn_I64Tensor:$index, Nn_I64Tensor:$seed, Nn_I64Tensor:$step,
                       I64Attr:$stream);
  let results = (outs Nn_F32Tensor:$result);
  let assemblyFormat = "`at` $index `seed` $seed `step` $step `stream` $stream attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
