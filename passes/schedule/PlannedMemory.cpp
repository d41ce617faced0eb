//===- PlannedMemory.cpp - memory of a rank, as scheduled -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/PlannedMemory.h"

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Stages/Stages.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/BufferPlan.h"
#include "meshwright/passes/schedule/OverlapCollectives.h"
#include "meshwright/passes/schedule/Pipeline.h"
#include "meshwright/passes/schedule/TriedPrograms.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace meshwright;

/// The stage of an op, or of the first op within it that has one.
static StringRef getStageWithin(Operation *op) {
  StringRef stage;
  op->walk<WalkOrder::PreOrder>([&](Operation *inner) {
    stage = getStage(inner);
    return stage.empty() ? WalkResult::advance() : WalkResult::interrupt();
  });
  return stage;
}

/// The bytes in which each weight is prepared before a call.
static llvm::MapVector<Value, int64_t> countPrepared(func::FuncOp func) {
  llvm::MapVector<Value, int64_t> prepared;
  for (auto prepare : func.getOps<rt::PrepareOp>())
    prepared[rt::getBuffer(prepare.getWeight())] += rt::getBufferBytes(prepare.getResult());
  return prepared;
}

int64_t meshwright::getSavedBytes(func::FuncOp func) {
  ProgramSet<Value> travelling;
  for (auto prepare : func.getOps<rt::PrepareOp>())
    if (dist::getForm(prepare.getResult().getType()))
      travelling.insert(rt::getBuffer(prepare.getWeight()));
  int64_t bytes = 0;
  for (auto [weight, held] : countPrepared(func))
    if (travelling.contains(weight) && !rt::isReadUnpacked(weight))
      bytes += std::max<int64_t>(0, rt::getBufferBytes(weight.getType()) - held);
  return bytes;
}

int64_t meshwright::getPackingBytes(func::FuncOp func) {
  llvm::MapVector<Value, int64_t> packed = countPrepared(func);
  int64_t bytes = 0;
  // A state stays as it is stored, too, and so does a parameter that is read so.
  for (auto [weight, held] : packed)
    bytes += rt::getState(weight) || rt::isReadUnpacked(weight)
                 ? held
                 : std::max<int64_t>(0, held - rt::getBufferBytes(weight.getType()));
  return bytes;
}

Memory meshwright::withPlan(Memory memory, func::FuncOp planned) {
  memory.packing = getPackingBytes(planned);
  memory.weights -= getSavedBytes(planned);
  RecoveryMemory recovery;
  for (auto func : planned->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    if (!func.isExternal())
      recovery.add(func);
  memory.state += recovery.getBytes();
  int64_t inputs = 0;
  WeightFinder weights(planned);
  for (BlockArgument argument : planned.getArguments())
    if (!planned.getArgAttr(argument.getArgNumber(), nn::NnDialect::kStateAttr) &&
        !weights.find(argument))
      inputs += rt::getBufferBytes(argument.getType());
  auto arena = planned->getAttrOfType<IntegerAttr>(rt::RtDialect::kArenaAttr);
  memory.activationsPeak = inputs + arena.getInt();
  for (Memory::Module &module : memory.modules)
    module.activationsPeak = 0;
  Memory::Module *current = nullptr;
  for (auto [op, live] : llvm::zip_equal(planned.front(), getLiveBytes(planned).whileRuns)) {
    // Ops between stages belong to the stage before them.
    StringRef stage = getStageWithin(&op);
    auto known = llvm::find_if(memory.modules, [&](auto &module) { return module.name == stage; });
    if (known != memory.modules.end())
      current = &*known;
    if (current)
      current->activationsPeak = std::max(current->activationsPeak, inputs + live);
  }
  return memory;
}

static bool writesState(FunctionOpInterface function) {
  for (unsigned i = 0; i < function.getNumResults(); ++i)
    if (function.getResultAttr(i, nn::NnDialect::kStateAttr))
      return true;
  return false;
}

/// The other entries of the module whose calls change state.
static SmallVector<FunctionOpInterface> getOtherWriters(FunctionOpInterface function) {
  SmallVector<FunctionOpInterface> others;
  if (auto module = function->getParentOfType<ModuleOp>())
    for (FunctionOpInterface entry : nn::getRunFunctions(nn::getEntries(module)))
      if (entry != function && writesState(entry))
        others.push_back(entry);
  return others;
}

/// How to schedule a copy of a function.
struct MemoryPlanner::HowToPlan {
  /// 0 for none.
  int64_t ceiling = 0;
  /// The function and the other entries copy states.
  bool copies = false;
  /// Only the order that hides most.
  bool bestOnly = false;
  Depth depth = Depth::Memory;
};

/// A function's copy among the programs that are tried.
struct MemoryPlanner::Program {
  func::FuncOp copy;
  ProgramDigest digest;
};

MemoryPlanner::MemoryPlanner() = default;
MemoryPlanner::~MemoryPlanner() = default;

/// Returns the function's copy with its requests, but no notes of a ceiling. Null if it cannot be copied.
MemoryPlanner::Program MemoryPlanner::getProgram(FunctionOpInterface function, TriedPrograms &tried) {
  auto module = function->getParentOfType<ModuleOp>();
  OwningOpRef<ModuleOp> &whole = copies[module];
  if (!whole && !(whole = tried.getContext().copy(module)))
    return {};
  auto copy = whole->lookupSymbol<func::FuncOp>(function.getName());
  if (!copy)
    return {};
  for (StringRef name : {rt::RtDialect::kCopiesAttr, rt::RtDialect::kCeilingAttr, rt::RtDialect::kResidentAttr})
    copy->removeAttr(name);
  Builder builder(copy.getContext());
  auto chunks = function->getAttrOfType<StringAttr>(rt::RtDialect::kChunksAttr);
  chunks ? copy->setAttr(rt::RtDialect::kChunksAttr, builder.getStringAttr(chunks.getValue()))
         : void(copy->removeAttr(rt::RtDialect::kChunksAttr));
  auto experts = function->getAttrOfType<IntegerAttr>(rt::RtDialect::kExpertChunksAttr);
  experts ? copy->setAttr(rt::RtDialect::kExpertChunksAttr, builder.getI64IntegerAttr(experts.getInt()))
          : void(copy->removeAttr(rt::RtDialect::kExpertChunksAttr));
  auto [digest, isNew] = digests.try_emplace({function, chunks, experts});
  if (isNew) {
    SmallVector<Operation *> ops;
    for (Operation &op : *whole->getBody())
      if (&op == copy || !isa<func::FuncOp>(op))
        ops.push_back(&op);
    digest->second = getDigest(ops);
  }
  return {copy, digest->second};
}

/// Schedules the launches of a program, in a copy that `module` gets, as far as `depth`.
TriedPrograms::Order MemoryPlanner::schedule(TriedPrograms &tried, Program program,
                                             const TriedPrograms::Request &request, Depth depth,
                                             OwningOpRef<ModuleOp> &module) {
  TriedPrograms::Order order;
  IsolatedContext &context = tried.getContext();
  auto refuse = [&] {
    order.refusal = context.takeError();
    return order;
  };
  context.takeError();
  ModuleOp launches = tried.getLaunches(program.copy, program.digest);
  if (!launches)
    return refuse();
  module = launches.clone();
  auto func = module->lookupSymbol<func::FuncOp>(program.copy.getName());
  Builder builder(func.getContext());
  if (request.copies)
    func->setAttr(rt::RtDialect::kCopiesAttr, builder.getUnitAttr());
  if (request.ceiling)
    func->setAttr(rt::RtDialect::kCeilingAttr, builder.getI64IntegerAttr(request.ceiling));
  if (request.resident)
    func->setAttr(rt::RtDialect::kResidentAttr, builder.getI64IntegerAttr(request.resident));
  // No order fits.
  if (request.bestOnly && getFixedBytes(func) > request.ceiling)
    return order;
  if (failed(context.run(*module, [](OpPassManager &pm) { buildOrderPipeline(pm); })))
    return refuse();
  // Calls recover from updates of states alone.
  if (depth == Depth::Recovery && findStateUpdates(func).empty())
    return order;
  OverlapResult result =
      overlapCollectives(func, OnOffAuto::Auto, /*ceiling=*/0, request.bestOnly, depth == Depth::Fit);
  order.needed = result.needed;
  if (failed(result.status))
    return refuse();
  if (depth != Depth::Fit)
    order.time = result.time;
  if (depth >= Depth::Recovery && failed(context.run(*module, [](OpPassManager &pm) { buildPlanPipeline(pm); })))
    return refuse();
  order.fits = true;
  order.hidesMost = result.hidesMost;
  return order;
}

RecoveryMemory MemoryPlanner::getRecovery(FunctionOpInterface function, bool copies) {
  if (!writesState(function))
    return {};
  TriedPrograms &tried = TriedPrograms::of(function.getContext());
  std::lock_guard<std::recursive_mutex> lock(tried.mutex);
  Program program = getProgram(function, tried);
  if (!program.copy)
    return {};
  auto [it, isNew] = tried.recoveries.try_emplace({program.digest, copies});
  OwningOpRef<ModuleOp> module;
  if (isNew && schedule(tried, program, {program.digest, 0, 0, copies}, Depth::Recovery, module).fits)
    it->second.add(module->lookupSymbol<func::FuncOp>(function.getName()));
  return it->second;
}

/// The memory with which calls of `others` recover, beyond `own`, which the calls of another entry
/// need.
int64_t MemoryPlanner::countRecovery(ArrayRef<FunctionOpInterface> others,
                                     const RecoveryMemory &own, bool copies) {
  RecoveryMemory all = own;
  for (FunctionOpInterface entry : others)
    all.add(getRecovery(entry, copies));
  return all.getBytes() - own.getBytes();
}

/// The bytes that other entries and commits take beside a function.
int64_t MemoryPlanner::countBeside(FunctionOpInterface function, bool copies) {
  Resident resident = countResident(function);
  int64_t bytes = resident.weights + resident.state;
  if (auto others = getOtherWriters(function); !others.empty())
    bytes += countRecovery(others, getRecovery(function, copies), copies);
  return bytes;
}

void MemoryPlanner::setCeiling(func::FuncOp func, int64_t ceiling,
                               FunctionOpInterface original) {
  Builder builder(func.getContext());
  func->removeAttr(rt::RtDialect::kCeilingAttr);
  func->removeAttr(rt::RtDialect::kResidentAttr);
  if (!ceiling)
    return;
  func->setAttr(rt::RtDialect::kCeilingAttr, builder.getI64IntegerAttr(ceiling));
  if (int64_t bytes = countBeside(original, func->hasAttr(rt::RtDialect::kCopiesAttr)))
    func->setAttr(rt::RtDialect::kResidentAttr, builder.getI64IntegerAttr(bytes));
}

/// Sets the parts of a plan that `how` asks for. Returns false if no order fits, or the program cannot be
/// scheduled.
bool MemoryPlanner::plan(FunctionOpInterface function, HowToPlan how, PlannedMemory &planned) {
  if (!function->getParentOfType<ModuleOp>())
    return false;
  TriedPrograms &tried = TriedPrograms::of(function.getContext());
  std::lock_guard<std::recursive_mutex> lock(tried.mutex);
  Program program = getProgram(function, tried);
  if (!program.copy)
    return false;
  TriedPrograms::Request request{program.digest, how.ceiling, how.ceiling ? countBeside(function, how.copies) : 0,
                                 how.copies, how.bestOnly};
  const TriedPrograms::Order *known = tried.find(request);
  if (!known && how.depth == Depth::Fit && !how.bestOnly) {
    // The order that hides most is an order.
    TriedPrograms::Request best = request;
    best.bestOnly = true;
    known = tried.find(best);
    if (known && !known->fits)
      known = nullptr;
  }
  bool isKnown = known && (!known->fits || how.depth == Depth::Fit || (how.depth == Depth::Time && known->time));
  OwningOpRef<ModuleOp> module;
  TriedPrograms::Order order = isKnown ? *known : schedule(tried, program, request, how.depth, module);
  if (!isKnown)
    tried.keep(request, order);
  planned.needed = order.needed;
  planned.time = order.time.value_or(0);
  planned.hidesMost = order.hidesMost && !how.copies;
  planned.refusal = order.refusal;
  if (!order.fits || how.depth < Depth::Memory)
    return order.fits;
  auto scheduled = module->lookupSymbol<func::FuncOp>(function.getName());
  planned.memory = withPlan(countMemory(function), scheduled);
  planned.recovery.add(scheduled);
  return true;
}

bool MemoryPlanner::fitsBesideSecondBuffers(FunctionOpInterface function, int64_t ceiling) {
  PlannedMemory ignored;
  return plan(function, {ceiling, /*copies=*/false, /*bestOnly=*/true, Depth::Fit}, ignored);
}

std::optional<int64_t> MemoryPlanner::findBestTime(FunctionOpInterface function, int64_t ceiling) {
  for (bool copies : {false, true})
    if (PlannedMemory planned; plan(function, {ceiling, copies, /*bestOnly=*/true, Depth::Time}, planned))
      return planned.time;
  return std::nullopt;
}

bool meshwright::writesStates(ModuleOp module) {
  return llvm::any_of(module.getOps<FunctionOpInterface>(), writesState);
}

PlannedMemory MemoryPlanner::planMemory(FunctionOpInterface function, int64_t ceiling, Depth depth) {
  PlannedMemory planned;
  bool copies = function->hasAttr(rt::RtDialect::kCopiesAttr);
  if (auto module = function->getParentOfType<ModuleOp>();
      ceiling && !copies && module && writesStates(module)) {
    if (plan(function, {ceiling, /*copies=*/false, /*bestOnly=*/true, depth}, planned))
      return planned;
    copies = true;
    planned = PlannedMemory();
  }
  if (plan(function, {ceiling, copies, /*bestOnly=*/false, depth}, planned) ||
      (depth < Depth::Memory && planned.needed))
    return planned;
  PlannedMemory again;
  if (ceiling && plan(function, {/*ceiling=*/0, copies, /*bestOnly=*/false, depth}, again)) {
    again.refusal = std::move(planned.refusal);
    again.needed = planned.needed;
    return again;
  }
  planned.memory = countMemory(function);
  planned.refusal.clear();
  planned.needed = 0;
  int64_t weights = planned.memory.getResident(), activations = planned.memory.activationsPeak;
  if (ceiling && weights + activations > ceiling) {
    planned.needed = weights + activations;
    planned.refusal =
        (Twine("'") + function.getName() + "' needs " + Twine(weights + activations) +
         " bytes on a rank, " + Twine(weights) + " for weights " +
         (planned.memory.state ? "and state " : "") + "and " + Twine(activations) +
         " for inputs and activations: expected at most " + Twine(ceiling) + ", the memory ceiling")
            .str();
  }
  return planned;
}

std::optional<int64_t> MemoryPlanner::findLeastCeiling(ModuleOp module) {
  // The longest function first: the others fit into its memory, most likely.
  SmallVector<std::pair<int64_t, FunctionOpInterface>> functions;
  for (auto function : module.getOps<FunctionOpInterface>())
    if (function->hasAttr(dist::DistDialect::kSpmdAttr) && !function.isExternal())
      functions.push_back(
          {-int64_t(function.getFunctionBody().front().getOperations().size()), function});
  llvm::stable_sort(functions, llvm::less_first());
  std::optional<int64_t> least;
  for (auto [size, function] : functions) {
    // No order fits into one byte, so the error names the fewest bytes.
    PlannedMemory planned;
    HowToPlan how{least.value_or(1), writesStates(module), /*bestOnly=*/false, Depth::Fit};
    if (!plan(function, how, planned) && planned.needed)
      least = std::max(least, std::optional(planned.needed));
  }
  return least;
}

Memory MemoryPlanner::planSessionMemory(FunctionOpInterface function) {
  PlannedMemory planned = planMemory(function);
  planned.memory.state += countRecovery(getOtherWriters(function), planned.recovery,
                                        function->hasAttr(rt::RtDialect::kCopiesAttr));
  for (const nn::CallStep &step : nn::getSteps(function))
    if (step.function != function)
      planned.memory.activationsPeak = std::max(planned.memory.activationsPeak,
                                                planMemory(step.function).memory.activationsPeak);
  return planned.memory;
}

PlannedMemory meshwright::planMemory(FunctionOpInterface function, int64_t ceiling) {
  return MemoryPlanner().planMemory(function, ceiling);
}

PlannedMemory meshwright::planOrder(FunctionOpInterface function, int64_t ceiling) {
  return MemoryPlanner().planMemory(function, ceiling, MemoryPlanner::Depth::Time);
}

std::optional<int64_t> meshwright::findLeastCeiling(ModuleOp module) {
  return MemoryPlanner().findLeastCeiling(module);
}

Memory meshwright::planSessionMemory(FunctionOpInterface function) {
  return MemoryPlanner().planSessionMemory(function);
}

void meshwright::setCeiling(func::FuncOp func, int64_t ceiling, FunctionOpInterface original) {
  MemoryPlanner().setCeiling(func, ceiling, original);
}
