//===- NnExpertOps.td - operations of mixtures of experts ---*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A routed tensor has the dimensions (expert, token...), as if each expert had a row for each
// token. It holds the rows of the choices that the tokens made, expert by expert.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNEXPERTOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNEXPERTOPS_TD

include "meshwright/dialects/Dist/DistAttrInterfaces.td"
include "meshwright/dialects/Nn/NnBase.td"
include "meshwright/dialects/Nn/NnInterfaces.td"
include "mlir/IR/TensorEncoding.td"

//===----------------------------------------------------------------------===//
// Routed tensors
//===----------------------------------------------------------------------===//

def Nn_RoutedAttr
    : AttrDef<Nn_Dialect, "Routed",
              [DeclareAttrInterfaceMethods<Dist_CompactAttrInterface>,
               DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let mnemonic = "routed";
  let summary = "the encoding of a tensor that has rows of some experts only, for each token";
  let description = [{
    Dimension 0 counts experts. The dimensions of the tokens follow, then those of the features.
    There is a row for each choice of a token, and each token has `choices` of them at most. With
    `repeats` a token may choose an expert several times, and has a row each time.

    With `shared`, so many experts that follow one another share the rows: dimension 0 counts groups of
    experts, and a token has one row for each group of which it chose experts.

    ```mlir
    tensor<8x2x7x16xf32, #nn.routed<2>>
    tensor<8x2x7x16xf32, #nn.routed<2, repeats>>
    tensor<4x2x7x16xf32, #nn.routed<2, shared = 2>>
    ```
  }];
  let parameters = (ins "int64_t":$choices, DefaultValuedParameter<"bool", "false">:$repeats,
                        DefaultValuedParameter<"int64_t", "1">:$shared);
  let hasCustomAssemblyFormat = 1;
}

//===----------------------------------------------------------------------===//
// Choices
//===----------------------------------------------------------------------===//

def Nn_TopKOp : Nn_Op<"top_k", [Dist_Combines, Dist_CountsElements],
                      ["getFactorRule", "getPaddingNeed"]> {
  let summary = "the indices of the k largest elements of each row, the largest first";
  let description = [{
    Rows lie along the last dimension. Of equal elements the one with the lowest index comes first.
    NaN is larger than all numbers.

    ```mlir
    %i = nn.top_k %scores {k = 2} : (tensor<2x7x8xf32>) -> tensor<2x7x2xi64>
    ```
  }];
  let arguments = (ins Nn_NumberTensor:$scores, I64Attr:$k);
  let results = (outs Nn_I64Tensor:$result);
  let assemblyFormat = "$scores attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_LimitOp : Nn_Op<"limit", [Dist_Combines, Dist_CountsElements, AllTypesMatch<["indices", "result"]>],
                       ["getFactorRule", "getPaddingNeed"]> {
  let summary = "leaves out the choices of experts that have as many tokens as they take";
  let description = [{
    The indices are [tokens..., k]. Each expert keeps its first `capacity` choices, in row-major order.
    The others become -1. -1 stays, and counts for no expert. A program on ranks numbers its layers
    of experts by `layer`, for reports.

    ```mlir
    %j = nn.limit %i {capacity = 4 : i64} : tensor<2x7x2xi64>
    ```
  }];
  let arguments = (ins Nn_IntTensor:$indices, I64Attr:$capacity, OptionalAttr<I64Attr>:$layer);
  let results = (outs Nn_IntTensor:$result);
  let assemblyFormat = "$indices attr-dict `:` type($result)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Rows of experts
//===----------------------------------------------------------------------===//

/// An op between tensors of tokens and routed tensors. `offset` is a scalar, the number of the
/// rank's first expert. With it, choices of other experts are left out.
class Nn_RoutingOp<string mnemonic, list<Trait> traits, list<string> own>
    : Nn_Op<mnemonic, !listconcat(traits,
            [DeclareOpInterfaceMethods<Dist_LookupOpInterface, ["getOffsetOperand", "takesOffset", "skipsMinusOne"]>,
             DeclareOpInterfaceMethods<Nn_RoutedOpInterface>]),
            own>;

def Nn_DispatchOp
    : Nn_RoutingOp<"dispatch", [Dist_MovesOnly], ["getFactorRule"]> {
  let summary = "gives experts the rows of the tokens that chose them";
  let description = [{
    x is [tokens..., features] and the indices [tokens..., k]: the numbers of the experts that each
    token chose. The result is [experts, tokens..., features]. Index -1 goes nowhere. With `each`,
    x is [tokens..., k], a number for each choice, and the result [experts, tokens...].

    The result may have rows that experts share. Such rows [groups, tokens..., features] can be
    dispatched to the experts of their groups, by the choices of the same tokens that were dispatched
    as they were: [groups, tokens..., k]. The result is what a dispatch of the tokens gives.

    ```mlir
    %r = nn.dispatch %x, %i : (tensor<2x7x16xf32>, tensor<2x7x2xi64>) -> tensor<8x2x7x16xf32, #nn.routed<2>>
    %w = nn.dispatch %v, %i {each} : (tensor<2x7x2xf32>, tensor<2x7x2xi64>) -> tensor<8x2x7xf32, #nn.routed<2>>
    %g = nn.dispatch %x, %i : (tensor<2x7x16xf32>, tensor<2x7x2xi64>) -> tensor<4x2x7x16xf32, #nn.routed<2, shared = 2>>
    %j = nn.dispatch %i, %i : (tensor<2x7x2xi64>, tensor<2x7x2xi64>) -> tensor<4x2x7x2xi64, #nn.routed<2, shared = 2>>
    %s = nn.dispatch %g, %j : (tensor<4x2x7x16xf32, #nn.routed<2, shared = 2>>, tensor<4x2x7x2xi64, #nn.routed<2, shared = 2>>) -> tensor<8x2x7x16xf32, #nn.routed<2>>
    ```
  }];
  let arguments = (ins Nn_Tensor:$input, Nn_IntTensor:$indices, Optional<Nn_IntTensor>:$offset,
                       UnitAttr:$each);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "$input `,` $indices (`offset` $offset^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_CombineOp
    : Nn_RoutingOp<"combine", [Dist_Combines], ["getFactorRule", "statesSummedNeeds"]> {
  let summary = "sums the rows of each token's choices";
  let description = [{
    The transpose of `nn.dispatch`: rows [experts, tokens..., features] give [tokens..., features].
    With `each`, rows are [experts, tokens...] and the result is [tokens..., k], the number of each
    choice. Index -1 gives zero. The sum is computed in f32 (f64 for f64), in the order of the
    choices, and rounds once. With an offset, the result is unreduced over the axes that shard the
    experts. Choices that are rows which experts share give such rows: the sum over the experts of
    each group.

    ```mlir
    %y = nn.combine %r, %i : (tensor<8x2x7x16xf32, #nn.routed<2>>, tensor<2x7x2xi64>) -> tensor<2x7x16xf32>
    %v = nn.combine %w, %i {each} : (tensor<8x2x7xf32, #nn.routed<2>>, tensor<2x7x2xi64>) -> tensor<2x7x2xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$rows, Nn_IntTensor:$indices, Optional<Nn_IntTensor>:$offset,
                       UnitAttr:$each);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$rows `,` $indices (`offset` $offset^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_GroupedLinearOp
    : Nn_Op<"grouped_linear", [Dist_Combines, Dist_Product, Dist_MatrixOpInterface],
            ["getFactorRule", "getFlops"]> {
  let summary = "the rows of each expert times its own weight";
  let description = [{
    Rows are [experts, tokens..., in]; the weight is [experts, out, in], or [experts, in, out] with
    `in_out`. Computed as `nn.linear`.

    ```mlir
    %y = nn.grouped_linear %r, %w : (tensor<8x2x7x16xf32, #nn.routed<2>>, tensor<8x32x16xf32>) -> tensor<8x2x7x32xf32, #nn.routed<2>>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$rows, Nn_FloatTensor:$weight, UnitAttr:$in_out);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$rows `,` $weight attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_GroupedWeightGradOp
    : Nn_Op<"grouped_weight_grad", [Dist_Combines, Dist_Product],
            ["getFactorRule", "getFlops", "statesSummedNeeds"]> {
  let summary = "the sum over the rows of each expert of outer products";
  let description = [{
    lhs is [experts, tokens..., m] and rhs [experts, tokens..., n], of one routing. The result is
    [experts, m, n]. Computed as `nn.weight_grad`. An expert without rows has zeros.

    ```mlir
    %dw = nn.grouped_weight_grad %dy, %r : (tensor<8x2x7x32xf32, #nn.routed<2>>, tensor<8x2x7x16xf32, #nn.routed<2>>) -> tensor<8x32x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$lhs, Nn_FloatTensor:$rhs);
  let results = (outs StaticShapeTensorOf<[F32, F64]>:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
