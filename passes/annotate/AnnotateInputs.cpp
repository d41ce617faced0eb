//===- AnnotateInputs.cpp - the mesh, rules and the batch -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Analysis/FactorAnalysis.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"
#include "meshwright/passes/annotate/Passes.h"

#include "mlir/AsmParser/AsmParser.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_DECLAREMESHPASS
#define GEN_PASS_DEF_ANNOTATERULESPASS
#define GEN_PASS_DEF_ANNOTATEDATAPARALLELPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

/// Parses pass options through the one list of options.
static FailureOr<ParallelizeOptions> parseOptions(Operation *op, const Twine &text) {
  return parseParallelizeOptions(text.str(), [&](const Twine &message) -> LogicalResult {
    return op->emitError() << message;
  });
}

namespace {

struct DeclareMeshPass : meshwright::impl::DeclareMeshPassBase<DeclareMeshPass> {
  using DeclareMeshPassBase::DeclareMeshPassBase;
  void runOnOperation() override {
    ModuleOp module = getOperation();
    std::string text;
    if (!mesh.empty())
      text += "mesh=" + mesh + " ";
    if (!device.empty())
      text += "device='" + device + "'";
    auto options = parseOptions(module, text);
    if (failed(options))
      return signalPassFailure();
    auto meshes = llvm::to_vector(module.getOps<MeshOp>());
    // Whoever plans, plans for a device there is: the cost model takes another
    // for none.
    auto checkDevice = [&](StringRef spelling, Location location) {
      std::string error;
      if (getDevice(spelling, &error))
        return true;
      emitError(location) << error;
      return false;
    };
    if (!checkDevice(device, module.getLoc()))
      return signalPassFailure();
    for (MeshOp mesh : meshes)
      if (!checkDevice(mesh.getMesh().getDevice(), mesh.getLoc()))
        return signalPassFailure();
    if (options->mesh.empty()) {
      if (meshes.empty()) {
        module.emitError() << "no mesh: expected a 'mesh' option or a dist.mesh in the module";
        return signalPassFailure();
      }
      return;
    }
    SmallVector<MeshAxisAttr> axes;
    for (const MeshAxisOption &axis : options->mesh)
      axes.push_back(MeshAxisAttr::get(&getContext(), axis.name, axis.size));
    auto attr = MeshAttr::getChecked([&] { return module.emitError(); }, &getContext(),
                                     ArrayRef<MeshAxisAttr>(axes), StringRef(device));
    if (!attr)
      return signalPassFailure();
    if (!meshes.empty()) {
      MeshAttr own = meshes.front().getMesh();
      bool same = meshes.size() == 1 && own.getAxes().size() == axes.size();
      for (size_t i = 0; same && i < axes.size(); ++i)
        same = own.getAxes()[i].getName() == axes[i].getName() &&
               own.getAxes()[i].getSize() == axes[i].getSize();
      if (!same) {
        meshes.front().emitOpError() << "differs from the 'mesh' option " << attr;
        return signalPassFailure();
      }
      return;
    }
    OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
    MeshOp::create(builder, module.getLoc(), "mesh", attr);
  }
};

struct AnnotateRulesPass : meshwright::impl::AnnotateRulesPassBase<AnnotateRulesPass> {
  using AnnotateRulesPassBase::AnnotateRulesPassBase;
  void runOnOperation() override {
    markAnalysesPreserved<SharedFactorAnalysis>();
    if (shardings.empty())
      return;
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    // A command line takes the braces off.
    std::string rules = StringRef(shardings).starts_with("{") ? shardings : "{" + shardings + "}";
    auto options = parseOptions(module, "shardings=" + rules);
    if (failed(options))
      return signalPassFailure();
    SmallVector<bool> matched(options->shardings.size(), false);
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      SmallVector<Attribute> attrs(func.getNumArguments());
      for (BlockArgument arg : func.getArguments()) {
        unsigned index = arg.getArgNumber();
        auto name = func.getArgAttrOfType<StringAttr>(index, nn::NnDialect::kParameterAttr);
        if (!name)
          continue;
        SmallVector<StringRef> names{name.getValue()};
        if (auto aliases = func.getArgAttrOfType<ArrayAttr>(index, nn::NnDialect::kAliasesAttr))
          for (auto alias : aliases.getAsRange<StringAttr>())
            names.push_back(alias.getValue());
        for (auto [i, rule] : llvm::enumerate(options->shardings)) {
          if (llvm::none_of(names, [&](StringRef known) { return rule.matches(known); }))
            continue;
          matched[i] = true;
          std::string text =
              "#dist.sharding<@" + meshOp->getSymName().str() + ", " + rule.sharding + ">";
          auto attr = dyn_cast_or_null<ShardingAttr>(parseAttribute(text, &getContext()));
          if (!attr) {
            module.emitError() << "rule \"" << rule.pattern << "\": '" << rule.sharding
                               << "' is no sharding, expected [{\"axis\"}, {}]";
            return signalPassFailure();
          }
          auto complain = [&]() {
            return emitError(arg.getLoc())
                   << "rule \"" << rule.pattern << "\" on parameter '" << name.getValue() << "': ";
          };
          if (failed(readSharding(attr, arg, *factors, meshOp->getMesh(), complain)))
            return signalPassFailure();
          attrs[index] = attr;
          break;
        }
      }
      setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
    }
    for (auto [i, rule] : llvm::enumerate(options->shardings))
      if (!matched[i])
        module.emitWarning() << "rule \"" << rule.pattern << "\" matches no parameter";
  }
};

struct AnnotateDataParallelPass
    : meshwright::impl::AnnotateDataParallelPassBase<AnnotateDataParallelPass> {
  using AnnotateDataParallelPassBase::AnnotateDataParallelPassBase;
  void runOnOperation() override {
    markAnalysesPreserved<SharedFactorAnalysis>();
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    MeshAttr mesh = meshOp->getMesh();
    int index = axis.empty() ? -1 : mesh.getAxisIndex(axis);
    if (!axis.empty() && index < 0 && !optional) {
      meshOp->emitOpError() << "has no axis \"" << axis << "\" to split the batch over";
      return signalPassFailure();
    }
    DecisionLog &log = DistDialect::getDecisionLog(&getContext());
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      int64_t batch = -1;
      SmallVector<Attribute> attrs(func.getNumArguments());
      for (BlockArgument arg : func.getArguments()) {
        if (!func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) || getShardingAttr(arg))
          continue;
        ValueSharding sharding = ValueSharding::getReplicated(factors->getLeaves(arg));
        auto type = cast<RankedTensorType>(arg.getType());
        bool isFirst = batch < 0;
        if (isFirst)
          batch = type.getRank() > 0 ? type.getDimSize(0) : 0;
        if (index >= 0 && type.getRank() > 0 && type.getDimSize(0) == batch) {
          int64_t shards = mesh.getAxes()[index].getSize();
          // A dimension of size 1 has no leaf: nothing tells it from one that
          // broadcasts.
          if (!sharding.dims[0].empty() && shards > 1)
            sharding.dims[0][0] = {{index, 1, shards}};
          if (isFirst && batch <= 1 && shards > 1)
            log.add("annotate-data-parallel", Outcome::Declined, arg.getLoc(),
                    llvm::formatv("a batch of {0} is not split over {1} ranks of \"{2}\": each "
                                  "computes all of it; a batch of at least {1} would be split",
                                  batch, shards, axis)
                        .str(),
                    {{"batch", double(batch)}, {"ranks", double(shards)}});
          else if (isFirst && shards > 1)
            log.add("annotate-data-parallel", Outcome::Applied, arg.getLoc(),
                    llvm::formatv(
                        "a batch of {0} is split over {1} ranks of \"{2}\"{3}", batch, shards, axis,
                        batch % shards
                            ? llvm::formatv(", padded to {0}", llvm::alignTo(batch, shards)).str()
                            : std::string())
                        .str(),
                    {{"batch", double(batch)}, {"ranks", double(shards)}});
        }
        attrs[arg.getArgNumber()] =
            writeSharding(sharding, arg, *factors, mesh, FlatSymbolRefAttr::get(*meshOp));
      }
      setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
    }
  }
};

} // namespace
