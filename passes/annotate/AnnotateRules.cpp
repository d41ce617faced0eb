//===- AnnotateRules.cpp - shardings by parameter name --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/Passes.h"

#include "mlir/AsmParser/AsmParser.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATERULESPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

/// Notes the dimensions of size 1 whose axes shard nothing.
static void noteUncut(ShardingAttr attr, BlockArgument arg, StringRef pattern, StringRef name) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(arg.getType()).getShape();
  for (auto [d, dim] : llvm::enumerate(attr.getDims())) {
    auto isSharded = [](FactorShardingAttr factor) { return !factor.getAxes().empty(); };
    if (shape[d] != 1 || llvm::none_of(dim.getFactors(), isSharded))
      continue;
    DistDialect::getDecisionLog(arg.getContext())
        .add("annotate-rules", Outcome::Declined, arg.getLoc(),
             llvm::formatv("rule \"{0}\" shards nothing of dimension {1} of parameter '{2}', which has "
                           "size 1: each rank holds it whole",
                           pattern, d, name)
                 .str());
  }
}

namespace {

struct AnnotateRulesPass : meshwright::impl::AnnotateRulesPassBase<AnnotateRulesPass> {
  using AnnotateRulesPassBase::AnnotateRulesPassBase;
  void runOnOperation() override {
    markAnalysesPreserved<SharedFactorAnalysis>();
    const std::vector<ShardingRule> &rules = shardings.getValue().rules;
    if (rules.empty())
      return;
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    SmallVector<bool> matched(rules.size(), false);
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      SmallVector<Attribute> attrs(func.getNumArguments());
      WeightFinder weights(func);
      for (BlockArgument arg : func.getArguments()) {
        unsigned index = arg.getArgNumber();
        std::optional<Weight> weight = weights.find(arg);
        if (!weight)
          continue;
        SmallVector<StringAttr, 1> names = weight->getNames();
        for (auto [i, rule] : llvm::enumerate(rules)) {
          if (llvm::none_of(names, [&rule = rule](StringRef known) { return rule.matches(known); }))
            continue;
          matched[i] = true;
          std::string text =
              "#dist.sharding<@" + meshOp->getSymName().str() + ", " + rule.sharding + ">";
          auto attr = dyn_cast_or_null<ShardingAttr>(parseAttribute(text, &getContext()));
          if (!attr) {
            module.emitError() << "rule \"" << rule.pattern << "\": '" << rule.sharding
                               << "' is no sharding: expected [{\"axis\"}, {}]";
            return signalPassFailure();
          }
          auto complain = [&, &rule = rule]() {
            return emitError(arg.getLoc())
                   << "rule \"" << rule.pattern << "\" on parameter '" << weight->name.getValue() << "': ";
          };
          auto sharding = readSharding(attr, arg, *factors, meshOp->getMesh(), complain);
          if (failed(sharding))
            return signalPassFailure();
          noteUncut(attr, arg, rule.pattern, weight->name.getValue());
          attrs[index] = attr;
          break;
        }
      }
      setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
    }
    for (auto [i, rule] : llvm::enumerate(rules))
      if (!matched[i])
        module.emitWarning() << "rule \"" << rule.pattern << "\" matches no parameter";
  }
};

} // namespace
