//===- NnAttentionOps.td - attention and its backward pass --*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNATTENTIONOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNATTENTIONOPS_TD

include "meshwright/dialects/Nn/NnBase.td"
include "meshwright/dialects/Nn/NnInterfaces.td"

/// An op that computes the scores of attention. Its operands begin with those of the scores.
class Nn_ScoresOp<string mnemonic, list<Trait> traits, list<string> own>
    : Nn_Op<mnemonic, !listconcat([Dist_Combines, Dist_Product, AttrSizedOperandSegments,
                                   Nn_ScoresOpInterface], traits), own> {
  dag scoreOperands = (ins Nn_FloatTensor:$query, Nn_FloatTensor:$key, Nn_FloatTensor:$value,
                       Optional<Nn_BoolTensor>:$key_padding, Optional<Nn_FloatTensor>:$bias,
                       Optional<Nn_I64Tensor>:$q_positions, Optional<Nn_I64Tensor>:$kv_positions,
                       Optional<Nn_I64Tensor>:$kv_lengths,
                       Optional<Nn_I64Tensor>:$drop_rows, Optional<Nn_I64Tensor>:$drop_keys,
                       Optional<Nn_I64Tensor>:$seed, Optional<Nn_I64Tensor>:$step);
  dag scoreAttributes = (ins F64Attr:$scale, UnitAttr:$causal,
                         OptionalAttr<I64Attr>:$window_left, OptionalAttr<I64Attr>:$window_right,
                         OptionalAttr<I64Attr>:$kv_length, OptionalAttr<F64Attr>:$soft_cap,
                         OptionalAttr<F64Attr>:$dropout, OptionalAttr<I64Attr>:$stream);
  string maskFormat = "(`key_padding` $key_padding^)? (`bias` $bias^)? (`positions` $q_positions^ `,` $kv_positions)? (`kv_lengths` $kv_lengths^)? (`drop_at` $drop_rows^ `,` $drop_keys `seed` $seed `step` $step)? ";
  string scaleFormat = "`scale` $scale attr-dict `:` functional-type(operands, results)";
}

def Nn_AttentionOp
    : Nn_ScoresOp<"attention", [DeclareOpInterfaceMethods<Dist_LogSumExpOpInterface>,
                                Nn_DropoutOpInterface],
                  ["getFactorRule", "mayBroadcast", "getFlops"]> {
  let summary = "softmax(scale * q k^T + mask) v";
  let description = [{
    q is [batch, q_heads, q_len, d], k [batch, kv_heads, kv_len, d], v [batch,
    kv_heads, kv_len, dv]; q_heads is a multiple of kv_heads, and query head h
    reads key head h / (q_heads / kv_heads). The result is [batch, q_heads,
    q_len, dv].

    The mask is structure: query i sees key j if all of these hold:
    - `causal`: j <= i;
    - `window_left` = w: j >= i - w;  `window_right` = w: j <= i + w;
    - `kv_length` = n: j < n (the keys behind are padding);
    - `kv_lengths` [batch] (i64) = n: j < n[batch];
    - `key_padding` [batch, kv_len] (i1): true at (batch, j).

    With `positions` q_positions, kv_positions (i64), `causal`, the windows and
    `kv_lengths` compare q_positions[i] and kv_positions[j] instead of i and j, for
    chunks of a longer sequence in any order. Positions are [q_len] and [kv_len], or
    with the batch in front [batch, q_len] and [batch, kv_len]; one of the two may have
    the batch alone. A key of negative position is padding: no query sees it under any
    mask. `kv_length` still counts keys by their index.

    `soft_cap` c replaces scaled scores s by c * tanh(s / c). `bias` is added
    after that; it broadcasts to [batch, q_heads, q_len, kv_len]. A query that
    sees no key gives zeros. Computed in f32.

    With `drop_at` rows, keys, a weight of the softmax is dropped as by `nn.dropout` of the
    probability `dropout`, of the stream `stream`. The index of the weight of query i and key j
    of a head is rows[batch, head, i] + keys[j]. The log-sum-exp is that of all weights.

    The optional second result is the log-sum-exp: the logarithm of the sum of
    exp(score) over the keys that a query sees [batch, q_heads, q_len], in f32 or f64 (f64
    for f64). It is -inf for a query that sees no key. `nn.merge_attention` joins
    attention over parts of the keys by it. In f64, the log-sum-exp of f32 scores with a
    maximum of 2^30 or more stands for that maximum by a smaller number, so that it still
    tells the number of keys. A mask of the least finite number makes such scores.

    ```mlir
    %o = nn.attention %q, %k, %v key_padding %m scale 0.25 {causal} : (tensor<1x4x7x16xf32>, tensor<1x2x7x16xf32>, tensor<1x2x7x16xf32>, tensor<1x7xi1>) -> tensor<1x4x7x16xf32>
    ```
  }];
  let arguments = !con(scoreOperands, scoreAttributes);
  let results = (outs Nn_FloatTensor:$result, Optional<Nn_FloatTensor>:$lse);
  let assemblyFormat = "$query `,` $key `,` $value " # maskFormat # scaleFormat;
  let hasVerifier = 1;
  let extraClassDeclaration = [{ void removeDropout(); }];
}

def Nn_AttentionGradOp
    : Nn_ScoresOp<"attention_grad", [],
                  ["getFactorRule", "mayBroadcast", "getFlops", "statesSummedNeeds", "getSummedNeed"]> {
  let summary = "the gradients of attention with respect to query, key, value and bias";
  let description = [{
    Query, key, value, mask, scale, cap and dropout are those of an `nn.attention`. Its further
    operands are
    - `lse` [batch, q_heads, q_len]: the log-sum-exp of the attention, over all keys;
    - `delta` [batch, q_heads, q_len]: the sum of cotangent times result over the features,
      minus the cotangent of the log-sum-exp if that has one; in f32 (f64 for f64);
    - `cotangent` [batch, q_heads, q_len, dv], of the result.

    With p = exp(score - lse) and ds = p * (cotangent v^T - delta), the results are
    ds k * scale, ds^T q * scale, p^T cotangent and, if the op has a fourth result, ds, which
    is summed to the shape of the bias. A soft cap multiplies ds by its derivative before the
    products. Dropout applies to p in the third product and to cotangent v^T. Results are in f32 (f64 for f64) and computed in it. A pair of a query and a key
    that the mask hides adds nothing, so a query that sees no key has zeros. An lse of
    minus infinity also gives zeros. No p is above 1.

    The keys may be some of the keys of the attention: lse and delta are of all keys, so the
    query's gradients of disjoint parts add up.

    ```mlir
    %dq, %dk, %dv = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %do scale 0.25 {causal} : (tensor<1x4x7x16xf32>, tensor<1x2x7x16xf32>, tensor<1x2x7x16xf32>, tensor<1x4x7xf32>, tensor<1x4x7xf32>, tensor<1x4x7x16xf32>) -> (tensor<1x4x7x16xf32>, tensor<1x2x7x16xf32>, tensor<1x2x7x16xf32>)
    ```
  }];
  let arguments = !con(scoreOperands, (ins Nn_FloatTensor:$lse, Nn_FloatTensor:$delta,
                                       Nn_FloatTensor:$cotangent), scoreAttributes);
  let results = (outs Nn_FloatTensor:$query_grad, Nn_FloatTensor:$key_grad,
                      Nn_FloatTensor:$value_grad, Optional<Nn_FloatTensor>:$bias_grad);
  let assemblyFormat = "$query `,` $key `,` $value " # maskFormat # "`lse` $lse `delta` $delta `cotangent` $cotangent " # scaleFormat;
  let hasVerifier = 1;
}

def Nn_MergeAttentionOp
    : Nn_Op<"merge_attention", [Dist_Combines,
              DeclareOpInterfaceMethods<Dist_LogSumExpOpInterface>],
            ["getFactorRule"]> {
  let summary = "joins attention over two parts of the keys";
  let description = [{
    The operands are two results of `nn.attention` [batch, heads, q_len, dv], over keys
    of which none is in both, each with its log-sum-exp [batch, heads, q_len]. The
    results are attention over all of these keys and its log-sum-exp. A query that sees
    no key of either part gives zeros and -inf. Computed in the type of the log-sum-exp.

    ```mlir
    %o, %l = nn.merge_attention %a, %la, %b, %lb : (tensor<1x4x7x16xf32>, tensor<1x4x7xf32>, tensor<1x4x7x16xf32>, tensor<1x4x7xf32>) -> (tensor<1x4x7x16xf32>, tensor<1x4x7xf32>)
    ```
  }];
  let arguments = (ins Nn_FloatTensor:$first, Nn_FloatTensor:$first_lse, Nn_FloatTensor:$second,
                       Nn_FloatTensor:$second_lse);
  let results = (outs Nn_FloatTensor:$result, Nn_FloatTensor:$lse);
  let assemblyFormat = "$first `,` $first_lse `,` $second `,` $second_lse attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
