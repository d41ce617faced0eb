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
    zeros. Rows behind a length are not read, and entries of a table behind it may be anything in
    range.

    `soft_cap` bounds the scores as in `nn.attention`. `slopes` [q_heads] adds slope times the
    distance, a number that is not positive, to each score (ALiBi). `sinks` [q_heads] are further
    scores, which have no value.

    ```mlir
    %o = nn.paged_attention %q, %k, %v tables %t starts %s lengths %l scale 0.25 {window_left = 5 : i64} : (tensor<1x6x4x16xf32>, tensor<1x8x4x2x16xf32>, tensor<1x8x4x2x16xf32>, tensor<1x3x5xi64>, tensor<1x4xi64>, tensor<1x3xi64>) -> tensor<1x6x4x16xf32>
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$query, Nn_FloatTensor:$keys, Nn_FloatTensor:$values,
                       Nn_I64Tensor:$tables, Nn_I64Tensor:$starts, Nn_I64Tensor:$lengths,
                       Optional<Nn_FloatTensor>:$slopes, Optional<Nn_FloatTensor>:$sinks,
                       F64Attr:$scale, OptionalAttr<I64Attr>:$window_left,
                       OptionalAttr<F64Attr>:$soft_cap);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = "$query `,` $keys `,` $values `tables` $tables `starts` $starts `lengths` $lengths (`slopes` $slopes^)? (`sinks` $sinks^)? `scale` $scale attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
