//===- PlacementBoundary.cpp - layouts of arguments and results -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The walk takes the layouts of arguments from the signature, and proves those of results. All
// functions share the layout of a state, which its `nn.state` has.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/LayoutTransfer.h"
#include "meshwright/lib/Placement/PlacementDerivation.h"
#include "meshwright/lib/Weights/Weights.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// "argument 2", "result 1, the new value of state 'steps'".
static std::string describe(DictionaryAttr attributes, StringRef what, unsigned i) {
  std::string text = what.str() + " " + std::to_string(i);
  auto state = attributes ? attributes.getAs<StringAttr>(nn::NnDialect::kStateAttr) : StringAttr();
  if (state)
    text += (what == "result" ? " (the new value of state '" : " (the state '") + state.str() + "')";
  return text;
}

/// Checks that a place of a state has the layout that the module states for it.
LogicalResult PlacementDerivation::checkState(StringAttr name, const Layout &layout,
                                              StringRef where) {
  nn::StateOp state = states.lookup(name);
  if (!state)
    return func.emitOpError() << where << " is of no nn.state of the module";
  auto sharding = state->getAttrOfType<ShardingAttr>(DistDialect::kShardingAttr);
  if (!sharding) {
    InFlightDiagnostic error = func.emitOpError()
                               << where << " has the layout " << toString(layout, mesh)
                               << ": expected the nn.state to have a 'dist.sharding', which all "
                                  "functions share";
    error.attachNote(state.getLoc()) << "the state";
    return error;
  }
  FailureOr<Layout> stated =
      getLayout(sharding, mesh, state.getMemoryType().getShape(),
                [&] { return state.emitOpError() << "'dist.sharding': "; });
  if (failed(stated))
    return failure();
  if (layout.sameShardingAs(*stated))
    return success();
  InFlightDiagnostic error = func.emitOpError()
                             << "expected " << where << " to have the layout of the state, "
                             << spellExactly(*stated) << ", got " << spellExactly(layout);
  error.attachNote(state.getLoc()) << "the state";
  return error;
}

/// A layout with the padded sizes, which tell layouts apart that shard alike.
std::string PlacementDerivation::spellExactly(const Layout &layout) const {
  std::string text = toString(layout, mesh), shape;
  llvm::raw_string_ostream os(shape);
  llvm::interleave(layout.getLocalShape(), os, "x");
  return text + " (" + shape + " on a rank)";
}

FailureOr<Layout> PlacementDerivation::getBoundary(DictionaryAttr attributes, Type type,
                                                   StringRef what, unsigned i) {
  auto emit = [&] { return func.emitOpError() << describe(attributes, what, i) << ": "; };
  auto local = dyn_cast<RankedTensorType>(type);
  if (!local || !local.hasStaticShape())
    return LogicalResult(emit() << "expected a tensor of static shape, got " << type);
  auto sharding = attributes ? attributes.getAs<ShardingAttr>(DistDialect::kShardingAttr) : nullptr;
  auto global = attributes ? attributes.getAs<TypeAttr>(DistDialect::kGlobalAttr) : nullptr;
  auto globalType = global ? dyn_cast<RankedTensorType>(global.getValue()) : RankedTensorType();
  if (!sharding || !globalType || !globalType.hasStaticShape())
    return LogicalResult(emit() << "expected 'dist.sharding' and 'dist.global', which give its "
                                   "layout");
  FailureOr<Layout> layout =
      getLayout(sharding, mesh, globalType.getShape(), local.getShape(), Padding::Zero, emit);
  if (failed(layout))
    return failure();
  if (auto state = attributes.getAs<StringAttr>(nn::NnDialect::kStateAttr))
    if (failed(checkState(state, *layout, describe(attributes, what, i))))
      return failure();
  return layout;
}

LogicalResult PlacementDerivation::addArguments() {
  // Arguments whose types and attributes are equal have one layout, as the parameters of the
  // layers of a model do.
  using Facts = std::tuple<Type, Attribute, Attribute, Attribute, unsigned>;
  DenseMap<Facts, LayoutRef> known;
  WeightFinder weights(func);
  for (BlockArgument argument : func.getArguments()) {
    unsigned i = argument.getArgNumber();
    DictionaryAttr attributes = func.getArgAttrDict(i);
    auto get = [&](StringRef name) { return attributes ? attributes.get(name) : Attribute(); };
    bool isState = bool(get(nn::NnDialect::kStateAttr));
    Facts facts(argument.getType(), get(DistDialect::kShardingAttr),
                get(DistDialect::kGlobalAttr), get(nn::NnDialect::kMagnitudeAttr),
                !isState && weights.find(argument));
    auto note = [&] {
      LayoutRef layout = this->get(argument);
      if (layout->isUnreduced() && layout->getReduction() == ReductionKind::Sum)
        statedParts.insert(argument);
    };
    if (auto it = known.find(facts); it != known.end() && !isState) {
      set(argument, it->second);
      note();
      continue;
    }
    FailureOr<Layout> layout = getBoundary(attributes, argument.getType(), "argument", i);
    if (failed(layout))
      return failure();
    describeArgument(*layout, attributes, argument.getType());
    LayoutRef interned = memo.intern(*layout);
    set(argument, interned);
    note();
    // Parameters have bounds that the values of a state may exceed.
    if (!isState)
      known.try_emplace(facts, interned);
  }
  return success();
}

/// Returns true if all padding of a local value holds zeros where `promised` is padded.
static bool hasZeroPadding(const Layout &layout, const Layout &promised) {
  int numPadded = 0;
  for (auto [have, want] : llvm::zip_equal(layout.dims, promised.dims))
    for (const LayoutFactor &factor : have.factors) {
      if (!factor.isPadded() && !(factor.uniform && want.isPadded()))
        continue;
      if ((factor.isPadded() ? factor.padding : layout.data) != Padding::Zero)
        return false;
      ++numPadded;
    }
  return numPadded < 2 || layout.corner == Padding::Zero;
}

/// Emits the error of a result that has not the layout that the signature promises.
LogicalResult PlacementDerivation::refuseResult(func::ReturnOp op, unsigned i, StringRef where,
                                                const Layout &promised) {
  LayoutRef layout = get(op.getOperand(i));
  InFlightDiagnostic diagnostic = op.emitOpError()
                                  << where << ": expected layout " << toString(promised, mesh)
                                  << ", which the signature promises, got "
                                  << toString(*layout, mesh);
  auto sizes = [](ArrayRef<int64_t> shape) {
    std::string text;
    llvm::raw_string_ostream os(text);
    llvm::interleave(shape, os, "x");
    return text;
  };
  if (layout->getGlobalShape() != promised.getGlobalShape())
    diagnostic << "; expected global shape " << sizes(promised.getGlobalShape()) << ", got "
               << sizes(layout->getGlobalShape());
  explain(diagnostic, op, i);
  return diagnostic;
}

/// Returns true if a value with this layout has the promised one. Zeros on all ranks are a sum, too.
static bool keepsPromise(const Layout &layout, const Layout &promised, MeshAttr mesh) {
  if (isLayout(layout, promised, mesh))
    return true;
  if (layout.isUnreduced() || promised.getReduction() != ReductionKind::Sum ||
      layout.data != Padding::Zero || layout.uses(promised.getUnreduced()))
    return false;
  Layout sum = layout;
  sum.setUnreduced(promised.getUnreduced());
  return isLayout(sum, promised, mesh);
}

LogicalResult PlacementDerivation::visitReturn(func::ReturnOp op) {
  for (auto [i, value] : llvm::enumerate(op.getOperands())) {
    DictionaryAttr attributes = func.getResultAttrDict(i);
    FailureOr<Layout> promised = getBoundary(attributes, value.getType(), "result", i);
    if (failed(promised))
      return failure();
    std::string where = describe(attributes, "result", i);
    if (dependent.contains(value))
      return LogicalResult(op.emitOpError() << where << " differs between ranks");
    bool isState = attributes.contains(nn::NnDialect::kStateAttr), isPadded = false;
    Candidates fitting;
    for (LayoutRef candidate : getCandidates(value)) {
      if (!keepsPromise(*candidate, *promised, mesh))
        continue;
      // The next call reads a state as an argument, whose padding is zero.
      if (isState && !hasZeroPadding(*candidate, *promised))
        isPadded = true;
      else
        fitting.push_back(candidate);
    }
    if (fitting.empty() && isPadded)
      return LogicalResult(op.emitOpError() << where << " has padding that may not be zero: "
                                            << "expected zeros, which the next call reads");
    if (fitting.empty())
      return refuseResult(op, i, where, *promised);
    if (auto it = ambiguous.find(value); it != ambiguous.end())
      it->second = fitting;
  }
  return success();
}
