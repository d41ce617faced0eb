//===- Serve.cpp - steps of serving from a causal forward pass ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/passes/serve/EntryBuilder.h"
#include "meshwright/passes/serve/Passes.h"

#include "llvm/Support/MathExtras.h"

namespace meshwright {
#define GEN_PASS_DEF_SERVEPASS
#include "meshwright/passes/serve/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct ServePass : meshwright::impl::ServePassBase<ServePass> {
  using ServePassBase::ServePassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
    if (functions.size() != 1) {
      emitError(module.getLoc()) << "expected one entry, the forward pass of a model, got "
                                 << functions.size();
      return signalPassFailure();
    }
    if (failed(check(module)))
      return signalPassFailure();
    FailureOr<CausalForward> forward = CausalForward::read(functions.front());
    if (failed(forward))
      return signalPassFailure();
    FailureOr<ServingSizes> sizes = getSizes(module, *forward);
    if (failed(sizes))
      return signalPassFailure();
    for (int64_t tokens : buckets)
      if (failed(build(*forward, *sizes, tokens)))
        return signalPassFailure();
    forward->getFunction().erase();
    nn::setServingSizes(module, *sizes);
  }

private:
  /// Builds the entries for so many tokens of a group: by itself, and for each number of tokens of all groups.
  LogicalResult build(const CausalForward &forward, const ServingSizes &sizes, int64_t tokens) {
    bool hasSums = gather != TokenGather::Max && sizes.groups > 1;
    if ((!hasSums || gather == TokenGather::Auto) && failed(buildEntry(forward, sizes, tokens)))
      return failure();
    for (int64_t sum : buckets)
      if (hasSums && sum >= tokens && sum <= sizes.groups * tokens &&
          failed(buildEntry(forward, sizes, tokens, sum)))
        return failure();
    return success();
  }

  LogicalResult check(ModuleOp module) {
    auto refuse = [&] { return emitError(module.getLoc()); };
    const std::pair<StringRef, int64_t> numbers[] = {
        {"groups", groups}, {"deal", deal}, {"page-size", pageSize}, {"requests", requests}};
    for (auto [name, number] : numbers)
      if (number < 1)
        return refuse() << name << ": expected at least 1, got " << number;
    if (pages < 0)
      return refuse() << "pages: expected at least 0, got " << int64_t(pages);
    if (buckets.empty())
      return refuse() << "buckets: expected at least one number of tokens";
    int64_t last = 0;
    for (int64_t tokens : buckets) {
      if (tokens <= last)
        return refuse() << "buckets: expected ascending numbers from 1 on, got " << tokens
                        << " behind " << last;
      last = tokens;
    }
    return success();
  }

  FailureOr<ServingSizes> getSizes(ModuleOp module, const CausalForward &forward) {
    ServingSizes sizes;
    sizes.groups = groups;
    sizes.deal = deal;
    sizes.maxLength = forward.getLength();
    sizes.pageSize = pageSize;
    int64_t each = sizes.countBlocks();
    // Each rank holds as many.
    sizes.pages = llvm::alignTo(pages ? int64_t(pages) : each * requests, deal);
    sizes.maxRequests = requests;
    sizes.vocabulary = forward.getVocabulary();
    sizes.sharesBeginnings = prefixCache;
    if (sizes.pages < each)
      return LogicalResult(emitError(module.getLoc())
                           << "pages: expected at least the " << each << " pages of one request of "
                           << sizes.maxLength << " tokens, got " << sizes.pages);
    return sizes;
  }
};
} // namespace
