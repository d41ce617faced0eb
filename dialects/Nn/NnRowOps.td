//===- NnRowOps.td - operations on the rows that exist ------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `compact-rows` writes these ops for those of routed tensors, in the local program. A routed tensor
// [experts, tokens..., features...] becomes a tensor [capacity, 1..., features...] of the rows that
// exist, expert by expert, and for each expert in the order of the tokens. Its dimensions of tokens have
// size 1. Rows behind the last one are never read.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNROWOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNROWOPS_TD

include "meshwright/dialects/Nn/NnBase.td"
include "meshwright/dialects/Nn/NnInterfaces.td"

/// Another operand counts the rows of each expert, so the op on some of the rows alone makes no sense.
def Nn_CountsRows : NativeOpTrait<"CountsRows"> {
  let cppNamespace = "::meshwright::nn";
}

class Nn_RowsOp<string mnemonic, list<Trait> traits, list<string> own = ["getFactorRule"]>
    : Nn_Op<mnemonic, !listconcat([DeclareOpInterfaceMethods<Nn_RoutedOpInterface>], traits), own>;

def Nn_RouteOp : Nn_RowsOp<"route", [Dist_Combines, AttrSizedOperandSegments]> {
  let summary = "the places of the rows of a routing";
  let description = [{
    The indices are [tokens..., k]. A choice of an expert from `offset` (zero without one) on, of
    `experts` ones, has a row. `offsets` [experts + 1] has the first row of each expert, and the
    number of all rows. `choices` [capacity] has for each row the number of its choice, in row-major
    order of the indices, and -1 for rows that do not exist. `places` [tokens..., k] has the row of
    each choice, or -1.

    An index that is -1 has no row. Other indices must be in range: below `experts`, or below `total`,
    the experts of all ranks. More rows than the capacity are an error. `layer` is the number of the
    routing among those of the program, for reports.

    With `shared`, so many experts that follow one another are a group, and the results are those of
    groups: a token has one row for each group, at the place of its first choice in it. With `rows`,
    the indices [rows, 1..., k] are rows that experts share, of which these are the offsets. A row has
    places for the experts of its group, and those behind the last row have none.

    ```mlir
    %offsets, %choices, %places = nn.route %i {experts = 8 : i64} : (tensor<2x7x2xi64>) -> (tensor<9xi64>, tensor<28xi64>, tensor<2x7x2xi64>)
    ```
  }];
  let arguments = (ins Nn_IntTensor:$indices, Optional<Nn_IntTensor>:$offset,
                       Optional<Nn_I64Tensor>:$rows, I64Attr:$experts, OptionalAttr<I64Attr>:$total,
                       OptionalAttr<I64Attr>:$shared, OptionalAttr<I64Attr>:$layer);
  let results = (outs Nn_I64Tensor:$offsets, Nn_I64Tensor:$choices, Nn_I64Tensor:$places);
  let assemblyFormat = "$indices (`offset` $offset^)? (`rows` $rows^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

/// Numbers count the rows of the result that exist, or of the operand that the op sums.
defvar Nn_GivesCountedRows = DeclareOpInterfaceMethods<Nn_CountedRowsOpInterface>;
defvar Nn_SumsCountedRows = DeclareOpInterfaceMethods<Nn_CountedRowsOpInterface, ["givesRows"]>;

def Nn_TakeRowsOp : Nn_RowsOp<"take_rows", [Dist_MovesOnly, Nn_GivesCountedRows]> {
  let summary = "rows of tokens, or numbers of their choices, by the choices of a route";
  let description = [{
    The input has `tokens` dimensions of tokens, and features behind. Row r of the result
    [capacity, 1..., features...] is that of the token of choice `choices[r]`, which is
    `choices[r] / group`; where the choice is -1 it is not defined. With `each` the input is [tokens..., group], and row r is the number of the
    choice. With `nested` tokens are rows themselves: the input is [rows, 1..., features...].

    ```mlir
    %r = nn.take_rows %x, %choices {group = 2 : i64, tokens = 2 : i64} : (tensor<2x7x16xf32>, tensor<28xi64>) -> tensor<28x1x1x16xf32>
    %w = nn.take_rows %v, %choices {each, group = 2 : i64, tokens = 2 : i64} : (tensor<2x7x2xf32>, tensor<28xi64>) -> tensor<28x1x1xf32>
    ```
  }];
  let arguments = (ins Nn_Tensor:$input, Nn_I64Tensor:$choices, I64Attr:$group, I64Attr:$tokens,
                       UnitAttr:$each, UnitAttr:$nested);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "$input `,` $choices attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_SumRowsOp : Nn_RowsOp<"sum_rows", [Dist_Combines]> {
  let summary = "sums of the rows of each token's choices";
  let description = [{
    Rows are [capacity, 1..., features...] and places [tokens..., k]. The result is
    [tokens..., features...], the sum of the rows at the places of a token. Place -1 adds nothing. With
    `each` rows are [capacity, 1...], and the result [tokens..., k] is the number of each choice, or
    zero. With `nested` tokens are rows themselves: places are [rows, 1..., k]. The sum is computed in f32 (f64 for f64), in the order of the choices, and rounds once.

    ```mlir
    %y = nn.sum_rows %r, %places : (tensor<28x1x1x16xf32>, tensor<2x7x2xi64>) -> tensor<2x7x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$rows, Nn_I64Tensor:$places, UnitAttr:$each, UnitAttr:$nested);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$rows `,` $places attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_RepeatRowsOp : Nn_RowsOp<"repeat_rows", [Dist_MovesOnly, Nn_CountsRows, Nn_GivesCountedRows]> {
  let summary = "for each row the row of its expert";
  let description = [{
    The table is [experts, 1..., features...], and the result [capacity, 1..., features...].

    ```mlir
    %b = nn.repeat_rows %bias, %offsets : (tensor<8x1x1x16xf32>, tensor<9xi64>) -> tensor<28x1x1x16xf32>
    ```
  }];
  let arguments = (ins Nn_Tensor:$table, Nn_I64Tensor:$offsets);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "$table `,` $offsets attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_SumGroupsOp : Nn_RowsOp<"sum_groups", [Dist_Combines, Nn_CountsRows, Nn_SumsCountedRows]> {
  let summary = "the sum of the rows of each expert";
  let description = [{
    The transpose of `nn.repeat_rows`, in the type of sums. An expert without rows has zeros. `total`
    is the number of the experts of all ranks, as in `nn.route`.

    ```mlir
    %db = nn.sum_groups %dr, %offsets : (tensor<28x1x1x16xf32>, tensor<9xi64>) -> tensor<8x1x1x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$rows, Nn_I64Tensor:$offsets, OptionalAttr<I64Attr>:$total);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$rows `,` $offsets attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_GroupedProductOp
    : Nn_RowsOp<"grouped_product", [Dist_Combines, Dist_Product, Dist_MatrixOpInterface, Nn_CountsRows, Nn_GivesCountedRows],
            ["getFactorRule", "getFlops"]> {
  let summary = "the rows of each expert times its own weight";
  let description = [{
    `nn.grouped_linear` on the rows that exist.

    ```mlir
    %y = nn.grouped_product %r, %w, %offsets : (tensor<28x1x1x16xf32>, tensor<8x32x16xf32>, tensor<9xi64>) -> tensor<28x1x1x32xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$rows, Nn_FloatTensor:$weight, Nn_I64Tensor:$offsets,
                       UnitAttr:$in_out);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$rows `,` $weight `,` $offsets attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_GroupedOuterOp
    : Nn_RowsOp<"grouped_outer", [Dist_Combines, Dist_Product, Nn_CountsRows, Nn_SumsCountedRows], ["getFactorRule", "getFlops"]> {
  let summary = "the sum over the rows of each expert of outer products";
  let description = [{
    `nn.grouped_weight_grad` on the rows that exist. `total` is the number of the experts of all
    ranks, as in `nn.route`.

    ```mlir
    %dw = nn.grouped_outer %dy, %r, %offsets : (tensor<28x1x1x32xf32>, tensor<28x1x1x16xf32>, tensor<9xi64>) -> tensor<8x32x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$lhs, Nn_FloatTensor:$rhs, Nn_I64Tensor:$offsets,
                       OptionalAttr<I64Attr>:$total);
  let results = (outs StaticShapeTensorOf<[F32, F64]>:$result);
  let assemblyFormat = "$lhs `,` $rhs `,` $offsets attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

/// An op that moves rows between the ranks along `axes`, which shard tokens on one side and experts
/// on the other.
class Nn_MovedRowsOp<string mnemonic> : Nn_RowsOp<mnemonic, [Dist_MovesOnly, Nn_CountsRows, Nn_GivesCountedRows]> {
  let hasVerifier = 1;
}

def Nn_SendRowsOp : Nn_MovedRowsOp<"send_rows"> {
  let summary = "sends the rows of tokens to the ranks of their experts";
  let description = [{
    Ranks along `axes` have tokens of their own, and rows of all experts for these, which `offsets`
    [experts + 1] counts. Rank i takes the rows of its experts from all ranks: those from i * n on, where
    the results have n. The rows come expert by expert, then in the order of the ranks that send them. `own` [n + 1]
    counts them by expert, and `parts` [n * ranks + 1] by expert and sender. Ranks send counts first. Reports
    name the routing `layer`.

    ```mlir
    %r, %parts, %own = nn.send_rows %x, %offsets axes [#dist.axis_ref<"ep">] : (tensor<28x1x1x16xf32>, tensor<9xi64>) -> (tensor<56x1x1x16xf32>, tensor<9xi64>, tensor<5xi64>)
    ```
  }];
  let arguments = (ins Nn_Tensor:$rows, Nn_I64Tensor:$offsets, ArrayAttr:$axes, OptionalAttr<I64Attr>:$layer);
  let results = (outs Nn_Tensor:$result, Nn_I64Tensor:$parts, Nn_I64Tensor:$own);
  let assemblyFormat = "$rows `,` $offsets `axes` $axes attr-dict `:` functional-type(operands, results)";
}

def Nn_ReturnRowsOp : Nn_MovedRowsOp<"return_rows"> {
  let summary = "sends the rows of experts back to the ranks of their tokens";
  let description = [{
    The opposite of `nn.send_rows`, whose `parts` tell the rows of each sender, and whose `offsets` the places
    to which they return.

    ```mlir
    %x = nn.return_rows %r, %parts, %offsets axes [#dist.axis_ref<"ep">] : (tensor<56x1x1x16xf32>, tensor<9xi64>, tensor<9xi64>) -> tensor<28x1x1x16xf32>
    ```
  }];
  let arguments = (ins Nn_Tensor:$rows, Nn_I64Tensor:$parts, Nn_I64Tensor:$offsets,
                       ArrayAttr:$axes);
  let results = (outs Nn_Tensor:$result);
  let assemblyFormat = "$rows `,` $parts `,` $offsets `axes` $axes attr-dict `:` functional-type(operands, results)";
}

#endif
