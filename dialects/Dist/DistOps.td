//===- DistOps.td - meshes and collectives ------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_DISTOPS_TD
#define MESHWRIGHT_DIALECTS_DIST_DISTOPS_TD

include "meshwright/dialects/Dist/DistAttrs.td"
include "meshwright/dialects/Dist/DistInterfaces.td"
include "meshwright/dialects/Dist/OpTraits.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Dist_Op<string mnemonic, list<Trait> traits = []>
    : Op<Dist_Dialect, mnemonic, traits>;

def Dist_AxesAttr : TypedArrayAttrBase<Dist_AxisRefAttr, "list of axes"> {
  let constBuilderCall = "$0";
}

def Dist_MeshOp : Dist_Op<"mesh", [Symbol, HasParent<"::mlir::ModuleOp">, Dist_Structural]> {
  let summary = "defines a mesh";
  let description = [{
    ```mlir
    dist.mesh @mesh = <["dp"=2, "tp"=4]>
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Dist_MeshAttr:$mesh);
  let assemblyFormat = "$sym_name `=` $mesh attr-dict";
}

def Dist_ConstrainOp
    : Dist_Op<"constrain", [Pure, Dist_View, Dist_KeepsWeight, AllTypesMatch<["input", "result"]>]> {
  let summary = "states the sharding of a value of a global program";
  let description = [{
    ```mlir
    %1 = dist.constrain %0 <@mesh, [{"dp"}, {"tp"} ]> : tensor<8x16xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Dist_ShardingAttr:$sharding);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input $sharding attr-dict `:` type($input)";
  let hasVerifier = 1;
}

/// A weight between storage and use.
class Dist_StorageOp<string mnemonic, list<Trait> traits = []>
    : Dist_Op<mnemonic, !listconcat([Pure, Dist_View, AllTypesMatch<["input", "result"]>,
        DeclareOpInterfaceMethods<Dist_ShardingRuleOpInterface, ["getFactorRule"]>], traits)> {
  let results = (outs AnyRankedTensor:$result);
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The rows of a part of dimension 0: all of them, or `rows`.
    int64_t getPartRows();
  }];
}

def Dist_FetchOp : Dist_StorageOp<"fetch", [Dist_KeepsWeight]> {
  let summary = "the weight as it is used, of the weight as it is stored";
  let description = [{
    The identity in a global program. Dimension 0 of operand and result has no factor in common, so
    each has its own shards and its own padding; the other dimensions are tied. With `rows`, dimension
    0 is parts of so many rows. The number of the part is tied, and the rows within a part are not:
    ranks that use different parts store different ones. A shard of a part has a multiple of `align`
    rows.

    The SPMD program has collectives in its place: an all-gather of the stored rows, without their
    padding. With a `form` a `dist.round` follows, because the weight travels so.

    ```mlir
    %1 = dist.fetch %0 : tensor<8x16xf32>
    %2 = dist.fetch %0 rows 4 align 2 : tensor<8x16xf32>
    %3 = dist.fetch %0 align 32 form <mxfp8> : tensor<8x16xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, OptionalAttr<I64Attr>:$rows,
                       DefaultValuedAttr<I64Attr, "1">:$align, OptionalAttr<Dist_FormAttr>:$form);
  let assemblyFormat = "$input (`rows` $rows^)? (`align` $align^)? (`form` $form^)? attr-dict `:` type($input)";
}

def Dist_StowOp : Dist_StorageOp<"stow"> {
  let summary = "the gradient of a weight as it is stored, of that of the weight as it is used";
  let description = [{
    The derivative of `dist.fetch`, and the identity in a global program. Dimensions are tied as they
    are there. The SPMD program has a reduce-scatter in its place.

    ```mlir
    %1 = dist.stow %0 rows 4 align 2 : tensor<8x16xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, OptionalAttr<I64Attr>:$rows,
                       DefaultValuedAttr<I64Attr, "1">:$align);
  let assemblyFormat = "$input (`rows` $rows^)? (`align` $align^)? attr-dict `:` type($input)";
}

/// A weight between two forms. Each rank has the blocks of its own part.
class Dist_FormOp<string mnemonic, list<Trait> traits = []>
    : Dist_Op<mnemonic, !listconcat([Pure, Dist_Combines, Dist_KeepsWeight,
        DeclareOpInterfaceMethods<Dist_ShardingRuleOpInterface, ["getFactorRule"]>,
        DeclareOpInterfaceMethods<Dist_PaddingOpInterface>,
        DeclareOpInterfaceMethods<Dist_WorkOpInterface>], traits)> {
  let hasVerifier = 1;
}

def Dist_RoundOp : Dist_FormOp<"round", [AllTypesMatch<["input", "result"]>]> {
  let summary = "a weight whose elements are rounded to a form";
  let description = [{
    Each reader has the elements that `dist.decode` makes of the form for the dimension that this reader
    contracts. `--encode-fetches` puts these ops in its place.

    ```mlir
    %1 = dist.round %0 form <mxfp8> : tensor<64x16xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Dist_FormAttr:$form);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `form` $form attr-dict `:` type($input)";
}

def Dist_EncodeOp : Dist_FormOp<"encode"> {
  let summary = "a weight in the form in which it travels";
  let description = [{
    The result is a tensor of codes with a form (`#dist.form`). Each operation is one of f32, rounded to
    the nearest, ties to even:
    - mxfp8: t is the largest magnitude of the block times f32(1/448), the scale 2^e with
      e = ceil(log2 t) and at least -127, a code the f8E4M3FN of w 2^-e;
    - nvfp4: with a the largest magnitude of the whole weight, s = min(2688 / a, the largest f32), and 1
      for a = 0; the scale d of a block is the f8E4M3FN of min(m s f32(1/6), 448), where m is the largest
      magnitude of the block; a code is the f4E2M1FN of w min(1 / (d (1 / s)), the largest f32), clipped
      to -6 and 6.

    `largest` is a. Without it the operand is a parameter of the function, whose largest magnitude is
    known where it is loaded. An element that is not finite is an error of the run.

    ```mlir
    %1 = dist.encode %0 : (tensor<64x64xf32>) -> tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
    %2 = dist.encode %0 largest %a : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x64xf4E2M1FN, #dist.form<nvfp4>>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Optional<AnyRankedTensor>:$largest);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input (`largest` $largest^)? attr-dict `:` functional-type(operands, $result)";
  let extraClassDeclaration = [{
    FormAttr getForm();
  }];
}

def Dist_DecodeOp : Dist_FormOp<"decode"> {
  let summary = "a weight of the form in which it travelled";
  let description = [{
    - mxfp8: an element is its code times its scale;
    - nvfp4: an element is its code times (d a) f32(1/2688), each operation one of f32.

    The result is rounded to its element type. It may have the first rows only, where padding is behind
    them.

    ```mlir
    %1 = dist.decode %0 : (tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>) -> tensor<64x64xbf16>
    %2 = dist.decode %0 : (tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>) -> tensor<50x64xbf16>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type($input, $result)";
  let extraClassDeclaration = [{
    FormAttr getForm();
  }];
}

def Dist_LargestOp
    : Dist_Op<"largest", [Pure, Dist_Combines,
        DeclareOpInterfaceMethods<Dist_ShardingRuleOpInterface, ["getFactorRule"]>,
        DeclareOpInterfaceMethods<Dist_PaddingOpInterface, ["getPaddingNeed"]>,
        DeclareOpInterfaceMethods<Dist_WorkOpInterface>]> {
  let summary = "the largest magnitude of a weight";
  let description = [{
    Where the weight is sharded, the result is a part of a maximum. An element that is NaN makes it NaN.

    ```mlir
    %1 = dist.largest %0 : (tensor<64x64xf32>) -> tensor<f32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
}

/// A collective: local tensors in, local tensors out, one launch for all of
/// them. The mesh is that of the function around it. The fields answer
/// CollectiveOpInterface.
class Dist_CollectiveOp<I32EnumAttrCase kind, list<Trait> traits = []>
    : Dist_Op<kind.str, !listconcat([Pure, Dist_CollectiveOpInterface], traits)> {
  /// The argument that lists, for each operand, the dimension that loses the axes.
  string lost = "";
  /// The argument that lists, for each operand, the dimension that gains the axes.
  string gained = "";
  bit communicates = 1;
  bit movesChunks = 0;
  bit padsChunks = 0;
  bit countsRows = 0;
  list<string> perOperand = !if(countsRows, []<string>, !filter(name, [lost, gained], !ne(name, "")));
  /// The entry of operand i in a list of dimensions. Numbers of rows have none.
  string entry = !if(countsRows, "[i / 2]", "[i]");
  string none = !if(countsRows, "if (i % 2)\n    return std::nullopt;\n  ", "");

  let results = (outs Variadic<AnyRankedTensor>:$outputs);
  let hasFolder = 1;
  let extraClassDefinition = [{
    ::llvm::LogicalResult $cppClass::fold(
        FoldAdaptor, ::llvm::SmallVectorImpl<::mlir::OpFoldResult> &results) {
      return ::meshwright::dist::detail::foldCollective(*this, results);
    }
  }];
  code collectiveMethods =
      "static CollectiveKind getKind() { return CollectiveKind::" # kind.symbol # "; }\n" #
      "static bool communicates() { return " # !if(communicates, "true", "false") # "; }\n" #
      "static bool movesChunks() { return " # !if(movesChunks, "true", "false") # "; }\n" #
      "static bool padsChunks() { return " # !if(padsChunks, "true", "false") # "; }\n" #
      "static bool countsRows() { return " # !if(countsRows, "true", "false") # "; }\n" #
      "static ::llvm::ArrayRef<::llvm::StringRef> getPerOperandAttributes() {\n" #
      !if(!empty(perOperand), "  return {};\n",
          "  static const ::llvm::StringRef names[] = {\"" #
              !interleave(perOperand, "\", \"") # "\"};\n  return names;\n") # "}\n" #
      "std::optional<int64_t> getLostDim(unsigned i) {\n  " # none # "return " #
      !if(!empty(lost), "std::nullopt", "getProperties()." # lost # entry) # ";\n}\n" #
      "std::optional<int64_t> getGainedDim(unsigned i) {\n  " # none # "return " #
      !if(!empty(gained), "std::nullopt", "getProperties()." # gained # entry) # ";\n}\n";
  let extraClassDeclaration = collectiveMethods;
}

def Dist_AllReduceOp : Dist_CollectiveOp<Dist_AllReduceKind> {
  let summary = "combines partial values; every rank of the group gets the result";
  let description = [{
    Layout: unreduced over `axes` -> replicated over them.

    ```mlir
    %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2:2 = dist.all_reduce max %0, %a axes ["dp", "tp"] : (tensor<4x8xf32>, tensor<4xf32>) -> (tensor<4x8xf32>, tensor<4xf32>)
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_CollectiveReductionAttr:$reduction,
                       Dist_AxesAttr:$axes, Dist_RoleAttr:$role);
  let assemblyFormat = "$reduction $inputs `axes` custom<Axes>($axes) (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
}

def Dist_ReduceScatterOp : Dist_CollectiveOp<Dist_ReduceScatterKind> {
  let gained = "dims";
  let summary = "combines partial values; each rank of the group gets its chunk";
  let description = [{
    Layout: unreduced over `axes` -> dimension `dim` gains them as minor-most.

    ```mlir
    %1 = dist.reduce_scatter sum %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<1x8xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_CollectiveReductionAttr:$reduction,
                       Dist_AxesAttr:$axes, DenseI64ArrayAttr:$dims, Dist_RoleAttr:$role);
  let assemblyFormat = "$reduction $inputs `axes` custom<Axes>($axes) `dims` $dims (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
}

def Dist_AllGatherOp : Dist_CollectiveOp<Dist_AllGatherKind, [Dist_KeepsWeight]> {
  let lost = "dims";
  let summary = "concatenates the chunks of the group's ranks";
  let description = [{
    Layout: dimension `dim` loses `axes`, its minor-most ones -> replicated over
    them.

    ```mlir
    %1 = dist.all_gather %0 axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x32xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_AxesAttr:$axes,
                       DenseI64ArrayAttr:$dims, Dist_RoleAttr:$role);
  let assemblyFormat = "$inputs `axes` custom<Axes>($axes) `dims` $dims (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
}

def Dist_AllToAllOp : Dist_CollectiveOp<Dist_AllToAllKind, [Dist_KeepsWeight]> {
  let lost = "from";
  let gained = "to";
  let summary = "moves axes from one dimension to another";
  let description = [{
    Layout: dimension `from` loses `axes`, its minor-most ones, and dimension
    `to` gains them as minor-most. The local tensor is cut along `to`, chunk i
    goes to the group's rank i, and a rank concatenates the chunks that it receives
    along `from`.

    ```mlir
    %1 = dist.all_to_all %0 axes ["tp"] from [0] to [1] : (tensor<4x8xf32>) -> tensor<16x2xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_AxesAttr:$axes,
                       DenseI64ArrayAttr:$from, DenseI64ArrayAttr:$to, Dist_RoleAttr:$role);
  let assemblyFormat = "$inputs `axes` custom<Axes>($axes) `from` $from `to` $to (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
  let hasVerifier = 1;
}

def Dist_SliceOp : Dist_CollectiveOp<Dist_SliceKind, [Dist_TakesPart, Dist_KeepsWeight]> {
  let gained = "dims";
  let communicates = 0;
  let padsChunks = 1;
  let summary = "each rank keeps its own chunk of a replicated value";
  let description = [{
    Layout: replicated over `axes` -> dimension `dim` gains them as minor-most.
    Moves nothing. If the result's chunks together are larger than the operand, the
    operand is first padded with zeros at its tail. With a `shift` of s the rank with
    coordinate i keeps chunk (i - s) modulo the number of chunks, as if a
    `dist.permute` of that shift followed.

    ```mlir
    %1 = dist.slice %0 axes ["tp"] dims [1] : (tensor<4x32xf32>) -> tensor<4x8xf32>
    %2 = dist.slice %0 axes ["tp"] dims [1] shift 1 : (tensor<4x32xf32>) -> tensor<4x8xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_AxesAttr:$axes,
                       DenseI64ArrayAttr:$dims, DefaultValuedAttr<I64Attr, "0">:$shift);
  let assemblyFormat = "$inputs `axes` custom<Axes>($axes) `dims` $dims (`shift` $shift^)? attr-dict `:` functional-type($inputs, $outputs)";
  let extraClassDeclaration = collectiveMethods # [{
    ::llvm::SmallVector<int64_t> getChunkSources(int64_t ranks);
  }];
}

def Dist_PermuteOp : Dist_CollectiveOp<Dist_PermuteKind, [Dist_KeepsWeight]> {
  let movesChunks = 1;
  let summary = "sends whole local values to other ranks of the group";
  let description = [{
    `pairs` lists source and destination, as linear coordinates over `axes`; each
    rank is a destination at most once. A rank that is no destination receives nothing,
    waits for nothing and has zeros. Its chunk is missing: only attention may read it,
    if the mask hides all of the chunk there. A `shift` of s sends from coordinate i to
    (i + s) modulo the group's size.

    ```mlir
    %1 = dist.permute %0 axes ["tp"] shift 1 : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = dist.permute %0 axes ["dp", "tp"] pairs [[0, 0], [1, 2], [2, 1], [3, 3]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %3 = dist.permute %0 axes ["tp"] pairs [[0, 1], [1, 2], [2, 3]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_AxesAttr:$axes,
                       OptionalAttr<I64Attr>:$shift,
                       OptionalAttr<DenseI64ArrayAttr>:$pairs, Dist_RoleAttr:$role);
  let assemblyFormat = "$inputs `axes` custom<Axes>($axes) (`shift` $shift^)? (`pairs` custom<Pairs>($pairs)^)? (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
  let hasVerifier = 1;
  let extraClassDeclaration = collectiveMethods # [{
    ::llvm::SmallVector<int64_t> getChunkSources(int64_t ranks);
  }];
}

def Dist_RedistributeOp : Dist_CollectiveOp<Dist_RedistributeKind, [Dist_KeepsWeight]> {
  let perOperand = ["from", "to"];
  let movesChunks = 1;
  let padsChunks = 1;
  let summary = "from one layout to another in one launch of paired sends";
  let description = [{
    Layout: `from` -> `to`, neither with unreduced axes. Each row is fetched
    from a rank that holds it, in equal parts if several ranks do.

    ```mlir
    %1 = dist.redistribute %0 from [#dist.sharding<@mesh, [{"dp"}, {} ]>] to [#dist.sharding<@mesh, [{}, {"tp"} ]>] : (tensor<4x8xf32>) -> tensor<8x2xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs,
                       TypedArrayAttrBase<Dist_ShardingAttr, "shardings">:$from,
                       TypedArrayAttrBase<Dist_ShardingAttr, "shardings">:$to, Dist_RoleAttr:$role);
  let assemblyFormat = "$inputs `from` $from `to` $to (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
  let extraClassDeclaration = collectiveMethods # [{
    std::optional<std::pair<ShardingAttr, ShardingAttr>> getShardings(unsigned i) {
      return std::pair(::llvm::cast<ShardingAttr>(getFrom()[i]),
                       ::llvm::cast<ShardingAttr>(getTo()[i]));
    }
  }];
  let hasVerifier = 1;
}

def Dist_PartialOp : Dist_CollectiveOp<Dist_PartialKind> {
  let communicates = 0;
  let summary = "makes a replicated value an unreduced one";
  let description = [{
    Layout: replicated over `axes` -> unreduced over them. Moves nothing.

    A partial sum is zero on all ranks but the group's first. The parts of a maximum
    (`max`) are the value itself, on all ranks.

    ```mlir
    %1 = dist.partial %0 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = dist.partial max %0 axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_AxesAttr:$axes,
                       UnitAttr:$is_maximum);
  let assemblyFormat = "(`max` $is_maximum^)? $inputs `axes` custom<Axes>($axes) attr-dict `:` functional-type($inputs, $outputs)";
}

def Dist_PadOp : Dist_Op<"pad", [Pure, Dist_MovesOnly, Dist_TouchesPadding]> {
  let summary = "appends padding to dimensions";
  let description = [{
    Zeros are appended at the tail of each of `dims`, up to the result's size.
    They are padding: the true size stays. The opposite is an `nn.slice` of the
    true rows. Works on unreduced values too.

    ```mlir
    %1 = dist.pad %0 dims [0] : (tensor<13x8xf32>) -> tensor<16x8xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, DenseI64ArrayAttr:$dims);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `dims` $dims attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
}

def Dist_MaskPaddingOp : Dist_Op<"mask_padding", [Pure, Dist_MovesOnly, Dist_TouchesPadding, AllTypesMatch<["input", "result"]>]> {
  let summary = "overwrites a dimension's padding";
  let description = [{
    Dimension `dim`, sharded over `axes`, has `size` true rows in all. The rows
    behind them, on all ranks, become `value`.

    ```mlir
    %1 = dist.mask_padding %0 axes ["tp"] dim 0 size 13 value 0.0 : tensor<4x8xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Dist_AxesAttr:$axes, I64Attr:$dim, I64Attr:$size,
                       F64Attr:$value);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `axes` custom<Axes>($axes) `dim` $dim `size` $size `value` $value attr-dict `:` type($input)";
  let hasVerifier = 1;
}

def Dist_ReorderOp : Dist_Op<"reorder", [Pure, Dist_MovesOnly, Dist_TouchesPadding, AllTypesMatch<["input", "result"]>]> {
  let summary = "puts the elements of a whole dimension in another order";
  let description = [{
    Layout: dimension `dim`, which no axis shards, goes from one order of its true
    elements to the other. Padding stays its tail. Moves nothing between ranks.

    ```mlir
    %1 = dist.reorder %0 dim 1 from <14 pad 16> to <14 pad 16 zigzag 4> : tensor<3x16xi64>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, I64Attr:$dim, Dist_FactorShardingAttr:$from,
                       Dist_FactorShardingAttr:$to);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `dim` $dim `from` $from `to` $to attr-dict `:` type($input)";
  let hasVerifier = 1;
}

def Dist_PlaceOp : Dist_Op<"place", [Pure, Dist_MovesOnly]> {
  let summary = "puts chunks at their places in a whole dimension";
  let description = [{
    The opposite of `dist.slice`. Operand i is a chunk of dimension `dim`, which is sharded
    over `axes`: the rank with coordinate c holds chunk (c - `shifts`[i]) modulo the number
    of chunks. The result has each of them at its place, and zeros for the other chunks. Moves
    nothing between ranks.

    Layout: dimension `dim` loses `axes`. The result is unreduced over them, unless they shard
    another dimension. Several operands are parts of one gradient of attention in different
    steps of a ring, together all that the mask needs.

    ```mlir
    %1 = dist.place %0 axes ["tp"] dim 1 shifts [1] : (tensor<4x8xf32>) -> tensor<4x32xf32>
    %4 = dist.place %2, %3 axes ["tp"] dim 1 shifts [0, 1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x32xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$chunks, Dist_AxesAttr:$axes, I64Attr:$dim,
                       DenseI64ArrayAttr:$shifts);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$chunks `axes` custom<Axes>($axes) `dim` $dim `shifts` $shifts attr-dict `:` functional-type($chunks, $result)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The shift of each chunk, from 0 to `ranks` - 1.
    ::llvm::SmallVector<int64_t> getWrappedShifts(int64_t ranks);
  }];
}

def Dist_PartsOp : Dist_Op<"parts", [Pure, Dist_View]> {
  let summary = "the parts of a sum, one a rank, as a dimension";
  let description = [{
    The operand is a part of a sum over `axes`. The result has a dimension more, the first, with an
    element for each part: it is sharded over `axes`, and the sum over it is the sum of the parts. Moves
    nothing.

    Layout: unreduced over `axes` -> dimension 0 is sharded over them.

    ```mlir
    %1 = dist.parts %0 axes ["tp"] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, Dist_AxesAttr:$axes);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `axes` custom<Axes>($axes) attr-dict `:` functional-type($input, $result)";
  let hasVerifier = 1;
}

def Dist_PositionsOp : Dist_Op<"positions", [Pure, Dist_Generates, Dist_TouchesPadding]> {
  let summary = "the true positions of a rank's elements of a sharded dimension";
  let description = [{
    One number for each element that the rank holds of a dimension with the layout
    `factor`; -1 for padding. A `shift` as in `dist.slice`. `size` is the number of true
    elements of a factor that has a run-time size.

    ```mlir
    %0 = dist.positions <14 pad 16 zigzag 2{"tp"}> : tensor<4xi64>
    %1 = dist.positions <14 pad 16 zigzag 2{"tp"}> shift 1 : tensor<4xi64>
    %2 = dist.positions <16 size @tokens{"tp"}> of %n : tensor<i64> : tensor<4xi64>
    ```
  }];
  let arguments = (ins Dist_FactorShardingAttr:$factor, Optional<0DTensorOf<[I64]>>:$size,
                       DefaultValuedAttr<I64Attr, "0">:$shift);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$factor (`of` $size^ `:` type($size))? (`shift` $shift^)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Dist_AfterOp : Dist_Op<"after", [Pure, Dist_View, Dist_KeepsWeight, AllTypesMatch<["input", "result"]>]> {
  let summary = "a value whose readers wait for another value";
  let description = [{
    The result is `input`, in the same buffer and layout. Nothing that reads the result runs
    before `earlier` is computed. Of `earlier` nothing else is read, so it may be in any layout.
    Two ops that differ in `earlier` alone are not one op for CSE.

    ```mlir
    %1 = dist.after %0, %g : tensor<4x8xf32>, tensor<16xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$input, AnyRankedTensor:$earlier);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `,` $earlier attr-dict `:` type($input) `,` type($earlier)";
}

def Dist_AxisIndexOp : Dist_Op<"axis_index", [Pure, Dist_Generates]> {
  let summary = "the rank's linear coordinate over axes, times a chunk size";
  let description = [{
    If each rank has `chunk` rows of a dimension that is sharded over `axes`, this is
    the first row of the rank's chunk. Without `chunk` it is the coordinate itself.

    ```mlir
    %0 = dist.axis_index ["tp"] : tensor<i64>
    %1 = dist.axis_index ["dp", "tp"] chunk 128 : tensor<i64>
    ```
  }];
  let arguments = (ins Dist_AxesAttr:$axes, DefaultValuedAttr<I64Attr, "1">:$chunk);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "custom<Axes>($axes) (`chunk` $chunk^)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

include "meshwright/dialects/Dist/CountedOps.td"

#endif
