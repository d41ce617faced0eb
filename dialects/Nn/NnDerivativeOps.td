//===- NnDerivativeOps.td - derivatives that a program states -*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNDERIVATIVEOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNDERIVATIVEOPS_TD

include "meshwright/dialects/Nn/NnBase.td"

def Nn_WithDerivativeOp
    : Nn_ElementwiseOp<"with_derivative", [Dist_Cheap]> {
  let summary = "a value with the derivative of another";
  let description = [{
    Operands broadcast as NumPy's do. The result is `value`. Its cotangent flows to `like` alone,
    not to `value`. So a program computes a function by one expression and states its derivative
    by another: for a factor s(x) that `nn.stop_gradient` keeps from having a derivative, x s(x)
    has the derivative s(x).

    `differentiate` replaces the op by `value`, behind the backward pass. Then nothing reads `like`.
    The factors that only the backward pass reads become ops of the backward pass.

    ```mlir
    %z = nn.with_derivative %y like %g : (tensor<2x7xf32>, tensor<2x7xf32>) -> tensor<2x7xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$value, Nn_FloatTensor:$like);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$value `like` $like attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
