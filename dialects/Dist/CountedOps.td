//===- CountedOps.td - true rows of groups ------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_COUNTEDOPS_TD
#define MESHWRIGHT_DIALECTS_DIST_COUNTEDOPS_TD

/// An op between the rows of groups, `tokens` for each, and the true ones of all groups. The groups
/// of a replica share `rows` rows.
class Dist_CountedOp<string mnemonic, list<Trait> traits = []>
    : Dist_Op<mnemonic, !listconcat([Pure, Dist_MovesOnly,
        DeclareOpInterfaceMethods<Dist_ShardingRuleOpInterface, ["getFactorRule"]>,
        DeclareOpInterfaceMethods<Dist_PaddingOpInterface>], traits)> {
  let arguments = (ins AnyRankedTensor:$input, AnyRankedTensor:$counts, I64Attr:$tokens,
                       I64Attr:$rows, I64Attr:$dim);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `counts` $counts `tokens` $tokens `rows` $rows `dim` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Dist_CompactOp : Dist_CountedOp<"compact"> {
  let summary = "the true rows of groups, one group behind the other";
  let description = [{
    Dimension `dim` has `tokens` rows for each group, of which the first `counts[g]` are true. In the result
    they follow one another, group by group, and zeros follow them. Numbers of rows of at most
    `tokens` each, and of at most `rows` together, are the caller's to give.

    Where a program has several replicas of the groups, each has `rows` rows of its own.

    ```mlir
    %1 = dist.compact %0 counts %n tokens 8 rows 16 dim 1 : (tensor<1x32x64xf32>, tensor<4xi64>) -> tensor<1x16x64xf32>
    ```
  }];
}

def Dist_ExpandOp : Dist_CountedOp<"expand"> {
  let summary = "true rows at the places of their groups";
  let description = [{
    The inverse of `dist.compact`: rows behind the true ones of a group are zeros. Works on unreduced values
    too.

    ```mlir
    %1 = dist.expand %0 counts %n tokens 8 rows 16 dim 1 : (tensor<1x16x64xf32>, tensor<4xi64>) -> tensor<1x32x64xf32>
    ```
  }];
}

/// A collective that moves the true rows of groups alone. Each rank of `axes` has rows of one group,
/// and the numbers of all groups.
class Dist_CountedCollectiveOp<I32EnumAttrCase kind> : Dist_CollectiveOp<kind> {
  let countsRows = 1;
  let hasVerifier = 1;
}

def Dist_AllGatherVOp : Dist_CountedCollectiveOp<Dist_AllGatherVKind> {
  let lost = "dims";
  let summary = "joins the true rows that the group's ranks have";
  let description = [{
    The result of `dist.compact` on the whole that an all-gather of `dim` gives. Only true rows travel.

    Layout: dimension `dim` loses `axes`, which are all that shard the groups and their tokens.

    ```mlir
    %1, %m = dist.all_gather_v %0, %n axes ["tp"] tokens 8 rows 16 dims [1] : (tensor<1x4x64xf32>, tensor<4xi64>) -> (tensor<1x16x64xf32>, tensor<4xi64>)
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_AxesAttr:$axes, I64Attr:$tokens,
                       I64Attr:$rows, DenseI64ArrayAttr:$dims, Dist_RoleAttr:$role);
  let assemblyFormat = "$inputs `axes` custom<Axes>($axes) `tokens` $tokens `rows` $rows `dims` $dims (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
}

def Dist_ReduceScatterVOp : Dist_CountedCollectiveOp<Dist_ReduceScatterVKind> {
  let gained = "dims";
  let summary = "combines partial values of true rows; each rank gets those of its part";
  let description = [{
    The rank's chunk of what a reduce-scatter gives of the rows that `dist.expand` makes. Only true
    rows travel and are summed.

    Layout: unreduced over `axes` -> dimension `dim` gains them.

    ```mlir
    %1, %m = dist.reduce_scatter_v sum %0, %n axes ["tp"] tokens 8 rows 16 dims [1] : (tensor<1x16x64xf32>, tensor<4xi64>) -> (tensor<1x4x64xf32>, tensor<4xi64>)
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, Dist_CollectiveReductionAttr:$reduction,
                       Dist_AxesAttr:$axes, I64Attr:$tokens, I64Attr:$rows, DenseI64ArrayAttr:$dims,
                       Dist_RoleAttr:$role);
  let assemblyFormat = "$reduction $inputs `axes` custom<Axes>($axes) `tokens` $tokens `rows` $rows `dims` $dims (`role` $role^)? attr-dict `:` functional-type($inputs, $outputs)";
}

#endif
