//===- ChooseFold.cpp - how a stage lies on the axes of others ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/ChooseFold.h"

#include "meshwright/lib/Stages/Stages.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/passes/optimise/Passes.h"
#include "meshwright/passes/partition/Passes.h"
#include "meshwright/passes/propagate/Passes.h"
#include "meshwright/passes/schedule/PlannedMemory.h"

#include "mlir/Bytecode/BytecodeWriter.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// An alternative with more collectives must save this share of the time of one with
/// fewer: closer than that the model does not tell them apart.
static constexpr double kLeastSaving = 0.15;

/// The same against a split batch, which halves the arithmetic as well: all that is left
/// to save is time to read weights, and that only as long as kernels keep up with the
/// memory.
static constexpr double kLeastSavingOfReading = 0.3;

/// The stage as a program of its own: what other stages give it are inputs, what
/// they read are outputs.
static OwningOpRef<ModuleOp> extractStage(func::FuncOp func, MeshOp meshOp, StringRef stage) {
  OpBuilder builder(func.getContext());
  OwningOpRef<ModuleOp> module = ModuleOp::create(func.getLoc());
  builder.setInsertionPointToEnd(module->getBody());
  builder.clone(*meshOp);

  SmallVector<Operation *> ops;
  llvm::SetVector<Value> inputs;
  SmallVector<Value> outputs;
  for (Operation &op : func.getBody().front().without_terminator()) {
    if (getStage(&op) != stage)
      continue;
    ops.push_back(&op);
    for (Value operand : op.getOperands())
      if (!operand.getDefiningOp() || getStage(operand.getDefiningOp()) != stage)
        inputs.insert(operand);
    for (Value result : op.getResults())
      if (llvm::any_of(result.getUsers(), [&](Operation *user) { return getStage(user) != stage; }))
        outputs.push_back(result);
  }
  SmallVector<Value> arguments(inputs.begin(), inputs.end());
  // The first input stays the first: it says what the batch is.
  llvm::stable_sort(arguments, [](Value a, Value b) {
    auto x = dyn_cast<BlockArgument>(a), y = dyn_cast<BlockArgument>(b);
    return x && y ? x.getArgNumber() < y.getArgNumber() : bool(x) && !y;
  });
  auto type =
      builder.getFunctionType(TypeRange(ValueRange(arguments)), TypeRange(ValueRange(outputs)));
  auto copy = func::FuncOp::create(builder, func.getLoc(), "main", type);
  Block *body = copy.addEntryBlock();
  builder.setInsertionPointToEnd(body);
  IRMapping mapping;
  for (auto [i, value] : llvm::enumerate(arguments)) {
    mapping.map(value, body->getArgument(i));
    if (auto argument = dyn_cast<BlockArgument>(value))
      copy.setArgAttrs(i, func.getArgAttrDict(argument.getArgNumber()));
    else
      copy.setArgAttr(i, nn::NnDialect::kInputAttr,
                      builder.getStringAttr(llvm::formatv("from others {0}", i).str()));
  }
  for (Operation *op : ops)
    builder.clone(*op, mapping);
  SmallVector<Value> results;
  for (auto [i, value] : llvm::enumerate(outputs)) {
    results.push_back(mapping.lookup(value));
    copy.setResultAttr(i, nn::NnDialect::kOutputAttr,
                       builder.getStringAttr(llvm::formatv("to others {0}", i).str()));
  }
  func::ReturnOp::create(builder, func.getLoc(), results);
  return module;
}

namespace {

/// One way to lay the stage out, planned.
struct Planned {
  ProgramCost cost;
  Memory memory;
  /// Why the mode cannot be had; empty if it can.
  std::string note;
};

} // namespace

/// Plans the stage in a context of its own, so that neither decisions nor
/// diagnostics of what is not chosen are seen.
static Planned plan(StringRef bytecode, MLIRContext *from, const FoldEncoderPassOptions &options) {
  DialectRegistry registry;
  from->getDialectRegistry().appendTo(registry);
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  std::string error;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && error.empty())
      error = diagnostic.str();
  });
  Planned planned;
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(bytecode, ParserConfig(&context));
  if (!module) {
    planned.note = error;
    return planned;
  }
  PassManager manager(&context);
  manager.addPass(createFoldEncoderPass(options));
  AnnotateScatterModesPassOptions scatter;
  scatter.axis = options.tensor;
  scatter.optional = true;
  scatter.mode = options.sequenceParallel;
  if (!options.tensor.empty())
    manager.addPass(createAnnotateScatterModesPass(scatter));
  manager.addPass(createPropagateShardingsPass());
  manager.addPass(createPartitionPass());
  if (options.sequenceParallel != OnOffAuto::Off) {
    DecomposeAllReducePassOptions decompose;
    decompose.when = options.sequenceParallel;
    manager.addNestedPass<func::FuncOp>(createDecomposeAllReducePass(decompose));
    manager.addNestedPass<func::FuncOp>(createSinkAllGatherPass());
  }
  manager.addNestedPass<func::FuncOp>(createCombineCollectivesPass());
  if (failed(manager.run(*module))) {
    planned.note = error.empty() ? "cannot be planned" : error;
    return planned;
  }
  auto func = *module->getOps<func::FuncOp>().begin();
  auto meshOp = *module->getOps<MeshOp>().begin();
  planned.cost = getProgramCost(func, CostModel(meshOp.getMesh()));
  planned.memory = planMemory(func).memory;
  for (const Decision &decision : DistDialect::getDecisionLog(&context).get())
    if (decision.pass == "fold-encoder" && decision.outcome == Outcome::Declined)
      planned.note = decision.message;
  return planned;
}

/// Bytes of weights that the stage does not read, as a rank holds them at least.
static int64_t getOtherWeights(func::FuncOp func, StringRef stage, int64_t shards) {
  int64_t bytes = 0;
  for (BlockArgument argument : func.getArguments()) {
    bool isOwn =
        llvm::any_of(argument.getUsers(), [&](Operation *user) { return getStage(user) == stage; });
    if (!isOwn && func.getArgAttr(argument.getArgNumber(), nn::NnDialect::kParameterAttr))
      bytes += getTensorBytes(argument.getType());
  }
  return bytes / shards;
}

static std::string formatTime(int64_t picoseconds) {
  return llvm::formatv("{0:f3} ms", double(picoseconds) * 1e-9).str();
}

static std::string formatMemory(int64_t bytes) {
  return llvm::formatv("{0:f2} GB", double(bytes) * 1e-9).str();
}

static std::string getName(const FoldCandidate &candidate, MeshAttr mesh, bool isTensorParallel) {
  std::string over = " over " + toString(candidate.axes, mesh);
  if (candidate.mode == FoldMode::None)
    return isTensorParallel ? "none (tensor parallel)" : "replicate";
  if (candidate.mode == FoldMode::Batch)
    return "batch" + over;
  return "fold " + stringify(candidate.mode).str() + over;
}

FailureOr<FoldMode> meshwright::chooseFold(func::FuncOp func, MeshOp meshOp,
                                              ArrayRef<FoldCandidate> candidates,
                                              const FoldEncoderPassOptions &options) {
  MeshAttr mesh = meshOp.getMesh();
  std::string bytecode;
  {
    OwningOpRef<ModuleOp> stage = extractStage(func, meshOp, options.stage);
    llvm::raw_string_ostream os(bytecode);
    if (failed(writeBytecodeToFile(*stage, os)))
      return failure();
  }
  CostModel model(mesh);
  int64_t ceiling = options.memoryCeiling ? options.memoryCeiling : model.getDevice().memorySize;
  int tensorAxis = options.tensor.empty() ? -1 : mesh.getAxisIndex(options.tensor);
  int64_t others = getOtherWeights(func, options.stage,
                                   tensorAxis < 0 ? 1 : mesh.getAxes()[tensorAxis].getSize());

  SmallVector<Planned> planned;
  for (const FoldCandidate &candidate : candidates) {
    FoldEncoderPassOptions own = options;
    own.mode = candidate.mode;
    planned.push_back(plan(bytecode, func.getContext(), own));
  }
  if (!planned.front().note.empty())
    return func.emitError() << "stage '" << options.stage
                            << "' cannot be planned: " << planned.front().note;

  auto isUsable = [&](size_t i) { return planned[i].note.empty(); };
  auto fits = [&](size_t i) {
    return ceiling == 0 || planned[i].memory.getAll() + others <= ceiling;
  };
  auto getTime = [&](size_t i) { return planned[i].cost.getTime(); };
  size_t fastest = candidates.size(), smallest = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!isUsable(i))
      continue;
    if (planned[i].memory.getAll() < planned[smallest].memory.getAll())
      smallest = i;
    if (fits(i) && (fastest == candidates.size() || getTime(i) < getTime(fastest)))
      fastest = i;
  }
  size_t best = fastest;
  std::string why;
  if (fastest == candidates.size()) {
    best = smallest;
    why = llvm::formatv("no alternative fits into {0} beside {1} of other weights: this one needs "
                        "least memory",
                        formatMemory(ceiling), formatMemory(others));
  } else {
    auto getLeastSaving = [&](size_t than) {
      return candidates[than].mode == FoldMode::Batch ? kLeastSavingOfReading : kLeastSaving;
    };
    for (size_t i = 0; i < candidates.size(); ++i) {
      bool isSimpler = planned[i].cost.launches < planned[best].cost.launches;
      if (isUsable(i) && fits(i) && isSimpler &&
          double(getTime(fastest)) > double(getTime(i)) * (1 - getLeastSaving(i)))
        best = i;
    }
    why = formatTime(getTime(best));
    for (auto [i, candidate] : llvm::enumerate(candidates))
      if (i != best && isUsable(i))
        why += llvm::formatv(", '{0}' {1}{2}", stringify(candidate.mode), formatTime(getTime(i)),
                             fits(i) ? "" : " and too much memory");
    if (best != fastest)
      why += llvm::formatv("; '{0}' is less than {1:P0} faster, for more collectives",
                           stringify(candidates[fastest].mode), getLeastSaving(best));
    why += !fits(0)    ? "; a higher memory ceiling would change that"
           : best == 0 ? "; more tokens or larger weights would change that"
                       : "; fewer tokens or slower links would change that";
  }

  std::vector<Alternative> table;
  for (auto [i, candidate] : llvm::enumerate(candidates)) {
    Alternative entry;
    entry.name = getName(candidate, mesh, tensorAxis >= 0);
    entry.note = planned[i].note;
    if (entry.note.empty() && !fits(i))
      entry.note = "above the memory ceiling";
    entry.chosen = i == best;
    const ProgramCost &cost = planned[i].cost;
    entry.numbers = {{"time", double(cost.getTime()) * 1e-12},
                     {"compute time", double(cost.compute) * 1e-12},
                     {"communication time", double(cost.communication) * 1e-12},
                     {"bytes", double(cost.bytes)},
                     {"weights memory", double(planned[i].memory.weights)},
                     {"memory", double(planned[i].memory.getAll())}};
    table.push_back(std::move(entry));
  }
  DistDialect::getDecisionLog(func.getContext())
      .add("fold-encoder", best == 0 ? Outcome::Declined : Outcome::Applied, func.getLoc(),
           llvm::formatv("fold=auto takes '{0}' for stage '{1}': {2}", table[best].name,
                         options.stage, why)
               .str(),
           {{"ranks", double(mesh.getNumRanks())}, {"memory ceiling", double(ceiling)}},
           std::move(table));
  return candidates[best].mode;
}
