//===- Passes.td - serve -----------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_PASSES_TD
#define MESHWRIGHT_PASSES_SERVE_PASSES_TD

include "mlir/Pass/PassBase.td"

include "meshwright/passes/serve/LatentPasses.td"

def ServePass : Pass<"serve", "::mlir::ModuleOp"> {
  let summary = "steps of serving from the forward pass of a causal language model";
  let description = [{
    The entry maps the tokens of one sequence [1, length] to logits [1, length, vocabulary], its first
    output. Each bucket of tokens becomes an entry that computes the last tokens of several requests
    at once: `tokens=T` has T tokens in each group. All entries share weights and caches.

    - A value along the tokens has a row for each of the groups * T tokens, group by group.
    - A value that depends on the position alone is computed for the positions of the tokens (rotary
      factors), or is a table of all positions, of which each token takes its row (learned positions,
      slices of parameters, sums over positions, and all of them in a step of as many tokens as positions).
    - Attention writes its keys and values into pages, the states `cache.PATH.keys` and
      `cache.PATH.values` [groups, pages, page size, heads, features] of the module of that path, and
      reads them through tables (`nn.page_write`, `nn.paged_attention`). The second attention of a
      module has the path `PATH@1`. Values that are columns of the keys have no pages of their own:
      the state is `cache.PATH.latent`.
    - What follows the last attention is computed for the last token of each request.

    The inputs of an entry are `tokens`, `positions` and `slots` [groups, T], `tables` [groups,
    requests, blocks], `starts` [groups, requests + 1] and `lengths` [groups, requests], as
    `nn.paged_attention` has them. Its outputs are `next` [groups, requests], the largest logit's
    token (of equals the lowest), and `logits` [groups, requests, vocabulary]. The module's
    attribute `nn.serving` has the sizes.

    It is an error if an op that depends on the tokens mixes them in another way than by causal
    attention.

    Before:
    ```mlir
    func.func @main(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x4xf32> {nn.parameter = "e"},
                    %p: tensor<6x4xf32> {nn.parameter = "p"})
        -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
      %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x4xf32>) -> tensor<1x6x4xf32>
      %1 = nn.add %0, %p : (tensor<1x6x4xf32>, tensor<6x4xf32>) -> tensor<1x6x4xf32>
      %2 = nn.linear %1, %e : (tensor<1x6x4xf32>, tensor<9x4xf32>) -> tensor<1x6x9xf32>
      return %2 : tensor<1x6x9xf32>
    }
    ```
    After, with `page-size=2 requests=1 buckets=3`:
    ```mlir
    module attributes {nn.serving = {deal = 1 : i64, groups = 1 : i64, max_length = 6 : i64, page_size = 2 : i64, pages = 3 : i64, requests = 1 : i64, vocabulary = 9 : i64}} {
      func.func @"tokens=3"(%arg0: tensor<1x3xi64> {nn.input = "tokens"}, %arg1: tensor<1x3xi64> {nn.input = "positions"}, %arg2: tensor<1x3xi64> {nn.input = "slots"},
                            %arg3: tensor<1x1x3xi64> {nn.input = "tables"}, %arg4: tensor<1x2xi64> {nn.input = "starts"}, %arg5: tensor<1x1xi64> {nn.input = "lengths"},
                            %arg6: tensor<9x4xf32> {nn.parameter = "e"}, %arg7: tensor<6x4xf32> {nn.parameter = "p"})
              -> (tensor<1x1xi64> {nn.output = "next"}, tensor<1x1x9xf32> {nn.output = "logits"}) {
        %0 = nn.reshape %arg1 : (tensor<1x3xi64>) -> tensor<3xi64>
        %1 = nn.slice %arg4 starts [0, 1] limits [1, 2] strides [1, 1] : (tensor<1x2xi64>) -> tensor<1x1xi64>
        %2 = nn.constant dense<-1> : tensor<i64>
        %3 = nn.add %1, %2 : (tensor<1x1xi64>, tensor<i64>) -> tensor<1x1xi64>
        %4 = nn.constant dense<0> : tensor<i64>
        %5 = nn.maximum %3, %4 : (tensor<1x1xi64>, tensor<i64>) -> tensor<1x1xi64>
        %6 = nn.reshape %5 : (tensor<1x1xi64>) -> tensor<1xi64>
        %7 = nn.gather %0, %6 dim 0 : (tensor<3xi64>, tensor<1xi64>) -> tensor<1xi64>
        %8 = nn.reshape %5 : (tensor<1x1xi64>) -> tensor<1xi64>
        %9 = nn.gather %arg0, %8 dim 1 : (tensor<1x3xi64>, tensor<1xi64>) -> tensor<1x1xi64>
        %10 = nn.embedding %9, %arg6 : (tensor<1x1xi64>, tensor<9x4xf32>) -> tensor<1x1x4xf32>
        %11 = nn.gather %arg7, %7 dim 0 : (tensor<6x4xf32>, tensor<1xi64>) -> tensor<1x4xf32>
        %12 = nn.add %10, %11 : (tensor<1x1x4xf32>, tensor<1x4xf32>) -> tensor<1x1x4xf32>
        %13 = nn.linear %12, %arg6 : (tensor<1x1x4xf32>, tensor<9x4xf32>) -> tensor<1x1x9xf32>
        %14 = nn.reduce  max %13 dims [2] {keep_dims} : (tensor<1x1x9xf32>) -> tensor<1x1x1xf32>
        %15 = nn.constant dense<8> : tensor<i64>
        %16 = nn.iota dim 2 : tensor<1x1x9xi64>
        %17 = nn.sub %15, %16 : (tensor<i64>, tensor<1x1x9xi64>) -> tensor<1x1x9xi64>
        %18 = nn.compare  eq %13, %14 : (tensor<1x1x9xf32>, tensor<1x1x1xf32>) -> tensor<1x1x9xi1>
        %19 = nn.constant dense<-1> : tensor<i64>
        %20 = nn.select %18, %17, %19 : (tensor<1x1x9xi1>, tensor<1x1x9xi64>, tensor<i64>) -> tensor<1x1x9xi64>
        %21 = nn.reduce  max %20 dims [2] : (tensor<1x1x9xi64>) -> tensor<1x1xi64>
        %22 = nn.sub %15, %21 : (tensor<i64>, tensor<1x1xi64>) -> tensor<1x1xi64>
        return %22, %13 : tensor<1x1xi64>, tensor<1x1x9xf32>
      }
    }
    ```
  }];
  let options = [
    Option<"pageSize", "page-size", "int64_t", /*default=*/"16", "rows of a page">,
    Option<"pages", "pages", "int64_t", /*default=*/"0",
           "pages of a cache; 0: enough for the requests at full length">,
    Option<"requests", "requests", "int64_t", /*default=*/"64", "requests in a step, at most">,
    Option<"groups", "groups", "int64_t", /*default=*/"1", "groups of requests">,
    Option<"deal", "deal", "int64_t", /*default=*/"1", "ranks over which a group's pages are dealt">,
    Option<"gather", "gather", "::meshwright::TokenGather", "::meshwright::TokenGather::Max",
           "entries for the tokens of each group alone (max), for those of each and of all groups (sum), or "
           "both (auto)">,
    Option<"prefixCache", "prefix-cache", "bool", /*default=*/"false",
           "share whole pages of equal beginnings">,
    ListOption<"buckets", "buckets", "int64_t", "tokens of a step, ascending">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
