//===- NnOps.td - the operations of models ------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNOPS_TD

include "meshwright/dialects/Nn/NnBase.td"
include "meshwright/dialects/Nn/NnCall.td"
include "meshwright/dialects/Nn/NnAttentionOps.td"
include "meshwright/dialects/Nn/NnExpertOps.td"
include "meshwright/dialects/Nn/NnGradientOps.td"
include "meshwright/dialects/Nn/NnRowOps.td"
include "meshwright/dialects/Nn/NnServeOps.td"
include "meshwright/dialects/Nn/NnStoredOps.td"

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

class Nn_Unary<string mnemonic, string text, TypeConstraint type, list<Trait> traits = [],
               list<string> own = []>
    : Nn_ElementwiseOp<mnemonic, !listconcat([AllTypesMatch<["input", "result"]>], traits), own> {
  let summary = text;
  let arguments = (ins type:$input);
  let results = (outs type:$result);
  let assemblyFormat = "$input attr-dict `:` type($result)";
}

/// Operands broadcast as NumPy's do: shapes align at their last dimensions. A dimension
/// that is missing, or of size 1, stretches.
class Nn_Binary<string mnemonic, string text, TypeConstraint type, list<Trait> traits = [],
                list<string> own = []>
    : Nn_ElementwiseOp<mnemonic, traits, own> {
  let summary = text;
  let description = [{
    Operands broadcast as NumPy's do.
  }];
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_NegOp : Nn_Unary<"neg", "-x", Nn_NumberTensor, [Dist_Cheap], ["getFactorRule"]>;
def Nn_AbsOp : Nn_Unary<"abs", "|x|", Nn_NumberTensor, [Dist_Cheap]>;
def Nn_ExpOp : Nn_Unary<"exp", "e^x", Nn_FloatTensor>;
def Nn_LogOp : Nn_Unary<"log", "natural logarithm", Nn_FloatTensor>;
def Nn_SqrtOp : Nn_Unary<"sqrt", "square root", Nn_FloatTensor>;
def Nn_RsqrtOp : Nn_Unary<"rsqrt", "1 / sqrt(x)", Nn_FloatTensor>;
def Nn_ReciprocalOp : Nn_Unary<"reciprocal", "1 / x", Nn_FloatTensor>;
def Nn_SinOp : Nn_Unary<"sin", "sine", Nn_FloatTensor>;
def Nn_CosOp : Nn_Unary<"cos", "cosine", Nn_FloatTensor>;
def Nn_ErfOp : Nn_Unary<"erf", "error function", Nn_FloatTensor>;
def Nn_FloorOp : Nn_Unary<"floor", "largest integer not above x", Nn_FloatTensor, [Dist_Cheap]>;
def Nn_NotOp : Nn_Unary<"not", "logical not", Nn_BoolTensor, [Dist_Cheap]>;
def Nn_ReluOp : Nn_Unary<"relu", "max(x, 0)", Nn_FloatTensor, [Dist_Cheap]>;
def Nn_SiluOp : Nn_Unary<"silu", "x * sigmoid(x)", Nn_FloatTensor>;
def Nn_TanhOp : Nn_Unary<"tanh", "hyperbolic tangent", Nn_FloatTensor>;
def Nn_SigmoidOp : Nn_Unary<"sigmoid", "1 / (1 + e^-x)", Nn_FloatTensor>;
def Nn_GeluOp : Nn_Unary<"gelu", "Gaussian error linear unit", Nn_FloatTensor> {
  let description = [{
    Computed by the error function, or with `approximate_tanh` by the tanh formula.
  }];
  let arguments = (ins Nn_FloatTensor:$input, UnitAttr:$approximate_tanh);
}

def Nn_StopGradientOp : Nn_Unary<"stop_gradient", "x, of which a loss does not depend on x",
                                 Nn_FloatTensor, [Dist_Cheap], ["getFactorRule"]> {
  let description = [{
    `differentiate` replaces the op by its operand.
  }];
}

def Nn_AddOp : Nn_Binary<"add", "x + y", Nn_NumberTensor, [Commutative, Dist_Cheap],
                         ["getFactorRule"]>;
def Nn_SubOp : Nn_Binary<"sub", "x - y", Nn_NumberTensor, [Dist_Cheap], ["getFactorRule"]>;
def Nn_MulOp : Nn_Binary<"mul", "x * y", Nn_NumberTensor, [Commutative, Dist_Cheap],
                         ["getFactorRule"]>;
def Nn_DivOp : Nn_Binary<"div", "x / y; for integers rounded toward minus infinity",
                         Nn_NumberTensor, [], ["getFactorRule"]>;
def Nn_RemOp : Nn_Binary<"rem", "x - y * floor(x / y)", Nn_NumberTensor>;
def Nn_PowOp : Nn_Binary<"pow", "x to the power y", Nn_FloatTensor>;
def Nn_MaximumOp : Nn_Binary<"maximum", "the larger", Nn_NumberTensor, [Commutative, Dist_Cheap], ["getFactorRule"]>;
def Nn_MinimumOp : Nn_Binary<"minimum", "the smaller", Nn_NumberTensor, [Commutative, Dist_Cheap]>;
def Nn_AndOp : Nn_Binary<"and", "bitwise and", Nn_BitTensor, [Commutative, Dist_Cheap]>;
def Nn_OrOp : Nn_Binary<"or", "bitwise or", Nn_BitTensor, [Commutative, Dist_Cheap]>;
def Nn_XorOp : Nn_Binary<"xor", "bitwise exclusive or", Nn_BitTensor, [Commutative, Dist_Cheap]>;

def Nn_CompareOp : Nn_ElementwiseOp<"compare", [Dist_Cheap]> {
  let summary = "compares, with NumPy's broadcasting";
  let arguments = (ins Nn_CompareKindAttr:$kind, Nn_Tensor:$lhs, Nn_Tensor:$rhs);
  let results = (outs Nn_BoolTensor:$result);
  let assemblyFormat = "$kind $lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_SelectOp : Nn_ElementwiseOp<"select", [Dist_Cheap], ["getFactorRule"]> {
  let summary = "condition ? x : y, with NumPy's broadcasting";
  let arguments = (ins Nn_BoolTensor:$condition, Nn_Tensor:$lhs, Nn_Tensor:$rhs);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "$condition `,` $lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_CastOp : Nn_ElementwiseOp<"cast", [Dist_Cheap, Dist_KeepsWeight], ["getFactorRule"]> {
  let summary = "converts the element type and rounds to nearest even; to i1: x != 0";
  let description = [{
    With `parts`, each part of a sum is rounded, and the sum is that of the rounded parts.

    ```mlir
    %1 = nn.cast %0 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %2 = nn.cast parts %0 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    ```
  }];
  let arguments = (ins Nn_Tensor:$input, UnitAttr:$parts);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "(`parts` $parts^)? $input attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
}

def Nn_DropoutOp
    : Nn_ElementwiseOp<"dropout", [AllTypesMatch<["input", "result"]>, Nn_DropoutOpInterface],
                       ["getFactorRule"]> {
  let summary = "zero with a probability, otherwise x / (1 - probability)";
  let description = [{
    An element is dropped if a random number in [0, 1) is below `probability`. The number is a
    function of `seed` and `step` (scalars), `stream`, and the element's `index`, which broadcasts
    to the input. It is the first word of Philox-4x32-10, whose key is the seed, and whose
    counter is the index (64 bits), the low 32 bits of the step, and the stream.

    Two ops of different streams drop independently. The op with the same last three operands and
    attributes drops the same elements of another input, so it is its own transpose.

    ```mlir
    %y = nn.dropout %x at %i seed %s step %n probability 0.1 stream 3 : (tensor<2x8xf32>, tensor<2x8xi64>, tensor<i64>, tensor<i64>) -> tensor<2x8xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$input, Nn_I64Tensor:$index, Nn_I64Tensor:$seed,
                       Nn_I64Tensor:$step, F64Attr:$probability, I64Attr:$stream);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$input `at` $index `seed` $seed `step` $step `probability` $probability `stream` $stream attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{ void removeDropout(); }];
}

//===----------------------------------------------------------------------===//
// State
//===----------------------------------------------------------------------===//

def Nn_StateOp
    : Nn_AnyOp<"state", [Symbol, HasParent<"::mlir::ModuleOp">, Dist_Structural,
                DeclareOpInterfaceMethods<Dist_MemoryOpInterface>],
               ["getFactorRule", "getFlops"]> {
  let summary = "memory of the module that outlives a call";
  let description = [{
    It starts as the parameter `parameter` of the weights file, or with all elements
    equal to `fill`. Without either it starts as the parameter of its own name. It may
    carry `dist.sharding`, its layout on the ranks in all entries. One of type f32 may start as
    a parameter of type bf16 or f16.

    `role` says to which part of training it belongs: "parameter" (a trained one), "master" (its
    value in f32), "optimizer" or "gradient". A state that is `transient` begins with its fill
    and is not saved.

    ```mlir
    nn.state @"layers.0.keys" {fill = 0.0 : f32} : tensor<2x4x16x8xf32>
    nn.state @mean {parameter = "norm.running_mean"} : tensor<8xf32>
    nn.state @w {role = "parameter"} : tensor<8xbf16>
    nn.state @"master.w" {parameter = "w", role = "master"} : tensor<8xf32>
    nn.state @"grad.w" {fill = 0.0 : f32, role = "gradient", transient} : tensor<8xf32>
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<Nn_MovedTensor>:$type,
                       OptionalAttr<StrAttr>:$parameter, OptionalAttr<TypedAttrInterface>:$fill,
                       OptionalAttr<StrAttr>:$role, UnitAttr:$transient);
  let assemblyFormat = "$sym_name attr-dict `:` $type";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Returns true if it holds a trained parameter.
    bool isTrained() { return getRole() == "parameter"; }
    /// The key in the weights file that the state starts as; empty if it has a fill.
    ::llvm::StringRef getInitialParameter();
  }];
}

/// An op that names a state. `bind-state` turns it into an argument or a result.
class Nn_StateUserOp<string mnemonic, list<Trait> traits>
    : Nn_AnyOp<mnemonic, !listconcat([Dist_MovesOnly, Dist_NamesMemory,
                          DeclareOpInterfaceMethods<SymbolUserOpInterface>], traits)>;

def Nn_ReadOp : Nn_StateUserOp<"read", [Pure]> {
  let summary = "a state as it was before the call";
  let description = [{
    The value does not depend on the place of the op in the function, and not on writes.

    ```mlir
    %0 = nn.read @mean : tensor<8xf32>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$state);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$state attr-dict `:` type($result)";
}

def Nn_WriteOp : Nn_StateUserOp<"write", [MemoryEffects<[MemWrite]>]> {
  let summary = "gives a state its value after the call";
  let description = [{
    A function has at most one for each state, in its entry block.

    ```mlir
    nn.write @mean, %1 : tensor<8xf32>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$state, Nn_MovedTensor:$value);
  let assemblyFormat = "$state `,` $value attr-dict `:` type($value)";
}

//===----------------------------------------------------------------------===//
// Constants and shapes
//===----------------------------------------------------------------------===//

def Nn_ConstantOp
    : Nn_Op<"constant", [Dist_Generates, ConstantLike, AllTypesMatch<["value", "result"]>]> {
  let summary = "a small constant, or a splat";
  let arguments = (ins ElementsAttr:$value);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "attr-dict $value";
  let hasFolder = 1;
  let hasVerifier = 1;
}

def Nn_IotaOp : Nn_Op<"iota", [Dist_Generates]> {
  let summary = "the index along a dimension";
  let arguments = (ins I64Attr:$dim);
  let results = (outs Nn_NumberTensor:$result);
  let assemblyFormat = "`dim` $dim attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Nn_ReshapeOp : Nn_Op<"reshape", [Dist_View, Dist_KeepsWeight]> {
  let summary = "the same elements in row-major order, in another shape";
  let arguments = (ins Nn_MovedTensor:$input);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

/// Changes which elements of a dimension are padding, and no element.
class Nn_SizeOp<string mnemonic>
    : Nn_Op<mnemonic, [Dist_View, Dist_TouchesPadding, AllTypesMatch<["input", "result"]>]> {
  let arguments = (ins Nn_MovedTensor:$input, StrArrayAttr:$sizes);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$input `sizes` $sizes attr-dict `:` type($result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Nn_CutOp : Nn_SizeOp<"cut"> {
  let summary = "the same elements, of which those behind run-time sizes are padding";
  let description = [{
    `sizes` has a name for each dimension, "" for a dimension that stays as it is. The number of
    true elements of a dimension with a name is the argument with this `nn.size`. Ops that read
    the result do not count elements behind it.

    ```mlir
    %1 = nn.cut %0 sizes ["tokens", ""] : tensor<24x8xf32>
    ```
  }];
}

def Nn_UncutOp : Nn_SizeOp<"uncut"> {
  let summary = "true elements behind run-time sizes, which are zeros";
  let description = [{
    The derivative of `nn.cut`. All elements of the result are true elements; elements behind the
    run-time sizes are zeros.

    ```mlir
    %1 = nn.uncut %0 sizes ["tokens", ""] : tensor<24x8xf32>
    ```
  }];
}

def Nn_TransposeOp : Nn_Op<"transpose", [Dist_Reindexes, Dist_KeepsWeight]> {
  let summary = "dimension i of the result is dimension permutation[i] of the operand";
  let arguments = (ins Nn_MovedTensor:$input, DenseI64ArrayAttr:$permutation);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$input $permutation attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Nn_SliceOp : Nn_Op<"slice", [Dist_Reindexes, Dist_TakesPart, Dist_KeepsWeight]> {
  let summary = "a strided box: elements starts[i], starts[i] + strides[i], ... below limits[i]";
  let arguments = (ins Nn_MovedTensor:$input, DenseI64ArrayAttr:$starts, DenseI64ArrayAttr:$limits,
                       DenseI64ArrayAttr:$strides);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$input `starts` $starts `limits` $limits `strides` $strides attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Nn_ConcatOp : Nn_Op<"concat", [Dist_MovesOnly]> {
  let summary = "joins tensors along a dimension";
  let arguments = (ins Variadic<Nn_MovedTensor>:$inputs, I64Attr:$dim);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$inputs `dim` $dim attr-dict `:` functional-type($inputs, $result)";
  let hasVerifier = 1;
}

def Nn_BroadcastOp : Nn_Op<"broadcast", [Dist_Reindexes], ["getFactorRule", "mayBroadcast"]> {
  let summary = "stretches to a shape, as NumPy's broadcast_to";
  let arguments = (ins Nn_MovedTensor:$input);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Nn_GatherOp
    : Nn_Op<"gather", [Dist_MovesOnly, Dist_CountsElements,
              DeclareOpInterfaceMethods<Dist_LookupOpInterface>]> {
  let summary = "takes rows along a dimension by index, as NumPy's take";
  let description = [{
    The result's shape is the data's with dimension `dim` replaced by the
    indices' shape. Indices must be in range.
  }];
  let arguments = (ins Nn_MovedTensor:$data, Nn_IntTensor:$indices, I64Attr:$dim);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$data `,` $indices `dim` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_TakeAlongOp
    : Nn_Op<"take_along", [Dist_MovesOnly, Dist_CountsElements,
              DeclareOpInterfaceMethods<Dist_LookupOpInterface>]> {
  let summary = "takes elements along a dimension by index, as NumPy's take_along_axis";
  let description = [{
    Data and indices have the same rank, and the same sizes but in `dim`; the
    result has the indices' shape.
  }];
  let arguments = (ins Nn_MovedTensor:$data, Nn_IntTensor:$indices, I64Attr:$dim);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$data `,` $indices `dim` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_IndexCopyOp
    : Nn_Op<"index_copy", [Dist_MovesOnly, Dist_CountsElements, Dist_ReplacesRows,
              DeclareOpInterfaceMethods<Dist_LookupOpInterface, ["skipsMinusOne"]>]> {
  let summary = "replaces rows along a dimension by index, as PyTorch's index_copy";
  let description = [{
    Row `indices[i]` along `dim` of the result is row `i` of the source, the other rows are
    those of the data. Of equal indices the last one holds. Indices must be in range. With
    `skips_minus_one`, index -1 has no row. Indices may have the dimensions in front of `dim`, too:
    each of them then has rows of its own.
  }];
  let arguments = (ins Nn_MovedTensor:$data, Nn_IntTensor:$indices, Nn_MovedTensor:$source, I64Attr:$dim,
                       UnitAttr:$skips_minus_one);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$data `,` $indices `,` $source `dim` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

def Nn_ReduceOp
    : Nn_Op<"reduce", [Dist_Combines, DeclareOpInterfaceMethods<Dist_ExpandOpInterface>], ["getFactorRule", "getPaddingNeed"]> {
  let summary = "reduces over dimensions";
  let description = [{
    With `keep_dims` the reduced dimensions stay, with size 1. Sums of bf16 and
    f16 are computed in f32 and round once.
  }];
  let arguments = (ins Nn_ReduceKindAttr:$kind, Nn_NumberTensor:$input, DenseI64ArrayAttr:$dims,
                       UnitAttr:$keep_dims);
  let results = (outs Nn_NumberTensor:$result);
  let assemblyFormat = "$kind $input `dims` $dims attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
}

def Nn_CumsumOp
    : Nn_Op<"cumsum", [Dist_Combines, Dist_CountsElements, AllTypesMatch<["input", "result"]>]> {
  let summary = "running sums along a dimension";
  let arguments = (ins Nn_NumberTensor:$input, I64Attr:$dim);
  let results = (outs Nn_NumberTensor:$result);
  let assemblyFormat = "$input `dim` $dim attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Nn_SoftmaxOp
    : Nn_Op<"softmax", [Dist_Combines, AllTypesMatch<["input", "result"]>,
              DeclareOpInterfaceMethods<Dist_ExpandOpInterface>],
            ["getFactorRule", "getPaddingNeed"]> {
  let summary = "softmax along a dimension, computed in f32; a row of -inf alone gives zeros";
  let arguments = (ins Nn_FloatTensor:$input, I64Attr:$dim);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$input `dim` $dim attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Nn_CrossEntropyOp
    : Nn_Op<"cross_entropy",
            [Dist_Combines, DeclareOpInterfaceMethods<Dist_LookupOpInterface>,
             DeclareOpInterfaceMethods<Dist_ExpandOpInterface, ["needsExpansion"]>],
            ["getFactorRule", "getPaddingNeed"]> {
  let summary = "the loss of each label under the softmax of its logits";
  let description = [{
    `dim` is the dimension of the classes. The labels, and the result, have the other
    dimensions of the logits. The loss of label y is logsumexp(z) - z[y]. With
    `label_smoothing` s it is logsumexp(z) - (1 - s) z[y] - s mean(z). It is zero where the
    label is `ignore_index`. Other labels must be classes. Computed in f32 (f64 for f64).

    ```mlir
    %l = nn.cross_entropy %z, %y dim 2 {ignore_index = -100 : i64, label_smoothing = 1.000000e-01 : f64} : (tensor<2x7x32xf32>, tensor<2x7xi64>) -> tensor<2x7xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$logits, Nn_IntTensor:$labels, I64Attr:$dim,
                       OptionalAttr<I64Attr>:$ignore_index,
                       OptionalAttr<F64Attr>:$label_smoothing);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$logits `,` $labels `dim` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Layers
//===----------------------------------------------------------------------===//

def Nn_MatmulOp
    : Nn_Op<"matmul", [Dist_Combines, Dist_Product, Dist_MatrixOpInterface],
            ["getFactorRule", "mayBroadcast", "getFlops"]> {
  let summary = "matrix product over the last two dimensions; the others broadcast";
  let description = [{
    `transpose_lhs` and `transpose_rhs` read an operand with its last two
    dimensions exchanged. The sum is computed in f32 (f64 for f64) and rounds
    once. A product of bf16 or f16 may have a result in f32, as partial sums have.
  }];
  let arguments = (ins Nn_FloatTensor:$lhs, Nn_FloatTensor:$rhs, UnitAttr:$transpose_lhs,
                       UnitAttr:$transpose_rhs);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_LinearOp
    : Nn_Op<"linear", [Dist_Combines, Dist_Product,
              DeclareOpInterfaceMethods<Dist_MatrixOpInterface, ["getBiasOperand"]>],
            ["getFactorRule", "getFlops"]> {
  let summary = "x W^T + b over the last dimension";
  let description = [{
    x is [..., in]; the weight is [out, in], or [in, out] with `in_out`; the
    optional bias is [out]. Without a bias, a product of bf16 or f16 may have a
    result in f32, as partial sums have.

    ```mlir
    %y = nn.linear %x, %w bias %b : (tensor<2x7x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<2x7x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$input, Nn_FloatTensor:$weight,
                       Optional<Nn_FloatTensor>:$bias, UnitAttr:$in_out);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$input `,` $weight (`bias` $bias^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_EmbeddingOp
    : Nn_Op<"embedding", [Dist_Combines, Dist_MatrixOpInterface,
              DeclareOpInterfaceMethods<Dist_LookupOpInterface, ["getOffsetOperand", "takesOffset"]>]> {
  let summary = "rows of a table by index";
  let description = [{
    ids [...] and a table [rows, features] give [..., features]. `offset` is a
    scalar, the number of the local table's first row in the whole table. With it,
    an id outside the local rows gives zeros, and the result is unreduced over the
    axes that shard the rows.
  }];
  let arguments = (ins Nn_IntTensor:$ids, Nn_FloatTensor:$table, Optional<Nn_IntTensor>:$offset);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$ids `,` $table (`offset` $offset^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_RmsNormOp
    : Nn_Op<"rms_norm", [Dist_Combines, Dist_RowNorm],
            ["getFactorRule", "getPaddingNeed"]> {
  let summary = "x / sqrt(mean(x^2) + eps), times a weight, over the last dimension";
  let description = [{
    Computed in f32. With `unit_offset` the weight counts as 1 + w (Gemma).
  }];
  let arguments = (ins Nn_FloatTensor:$input, Optional<Nn_FloatTensor>:$weight, F64Attr:$eps,
                       UnitAttr:$unit_offset);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$input (`weight` $weight^)? `eps` $eps attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_LayerNormOp
    : Nn_Op<"layer_norm", [Dist_Combines, Dist_RowNorm, AttrSizedOperandSegments],
            ["getFactorRule", "getPaddingNeed"]> {
  let summary = "(x - mean) / sqrt(variance + eps), times a weight, plus a bias, over the last dimension";
  let description = [{
    Computed in f32.
  }];
  let arguments = (ins Nn_FloatTensor:$input, Optional<Nn_FloatTensor>:$weight,
                       Optional<Nn_FloatTensor>:$bias, F64Attr:$eps);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$input (`weight` $weight^)? (`bias` $bias^)? `eps` $eps attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_RotaryOp
    : Nn_Op<"rotary", [Dist_Combines, Dist_CountsElements],
            ["getFactorRule", "mayBroadcast", "getPaddingNeed"]> {
  let summary = "rotary position embedding on the first r of the last dimension's features";
  let description = [{
    cos and sin end in r features and otherwise broadcast against x, as NumPy's
    operands do. With y = x[..., :r], the result is y * cos + rotate(y) * sin,
    followed by x[..., r:]. rotate maps halves (a, b) to (-b, a), or, with
    `interleaved`, each pair (a, b) to (-b, a).

    ```mlir
    %y = nn.rotary %x, %cos, %sin : (tensor<1x4x7x16xf32>, tensor<1x1x7x16xf32>, tensor<1x1x7x16xf32>) -> tensor<1x4x7x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$input, Nn_FloatTensor:$cos, Nn_FloatTensor:$sin,
                       UnitAttr:$interleaved);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$input `,` $cos `,` $sin attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
