//===- SplitRoutings.cpp - layers of experts in chunks of tokens ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The ops that routed values connect are cut along a dimension of the tokens. They run for one chunk of
// tokens after the other, so the rows of one chunk at a time are there:
//
//   y = combine(f(dispatch(x, i)), i)      y0 = combine(f(dispatch(x[:n], i[:n])), i[:n])
//                                          y1 = combine(f(dispatch(x[n:], i[n:])), i[n:])
//                                          y = concat(y0, y1)
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/SortByOperands.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/schedule/Passes.h"


#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

#include <optional>

namespace meshwright {
#define GEN_PASS_DEF_SPLITROUTINGSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

bool isRouted(Value value) { return bool(nn::getRouted(value.getType())); }

/// Returns true for an op that waits for rows, and reads none.
bool waitsForRows(Operation *op) {
  auto after = dyn_cast<AfterOp>(op);
  return after && !isRouted(after.getInput());
}

/// How an op is cut. The dimension of the tokens in each operand and result; none in a value that is whole.
struct OpCut {
  Operation *op = nullptr;
  SmallVector<std::optional<int64_t>, 3> operands;
  SmallVector<std::optional<int64_t>, 1> results;
};

/// The ops that routed values connect, in the program's order, and how they are cut.
struct Component {
  SmallVector<Operation *> ops;
  SmallVector<OpCut> cuts;
  /// The dimension of the tokens, of those of routed values.
  int64_t dim = 0;
  /// The tokens of a rank.
  int64_t size = 0;
};

/// Finds how a component can be cut along one of its dimensions.
class CutFinder {
public:
  CutFinder(Component &component, const PlacementAnalysis &placement, int64_t dim)
      : component(component), placement(placement) {
    component.dim = dim;
    component.size = 0;
    component.cuts.clear();
  }

  bool run() {
    return llvm::all_of(component.ops, [&](Operation *op) { return addSize(op); }) && component.size > 1 &&
           llvm::all_of(component.ops, [&](Operation *op) { return add(op); });
  }
  /// Returns true if the tokens are sharded, or other ranks have their rows. Other dimensions come first.
  bool isMoved() const { return moved; }

private:
  bool addSize(Operation *op);
  bool add(Operation *op);
  bool addMove(Operation *op);
  bool addByRule(Operation *op);
  bool canCut(Value value, int64_t dim);

  Component &component;
  const PlacementAnalysis &placement;
  bool moved = false;
};

} // namespace

/// Reads the number of tokens from ops between tokens and rows.
bool CutFinder::addSize(Operation *op) {
  auto lookup = dyn_cast<LookupOpInterface>(op);
  if (!lookup || isRouted(op->getOperand(lookup.getIndexOperand())))
    return true;
  int64_t size = shapeOf(op->getOperand(lookup.getIndexOperand()))[component.dim - 1];
  if (component.size == 0)
    component.size = size;
  return component.size == size;
}

/// The sharding of `part` of each rank's tokens, along a dimension of which it has `whole`. Null if the sharding states
/// sizes of which these are no factor.
static ShardingAttr cutSharding(ShardingAttr sharding, int64_t dim, int64_t whole, int64_t part, MeshAttr mesh) {
  SmallVector<DimShardingAttr> dims(sharding.getDims());
  SmallVector<FactorShardingAttr> factors(dims[dim].getFactors());
  // Sizes that are not stated follow from the types.
  if (factors.empty() || factors.back().getSize() == 0)
    return sharding;
  FactorShardingAttr last = factors.back();
  LayoutFactor own = getFactor(last, mesh);
  if (own.isPadded() || own.size % whole != 0 || !own.isContiguous())
    return nullptr;
  int64_t size = last.getSize() / whole * part;
  factors.back() = FactorShardingAttr::get(last.getContext(), size, size, last.getOrder(), last.getOrderRanks(),
                                           last.getAxes());
  dims[dim] = DimShardingAttr::get(last.getContext(), factors, dims[dim].getIsOpen());
  return ShardingAttr::get(last.getContext(), sharding.getMesh(), dims, sharding.getUnreduced(),
                           sharding.getReduction());
}

/// Returns true if a value that is not routed can be cut into chunks or joined from them.
bool CutFinder::canCut(Value value, int64_t dim) {
  if (shapeOf(value)[dim] != component.size)
    return false;
  const Layout *layout = placement.lookup(value);
  if (!layout)
    return false;
  const DimLayout &own = layout->dims[dim];
  if (llvm::any_of(own.factors, [](const LayoutFactor &factor) { return factor.uniform; }))
    return false;
  moved |= own.isSharded();
  // Each rank cuts its own tokens. They follow one another.
  return !own.isPadded() && (!own.isSharded() || (own.factors.size() == 1 && own.factors.front().isContiguous()));
}

bool CutFinder::add(Operation *op) {
  auto isWhole = [&](Value value) { return !isRouted(value) || shapeOf(value)[component.dim] % component.size == 0; };
  if (op->getNumRegions() != 0 || !llvm::all_of(op->getOperands(), isWhole) || !llvm::all_of(op->getResults(), isWhole))
    return false;
  component.cuts.emplace_back().op = op;
  return isa<DistDialect>(op->getDialect()) ? addMove(op) : addByRule(op);
}

/// An op of another dialect than that of the model moves rows, or changes their padding.
bool CutFinder::addMove(Operation *op) {
  OpCut &cut = component.cuts.back();
  if (auto after = dyn_cast<AfterOp>(op)) {
    cut.results = {component.dim};
    cut.operands = {component.dim, std::nullopt};
    if (isRouted(after.getEarlier()))
      cut.operands.back() = component.dim;
    return true;
  }
  if (op->getNumOperands() != op->getNumResults() || !llvm::all_of(op->getOperands(), isRouted))
    return false;
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  for (auto [i, from, to] : llvm::enumerate(op->getOperands(), op->getResults())) {
    cut.operands.push_back(component.dim);
    cut.results.push_back(component.dim);
    auto shardings = collective ? collective.getShardings(i) : std::nullopt;
    MeshAttr mesh = placement.getMesh();
    if (shardings && (!cutSharding(shardings->first, component.dim, component.size, 1, mesh) ||
                      !cutSharding(shardings->second, component.dim, component.size, 1, mesh)))
      return false;
    bool isSame = shapeOf(from)[component.dim] == shapeOf(to)[component.dim];
    if (!collective && !isSame)
      return false;
    moved |= !isSame;
  }
  return true;
}

bool CutFinder::addByRule(Operation *op) {
  OpCut &cut = component.cuts.back();
  auto interface = dyn_cast<ShardingRuleOpInterface>(op);
  if (!interface)
    return false;
  // A constant has as many rows as the ops around it.
  if (op->getNumOperands() == 0) {
    cut.results.push_back(component.dim);
    auto constant = op->getAttrOfType<DenseElementsAttr>("value");
    return constant && constant.isSplat();
  }
  FactorRule rule = interface.getFactorRule();
  std::optional<int> tokens;
  auto findTokens = [&](Value value, const FactorRule::ValueFactors &dims) {
    if (!tokens && isRouted(value) && dims[component.dim].size() == 1)
      tokens = dims[component.dim].front();
  };
  for (auto [operand, dims] : llvm::zip_equal(op->getOperands(), rule.operands))
    findTokens(operand, dims);
  for (auto [result, dims] : llvm::zip_equal(op->getResults(), rule.results))
    findTokens(result, dims);
  if (!tokens || rule.factors[*tokens].kind == FactorKind::Special)
    return false;
  auto place = [&](Value value, const FactorRule::ValueFactors &dims, std::optional<int64_t> &where) {
    for (auto [dim, factors] : llvm::enumerate(dims)) {
      if (!llvm::is_contained(factors, *tokens))
        continue;
      if (where || factors.size() != 1)
        return false;
      where = dim;
    }
    if (isRouted(value))
      return where == component.dim;
    return !where || canCut(value, *where);
  };
  for (auto [operand, dims] : llvm::zip_equal(op->getOperands(), rule.operands))
    if (!place(operand, dims, cut.operands.emplace_back()))
      return false;
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    std::optional<int64_t> &where = cut.results.emplace_back();
    if (!place(result, rule.results[i], where))
      return false;
    // Sums over the tokens of chunks are added.
    auto reduce = dyn_cast<nn::ReduceOp>(op);
    if (!where && (!rule.isReducedIn(*tokens, i) || (reduce && reduce.getKind() != nn::ReduceKind::Sum)))
      return false;
  }
  return true;
}

namespace {

/// Writes a component in chunks.
class ChunkWriter {
public:
  /// `sharded` has the joined values of all components, and whether their tokens are sharded.
  ChunkWriter(Component &component, const PlacementAnalysis &placement, int64_t chunks,
              ProgramMap<Value, bool> &sharded)
      : component(component), placement(placement), count(chunks), joined(sharded),
        builder(component.ops.front()) {}

  /// The ops of the component stay. None of their results has a use outside it.
  void run();

private:
  /// Ops of which none reads what ops outside the component make of the results of others.
  using Group = SmallVector<const OpCut *>;
  SmallVector<Group> findGroups();
  void write(const OpCut &cut, int64_t chunk);
  void join(const OpCut &cut);
  void waitForAll(Value rows);
  Value getChunk(Value value, std::optional<int64_t> dim, int64_t chunk);
  bool isSharded(Value value, int64_t dim) const {
    if (auto known = joined.find(value); known != joined.end())
      return known->second;
    const Layout *layout = placement.lookup(value);
    return layout && layout->dims[dim].isSharded();
  }
  /// A dimension for the ranks before tokens that are sharded, of which each rank has one element. So tokens
  /// are whole where a rank cuts or joins them.
  Value exposeTokens(Value piece, int64_t dim, bool sharded);
  Value hideRanks(Value piece, int64_t dim, bool sharded);
  int64_t getStart(int64_t chunk) const { return chunk * component.size / count; }
  RankedTensorType getType(Value value, int64_t dim, int64_t chunk) const;

  Component &component;
  const PlacementAnalysis &placement;
  int64_t count;
  ProgramMap<Value, bool> &joined;
  OpBuilder builder;
  /// The chunks of routed values, of values that are cut, and of results that are joined.
  ProgramMap<Value, SmallVector<Value, 4>> chunks;
};

} // namespace

RankedTensorType ChunkWriter::getType(Value value, int64_t dim, int64_t chunk) const {
  SmallVector<int64_t> shape(shapeOf(value));
  shape[dim] = shape[dim] / component.size * (getStart(chunk + 1) - getStart(chunk));
  return typeOf(value).clone(shape);
}

Value ChunkWriter::exposeTokens(Value piece, int64_t dim, bool sharded) {
  if (!sharded)
    return piece;
  SmallVector<int64_t> shape(shapeOf(piece));
  shape.insert(shape.begin() + dim, 1);
  return nn::ReshapeOp::create(builder, piece.getLoc(), typeOf(piece).clone(shape), piece);
}

Value ChunkWriter::hideRanks(Value piece, int64_t dim, bool sharded) {
  if (!sharded)
    return piece;
  SmallVector<int64_t> shape(shapeOf(piece));
  shape.erase(shape.begin() + dim);
  return nn::ReshapeOp::create(builder, piece.getLoc(), typeOf(piece).clone(shape), piece);
}

Value ChunkWriter::getChunk(Value value, std::optional<int64_t> dim, int64_t chunk) {
  if (!dim)
    return value;
  chunks[value].resize(count);
  if (Value known = chunks[value][chunk])
    return known;
  nn::Writer w(builder, value.getLoc());
  // The proof knows choices of another type by the choices themselves.
  if (auto cast = value.getDefiningOp<nn::CastOp>()) {
    Value piece = w.cast(getChunk(cast.getInput(), dim, chunk), elementOf(value));
    return chunks[value][chunk] = piece;
  }
  bool sharded = isSharded(value, *dim);
  Value piece = w.slice(exposeTokens(value, *dim, sharded), *dim + sharded, getStart(chunk), getStart(chunk + 1));
  return chunks[value][chunk] = hideRanks(piece, *dim, sharded);
}

/// Groups the ops in the program's order.
SmallVector<ChunkWriter::Group> ChunkWriter::findGroups() {
  SmallVector<Group> groups(1);
  ProgramMap<Operation *, const OpCut *> own;
  for (const OpCut &cut : component.cuts)
    own[cut.op] = &cut;
  ProgramSet<Value> reached;
  auto reads = [&](Operation *op, bool rows) {
    return llvm::any_of(op->getOperands(),
                        [&](Value operand) { return (rows || !isRouted(operand)) && reached.contains(operand); });
  };
  for (Operation &op : *component.ops.front()->getBlock()) {
    const OpCut *cut = own.lookup(&op);
    if (cut && reads(&op, /*rows=*/false)) {
      groups.emplace_back();
      reached.clear();
    }
    if (cut)
      groups.back().push_back(cut);
    if (cut || reads(&op, /*rows=*/true))
      reached.insert(op.result_begin(), op.result_end());
  }
  return groups;
}

void ChunkWriter::write(const OpCut &cut, int64_t chunk) {
  Operation *op = builder.clone(*cut.op);
  op->removeAttr(nn::NnDialect::kIdAttr);
  for (auto [i, dim] : llvm::enumerate(cut.operands)) {
    builder.setInsertionPoint(op);
    op->setOperand(i, getChunk(cut.op->getOperand(i), dim, chunk));
  }
  builder.setInsertionPointAfter(op);
  for (auto [from, to, dim] : llvm::zip_equal(cut.op->getResults(), op->getResults(), cut.results)) {
    if (dim)
      to.setType(getType(from, *dim, chunk));
    SmallVector<Value, 4> &list = chunks[from];
    list.resize(count);
    list[chunk] = to;
  }
  // Ops with sizes of dimensions among their attributes.
  if (auto move = dyn_cast<RedistributeOp>(op)) {
    int64_t part = getStart(chunk + 1) - getStart(chunk);
    auto cutAll = [&](ArrayAttr shardings) {
      return builder.getArrayAttr(llvm::map_to_vector(shardings.getAsRange<ShardingAttr>(), [&](ShardingAttr whole) {
        return Attribute(cutSharding(whole, component.dim, component.size, part, placement.getMesh()));
      }));
    };
    move.setFromAttr(cutAll(move.getFrom()));
    move.setToAttr(cutAll(move.getTo()));
  }
  if (auto slice = dyn_cast<nn::SliceOp>(op)) {
    SmallVector<int64_t> limits(slice.getLimits());
    limits[component.dim] = shapeOf(slice)[component.dim];
    slice.setLimits(limits);
  } else if (auto elements = op->getAttrOfType<DenseElementsAttr>("value"); elements && cut.operands.empty()) {
    op->setAttr("value", elements.resizeSplat(typeOf(op->getResult(0))));
  }
}

/// Lets ops that wait for rows wait for those of all chunks.
void ChunkWriter::waitForAll(Value rows) {
  for (OpOperand &use : llvm::make_early_inc_range(rows.getUses())) {
    if (!waitsForRows(use.getOwner()))
      continue;
    auto after = cast<AfterOp>(use.getOwner());
    OpBuilder here(after);
    for (Value piece : ArrayRef(chunks[rows]).drop_back())
      after.getInputMutable().assign(AfterOp::create(here, after.getLoc(), after.getInput(), piece));
    use.set(chunks[rows].back());
  }
}

/// Joins the chunks of results for ops outside the component.
void ChunkWriter::join(const OpCut &cut) {
  for (auto [result, dim] : llvm::zip_equal(cut.op->getResults(), cut.results)) {
    if (isRouted(result)) {
      waitForAll(result);
      continue;
    }
    ArrayRef<Value> pieces = chunks[result];
    nn::Writer w(builder, result.getLoc());
    Value whole = pieces.front();
    if (dim) {
      bool sharded = isSharded(result, *dim);
      SmallVector<Value> exposed;
      for (Value piece : pieces)
        exposed.push_back(exposeTokens(piece, *dim, sharded));
      whole = hideRanks(w.concat(exposed, *dim + sharded), *dim, sharded);
      joined[whole] = sharded;
    } else {
      for (Value piece : pieces.drop_front())
        whole = w.add(whole, piece);
    }
    for (StringRef name : {nn::NnDialect::kIdAttr, nn::NnDialect::kStageAttr, nn::NnDialect::kBackwardAttr})
      if (Attribute fact = cut.op->getDiscardableAttr(name))
        whole.getDefiningOp()->setDiscardableAttr(name, fact);
    result.replaceAllUsesWith(whole);
  }
}

void ChunkWriter::run() {
  SmallVector<Group> groups = findGroups();
  for (const Group &group : groups) {
    builder.setInsertionPointAfter(group.back()->op);
    for (int64_t chunk = 0; chunk < count; ++chunk)
      for (const OpCut *cut : group)
        write(*cut, chunk);
    for (const OpCut *cut : group)
      join(*cut);
  }
}

namespace {

struct SplitRoutingsPass : meshwright::impl::SplitRoutingsPassBase<SplitRoutingsPass> {
  using SplitRoutingsPassBase::SplitRoutingsPassBase;

  void runOnOperation() override;
  SmallVector<Component> findComponents(Block &block);
  bool findCut(Component &component, const PlacementAnalysis &placement);
};

/// The ops that routed values connect.
SmallVector<Component> SplitRoutingsPass::findComponents(Block &block) {
  llvm::EquivalenceClasses<Operation *> classes;
  SmallVector<Operation *> order;
  for (Operation &op : block) {
    auto connect = [&](Value value) {
      if (isRouted(value) && value.getDefiningOp())
        classes.unionSets(&op, value.getDefiningOp());
    };
    if ((llvm::none_of(op.getOperands(), isRouted) && llvm::none_of(op.getResults(), isRouted)) || waitsForRows(&op))
      continue;
    order.push_back(&op);
    classes.insert(&op);
    llvm::for_each(op.getOperands(), connect);
  }
  llvm::MapVector<Operation *, Component> components;
  for (Operation *op : order)
    components[classes.getLeaderValue(op)].ops.push_back(op);
  SmallVector<Component> found;
  for (auto &[leader, component] : components)
    found.push_back(std::move(component));
  return found;
}

/// Finds a dimension of the tokens that can be cut: one whose tokens stay on their rank, if there is one.
bool SplitRoutingsPass::findCut(Component &component, const PlacementAnalysis &placement) {
  auto dispatch = llvm::find_if(component.ops, [](Operation *op) { return isa<nn::DispatchOp>(op); });
  if (dispatch == component.ops.end())
    return false;
  int64_t tokens = nn::getNumTokenDims((*dispatch)->getResult(0));
  std::optional<Component> moved;
  for (int64_t dim = 1; dim <= tokens; ++dim) {
    CutFinder finder(component, placement, dim);
    if (!finder.run())
      continue;
    if (!finder.isMoved())
      return true;
    if (!moved || moved->size < component.size)
      moved = component;
  }
  if (moved)
    component = std::move(*moved);
  return moved.has_value();
}

void SplitRoutingsPass::runOnOperation() {
  func::FuncOp func = getOperation();
  int64_t count = chunks;
  if (auto asked = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kExpertChunksAttr))
    count = asked.getInt();
  if (count < 2 || func.isExternal() || !getSpmdMesh(func) || !func.getBody().hasOneBlock())
    return markAllAnalysesPreserved();
  SmallVector<Component> components = findComponents(func.front());
  if (components.empty())
    return markAllAnalysesPreserved();
  FailureOr<PlacementAnalysis> placement = PlacementAnalysis::run(func);
  if (failed(placement))
    return signalPassFailure();
  DecisionLog &log = DistDialect::getDecisionLog(&getContext());
  ProgramMap<Value, bool> joined;
  ProgramSet<Operation *> replaced;
  for (Component &component : components) {
    Location location = component.ops.front()->getLoc();
    if (!findCut(component, *placement)) {
      log.add("split-routings", Outcome::Declined, location,
              "the experts stay whole: no dimension of their tokens can be cut into chunks");
      continue;
    }
    int64_t own = std::min(count, component.size);
    log.add("split-routings", Outcome::Applied, location, "the experts run for one chunk of tokens after the other",
            {{"chunks", double(own)}, {"tokens", double(component.size)}});
    ChunkWriter(component, *placement, own, joined).run();
    replaced.insert(component.ops.begin(), component.ops.end());
  }
  // Reports number the chunks of such a function.
  if (!replaced.empty())
    func->setAttr(rt::RtDialect::kExpertChunksAttr, Builder(&getContext()).getI64IntegerAttr(count));
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(func.front())))
    if (replaced.contains(&op))
      op.erase();
  sortByOperands(func.front());
  if (failed(verifyPlacement(func)))
    signalPassFailure();
}

} // namespace
