//===- PropagateShardings.cpp - a sharding for every value ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/ShardingPropagation.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/passes/propagate/Passes.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_PROPAGATESHARDINGSPASS
#include "meshwright/passes/propagate/Passes.h.inc"
} // namespace meshwright

/// Logs annotations that disagree, once for each pair of places.
static void reportConflicts(ArrayRef<ShardingPropagation::Conflict> conflicts, MeshAttr mesh) {
  if (conflicts.empty())
    return;
  llvm::DenseSet<std::pair<const void *, const void *>> said;
  DecisionLog &log = DistDialect::getDecisionLog(mesh.getContext());
  for (const auto &conflict : conflicts) {
    if (!said.insert({conflict.firstOrigin.getAsOpaquePointer(),
                      conflict.secondOrigin.getAsOpaquePointer()})
             .second)
      continue;
    SourceLocation first = getSourceLocation(conflict.firstOrigin);
    SourceLocation second = getSourceLocation(conflict.secondOrigin);
    auto place = [](const SourceLocation &where) {
      return llvm::formatv("{0} ({1}:{2})", where.name, where.file, where.line).str();
    };
    log.add("propagate-shardings", Outcome::Note, conflict.op->getLoc(),
            llvm::formatv("conflicting shardings of one dimension: {0} from {1}, {2} from {3}; "
                          "one of them is resharded here",
                          toString(conflict.firstAxes, mesh), place(first),
                          toString(conflict.secondAxes, mesh), place(second))
                .str());
  }
}

namespace {

/// Writes the result of the propagation to the program.
class ShardingWriter {
public:
  ShardingWriter(const ShardingPropagation &shardings, const FactorAnalysis &factors, MeshOp mesh)
      : shardings(shardings), factors(factors), mesh(mesh.getMesh()),
        symbol(FlatSymbolRefAttr::get(mesh)) {}

  void write(func::FuncOp func);
  /// Writes the shardings of the module's states. One that no function touches is replicated,
  /// unless the user states otherwise.
  void writeStates(ModuleOp module);

private:
  ShardingAttr spell(Value value) const;
  static ShardingAttr keepUnreduced(ShardingAttr attr, ShardingAttr declared);

  const ShardingPropagation &shardings;
  const FactorAnalysis &factors;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
};

} // namespace

/// A value that the user declares unreduced stays so.
ShardingAttr ShardingWriter::keepUnreduced(ShardingAttr attr, ShardingAttr declared) {
  if (!declared || declared.getUnreduced().empty())
    return attr;
  return ShardingAttr::get(attr.getContext(), attr.getMesh(), attr.getDims(),
                           declared.getUnreduced(), declared.getReduction());
}

ShardingAttr ShardingWriter::spell(Value value) const {
  return keepUnreduced(writeSharding(shardings.get(value), value, factors, mesh, symbol),
                       getShardingAttr(value));
}

void ShardingWriter::write(func::FuncOp func) {
  Block &block = func.getBody().front();
  SmallVector<Attribute> arguments;
  for (BlockArgument arg : block.getArguments())
    arguments.push_back(spell(arg));
  setArgumentAttrs(func, DistDialect::kShardingAttr, arguments);
  for (Operation &op : block.without_terminator())
    for (Value value : op.getResults())
      setShardingAttr(value, spell(value));
  SignatureAttrs signatures;
  for (auto [i, value] : llvm::enumerate(block.getTerminator()->getOperands()))
    if (!func.getResultAttr(i, DistDialect::kShardingAttr))
      signatures.setResult(func, i, DistDialect::kShardingAttr, spell(value));
}

void ShardingWriter::writeStates(ModuleOp module) {
  llvm::DenseMap<StringAttr, ShardingAttr> known;
  SignatureAttrs signatures;
  for (auto [i, value] : llvm::enumerate(factors.getSharedValues())) {
    if (!value.state)
      continue;
    SmallVector<StatedSharding> stated = getStatedShardings(value);
    ShardingAttr attr = keepUnreduced(
        writeSharding(shardings.getShared(i), value.getFirst(), factors, mesh, symbol),
        stated.empty() ? ShardingAttr() : dyn_cast<ShardingAttr>(stated.front().attr));
    known[value.name] = attr;
    setSharding(value, attr, signatures);
  }
  for (auto state : module.getOps<nn::StateOp>()) {
    ShardingAttr &attr = known[state.getSymNameAttr()];
    if (!attr && state->hasAttr(DistDialect::kShardingAttr))
      continue;
    if (!attr)
      attr = getSharding(Layout::getReplicated(state.getMemoryType().getShape()), symbol, mesh);
    state->setAttr(DistDialect::kShardingAttr, attr);
  }
}

namespace {
struct PropagateShardingsPass
    : meshwright::impl::PropagateShardingsPassBase<PropagateShardingsPass> {
  void runOnOperation() override {
    markAnalysesPreserved<SharedFactorAnalysis>();
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
    auto &factors = SharedFactorAnalysis::get(getAnalysisManager(), functions);
    if (failed(factors))
      return signalPassFailure();
    auto shardings = ShardingPropagation::run(functions, *factors, meshOp->getMesh());
    if (failed(shardings))
      return signalPassFailure();
    reportConflicts(shardings->getConflicts(), meshOp->getMesh());
    ShardingWriter writer(*shardings, *factors, *meshOp);
    // The layouts of states come first: the other results keep what they have.
    writer.writeStates(module);
    for (func::FuncOp func : functions)
      writer.write(func);
  }
};
} // namespace
