//===- HoistSlices.cpp - slices move up to what is small ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The partitioner computes a mask of queries and keys whole if it does not depend on
// sharded values. Each rank then slices its rows and, in the steps of a ring, some keys.
// This pass moves the slices up, past the ops that compute the mask, to ids and positions.
// It repeats these ops for each slice.
//
// A slice or a pad may append zeros as padding. Behind a move, the ops that it moved past compute
// that padding, which few readers see. A slice may also move past an op that makes its dimension
// of equal elements, as a broadcast does. Then only the readers tell how many of them there are on
// all ranks. So all slices move first, and the program is proved. If the proof fails, the pass
// starts anew and does not move past ops that make the dimension; if that fails, it moves only ops
// that append nothing. A slice of a value that is equal along the dimension would not tell padding
// from true elements: such a value is padded itself.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/optimise/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace meshwright {
#define GEN_PASS_DEF_HOISTSLICESPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

int64_t countBytes(Value value) {
  RankedTensorType type = typeOf(value);
  return getStoredBytes(type);
}

/// An op on one dimension of a value: a dist.slice, dist.pad or dist.reorder.
struct Cut {
  Operation *example;
  int64_t dim;
  /// The size of the dimension after the op.
  int64_t size;
  /// True if the op appends padding.
  bool pads;

  /// Returns nothing for other ops, and for ops on several dimensions or values.
  static std::optional<Cut> of(Operation *op, MeshAttr mesh);
  bool operator==(const Cut &other) const;
  Type applyTo(RankedTensorType type) const {
    SmallVector<int64_t> shape(type.getShape());
    shape[dim] = size;
    return type.clone(shape);
  }
  Value create(OpBuilder &builder, Value value) const;
};

/// Moves that need a proof.
struct Risks {
  /// An op that appends padding moves.
  bool padding = false;
  /// A slice moves past an op that makes the dimension of equal elements.
  bool madeDims = false;

  bool any() const { return padding || madeDims; }
  Risks &operator|=(const Risks &other) {
    padding |= other.padding;
    madeDims |= other.madeDims;
    return *this;
  }
};

/// One walk in reverse program order. It finds the ops that are needed in slices only, and
/// the slices.
class Hoister {
public:
  Hoister(func::FuncOp func, MeshAttr mesh, Risks allowed)
      : block(func.front()), mesh(mesh), allowed(allowed) {}

  /// Returns true if the program changed.
  bool run();
  /// The risks that it took.
  Risks getTaken() const { return taken; }
  const DecisionLog &getLog() const { return log; }

private:
  std::optional<Cut> getCut(Operation *op) const;
  bool knowsSize(Value value, int64_t dim);
  std::optional<SmallVector<int64_t>> getOperandDims(Operation *op, int64_t dim) const;
  bool wantsCuts(Operation *op);
  Value getSlice(Value value, const Cut &cut);

  Block &block;
  MeshAttr mesh;
  Risks allowed;
  Risks taken;
  DecisionLog log;
  /// The least bytes that are sliced if the slices of a value move up.
  ProgramMap<Value, int64_t> frontier;
  /// The slices of an op's result that its users need, if all of them need slices.
  ProgramMap<Operation *, SmallVector<Cut, 2>> cuts;
  ProgramMap<Value, SmallVector<std::pair<Cut, Value>, 2>> slices;
  /// The results of `knowsSize`.
  DenseMap<std::pair<Value, int64_t>, bool> sized;
};

} // namespace

std::optional<Cut> Cut::of(Operation *op, MeshAttr mesh) {
  if (op->getNumOperands() != 1 || op->getNumResults() != 1)
    return std::nullopt;
  auto withDim = [&](int64_t dim) {
    auto slice = dyn_cast<dist::SliceOp>(op);
    int64_t chunks = slice ? getNumShards(getAxes(slice.getAxes(), mesh)) : 1;
    int64_t size = typeOf(op->getResult(0)).getDimSize(dim);
    return Cut{op, dim, size, size * chunks > typeOf(op->getOperand(0)).getDimSize(dim)};
  };
  if (auto slice = dyn_cast<dist::SliceOp>(op))
    return withDim(slice.getDims()[0]);
  if (auto pad = dyn_cast<PadOp>(op); pad && pad.getDims().size() == 1)
    return withDim(pad.getDims()[0]);
  if (auto reorder = dyn_cast<ReorderOp>(op))
    return withDim(reorder.getDim());
  return std::nullopt;
}

bool Cut::operator==(const Cut &other) const {
  if (dim != other.dim || size != other.size || example->getName() != other.example->getName())
    return false;
  NamedAttrList own(example->getAttrs()), others(other.example->getAttrs());
  for (StringRef name : {StringRef(nn::NnDialect::kIdAttr), StringRef(nn::NnDialect::kBackwardAttr), StringRef("dim"),
                         StringRef("dims")}) {
    own.erase(name);
    others.erase(name);
  }
  return own.getDictionary(example->getContext()) == others.getDictionary(example->getContext());
}

Value Cut::create(OpBuilder &builder, Value value) const {
  IRMapping mapping;
  mapping.map(example->getOperand(0), value);
  Operation *op = builder.clone(*example, mapping);
  op->removeAttr(nn::NnDialect::kIdAttr);
  // The backward pass begins at the first op with the mark.
  Operation *above = value.getDefiningOp();
  if (!above || !above->hasAttr(nn::NnDialect::kBackwardAttr))
    op->removeAttr(nn::NnDialect::kBackwardAttr);
  if (auto reorder = dyn_cast<ReorderOp>(op))
    reorder.setDim(dim);
  else
    op->setAttr("dims", builder.getDenseI64ArrayAttr({dim}));
  op->getResult(0).setType(applyTo(typeOf(value)));
  return op->getResult(0);
}

/// Returns true for cheap ops that a slice can move past. A slice does not move past an op
/// that takes a slice itself.
static bool letsSlicePast(Operation *op) {
  return op->hasTrait<Cheap>() || (op->hasTrait<Reindexes>() && !op->hasTrait<TakesPart>());
}

/// Returns true if an op may move: past a cheap op, also after another cut has moved.
static bool mayMove(func::FuncOp func, MeshAttr mesh) {
  return llvm::any_of(func.front(), [&](Operation &op) {
    std::optional<Cut> cut = Cut::of(&op, mesh);
    Operation *above = cut ? op.getOperand(0).getDefiningOp() : nullptr;
    return above && (letsSlicePast(above) || Cut::of(above, mesh));
  });
}

/// The elements of a constant that are all equal; null for other ops.
static DenseElementsAttr getSplat(Operation *op) {
  auto constant = llvm::dyn_cast_or_null<nn::ConstantOp>(op);
  auto elements = constant ? dyn_cast<DenseElementsAttr>(constant.getValue()) : nullptr;
  return elements && elements.isSplat() ? elements : nullptr;
}

/// The op if it may move.
std::optional<Cut> Hoister::getCut(Operation *op) const {
  std::optional<Cut> cut = Cut::of(op, mesh);
  return cut && cut->pads && !allowed.padding ? std::nullopt : cut;
}

/// The dimension of each operand that corresponds to dimension `dim` of the result; -1 for
/// an operand without such a dimension. Nothing if a slice of the dimension is not computed from
/// slices of the operands, as behind a reshape that moves its boundaries.
std::optional<SmallVector<int64_t>> Hoister::getOperandDims(Operation *op, int64_t dim) const {
  FactorRule rule = cast<ShardingRuleOpInterface>(op).getFactorRule();
  const FactorRule::DimFactors &own = rule.results[0][dim];
  int64_t size = typeOf(op->getResult(0)).getDimSize(dim);
  if (own.size() != 1 || rule.factors[own[0]].kind == FactorKind::Special)
    return std::nullopt;
  SmallVector<int64_t> dims;
  for (auto [operand, factors] : llvm::zip_equal(op->getOperands(), rule.operands)) {
    dims.push_back(-1);
    for (auto [d, here] : llvm::enumerate(factors)) {
      if (!llvm::is_contained(here, own[0]))
        continue;
      if (here.size() != 1 || dims.back() != -1 || typeOf(operand).getDimSize(d) != size)
        return std::nullopt;
      dims.back() = d;
    }
  }
  return dims;
}

/// Returns true for the dimensions of operands, as `getOperandDims` gives them, if none has the result's.
static bool isMade(ArrayRef<int64_t> dims) {
  return llvm::all_of(dims, [](int64_t dim) { return dim < 0; });
}

/// Returns true if the elements along a dimension come from a value that has it, and are not
/// copies of one element. The layout of its padded slice has the true size.
bool Hoister::knowsSize(Value value, int64_t dim) {
  Operation *op = value.getDefiningOp();
  if (!op || !letsSlicePast(op))
    return !getSplat(op);
  auto [known, isNew] = sized.try_emplace({value, dim}, false);
  if (!isNew)
    return known->second;
  std::optional<SmallVector<int64_t>> dims = getOperandDims(op, dim);
  bool isKnown = !dims; // The op does not move.
  for (size_t i = 0; dims && i < dims->size() && !isKnown; ++i)
    isKnown = (*dims)[i] >= 0 && knowsSize(op->getOperand(i), (*dims)[i]);
  return sized[{value, dim}] = isKnown;
}

/// Returns true, and notes the slices, if the op is needed in slices only and its operands
/// have fewer bytes to slice.
bool Hoister::wantsCuts(Operation *op) {
  if (!letsSlicePast(op) || op->use_empty())
    return false;
  if (frontier.lookup(op->getResult(0)) >= countBytes(op->getResult(0)))
    return false;
  SmallVector<Cut, 2> wanted;
  auto want = [&](const Cut &cut) {
    if (!llvm::is_contained(wanted, cut))
      wanted.push_back(cut);
    std::optional<SmallVector<int64_t>> dims = getOperandDims(op, cut.dim);
    return dims && (allowed.madeDims || !isMade(*dims)) &&
           (!cut.pads || knowsSize(op->getResult(0), cut.dim));
  };
  for (OpOperand &use : op->getUses()) {
    Operation *user = use.getOwner();
    if (std::optional<Cut> cut = getCut(user)) {
      if (!want(*cut))
        return false;
      continue;
    }
    auto asked = cuts.find(user);
    if (asked == cuts.end())
      return false;
    for (Cut cut : asked->second) {
      cut.dim = (*getOperandDims(user, cut.dim))[use.getOperandNumber()];
      if (cut.dim < 0 || !want(cut))
        return false;
    }
  }
  cuts[op] = std::move(wanted);
  return true;
}

Value Hoister::getSlice(Value value, const Cut &cut) {
  for (auto &[known, slice] : slices[value])
    if (known == cut)
      return slice;
  Operation *op = value.getDefiningOp();
  OpBuilder builder(value.getContext());
  Value slice;
  if (op && cuts.contains(op)) {
    SmallVector<Value> operands(op->getOperands());
    SmallVector<int64_t> dims = *getOperandDims(op, cut.dim);
    taken.madeDims |= isMade(dims);
    for (auto [operand, dim] : llvm::zip_equal(operands, dims)) {
      Cut above = cut;
      above.dim = dim;
      if (dim >= 0)
        operand = getSlice(operand, above);
    }
    builder.setInsertionPoint(op);
    Operation *clone = builder.clone(*op);
    clone->setOperands(operands);
    clone->removeAttr(nn::NnDialect::kIdAttr);
    clone->removeAttr(kResultsAttr);
    clone->getResult(0).setType(cut.applyTo(typeOf(value)));
    slice = clone->getResult(0);
  } else if (DenseElementsAttr splat = getSplat(op)) {
    builder.setInsertionPoint(op);
    slice = nn::ConstantOp::create(builder, op->getLoc(),
                                   splat.resizeSplat(cast<ShapedType>(cut.applyTo(typeOf(value)))));
  } else {
    builder.setInsertionPointAfterValue(value);
    slice = cut.create(builder, value);
  }
  slices[value].push_back({cut, slice});
  return slice;
}

bool Hoister::run() {
  SmallVector<Operation *> ops = llvm::map_to_vector(block, [](Operation &op) { return &op; });
  for (Operation *op : ops) {
    if (getSplat(op))
      frontier[op->getResult(0)] = 0;
    if (!letsSlicePast(op))
      continue;
    int64_t above = 0;
    for (Value operand : op->getOperands()) {
      auto known = frontier.find(operand);
      above += known == frontier.end() ? countBytes(operand) : known->second;
    }
    frontier[op->getResult(0)] = std::min(above, countBytes(op->getResult(0)));
  }
  for (Operation *op : llvm::reverse(ops))
    wantsCuts(op);
  bool changed = false;
  for (Operation *op : ops) {
    std::optional<Cut> cut = getCut(op);
    Operation *whole = cut ? op->getOperand(0).getDefiningOp() : nullptr;
    if (!cuts.contains(whole))
      continue;
    log.add("hoist-slices", Outcome::Applied, op->getLoc(),
            (op->getName().getStringRef() + " moves up past " + whole->getName().getStringRef() +
             ": its operands have fewer bytes to slice")
                .str(),
            {{"bytes_below", double(countBytes(whole->getResult(0)))},
             {"bytes_above", double(frontier.lookup(whole->getResult(0)))}});
    taken.padding |= cut->pads;
    op->getResult(0).replaceAllUsesWith(getSlice(op->getOperand(0), *cut));
    changed = true;
  }
  for (Operation *op : llvm::reverse(ops))
    if (isOpTriviallyDead(op))
      op->erase();
  return changed;
}

namespace {

struct HoistSlicesPass : meshwright::impl::HoistSlicesPassBase<HoistSlicesPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (!getSpmdMeshSymbol(func) || func.isDeclaration() ||
        func.front().getOps<dist::SliceOp>().empty())
      return markAllAnalysesPreserved();
    MeshAttr mesh = getSpmdMesh(func);
    if (!mayMove(func, mesh))
      return markAllAnalysesPreserved();
    OwningOpRef<func::FuncOp> before = func.clone();
    Attempt attempt = hoist(func, mesh, {/*padding=*/true, /*madeDims=*/true});
    if (!attempt.isChanged)
      return markAllAnalysesPreserved();
    if (!attempt.isProved && attempt.taken.madeDims) {
      restore(func, *before);
      attempt = hoist(func, mesh, {/*padding=*/true, /*madeDims=*/false});
    }
    if (!attempt.isProved && attempt.taken.padding) {
      restore(func, *before);
      attempt = hoist(func, mesh, {/*padding=*/false, /*madeDims=*/false});
    }
    DistDialect::getDecisionLog(func.getContext()).append(*attempt.log);
    if (!attempt.taken.any() && failed(verifyPlacement(func)))
      signalPassFailure();
  }

private:
  struct Attempt {
    bool isChanged = false;
    /// False if a risk was taken and the program is not proved.
    bool isProved = true;
    Risks taken;
    std::unique_ptr<DecisionLog> log = std::make_unique<DecisionLog>();
  };

  Attempt hoist(func::FuncOp func, MeshAttr mesh, Risks allowed);
  static void restore(func::FuncOp func, func::FuncOp before) {
    IRMapping mapping;
    func.getBody().getBlocks().clear();
    before.getBody().cloneInto(&func.getBody(), mapping);
  }
};

} // namespace

HoistSlicesPass::Attempt HoistSlicesPass::hoist(func::FuncOp func, MeshAttr mesh, Risks allowed) {
  Attempt attempt;
  // Slices of several dimensions move up one after the other.
  while (true) {
    Hoister hoister(func, mesh, allowed);
    if (!hoister.run())
      break;
    attempt.isChanged = true;
    attempt.taken |= hoister.getTaken();
    attempt.log->append(hoister.getLog());
  }
  attempt.isProved = !attempt.taken.any() || isPlacementProved(func);
  return attempt;
}
