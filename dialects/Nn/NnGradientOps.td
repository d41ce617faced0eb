//===- NnGradientOps.td - operations of backward passes -----*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNGRADIENTOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNGRADIENTOPS_TD

include "meshwright/dialects/Nn/NnBase.td"

/// The type in which gradients of parameters are summed.
def Nn_SumTensor : StaticShapeTensorOf<[F32, F64]>;

def Nn_GradientOp : Nn_Op<"gradient", [Dist_Structural]> {
  let summary = "the gradient of a loss with respect to a parameter";
  let description = [{
    `parameter` is the name of a parameter of the function. The result has its global
    shape, in f32 (f64 for f64). The loss has one element. `differentiate` replaces the op
    by the ops of the backward pass.

    ```mlir
    %g = nn.gradient %loss of "up.weight" : (tensor<f32>) -> tensor<16x8xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$loss, StrAttr:$parameter);
  let results = (outs Nn_SumTensor:$result);
  let assemblyFormat = "$loss `of` $parameter attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_WeightGradOp
    : Nn_Op<"weight_grad", [Dist_Combines, Dist_Product], ["getFactorRule", "getFlops"]> {
  let summary = "the sum over rows of outer products: lhs^T rhs";
  let description = [{
    lhs is [..., m] and rhs [..., n]. They agree in the dimensions before the last one, over
    which the result [m, n] is summed. Computed in f32 (f64 for f64), without rounding to the
    operands' type.

    ```mlir
    %dw = nn.weight_grad %dy, %x : (tensor<2x7x16xbf16>, tensor<2x7x8xbf16>) -> tensor<16x8xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$lhs, Nn_FloatTensor:$rhs);
  let results = (outs Nn_SumTensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_ScatterAddOp
    : Nn_Op<"scatter_add", [Dist_Combines, DeclareOpInterfaceMethods<Dist_LookupOpInterface,
                            ["getOffsetOperand", "takesOffset"]>],
            ["getFactorRule", "getPaddingNeed"]> {
  let summary = "sums rows into rows of zeros by index";
  let description = [{
    The transpose of `nn.gather`: the result's shape is that of the updates with the
    dimensions of the indices, from `dim` on, replaced by one. Row r of the result along
    `dim` is the sum of the updates whose index is r. With `along` it is the transpose of
    `nn.take_along`: indices and updates have one shape, and each element has an index of its
    own. Sums are computed in f32 (f64 for f64), in the order of the updates. Indices must be
    in range.

    `offset` is a scalar, the number of the local result's first row in the whole result. With
    it, updates of other rows are left out. `nn.table_rows` is then the number of rows of the
    whole result.

    ```mlir
    %dt = nn.scatter_add %dy, %ids dim 0 : (tensor<2x7x8xf32>, tensor<2x7xi64>) -> tensor<32x8xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$updates, Nn_IntTensor:$indices,
                       Optional<Nn_IntTensor>:$offset, I64Attr:$dim, UnitAttr:$along);
  let results = (outs Nn_SumTensor:$result);
  let assemblyFormat = "$updates `,` $indices (`offset` $offset^)? `dim` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The number of dimensions of the updates, from `dim` on, that become one.
    int64_t getNumIndexedDims() { return getAlong() ? 1 : getIndices().getType().getRank(); }
  }];
}

def Nn_PadOp : Nn_Op<"pad", [Dist_MovesOnly, Dist_CountsElements,
                     DeclareOpInterfaceMethods<Dist_ExpandOpInterface, ["needsExpansion"]>]> {
  let summary = "adds zeros around and between elements";
  let description = [{
    The transpose of `nn.slice`: dimension i of the result has `low[i]` zeros, the elements of
    the input with `interior[i]` zeros between two of them, and `high[i]` zeros.

    ```mlir
    %y = nn.pad %x low [0, 1] high [0, 2] interior [0, 1] : (tensor<2x3xf32>) -> tensor<2x8xf32>
    ```
  }];
  let arguments = (ins Nn_Tensor:$input, DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high,
                       DenseI64ArrayAttr:$interior);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "$input `low` $low `high` $high `interior` $interior attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

#endif
