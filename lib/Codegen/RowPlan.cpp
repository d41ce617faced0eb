//===- RowPlan.cpp - loops and passes of a row kernel ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/RowPlan.h"

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/Support/SaveAndRestore.h"

#include <array>

using namespace mlir;

namespace meshwright::lower {

//===----------------------------------------------------------------------===//
// Reads
//===----------------------------------------------------------------------===//

namespace {

/// Walks the operands of a piece from its stores to the inputs of the kernel. Adds to the
/// piece its accesses, statistics and cuts, and to the plan the limits of its vectors.
/// Fails, with a reason, if the kernel cannot read some operand by its loops.
class PieceWalker {
public:
  PieceWalker(const KernelRegion &region, const KernelTarget &target, RowPlan &plan,
              RowPiece &piece)
      : region(region), target(target), plan(plan), piece(piece) {}

  /// Visits an element. Returns its level: the number of passes before the first pass that
  /// can compute it.
  FailureOr<int64_t> walk(Value value, const Access &access, const LoopSpace &space);
  FailureOr<int64_t> walkPass(Value value, const Access &access, int64_t columns) {
    llvm::SaveAndRestore<int64_t> scope(this->columns, columns);
    return walk(value, access, piece.space.withColumns(0, columns));
  }
  /// Chooses the values that the piece keeps for later passes.
  void chooseKept();
  /// Returns true if a cut separates a pair whose elements are exchanged within a vector.
  bool cutsPairs() const;

  std::string reason;

private:
  FailureOr<int64_t> walkNew(Value value, const Access &access, const LoopSpace &space);
  FailureOr<int64_t> walkOperand(Operation *op, Value operand, const Access &access,
                                 const LoopSpace &space, int64_t level = 0);
  FailureOr<int64_t> walkSections(Operation *op, const Access &access, const LoopSpace &space);
  FailureOr<int64_t> addStatistics(Operation *op, const Access &access, const LoopSpace &space);
  bool isWorthKeeping(Value value, const Access &access, const LoopSpace &space);
  LogicalResult fail(Operation *op, const Twine &text) {
    reason = (op->getName().getStringRef() + " " + text).str();
    return failure();
  }

  const KernelRegion &region;
  const KernelTarget &target;
  RowPlan &plan;
  RowPiece &piece;
  /// The number of columns of the present pass.
  int64_t columns = 1;
  /// Ranges of columns with interleaved pairs: the columns of the pass, begin, end.
  SmallVector<std::array<int64_t, 3>> pairs;
  /// Levels of elements, by the columns of the pass and the range of columns.
  std::map<std::array<int64_t, 3>, NodeMap<int64_t>> levels;
};

} // namespace

FailureOr<int64_t> PieceWalker::walk(Value value, const Access &access, const LoopSpace &space) {
  NodeMap<int64_t> &known = levels[{columns, space.begin, space.end}];
  if (int64_t *level = known.find(value, access))
    return *level;
  FailureOr<int64_t> level = walkNew(value, access, space);
  if (succeeded(level))
    known.set(value, access, *level);
  return level;
}

FailureOr<int64_t> PieceWalker::walkOperand(Operation *op, Value operand, const Access &access,
                                            const LoopSpace &space, int64_t level) {
  std::optional<Access> read = getOperandAccess(op, operand, access, space);
  if (!read)
    return fail(op, "joins or splits dimensions that the kernel visits by one loop");
  FailureOr<int64_t> own = walk(operand, *read, space);
  if (failed(own))
    return failure();
  return std::max(*own, level);
}

FailureOr<int64_t> PieceWalker::walkNew(Value value, const Access &access, const LoopSpace &space) {
  Type type = getElementTypeOrSelf(value.getType());
  plan.widestBytes =
      std::max<int64_t>(plan.widestBytes, getComputeType(type).getIntOrFloatBitWidth() / 8);
  Operation *op = region.getDefiningOp(value);
  plan.canReorder &= access.column == 0 || type.isBF16() || (op && type.isF32());
  if (!op) {
    piece.accesses.push_back(access);
    plan.isScalar |= access.column != 0 && access.column != 1;
    return 0;
  }
  if (access.column != 0) {
    ElementCost cost = target.getElementCost(op);
    plan.isCostly |= cost != ElementCost::Few;
    plan.isScalar |= cost == ElementCost::OneByOne;
  }
  if (isa<nn::ConstantOp>(op))
    return 0;
  if (auto iota = dyn_cast<nn::IotaOp>(op)) {
    auto dims = delinearize(access, shapeOf(value), space);
    if (!dims)
      return fail(op, "counts along a dimension that the kernel visits by one loop with others");
    piece.accesses.push_back((*dims)[iota.getDim()]);
    return 0;
  }
  dist::PositionsOp tested = getTestedPositions(region, op);
  if (tested || isa<dist::PositionsOp>(op)) {
    auto dims = delinearize(access, shapeOf(value), space);
    if (!dims)
      return fail(op, "counts along a dimension that the kernel visits by one loop with others");
    if (!tested && cast<dist::PositionsOp>(op).getFactor().getOrder() != TokenOrder::Contiguous)
      return fail(op, "has elements in another order than the contiguous one");
    piece.accesses.push_back(dims->front());
    return 0;
  }
  if (hasColumnSections(op))
    return walkSections(op, access, space);
  if (isRowReduction(op))
    return addStatistics(op, access, space);
  if (!isElementwise(op) && !op->hasTrait<dist::View>())
    return fail(op, "is not computed element by element");
  int64_t level = 0;
  for (Value operand : op->getOperands()) {
    FailureOr<int64_t> next = walkOperand(op, operand, access, space, level);
    if (failed(next))
      return failure();
    level = *next;
  }
  return level;
}

FailureOr<int64_t> PieceWalker::walkSections(Operation *op, const Access &access,
                                             const LoopSpace &space) {
  auto sections = getColumnSections(op, access, space);
  if (!sections)
    return fail(op, "has a dimension that is not along the kernel's columns");
  int64_t level = 0;
  auto visit = [&](Value operand, int64_t from, int64_t shift, const LoopSpace &own) {
    std::optional<Access> read = getSectionAccess(op, operand, from, shift, access, own);
    if (!read)
      return LogicalResult(fail(op, "has operands that the kernel's loops cannot read"));
    FailureOr<int64_t> next = walk(operand, *read, own);
    if (failed(next))
      return failure();
    level = std::max(level, *next);
    return success();
  };
  auto rotary = dyn_cast<nn::RotaryOp>(op);
  for (const ColumnSection &section : *sections) {
    for (int64_t cut : {section.begin, section.end})
      if (auto &cuts = piece.cuts[columns];
          cut > space.begin && cut < space.end && !llvm::is_contained(cuts, cut))
        cuts.push_back(cut);
    LoopSpace within = space.withColumns(section.begin, section.end);
    if (failed(visit(section.operand, section.from, 0, within)))
      return failure();
    if (!rotary || section.kind == RotarySection::Rest)
      continue;
    if (failed(visit(rotary.getCos(), 0, 0, within)) ||
        failed(visit(rotary.getSin(), 0, 0, within)))
      return failure();
    if (section.kind == RotarySection::Pairs) {
      // Pairs are exchanged within vectors.
      auto whole = getSectionAccess(op, section.operand, 0, 0, access, within);
      if (section.first % 2 != 0 || (section.end - section.begin) % 2 != 0 || !whole ||
          whole->column != 1)
        return fail(op, "has pairs that the kernel would separate");
      pairs.push_back({columns, section.begin, section.end});
    } else if (failed(visit(section.operand, 0, getRotaryShift(rotary, section.kind), within))) {
      return failure();
    }
  }
  return level;
}

FailureOr<int64_t> PieceWalker::addStatistics(Operation *op, const Access &access,
                                              const LoopSpace &space) {
  std::optional<Access> row = getStatisticRow(op, access, space);
  if (!row)
    return fail(op, "has rows other than the kernel's");
  int64_t columns = getRowColumns(op), level;
  SmallVector<Statistic::Kind, 2> kinds;
  if (isa<nn::RmsNormOp>(op))
    kinds = {Statistic::SquareSum};
  else if (isa<nn::LayerNormOp>(op))
    kinds = {Statistic::Sum, Statistic::CentredSquareSum};
  else if (isa<nn::SoftmaxOp>(op))
    kinds = {Statistic::Max, Statistic::ExponentialSum};
  else
    switch (cast<nn::ReduceOp>(op).getKind()) {
    case nn::ReduceKind::Sum:
    case nn::ReduceKind::Mean:
      kinds = {Statistic::Sum};
      break;
    case nn::ReduceKind::Max:
      kinds = {Statistic::Max};
      break;
    case nn::ReduceKind::Min:
      kinds = {Statistic::Min};
      break;
    }
  if (const Statistic *known = findStatistic(piece, op, kinds.size() - 1, *row)) {
    level = known->level + 1;
  } else {
    for (size_t i = 0; i < space.rows.size(); ++i)
      if (space.rows[i] > 1 && row->rows[i] == 0)
        return fail(op, "would be computed once for each of several rows");
    Access first = *row;
    first.column = 1;
    FailureOr<int64_t> operand = walkPass(op->getOperand(0), first, columns);
    if (failed(operand))
      return failure();
    level = *operand;
    for (auto [stage, kind] : llvm::enumerate(kinds))
      piece.statistics.push_back({kind, op, unsigned(stage), *row, columns, level++});
  }
  // Exponentials are kept in f32, to be read in the chunks in which they were made.
  if (isa<nn::SoftmaxOp>(op))
    plan.canReorder &= access.column == 1 && access.offset == row->offset &&
                       access.rows == row->rows && columns == this->columns;
  // The elements that are scaled by the statistics.
  if (isa<nn::ReduceOp>(op))
    return level;
  if (!isa<nn::SoftmaxOp>(op) && failed(walk(op->getOperand(0), access, space)))
    return failure();
  for (Value operand : op->getOperands().drop_front()) {
    FailureOr<int64_t> next = walkOperand(op, operand, access, space, level);
    if (failed(next))
      return failure();
    level = *next;
  }
  return level;
}

/// Returns true if a row element takes more than a load and a little arithmetic.
bool PieceWalker::isWorthKeeping(Value value, const Access &access, const LoopSpace &space) {
  int64_t loads = 0, steps = 0;
  SmallVector<Value> open{value};
  llvm::SmallDenseSet<Value> seen;
  while (!open.empty()) {
    Value next = open.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    Operation *op = region.getDefiningOp(next);
    if (!op) {
      ++loads;
      continue;
    }
    if (target.getElementCost(op) != ElementCost::Few || isRowReduction(op) || ++steps > 4)
      return true;
    open.append(op->operand_begin(), op->operand_end());
  }
  return loads > 1;
}

bool PieceWalker::cutsPairs() const {
  for (auto [columns, begin, end] : pairs)
    if (auto cuts = piece.cuts.find(columns); cuts != piece.cuts.end())
      for (int64_t cut : cuts->second)
        if (cut > begin && cut < end && (cut - begin) % 2 != 0)
          return true;
  return false;
}

void PieceWalker::chooseKept() {
  for (const Statistic &statistic : piece.statistics) {
    Value value = statistic.op->getOperand(0);
    Access access = statistic.row;
    access.column = 1;
    if (statistic.stage != 0 || !region.getDefiningOp(value))
      continue;
    bool isStored = llvm::any_of(piece.stores, [&](const Store &store) {
      return store.value == value && store.from == access;
    });
    // A reduction needs its terms once, unless they have other users.
    bool isReadAgain = !isa<nn::ReduceOp>(statistic.op) || !value.hasOneUse();
    bool isKnown = llvm::any_of(
        piece.kept, [&](const Kept &kept) { return kept.value == value && kept.access == access; });
    if (!isStored && !isKnown && isReadAgain &&
        isWorthKeeping(value, access, piece.space.withColumns(0, statistic.columns)))
      piece.kept.push_back({value, access, statistic.columns, statistic.level});
  }
}

//===----------------------------------------------------------------------===//
// Pieces
//===----------------------------------------------------------------------===//

/// Splits a shape into rows and columns: the last dimensions that have `columns` elements
/// together are the columns. Returns none if there are no such dimensions.
static std::optional<LoopSpace> splitShape(ArrayRef<int64_t> shape, int64_t columns) {
  size_t split = shape.size();
  int64_t behind = 1;
  while (split > 0 && behind < columns)
    behind *= shape[--split];
  if (behind != columns)
    return std::nullopt;
  return LoopSpace{SmallVector<int64_t, 6>(shape.take_front(split)), 0, columns};
}

/// The access of the elements of a dense value in order, `columns` for each row.
static Access getDenseAccess(const LoopSpace &space, int64_t columns) {
  Access access;
  access.rows.resize(space.rows.size());
  int64_t stride = columns;
  for (size_t i = space.rows.size(); i-- > 0; stride *= space.rows[i])
    access.rows[i] = stride;
  access.column = space.end == columns ? 1 : 0;
  return access;
}

/// Joins loops if every access continues from one to the next.
static void joinLoops(RowPiece &piece) {
  ArrayRef<int64_t> rows = piece.space.rows;
  bool hasCuts = llvm::any_of(piece.cuts, [](auto &entry) { return !entry.second.empty(); });
  bool joinsColumns = piece.statistics.empty() && !hasCuts && piece.space.end > 1;
  for (size_t d = rows.size(); d-- > 0;) {
    if (rows[d] == 1)
      continue;
    auto follows = [&](auto coefficientBehind, int64_t size) {
      return llvm::all_of(piece.accesses, [&](const Access &access) {
        return access.rows[d] == coefficientBehind(access) * size;
      });
    };
    if (joinsColumns &&
        follows([](const Access &access) { return access.column; }, piece.getNumColumns())) {
      piece.columnDims.push_back(d);
      continue;
    }
    joinsColumns = false;
    if (!piece.loops.empty()) {
      unsigned last = piece.loops.back().front();
      if (follows([&](const Access &access) { return access.rows[last]; },
                  piece.getLoopSize(piece.loops.size() - 1))) {
        piece.loops.back().push_back(d);
        continue;
      }
    }
    piece.loops.push_back({unsigned(d)});
  }
  std::reverse(piece.loops.begin(), piece.loops.end());
}

int64_t RowPiece::getLoopSize(size_t loop) const {
  int64_t size = 1;
  for (unsigned d : loops[loop])
    size *= space.rows[d];
  return size;
}

int64_t RowPiece::getNumRows() const {
  int64_t rows = 1;
  for (size_t i = 0; i < loops.size(); ++i)
    rows *= getLoopSize(i);
  return rows;
}

int64_t RowPiece::getNumColumns() const {
  int64_t columns = space.end;
  for (unsigned d : columnDims)
    columns *= space.rows[d];
  return columns;
}

static LogicalResult finishPiece(const KernelRegion &region, const KernelTarget &target,
                                 RowPlan &plan, RowPiece piece,
                                 std::string &reason) {
  PieceWalker walker(region, target, plan, piece);
  for (Store &store : piece.stores) {
    piece.accesses.push_back(store.to);
    if (!store.value)
      continue;
    FailureOr<int64_t> level =
        walker.walkPass(store.value, store.from, store.perRow ? 1 : piece.space.end);
    if (failed(level)) {
      reason = walker.reason;
      return failure();
    }
    store.level = *level;
    piece.numPasses = std::max(piece.numPasses, *level + 1);
  }
  if (walker.cutsPairs()) {
    reason = "the kernel would separate pairs of a rotary op";
    return failure();
  }
  walker.chooseKept();
  auto isInOrder = [](const auto &stored) {
    return stored.value && !getElementTypeOrSelf(stored.value.getType()).isBF16();
  };
  plan.canReorder &=
      llvm::none_of(piece.kept, isInOrder) && llvm::none_of(piece.stores, [&](const Store &store) {
        return !store.perRow && isInOrder(store);
      });
  for (auto &[columns, cuts] : piece.cuts)
    llvm::sort(cuts);
  joinLoops(piece);
  plan.pieces.push_back(std::move(piece));
  return success();
}

/// A piece that stores all outputs, as rows of `columns` columns of a value of this shape.
/// An output with one element for each row is stored once for each.
static std::optional<RowPiece> makePiece(const KernelRegion &region, ArrayRef<int64_t> shape,
                                         int64_t columns, std::string &reason) {
  std::optional<LoopSpace> space = splitShape(shape, columns);
  if (!space) {
    reason = "outputs do not have the rows of its reductions";
    return std::nullopt;
  }
  RowPiece piece;
  piece.space = *space;
  int64_t rows = ShapedType::getNumElements(piece.space.rows);
  for (auto [i, output] : llvm::enumerate(region.outputs)) {
    int64_t count = ShapedType::getNumElements(shapeOf(output));
    bool perRow = count == rows;
    if (!perRow && count != rows * columns) {
      reason = "outputs have different shapes";
      return std::nullopt;
    }
    Access access = getDenseAccess(piece.space, perRow ? 1 : columns);
    access.column = perRow ? 0 : 1;
    piece.stores.push_back({unsigned(i), output, access, access, perRow, 0});
  }
  return piece;
}

/// Makes a piece for each section of a concatenation or padding that is not along columns.
static LogicalResult makePieces(const KernelRegion &region, const KernelTarget &target,
                                Operation *root, RowPlan &plan,
                                std::string &reason) {
  ArrayRef<int64_t> shape = shapeOf(root->getResult(0));
  // Adds a section of the result, which begins at `starts`.
  auto add = [&](Value value, ArrayRef<int64_t> sizes, ArrayRef<int64_t> starts) {
    if (ShapedType::getNumElements(sizes) == 0)
      return success();
    RowPiece piece;
    piece.space = *splitShape(sizes, sizes.empty() ? 1 : sizes.back());
    int64_t columns = piece.space.end;
    Access from = getDenseAccess(piece.space, columns);
    from.column = 1;
    SmallVector<Access> dims(shape.size());
    for (auto [d, dim] : llvm::enumerate(dims)) {
      dim.rows.assign(piece.space.rows.size(), 0);
      dim.offset = starts[d];
      if (d < piece.space.rows.size())
        dim.rows[d] = 1;
      else if (d + 1 == dims.size())
        dim.column = 1;
    }
    Access to = linearize(dims, shape, piece.space.rows.size());
    piece.stores.push_back({0, value, from, to, false, 0});
    return finishPiece(region, target, plan, std::move(piece), reason);
  };
  SmallVector<int64_t> starts(shape.size(), 0);
  if (auto concat = dyn_cast<nn::ConcatOp>(root)) {
    for (Value input : concat.getInputs()) {
      if (failed(add(input, shapeOf(input), starts)))
        return failure();
      starts[concat.getDim()] += shapeOf(input)[concat.getDim()];
    }
    return success();
  }
  auto pad = cast<dist::PadOp>(root);
  ArrayRef<int64_t> own = shapeOf(pad.getInput());
  if (failed(add(pad.getInput(), own, starts)))
    return failure();
  // Zeros at the tail of dimension d, except those at the tail of an earlier dimension.
  SmallVector<int64_t> sizes(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (own[d] == shape[d])
      continue;
    sizes[d] = shape[d] - own[d];
    starts[d] = own[d];
    if (failed(add(Value(), sizes, starts)))
      return failure();
    sizes[d] = own[d];
    starts[d] = 0;
  }
  return success();
}

RowPlanResult planRows(const KernelRegion &region, const KernelTarget &target) {
  RowPlanResult result;
  int64_t columns = 0;
  for (Operation *op : region.ops) {
    if (!isRowOp(op)) {
      result.reason = (op->getName().getStringRef() + " is not part of row kernels").str();
      return result;
    }
    if (isRowReduction(op))
      columns = std::max(columns, getRowColumns(op));
  }
  if (llvm::any_of(region.outputs, [](Value v) { return llvm::is_contained(shapeOf(v), 0); })) {
    result.plan.emplace();
    return result;
  }
  // The columns are those of the reductions, or else the last dimension, or else one. The
  // shape is that of the largest outputs.
  int64_t most = 0;
  for (Value output : region.outputs)
    most = std::max(most, ShapedType::getNumElements(shapeOf(output)));
  SmallVector<ArrayRef<int64_t>> shapes;
  for (Value output : region.outputs)
    if (ShapedType::getNumElements(shapeOf(output)) == most &&
        !llvm::is_contained(shapes, shapeOf(output)))
      shapes.push_back(shapeOf(output));
  for (ArrayRef<int64_t> shape : shapes) {
    SmallVector<int64_t, 3> choices;
    if (columns > 0)
      choices.push_back(columns);
    if (!shape.empty())
      choices.push_back(shape.back());
    choices.push_back(1);
    for (int64_t choice : choices) {
      RowPlan plan;
      std::string reason;
      std::optional<RowPiece> piece = makePiece(region, shape, choice, reason);
      if (piece && succeeded(finishPiece(region, target, plan, std::move(*piece), reason))) {
        result.plan = std::move(plan);
        return result;
      }
      if (result.reason.empty())
        result.reason = reason;
    }
  }
  Operation *root = region.outputs.size() == 1 ? region.getDefiningOp(region.outputs[0]) : nullptr;
  if (isa_and_nonnull<nn::ConcatOp, dist::PadOp>(root)) {
    RowPlan plan;
    std::string reason;
    if (succeeded(makePieces(region, target, root, plan, reason)))
      result.plan = std::move(plan);
  }
  return result;
}

} // namespace meshwright::lower
