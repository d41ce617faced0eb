//===- NnServeOps.td - caches in pages ----------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A cache has groups of pages [groups, pages, page size, heads, features]. Requests own pages of
// their group, and tables say which. Ids of pages count within a group.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNSERVEOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNSERVEOPS_TD

include "meshwright/dialects/Nn/NnBase.td"
include "meshwright/dialects/Nn/NnInterfaces.td"

class Nn_PagesOp<string mnemonic, list<Trait> traits>
    : Nn_Op<mnemonic, !listconcat(traits, [Dist_CountsElements,
              DeclareOpInterfaceMethods<Dist_ExpandOpInterface, ["needsExpansion"]>])>;

def Nn_PageWriteOp : Nn_PagesOp<"page_write", [Dist_MovesOnly]> {
  let summary = "replaces rows of pages";
  let description = [{
    Row t of `rows` [groups, tokens, heads, features] becomes row slot mod page size of page
    slot / page size of its group. Slot -1 has no row. Slots [groups, tokens] must differ.

    ```mlir
    %1 = nn.page_write %0, %rows, %slots : (tensor<1x8x4x2x16xf32>, tensor<1x6x2x16xf32>, tensor<1x6xi64>) -> tensor<1x8x4x2x16xf32>
    ```
  }];
  let arguments = (ins Nn_MovedTensor:$pages, Nn_MovedTensor:$rows, Nn_I64Tensor:$slots);
  let results = (outs Nn_MovedTensor:$result);
  let assemblyFormat = "$pages `,` $rows `,` $slots attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Nn_PagedAttentionOp : Nn_PagesOp<"paged_attention", [Dist_Combines, AttrSizedOperandSegments]> {
  let summary = "attention of the last tokens of requests to all of their tokens, in pages";
  let description = [{
    Tokens starts[r] to starts[r + 1] of the query [groups, tokens, q_heads, d] are the last ones of
    request r. Its keys and values are the first lengths[r] rows of the pages that row r of the
    tables [groups, requests, blocks] names, the request's own tokens included. A token sees the keys
    up to its position, and no more than `window_left` before it. A token behind the last start gives
    zeros. Rows behind a length do not reach a result, and entries of a table behind it may be
    anything in range, or -1.

    `soft_cap` bounds the scores as in `nn.attention`. `slopes` [q_heads] adds slope times the
    distance, a number that is not positive, to each score (ALiBi). `distances` [q_heads, n] adds a number of each
    distance: the last one is that of the token's own key, the one before that of the key before it, and the
    first one that of all keys before these. They are in the type of the log-sum-exp. `sinks` [q_heads] are
    further scores, which have no value.

    A result of fewer features than the values have reads the first columns of each row. Keys and
    values may then be the same pages, as the latent rows of a model with compressed keys are.

    The optional second result is the log-sum-exp over the keys that a token sees [groups, tokens,
    q_heads], without the sinks, in f32 (f64 for f64). It is -inf for a token that sees no key.

    With `deals` [ranks], blocks of a request are dealt over `deal` ranks: tables are [groups, ranks,
    requests, blocks / deal], entry j of table i is block j * deal + deals[i], and ids count within
    the pages of table i, which are its share of the pages. With `parts`, each table's keys are cut
    into so many ranges of whole pages. In both forms the results are one for each part of the keys
    [groups, ranks * parts, tokens, q_heads, dv], in the type of the log-sum-exp, which is required
    then [groups, ranks * parts, tokens, q_heads]. `nn.merge_parts` joins them.

    ```mlir
    %o = nn.paged_attention %q, %k, %v tables %t starts %s lengths %l scale 0.25 {window_left = 5 : i64} : (tensor<1x6x4x16xf32>, tensor<1x8x4x2x16xf32>, tensor<1x8x4x2x16xf32>, tensor<1x3x5xi64>, tensor<1x4xi64>, tensor<1x3xi64>) -> tensor<1x6x4x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$query, Nn_FloatTensor:$keys, Nn_FloatTensor:$values,
                       Nn_I64Tensor:$tables, Nn_I64Tensor:$starts, Nn_I64Tensor:$lengths,
                       Optional<Nn_I64Tensor>:$deals, Optional<Nn_FloatTensor>:$slopes,
                       Optional<Nn_FloatTensor>:$sinks, Optional<Nn_FloatTensor>:$distances,
                       F64Attr:$scale, OptionalAttr<I64Attr>:$window_left, OptionalAttr<F64Attr>:$soft_cap,
                       OptionalAttr<I64Attr>:$deal, OptionalAttr<I64Attr>:$parts);
  let results = (outs Nn_FloatTensor:$result, Optional<Nn_FloatTensor>:$lse);
  let assemblyFormat = "$query `,` $keys `,` $values `tables` $tables `starts` $starts `lengths` $lengths (`deals` $deals^)? (`slopes` $slopes^)? (`sinks` $sinks^)? (`distances` $distances^)? `scale` $scale attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Returns true if the results are those of parts of the keys.
    bool hasParts();
    /// The number of these parts, of all tables.
    int64_t getNumParts();
  }];
}

def Nn_MergePartsOp : Nn_PagesOp<"merge_parts", [Dist_Combines]> {
  let summary = "joins attention over parts of the keys";
  let description = [{
    The operands are results of attention [groups, parts, tokens, heads, dv], over keys of which none
    is in two parts, and their log-sum-exps [groups, parts, tokens, heads]. The result is attention
    over all of these keys [groups, tokens, heads, dv]. The optional second result is its log-sum-exp
    [groups, tokens, heads]. Rows of a part whose log-sum-exp is -inf are not read. Parts are added
    in their order. `sinks` [heads] are further scores, which have no value; the log-sum-exp is
    without them.

    ```mlir
    %o = nn.merge_parts %p, %l : (tensor<1x2x6x4x16xf32>, tensor<1x2x6x4xf32>) -> tensor<1x6x4x16xbf16>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$parts, Nn_FloatTensor:$lses, Optional<Nn_FloatTensor>:$sinks);
  let results = (outs Nn_FloatTensor:$result, Optional<Nn_FloatTensor>:$lse);
  let assemblyFormat = "$parts `,` $lses (`sinks` $sinks^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
