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
#include "meshwright/lib/Support/IsolatedModule.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/BufferPlan.h"
#include "meshwright/passes/schedule/OverlapCollectives.h"
#include "meshwright/passes/schedule/Pipeline.h"

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
  for (BlockArgument argument : planned.getArguments())
    if (!planned.getArgAttr(argument.getArgNumber(), nn::NnDialect::kStateAttr) &&
        !getWeight(argument))
      inputs += rt::getBufferBytes(argument.getType());
  auto arena = planned->getAttrOfType<IntegerAttr>(rt::RtDialect::kArenaAttr);
  memory.activationsPeak = inputs + arena.getInt();
  for (Memory::Module &module : memory.modules)
    module.activationsPeak = 0;
  Memory::Module *current = nullptr;
  for (auto [op, live] : llvm::zip_equal(planned.front(), getLiveBytes(planned))) {
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
  /// Nothing but the memory with which calls recover.
  bool recoveryOnly = false;
  /// Nothing but whether it fits, and its time.
  bool orderOnly = false;
  /// Nothing but whether it fits.
  bool fitOnly = false;
};

MemoryPlanner::MemoryPlanner() = default;
MemoryPlanner::~MemoryPlanner() = default;

RecoveryMemory MemoryPlanner::getRecovery(FunctionOpInterface function, bool copies) {
  PlannedMemory planned;
  if (writesState(function))
    plan(function, {/*ceiling=*/0, copies, /*bestOnly=*/false, /*recoveryOnly=*/true}, planned);
  return planned.recovery;
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

void MemoryPlanner::setCeiling(func::FuncOp func, int64_t ceiling,
                               FunctionOpInterface original) {
  Builder builder(func.getContext());
  func->removeAttr(rt::RtDialect::kCeilingAttr);
  func->removeAttr(rt::RtDialect::kResidentAttr);
  if (!ceiling)
    return;
  Resident resident = countResident(original);
  int64_t bytes = resident.weights + resident.state;
  bool copies = func->hasAttr(rt::RtDialect::kCopiesAttr);
  if (auto others = getOtherWriters(original); !others.empty())
    bytes += countRecovery(others, getRecovery(original, copies), copies);
  func->setAttr(rt::RtDialect::kCeilingAttr, builder.getI64IntegerAttr(ceiling));
  if (bytes)
    func->setAttr(rt::RtDialect::kResidentAttr, builder.getI64IntegerAttr(bytes));
}

/// Forms the launches of a copy of a function. Other functions are not asked about. Without launches the
/// module has an error, or is null.
IsolatedModule &MemoryPlanner::getLaunches(FunctionOpInterface function) {
  auto &formed = launches[{function, function->getAttr(rt::RtDialect::kChunksAttr),
                           function->getAttr(rt::RtDialect::kExpertChunksAttr)}];
  if (formed)
    return *formed;
  formed = std::make_unique<IsolatedModule>(function->getParentOfType<ModuleOp>());
  if (!formed->get())
    return *formed;
  auto copy = formed->get().lookupSymbol<func::FuncOp>(function.getName());
  for (auto other : llvm::make_early_inc_range(formed->get().getOps<func::FuncOp>()))
    if (other != copy)
      other.erase();
  if (!copy || failed(formed->run([](OpPassManager &pm) { buildKernelPipeline(pm); })))
    formed->discard();
  return *formed;
}

static std::optional<int64_t> getNoted(Operation *function, StringRef name) {
  auto attr = function->getAttrOfType<IntegerAttr>(name);
  return attr ? std::optional(attr.getInt()) : std::nullopt;
}

/// Notes on a copy how it copies states. Returns true if a request for this ceiling has noted on the
/// original what other entries need: then the copy has that note.
static bool copyNotes(FunctionOpInterface original, func::FuncOp copy, int64_t ceiling,
                      bool copies) {
  Builder builder(copy.getContext());
  for (StringRef name : {rt::RtDialect::kCopiesAttr, rt::RtDialect::kCeilingAttr,
                         rt::RtDialect::kResidentAttr})
    copy->removeAttr(name);
  if (copies)
    copy->setAttr(rt::RtDialect::kCopiesAttr, builder.getUnitAttr());
  if (!ceiling || getNoted(original, rt::RtDialect::kCeilingAttr) != ceiling ||
      copies != original->hasAttr(rt::RtDialect::kCopiesAttr))
    return false;
  copy->setAttr(rt::RtDialect::kCeilingAttr, builder.getI64IntegerAttr(ceiling));
  if (auto resident = getNoted(original, rt::RtDialect::kResidentAttr))
    copy->setAttr(rt::RtDialect::kResidentAttr, builder.getI64IntegerAttr(*resident));
  return true;
}

/// Sets the memory of a copy that is scheduled. Returns false if that fails.
bool MemoryPlanner::plan(FunctionOpInterface function, HowToPlan how, PlannedMemory &planned) {
  if (!function->getParentOfType<ModuleOp>())
    return false;
  IsolatedModule &formed = getLaunches(function);
  if (!formed.get()) {
    planned.refusal = formed.getError();
    return false;
  }
  OwningOpRef<ModuleOp> module = formed.get().clone();
  auto copy = module->lookupSymbol<func::FuncOp>(function.getName());
  if (!copyNotes(function, copy, how.ceiling, how.copies))
    setCeiling(copy, how.ceiling, function);
  auto schedule = [&]() -> LogicalResult {
    if (failed(formed.run(*module, [](OpPassManager &pm) { buildOrderPipeline(pm); })))
      return failure();
    // Calls recover from updates of states alone.
    if (how.recoveryOnly && findStateUpdates(copy).empty())
      return failure();
    OverlapResult order = overlapCollectives(copy, OnOffAuto::Auto, /*ceiling=*/0, how.bestOnly, how.fitOnly);
    planned.needed = order.needed;
    planned.time = order.time;
    if (failed(order.status) || how.orderOnly)
      return order.status;
    return formed.run(*module, [](OpPassManager &pm) { buildPlanPipeline(pm); });
  };
  if (failed(schedule())) {
    planned.refusal = formed.takeError();
    return false;
  }
  if (how.orderOnly)
    return true;
  planned.memory = withPlan(countMemory(function), copy);
  planned.recovery.add(copy);
  return true;
}

bool MemoryPlanner::fitsBesideSecondBuffers(FunctionOpInterface function, int64_t ceiling) {
  PlannedMemory ignored;
  return plan(function,
              {ceiling, /*copies=*/false, /*bestOnly=*/true, /*recoveryOnly=*/false, /*orderOnly=*/true,
               /*fitOnly=*/true},
              ignored);
}

std::optional<int64_t> MemoryPlanner::findBestTime(FunctionOpInterface function, int64_t ceiling) {
  for (bool copies : {false, true})
    if (PlannedMemory planned;
        plan(function, {ceiling, copies, /*bestOnly=*/true, /*recoveryOnly=*/false, /*orderOnly=*/true},
             planned))
      return planned.time;
  return std::nullopt;
}

bool meshwright::writesStates(ModuleOp module) {
  return llvm::any_of(module.getOps<FunctionOpInterface>(), writesState);
}

PlannedMemory MemoryPlanner::planOrder(FunctionOpInterface function, int64_t ceiling) {
  PlannedMemory planned;
  HowToPlan how{ceiling, function->hasAttr(rt::RtDialect::kCopiesAttr), /*bestOnly=*/false,
                /*recoveryOnly=*/false, /*orderOnly=*/true, /*fitOnly=*/true};
  if (ceiling && how.copies && (plan(function, how, planned) || planned.needed))
    return planned;
  return planMemory(function, ceiling);
}

PlannedMemory MemoryPlanner::planMemory(FunctionOpInterface function, int64_t ceiling) {
  PlannedMemory planned;
  bool copies = function->hasAttr(rt::RtDialect::kCopiesAttr);
  if (auto module = function->getParentOfType<ModuleOp>();
      ceiling && !copies && module && writesStates(module)) {
    if (plan(function, {ceiling, /*copies=*/false, /*bestOnly=*/true}, planned))
      return planned;
    copies = true;
    planned = PlannedMemory();
  }
  if (plan(function, {ceiling, copies}, planned))
    return planned;
  PlannedMemory again;
  if (ceiling && plan(function, {/*ceiling=*/0, copies}, again)) {
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
    HowToPlan how{least.value_or(1), writesStates(module), /*bestOnly=*/false, /*recoveryOnly=*/false,
                  /*orderOnly=*/true, /*fitOnly=*/true};
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

std::optional<int64_t> meshwright::findLeastCeiling(ModuleOp module) {
  return MemoryPlanner().findLeastCeiling(module);
}

Memory meshwright::planSessionMemory(FunctionOpInterface function) {
  return MemoryPlanner().planSessionMemory(function);
}

void meshwright::setCeiling(func::FuncOp func, int64_t ceiling, FunctionOpInterface original) {
  MemoryPlanner().setCeiling(func, ceiling, original);
}
