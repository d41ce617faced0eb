//===- ChooseFold.cpp - over which axes a stage is sharded ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/ChooseFold.h"

#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Weights/Weights.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// An alternative with more collectives must save this share of the time of one with fewer:
/// the cost model cannot tell closer ones apart.
static constexpr double kLeastSavingOfCollectives = 0.15;

/// The share that it must save against a split batch. A split batch divides the arithmetic,
/// too, so an alternative only saves time to read weights, if its kernels are as fast as
/// the memory.
static constexpr double kLeastSavingOfReading = 0.3;

/// The stage as a program of its own. Values from other stages are its inputs, and values
/// that other stages use are its outputs.
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
  // The first input stays the first, because it defines the batch; values of other
  // stages follow the arguments.
  SmallVector<Value> arguments = llvm::to_vector(llvm::make_filter_range(
      inputs, [](Value input) { return isa<BlockArgument>(input); }));
  llvm::sort(arguments, [](Value a, Value b) {
    return cast<BlockArgument>(a).getArgNumber() < cast<BlockArgument>(b).getArgNumber();
  });
  llvm::append_range(arguments, llvm::make_filter_range(inputs, [](Value input) {
                       return !isa<BlockArgument>(input);
                     }));
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

/// The least bytes that a rank holds of weights that the stage does not use.
static int64_t getOtherWeights(func::FuncOp func, StringRef stage, int64_t shards) {
  int64_t bytes = 0;
  for (BlockArgument argument : func.getArguments()) {
    bool isOwn =
        llvm::any_of(argument.getUsers(), [&](Operation *user) { return getStage(user) == stage; });
    if (!isOwn && getWeight(argument))
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
                                              const FoldEncoderPassOptions &options,
                                              const PriceFold &priceFold) {
  MeshAttr mesh = meshOp.getMesh();
  CostModel model(mesh);
  int64_t ceiling = options.memoryCeiling ? options.memoryCeiling : model.getDevice().memorySize;
  RoleAxes tensor(AxisRole::Tensor, options.tensor);
  StageMesh view = getStageMeshes(meshOp).front();
  int64_t others = getOtherWeights(func, options.stage, getNumShards(tensor.get(meshOp, view)));

  OwningOpRef<ModuleOp> stage = extractStage(func, meshOp, options.stage);
  SmallVector<FoldPrice> prices;
  for (const FoldCandidate &candidate : candidates) {
    prices.emplace_back();
    prices.back().refusal = candidate.refusal;
    if (!candidate.refusal.empty())
      continue;
    FoldEncoderPassOptions own = options;
    own.mode = candidate.mode;
    // The weights of other stages need memory, too.
    if (options.memoryCeiling)
      own.memoryCeiling = std::max<int64_t>(1, options.memoryCeiling - others);
    prices.back() = priceFold(*stage, own);
  }
  if (!prices.front().refusal.empty())
    return func.emitError() << "stage '" << options.stage
                            << "' cannot be planned: " << prices.front().refusal;

  auto isUsable = [&](size_t i) { return prices[i].refusal.empty(); };
  auto fits = [&](size_t i) {
    return prices[i].fits && (options.memoryCeiling || ceiling == 0 ||
                              prices[i].memory.getAll() + others <= ceiling);
  };
  auto getTime = [&](size_t i) { return prices[i].cost.getTime(); };
  size_t fastest = candidates.size(), smallest = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!isUsable(i))
      continue;
    if (prices[i].memory.getAll() < prices[smallest].memory.getAll())
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
      return candidates[than].mode == FoldMode::Batch ? kLeastSavingOfReading : kLeastSavingOfCollectives;
    };
    for (size_t i = 0; i < candidates.size(); ++i) {
      bool isSimpler = prices[i].cost.launches < prices[best].cost.launches;
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
    entry.name = getName(candidate, mesh, tensor.areIn(view));
    entry.note = prices[i].refusal;
    if (entry.note.empty() && !fits(i))
      entry.note = "above the memory ceiling";
    entry.chosen = i == best;
    const ProgramCost &cost = prices[i].cost;
    entry.numbers = {{"seconds", double(cost.getTime()) * 1e-12},
                     {"compute_seconds", double(cost.compute) * 1e-12},
                     {"communication_seconds", double(cost.communication) * 1e-12},
                     {"bytes", double(cost.bytes)},
                     {"weights_bytes", double(prices[i].memory.weights)},
                     {"memory_bytes", double(prices[i].memory.getAll())}};
    table.push_back(std::move(entry));
  }
  DistDialect::getDecisionLog(func.getContext())
      .add("fold-encoder", best == 0 ? Outcome::Declined : Outcome::Applied, func.getLoc(),
           llvm::formatv("fold=auto takes '{0}' for stage '{1}': {2}", table[best].name,
                         options.stage, why)
               .str(),
           {{"ranks", double(mesh.getNumRanks())}, {"memory_ceiling_bytes", double(ceiling)}},
           std::move(table));
  return candidates[best].mode;
}
