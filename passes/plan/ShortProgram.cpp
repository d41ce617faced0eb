//===- ShortProgram.cpp - a program with fewer of its equal layers ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/plan/ShortProgram.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"

#include <map>

using namespace mlir;
using namespace meshwright;

/// With fewer layers the whole program is planned as fast.
static constexpr size_t kFewestLayers = 8;

//===----------------------------------------------------------------------===//
// Equal layers
//===----------------------------------------------------------------------===//

namespace {
/// Numbers of ops of a block: ops of one number are alike but for their operands and names.
class OpClasses {
public:
  size_t get(Operation *op) {
    std::vector<const void *> key{op->getName().getAsOpaquePointer()};
    if (op->getNumRegions())
      key.push_back(op);
    bool namesMemory = op->hasTrait<dist::NamesMemory>();
    for (NamedAttribute attr : op->getAttrDictionary())
      if (attr.getName() != nn::NnDialect::kIdAttr &&
          !(namesMemory && isa<SymbolRefAttr>(attr.getValue()))) {
        key.push_back(attr.getName().getAsOpaquePointer());
        key.push_back(attr.getValue().getAsOpaquePointer());
      }
    for (Type type : op->getOperandTypes())
      key.push_back(type.getAsOpaquePointer());
    key.push_back(nullptr);
    for (Type type : op->getResultTypes())
      key.push_back(type.getAsOpaquePointer());
    return numbers.try_emplace(std::move(key), numbers.size()).first->second;
  }

private:
  std::map<std::vector<const void *>, size_t> numbers;
};

/// `count` layers of `period` ops each.
struct Run {
  size_t begin = 0, period = 0, count = 0;

  size_t getLength() const { return period * count; }
};

/// The ops of a forward pass and their equal layers.
class Layers {
public:
  explicit Layers(Block &block) {
    OpClasses known;
    for (Operation &op : block) {
      if (isa<nn::GradientOp>(op))
        break;
      places[&op] = ops.size();
      ops.push_back(&op);
      classes.push_back(known.get(&op));
    }
    find(0, ops.size());
    if (runs.empty())
      return;
    // Runs of as many layers as the longest are short together, as an encoder and its decoder are.
    size_t count = llvm::max_element(runs, [](const Run &a, const Run &b) {
                     return a.getLength() < b.getLength();
                   })->count;
    llvm::erase_if(runs, [&](const Run &run) { return run.count != count; });
  }

  size_t getCount() const { return runs.empty() ? 0 : runs.front().count; }

  /// Gives the layers behind the gap the values of the layer before it. Returns the ops of the layers
  /// that are left out.
  SmallVector<Operation *> cut(size_t end) {
    SmallVector<Operation *> out;
    for (const Run &run : runs) {
      size_t first = run.begin + end * run.period;
      size_t second = run.begin + (run.count - end) * run.period;
      for (size_t i = second; i < second + run.period; ++i)
        for (OpOperand &operand : ops[i]->getOpOperands())
          if (std::optional<size_t> place = getPlace(operand.get()); place && *place < second && *place >= second - run.period)
            operand.set(ops[*place - second + first]->getResult(
                cast<OpResult>(operand.get()).getResultNumber()));
      out.append(ops.begin() + first, ops.begin() + second);
    }
    return out;
  }

private:
  std::optional<size_t> getPlace(Value value) const {
    auto it = places.find(value.getDefiningOp());
    return it == places.end() ? std::nullopt : std::optional<size_t>(it->second);
  }

  /// Finds the longest run between two places, and those before and behind it.
  void find(size_t begin, size_t end) {
    Run best;
    for (size_t period = 1; period * kFewestLayers <= end - begin; ++period)
      for (size_t i = begin, first = begin; i + period <= end; ++i)
        if (i + period == end || classes[i] != classes[i + period]) {
          Run run{first, period, (i - first) / period + 1};
          if (run.count >= kFewestLayers && run.getLength() > best.getLength())
            best = run;
          first = i + 1;
        }
    if (!best.count)
      return;
    find(begin, best.begin);
    if (isUniform(best))
      runs.push_back(best);
    find(best.begin + best.getLength(), end);
  }

  /// Where a layer's operand comes from: how many layers back, and from which op and result of a layer;
  /// or from outside of the run.
  struct Source {
    std::optional<size_t> layersBack;
    size_t op = 0;
    unsigned result = 0;
    Value outside;

    bool operator==(const Source &other) const {
      return layersBack == other.layersBack && op == other.op && result == other.result;
    }
  };
  Source getSource(const Run &run, size_t layer, Value value) const {
    std::optional<size_t> place = getPlace(value);
    if (!place || *place < run.begin || *place >= run.begin + run.getLength())
      return {std::nullopt, 0, 0, value};
    size_t index = *place - run.begin;
    return {layer - index / run.period, index % run.period,
            cast<OpResult>(value).getResultNumber(), Value()};
  }

  /// True if all layers use values of their own, of the layer before, and from outside alike.
  bool isUniform(const Run &run) const {
    for (size_t i = 0; i < run.period; ++i)
      for (unsigned operand = 0; operand < ops[run.begin + i]->getNumOperands(); ++operand) {
        auto get = [&](size_t layer) {
          return getSource(run, layer,
                           ops[run.begin + layer * run.period + i]->getOperand(operand));
        };
        Source usual = get(1);
        if (usual.layersBack.value_or(0) > 1)
          return false;
        for (size_t layer = 2; layer < run.count; ++layer)
          if (!(get(layer) == usual))
            return false;
        // The first layer has no layer before it.
        Source first = get(0);
        if (usual.layersBack == size_t(1) ? first.layersBack.has_value() : !(first == usual))
          return false;
      }
    return true;
  }

  std::vector<Operation *> ops;
  std::vector<size_t> classes;
  ProgramMap<Operation *, size_t> places;
  SmallVector<Run> runs;
};

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

/// Leaves layers out of the functions of a module.
class Shortener {
public:
  Shortener(ModuleOp module, size_t end) : module(module), end(end) {}

  /// Returns the layers of the whole program, none if it cannot be shortened. The module is then in
  /// any state.
  std::optional<size_t> run() {
    auto entries = nn::getEntries(module);
    if (entries.empty())
      return std::nullopt;
    auto functions = nn::getRunFunctions(entries.front());
    for (FunctionOpInterface other : llvm::to_vector(module.getOps<FunctionOpInterface>()))
      if (!llvm::is_contained(functions, other))
        other.erase();
    size_t count = 0;
    for (FunctionOpInterface function : functions) {
      if (!isa<func::FuncOp>(*function) || !llvm::hasSingleElement(function.getFunctionBody()))
        return std::nullopt;
      size_t own = cutLayers(function);
      if (!own || (count && own != count))
        return std::nullopt;
      count = own;
    }
    if (!leaveOut(functions))
      return std::nullopt;
    for (FunctionOpInterface function : functions)
      erase(function);
    for (nn::StateOp state : llvm::to_vector(module.getOps<nn::StateOp>()))
      if (states.contains(state.getSymName()))
        state.erase();
    return succeeded(mlir::verify(module)) ? std::optional<size_t>(count) : std::nullopt;
  }

private:
  /// Cuts the layers of a function. Marks their ops, and the weights that no other op of the forward
  /// pass uses.
  size_t cutLayers(FunctionOpInterface function) {
    Block &block = function.getFunctionBody().front();
    Layers layers(block);
    size_t count = layers.getCount();
    if (!count)
      return 0;
    SmallVector<Operation *> cut = layers.cut(end);
    out.insert(cut.begin(), cut.end());
    WeightFinder weights(module);
    for (BlockArgument arg : block.getArguments()) {
      std::optional<Weight> weight = weights.find(arg);
      if (!weight)
        continue;
      names[arg] = weight->name;
      auto isCut = [&](Operation *user) { return out.contains(user); };
      // Ops behind the layers may update the weight.
      auto isBehind = [&](Operation *user) {
        return isCut(user) || (user->getBlock() == &block && cut.back()->isBeforeInBlock(user));
      };
      if (llvm::any_of(arg.getUsers(), isCut) && llvm::all_of(arg.getUsers(), isBehind)) {
        states.insert(weight->name);
        trained.insert(weight->name);
      }
    }
    return count;
  }

  Value resolve(Value value) const {
    for (auto it = kept.find(value); it != kept.end(); it = kept.find(value))
      value = it->second;
    return value;
  }

  bool isOut(Value value) const {
    value = resolve(value);
    if (Operation *op = value.getDefiningOp())
      return out.contains(op);
    auto name = names.find(value);
    return name != names.end() && states.contains(name->second);
  }

  /// Marks an op that depends on layers that are left out. Returns false if it has to stay.
  bool mark(Operation *op) {
    if (auto write = dyn_cast<nn::WriteOp>(op)) {
      if (isOut(write.getValue()))
        states.insert(write.getState());
      if (states.contains(write.getState()))
        out.insert(op);
      return true;
    }
    auto read = dyn_cast<nn::ReadOp>(op);
    auto gradient = dyn_cast<nn::GradientOp>(op);
    if ((read && states.contains(read.getState())) ||
        (gradient && states.contains(gradient.getParameter()))) {
      out.insert(op);
      return true;
    }
    if (llvm::none_of(op->getOperands(), [&](Value value) { return isOut(value); }))
      return true;
    if (op->hasTrait<OpTrait::IsTerminator>() || op->getNumRegions() || !op->getNumResults())
      return false;
    // A number of all layers is one of the others.
    auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
    if (type && type.getRank() == 0 && op->getNumResults() == 1)
      for (Value operand : op->getOperands())
        if (!isOut(operand) && operand.getType() == type) {
          kept[op->getResult(0)] = operand;
          return true;
        }
    out.insert(op);
    return true;
  }

  /// Marks all ops and states that depend on layers that are left out. Returns false if others do, too.
  bool leaveOut(ArrayRef<FunctionOpInterface> functions) {
    // A read of a state comes before the write that shows whose state it is.
    for (size_t before = size_t(-1); before != states.size();) {
      before = states.size();
      kept.clear();
      for (FunctionOpInterface function : functions)
        for (Operation &op : function.getFunctionBody().front())
          if (!out.contains(&op) && !mark(&op))
            return false;
    }
    return llvm::all_of(module.getOps<nn::StateOp>(), [&](nn::StateOp state) {
      return !state.isTrained() || !states.contains(state.getSymName()) ||
             trained.contains(state.getSymName());
    });
  }

  void erase(FunctionOpInterface function) {
    Block &block = function.getFunctionBody().front();
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block))) {
      bool isOut = out.contains(&op) || (op.getNumResults() == 1 && kept.contains(op.getResult(0)));
      // Numbers that only updates of weights of these layers have used.
      if (isOut || isOpTriviallyDead(&op)) {
        op.dropAllUses();
        op.erase();
        continue;
      }
      for (OpOperand &operand : op.getOpOperands())
        operand.set(resolve(operand.get()));
    }
    llvm::BitVector unused(block.getNumArguments());
    for (BlockArgument arg : block.getArguments())
      if (isOut(arg))
        unused.set(arg.getArgNumber());
    (void)function.eraseArguments(unused);
  }

  ModuleOp module;
  size_t end;
  /// The ops that are left out, of all functions.
  llvm::SmallPtrSet<Operation *, 32> out;
  /// The states that are left out, and the parameters among them that the layers use.
  llvm::StringSet<> states, trained;
  /// The names of arguments that are weights.
  ProgramMap<Value, StringAttr> names;
  /// The value that stands for one that depends on layers in part.
  ProgramMap<Value, Value> kept;
};
} // namespace

std::optional<ShortPrograms> meshwright::shortenProgram(ModuleOp program, int64_t end) {
  // Neither program reaches a user.
  ScopedDiagnosticHandler quiet(program.getContext(), [](Diagnostic &) { return success(); });
  ShortPrograms found;
  auto shorten = [&](size_t end) -> OwningOpRef<ModuleOp> {
    OwningOpRef<ModuleOp> module = program.clone();
    std::optional<size_t> count = Shortener(*module, end).run();
    if (!count)
      return nullptr;
    found.numAll = int64_t(*count);
    return module;
  };
  found.few = shorten(end);
  if (!found.few || found.numAll < int64_t(kFewestLayers) * end)
    return std::nullopt;
  found.more = shorten(2 * end);
  if (!found.more)
    return std::nullopt;
  found.numFew = 2 * end;
  found.numMore = 4 * end;
  return found;
}
