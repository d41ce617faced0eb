//===- WidenStored.cpp - stored weights that are widened at load ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/bind/WidenStored.h"

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/bind/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_WIDENSTOREDPASS
#include "meshwright/passes/bind/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;

namespace {

/// Finds the weights of a function that follow from stored codes, and takes them out of it.
class Widening {
public:
  explicit Widening(func::FuncOp func) : func(func) { follow(); }

  /// The weights, in program order: values of floats that ops on other values read.
  SetVector<Value> findWeights();
  /// The program that computes a value, and the arguments that it reads, in order.
  std::pair<OwningOpRef<ModuleOp>, SmallVector<BlockArgument>> outline(Value value);
  /// The parameter among some with the most codes: the one that names the weight.
  BlockArgument findCodes(ArrayRef<BlockArgument> sources) const;

private:
  /// Of a value that follows from parameters alone.
  struct Facts {
    /// The elements of the largest parameter.
    int64_t stored = 0;
    bool hasCodes = false;
  };

  void follow();
  void follow(Operation &op);
  void addWeights(Value value, SetVector<Value> &weights) const;

  func::FuncOp func;
  ProgramMap<Value, Facts> known;
};

} // namespace

/// Parameters that a trained state does not replace, and of whose layout the program says nothing.
static bool isStored(BlockArgument argument) {
  auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  unsigned i = argument.getArgNumber();
  auto name = func.getArgAttrOfType<StringAttr>(i, NnDialect::kParameterAttr);
  return name && !func.getArgAttr(i, NnDialect::kStateAttr) &&
         !func.getArgAttr(i, dist::DistDialect::kShardingAttr) && !nn::lookupState(func, name);
}

void Widening::follow() {
  for (BlockArgument argument : func.getArguments())
    if (auto type = dyn_cast<RankedTensorType>(argument.getType()); type && isStored(argument))
      known[argument] = {type.getNumElements(), isCode(type.getElementType())};
  for (Operation &op : func.front().without_terminator())
    follow(op);
}

void Widening::follow(Operation &op) {
  if (!isa<NnDialect>(op.getDialect()) || !isPure(&op) || op.getNumRegions() > 0)
    return;
  Facts facts;
  for (Value operand : op.getOperands()) {
    auto found = known.find(operand);
    if (found == known.end())
      return;
    facts.stored = std::max(facts.stored, found->second.stored);
    facts.hasCodes |= found->second.hasCodes;
  }
  for (Value result : op.getResults())
    known[result] = facts;
}

SetVector<Value> Widening::findWeights() {
  SetVector<Value> weights;
  for (Operation &op : func.front()) {
    bool isPart = op.getNumResults() > 0 && known.contains(op.getResult(0));
    for (Value operand : op.getOperands())
      if (!isPart && known.lookup(operand).hasCodes)
        addWeights(operand, weights);
  }
  return weights;
}

/// Adds a value that other ops read, or those behind it where it repeats elements.
void Widening::addWeights(Value value, SetVector<Value> &weights) const {
  auto type = cast<RankedTensorType>(value.getType());
  Facts facts = known.lookup(value);
  // A byte may hold two codes.
  if (!facts.hasCodes || isa<BlockArgument>(value))
    return;
  if (isa<FloatType>(type.getElementType()) && !isCode(type.getElementType()) &&
      type.getNumElements() <= 2 * facts.stored) {
    weights.insert(value);
    return;
  }
  for (Value operand : value.getDefiningOp()->getOperands())
    addWeights(operand, weights);
}

std::pair<OwningOpRef<ModuleOp>, SmallVector<BlockArgument>> Widening::outline(Value value) {
  SetVector<Operation *> ops;
  llvm::SmallSetVector<Value, 4> read;
  SmallVector<Value> left{value};
  while (!left.empty()) {
    Value next = left.pop_back_val();
    Operation *op = next.getDefiningOp();
    if (!op)
      read.insert(next);
    else if (ops.insert(op))
      llvm::append_range(left, op->getOperands());
  }
  SmallVector<BlockArgument> sources;
  for (BlockArgument argument : func.getArguments())
    if (read.contains(argument))
      sources.push_back(argument);

  OpBuilder builder(func.getContext());
  OwningOpRef<ModuleOp> module = ModuleOp::create(builder.getUnknownLoc());
  builder.setInsertionPointToStart(module->getBody());
  auto type = builder.getFunctionType(TypeRange(ValueRange(ArrayRef<Value>(
                                          SmallVector<Value>(sources.begin(), sources.end())))),
                                      value.getType());
  auto main = func::FuncOp::create(builder, builder.getUnknownLoc(), "main", type);
  Block *block = main.addEntryBlock();
  builder.setInsertionPointToStart(block);
  IRMapping mapping;
  for (auto [i, source] : llvm::enumerate(sources)) {
    mapping.map(source, block->getArgument(i));
    main.setArgAttr(i, NnDialect::kParameterAttr, builder.getStringAttr(std::to_string(i)));
    if (Attribute offsets =
            func.getArgAttr(source.getArgNumber(), NnDialect::kParameterOffsetsAttr))
      main.setArgAttr(i, NnDialect::kParameterOffsetsAttr, offsets);
  }
  main.setResultAttr(0, NnDialect::kOutputAttr, builder.getStringAttr("weight"));
  for (Operation &op : func.front())
    if (ops.contains(&op))
      builder.clone(op, mapping)->removeAttr(NnDialect::kIdAttr);
  func::ReturnOp::create(builder, builder.getUnknownLoc(), mapping.lookup(value));
  return {std::move(module), std::move(sources)};
}

BlockArgument Widening::findCodes(ArrayRef<BlockArgument> sources) const {
  auto countCodes = [&](BlockArgument source) {
    Facts facts = known.lookup(source);
    return facts.hasCodes ? facts.stored : 0;
  };
  return *llvm::max_element(
      sources, [&](auto a, auto b) { return countCodes(a) < countCodes(b); });
}

/// Erases what nothing reads any more: ops, then these arguments.
static void eraseUnused(func::FuncOp func, ArrayRef<BlockArgument> arguments) {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(func.front())))
    if (isOpTriviallyDead(&op))
      op.erase();
  llvm::BitVector unused(func.getNumArguments());
  for (BlockArgument argument : arguments)
    if (argument.use_empty())
      unused.set(argument.getArgNumber());
  (void)func.eraseArguments(unused);
}

namespace {
/// An argument that takes a weight's place.
struct NewArgument {
  BlockArgument argument;
  size_t weight;
  /// The name and aliases of the codes, of which the weight has the numbers.
  DictionaryAttr codes;
};
} // namespace

/// A name that no other parameter has: that of the codes where no function reads them any more.
static std::string chooseName(StringRef codes, const llvm::StringSet<> &taken) {
  std::string name = codes.str();
  for (int i = 0; taken.contains(name); ++i)
    name = codes.str() + ".widened" + (i ? "." + std::to_string(i) : "");
  return name;
}

SmallVector<WidenedWeight> meshwright::widenStored(ModuleOp module) {
  SmallVector<WidenedWeight> weights;
  SmallVector<NewArgument> added;
  llvm::StringMap<size_t> made;
  SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
  for (func::FuncOp func : functions) {
    Widening widening(func);
    SetVector<BlockArgument> read;
    struct Found {
      Value value;
      BlockArgument codes;
      size_t weight;
    };
    SmallVector<Found> found;
    for (Value value : widening.findWeights()) {
      auto [program, sources] = widening.outline(value);
      read.insert(sources.begin(), sources.end());
      SmallVector<std::string> names;
      for (BlockArgument source : sources)
        names.push_back(func.getArgAttrOfType<StringAttr>(source.getArgNumber(),
                                                          NnDialect::kParameterAttr)
                            .str());
      std::string key = llvm::join(names, "\n") + "\n";
      llvm::raw_string_ostream(key) << *program;
      auto [it, isNew] = made.try_emplace(key, weights.size());
      if (isNew)
        weights.push_back({"", cast<RankedTensorType>(value.getType()), std::move(program),
                           std::move(names)});
      found.push_back({value, widening.findCodes(sources), it->second});
    }
    for (const Found &one : found) {
      DictionaryAttr attrs = func.getArgAttrDict(one.codes.getArgNumber());
      unsigned index = one.codes.getArgNumber();
      (void)func.insertArgument(index, one.value.getType(), {}, one.value.getLoc());
      BlockArgument argument = func.getArgument(index);
      Value(one.value).replaceAllUsesWith(argument);
      added.push_back({argument, one.weight, attrs});
    }
    eraseUnused(func, read.getArrayRef());
  }

  llvm::StringSet<> taken;
  for (func::FuncOp func : functions)
    for (unsigned i = 0; i < func.getNumArguments(); ++i)
      if (auto name = func.getArgAttrOfType<StringAttr>(i, NnDialect::kParameterAttr))
        taken.insert(name.getValue());
  for (const NewArgument &one : added) {
    auto func = cast<func::FuncOp>(one.argument.getOwner()->getParentOp());
    StringRef codes = one.codes.getAs<StringAttr>(NnDialect::kParameterAttr).getValue();
    WidenedWeight &weight = weights[one.weight];
    if (weight.name.empty()) {
      weight.name = chooseName(codes, taken);
      taken.insert(weight.name);
    }
    unsigned i = one.argument.getArgNumber();
    func.setArgAttr(i, NnDialect::kParameterAttr,
                    StringAttr::get(func.getContext(), weight.name));
    if (Attribute aliases = one.codes.get(NnDialect::kAliasesAttr); aliases && weight.name == codes)
      func.setArgAttr(i, NnDialect::kAliasesAttr, aliases);
  }
  return weights;
}

namespace {
struct WidenStoredPass : meshwright::impl::WidenStoredPassBase<WidenStoredPass> {
  void runOnOperation() override {
    int64_t bytes = 0;
    SmallVector<WidenedWeight> weights = widenStored(getOperation());
    for (const WidenedWeight &weight : weights)
      bytes += getBytesOf(weight.type.getElementType(), weight.type.getNumElements());
    if (!weights.empty())
      dist::DistDialect::getDecisionLog(&getContext())
          .add("widen-stored", Outcome::Applied, getOperation().getLoc(),
               llvm::formatv("{0} stored weights are widened at load", weights.size()).str(),
               {{"weights", double(weights.size())}, {"bytes", double(bytes)}});
  }
};
} // namespace
