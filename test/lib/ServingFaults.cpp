//===- ServingFaults.cpp - faults of programs that serve ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tables of another group, caches whose layout differs between functions, pages that are read before they are
// written, parts of attention that are merged twice or without the others, true rows of other numbers, rows behind
// the true ones that count, and residuals that each rank adds.
//
//===----------------------------------------------------------------------===//

#include "PlacementFaults.h"

#include "Uses.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;
using namespace meshwright::test;

using Faults = std::vector<Fault>;

static bool isNumbers(Value value) { return getElementTypeOrSelf(value.getType()).isInteger(64); }

/// A part of a value along a dimension.
static Value cut(OpBuilder &builder, Value value, int64_t dim, int64_t start, int64_t size) {
  RankedTensorType type = typeOf(value);
  SmallVector<int64_t> shape(type.getShape()), starts(type.getRank(), 0), strides(type.getRank(), 1),
      limits(type.getShape());
  shape[dim] = size;
  starts[dim] = start;
  limits[dim] = start + size;
  return nn::SliceOp::create(builder, value.getLoc(), type.clone(shape), value, starts, limits, strides);
}

static Value concat(OpBuilder &builder, ArrayRef<Value> values, int64_t dim) {
  SmallVector<int64_t> shape(shapeOf(values.front()));
  for (Value value : values.drop_front())
    shape[dim] += shapeOf(value)[dim];
  return nn::ConcatOp::create(builder, values.front().getLoc(), typeOf(values.front()).clone(shape), values, dim);
}

//===----------------------------------------------------------------------===//
// Tables
//===----------------------------------------------------------------------===//

/// Numbers that address pages come from the next rank, of another group or range of pages.
void test::wrongTables(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  MeshAttr mesh = analysis.getMesh();
  auto shift = [&](OpOperand &operand) {
    Value value = operand.get();
    for (const DimLayout &dim : analysis.getLayout(value).dims) {
      AxisList axes = dim.getAxes();
      if (axes.empty())
        continue;
      Operation *op = operand.getOwner();
      faults.push_back({"operand " + std::to_string(operand.getOperandNumber()) + " of " +
                            op->getName().getStringRef().str() + " is of another group or range",
                        op->getLoc(), [op, &operand, value, axes, mesh] {
                          OpBuilder builder(op);
                          operand.set(PermuteOp::create(builder, op->getLoc(), value.getType(), value,
                                                        getAxesAttr(op->getContext(), axes, mesh),
                                                        builder.getI64IntegerAttr(1), DenseI64ArrayAttr())
                                          .getResult(0));
                        }});
    }
  };
  func.walk([&](Operation *op) {
    if (isa<nn::PagedAttentionOp, nn::PageWriteOp>(op))
      for (OpOperand &operand : op->getOpOperands())
        if (isNumbers(operand.get()))
          shift(operand);
  });
  // Numbers of the first range on all ranks.
  func.walk([&](nn::PagedAttentionOp op) {
    for (OpOperand *operand : {&op.getTablesMutable(), op.getDeals() ? &op.getDealsMutable()[0] : nullptr}) {
      auto slice = operand ? operand->get().getDefiningOp<dist::SliceOp>() : dist::SliceOp();
      if (!slice || slice->getNumOperands() != 1)
        continue;
      faults.push_back({"the first range on all ranks", op.getLoc(), [=]() mutable {
                          OpBuilder builder(op);
                          int64_t dim = slice.getDims()[0];
                          operand->set(cut(builder, slice->getOperand(0), dim, 0,
                                           shapeOf(slice->getResult(0))[dim]));
                        }});
    }
    if (Value deals = op.getDeals())
      faults.push_back({"equal deals of all ranges", op.getLoc(), [=]() mutable {
                          OpBuilder builder(op);
                          Value zero = nn::ConstantOp::create(
                              builder, op.getLoc(), DenseElementsAttr::get(typeOf(deals), builder.getI64IntegerAttr(0)));
                          op.getDealsMutable().assign(zero);
                        }});
  });
}

//===----------------------------------------------------------------------===//
// Pages
//===----------------------------------------------------------------------===//

/// A function keeps a state in another layout than the others do, and moves it there and back.
void test::wrongCache(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  MeshAttr mesh = analysis.getMesh();
  auto symbol = func->getAttrOfType<FlatSymbolRefAttr>(DistDialect::kSpmdAttr);
  Operation *end = func.getBody().front().getTerminator();
  for (BlockArgument state : func.getArguments()) {
    auto name = func.getArgAttrOfType<StringAttr>(state.getArgNumber(), nn::NnDialect::kStateAttr);
    std::optional<unsigned> result;
    for (unsigned i = 0; name && i < func.getNumResults(); ++i)
      if (func.getResultAttr(i, nn::NnDialect::kStateAttr) == name)
        result = i;
    const Layout &layout = analysis.getLayout(state);
    for (int64_t d = 0; result && d < layout.getRank(); ++d) {
      if (!layout.dims[d].isSharded())
        continue;
      ArrayAttr axes = getAxesAttr(func.getContext(), layout.dims[d].getAxes(), mesh);
      Layout whole = layout;
      for (LayoutFactor &factor : whole.dims[d].factors)
        factor.axes.clear();
      Attribute sharding = getSharding(whole, symbol, mesh);
      faults.push_back({"state whole in dimension " + std::to_string(d), func.getLoc(), [=]() mutable {
                          OpBuilder builder = OpBuilder::atBlockBegin(&func.getBody().front());
                          RankedTensorType own = typeOf(state), all = own.clone(whole.getLocalShape());
                          state.setType(all);
                          auto mine = dist::SliceOp::create(builder, func.getLoc(), TypeRange{own},
                                                            ValueRange{state}, axes, ArrayRef<int64_t>{d});
                          state.replaceAllUsesExcept(mine.getResult(0), mine);
                          builder.setInsertionPoint(end);
                          auto back = AllGatherOp::create(builder, func.getLoc(), TypeRange{all},
                                                          ValueRange{end->getOperand(*result)}, axes,
                                                          ArrayRef<int64_t>{d});
                          end->setOperand(*result, back.getResult(0));
                          func.setArgAttr(state.getArgNumber(), DistDialect::kShardingAttr, sharding);
                          func.setResultAttr(*result, DistDialect::kShardingAttr, sharding);
                          func.setType(FunctionType::get(func.getContext(), func.getBody().getArgumentTypes(),
                                                         end->getOperandTypes()));
                        }});
    }
  }
}

/// The write of pages that an op reads, and the views between them, the last one first.
static nn::PageWriteOp findWrite(Value pages, SmallVectorImpl<Operation *> &views) {
  for (Operation *op = pages.getDefiningOp(); op; op = op->getOperand(0).getDefiningOp()) {
    if (auto write = dyn_cast<nn::PageWriteOp>(op))
      return write;
    if (!op->hasTrait<Reindexes>())
      break;
    views.push_back(op);
  }
  return {};
}

/// Pages as they were before the step, or whose rows another write makes.
void test::stalePages(func::FuncOp func, const PlacementAnalysis &, Faults &faults) {
  func.walk([&](nn::PagedAttentionOp op) {
    for (OpOperand *operand : {&op.getKeysMutable(), &op.getValuesMutable()}) {
      SmallVector<Operation *> views;
      nn::PageWriteOp write = findWrite(operand->get(), views);
      if (!write)
        continue;
      auto look = [=](OpBuilder &builder, Value pages) {
        for (Operation *view : llvm::reverse(views)) {
          IRMapping mapping;
          mapping.map(view->getOperand(0), pages);
          pages = builder.clone(*view, mapping)->getResult(0);
        }
        return pages;
      };
      faults.push_back({"pages read before they are written", op.getLoc(), [=]() mutable {
                          OpBuilder builder(op);
                          operand->set(look(builder, write.getPages()));
                        }});
      faults.push_back({"pages that are not written", op.getLoc(), [=]() mutable {
                          write.getResult().replaceAllUsesWith(write.getPages());
                        }});
      faults.push_back({"half of each page read before it is written", op.getLoc(), [=]() mutable {
                          OpBuilder builder(op);
                          Value before = look(builder, write.getPages()), behind = operand->get();
                          int64_t size = shapeOf(behind)[2], half = size / 2;
                          operand->set(concat(builder, {cut(builder, before, 2, 0, half),
                                                        cut(builder, behind, 2, half, size - half)}, 2));
                        }});
      faults.push_back({"rows written again behind the read", op.getLoc(), [=]() mutable {
                          OpBuilder builder(write);
                          Value rows = write.getRows();
                          Value others = nn::NegOp::create(builder, op.getLoc(), rows.getType(), rows);
                          Value first = nn::PageWriteOp::create(builder, op.getLoc(), write.getType(), write.getPages(),
                                                                others, write.getSlots());
                          write.getPagesMutable().assign(first);
                          builder.setInsertionPoint(op);
                          operand->set(look(builder, first));
                        }});
    }
  });
}

//===----------------------------------------------------------------------===//
// Parts
//===----------------------------------------------------------------------===//

/// Parts of the keys of one rank merged, `count` times each.
static void mergeOwn(nn::MergePartsOp op, ArrayAttr axes, int64_t count) {
  OpBuilder builder(op);
  for (OpOperand *operand : {&op.getPartsMutable(), &op.getLsesMutable()}) {
    auto exchange = operand->get().getDefiningOp<AllToAllOp>();
    Value own = exchange.getInputs()[cast<OpResult>(operand->get()).getResultNumber()];
    SmallVector<int64_t> shape(shapeOf(own));
    shape[3] = shapeOf(operand->get())[3];
    Value heads = dist::SliceOp::create(builder, op.getLoc(), TypeRange{typeOf(own).clone(shape)}, ValueRange{own}, axes,
                                        ArrayRef<int64_t>{3})
                      .getResult(0);
    operand->set(count == 1 ? heads : concat(builder, SmallVector<Value>(count, heads), 1));
  }
}

/// All heads of a rank's own parts merged, and the results of ranks summed.
static void mergeThenSum(nn::MergePartsOp op, ArrayAttr axes) {
  OpBuilder builder(op);
  auto parts = op.getParts().getDefiningOp<AllToAllOp>(), lses = op.getLses().getDefiningOp<AllToAllOp>();
  Value own = parts.getInputs()[cast<OpResult>(op.getParts()).getResultNumber()];
  Value lse = lses.getInputs()[cast<OpResult>(op.getLses()).getResultNumber()];
  RankedTensorType type = typeOf(op.getResult());
  SmallVector<int64_t> shape(type.getShape());
  shape[2] = shapeOf(own)[3];
  Value merged =
      nn::MergePartsOp::create(builder, op.getLoc(), type.clone(shape), Type(), own, lse, Value()).getResult();
  Value sum = AllReduceOp::create(builder, op.getLoc(), TypeRange{merged.getType()}, ValueRange{merged},
                                  ReductionKind::Sum, axes)
                  ->getResult(0);
  Value heads = dist::SliceOp::create(builder, op.getLoc(), TypeRange{type}, ValueRange{sum}, axes,
                                      ArrayRef<int64_t>{2})
                    .getResult(0);
  op.getResult().replaceAllUsesWith(heads);
}

static void collectExchanged(nn::MergePartsOp op, ArrayAttr axes, Faults &faults) {
  Location loc = op.getLoc();
  faults.push_back({"merged result summed over the ranks of the parts", loc, [op, axes]() mutable {
                      rewire(op.getResult(), [&](OpBuilder &builder) {
                        return AllReduceOp::create(builder, op.getLoc(), TypeRange{op.getResult().getType()},
                                                   ValueRange{op.getResult()}, ReductionKind::Sum, axes)
                            ->getResult(0);
                      });
                    }});
  faults.push_back({"parts of one rank merged as if they were all", loc, [op, axes] { mergeOwn(op, axes, 1); }});
  int64_t ranks = shapeOf(op.getParts())[1];
  faults.push_back({"parts of one rank merged for all", loc, [op, axes, ranks] { mergeOwn(op, axes, ranks); }});
  if (!op.getLse() && !op.getSinks())
    faults.push_back({"merged parts summed", loc, [op, axes] { mergeThenSum(op, axes); }});
  faults.push_back({"log-sum-exps of the next rank", loc, [op, axes]() mutable {
                      OpBuilder builder(op);
                      Value lses = op.getLses();
                      op.getLsesMutable().assign(PermuteOp::create(builder, op.getLoc(), lses.getType(), lses, axes,
                                                                   builder.getI64IntegerAttr(1), DenseI64ArrayAttr())
                                                     .getResult(0));
                    }});
}

void test::wrongParts(func::FuncOp func, const PlacementAnalysis &, Faults &faults) {
  nn::MergePartsOp previous;
  func.walk([&](nn::MergePartsOp op) {
    Location loc = op.getLoc();
    auto exchange = op.getParts().getDefiningOp<AllToAllOp>();
    if (exchange && op.getLses().getDefiningOp<AllToAllOp>())
      collectExchanged(op, exchange.getAxes(), faults);
    auto change = [&](StringRef what, std::function<Value(OpBuilder &, Value)> make) {
      faults.push_back({what.str(), loc, [op, make = std::move(make)]() mutable {
                          OpBuilder builder(op);
                          for (OpOperand *operand : {&op.getPartsMutable(), &op.getLsesMutable()})
                            operand->set(make(builder, operand->get()));
                        }});
    };
    change("each part merged twice",
           [](OpBuilder &builder, Value value) { return concat(builder, {value, value}, 1); });
    if (int64_t count = shapeOf(op.getParts())[1]; count > 1) {
      change("the last part left out",
             [count](OpBuilder &builder, Value value) { return cut(builder, value, 1, 0, count - 1); });
      change("the first part in place of the others", [count](OpBuilder &builder, Value value) {
        return concat(builder, SmallVector<Value>(count, cut(builder, value, 1, 0, 1)), 1);
      });
    }
    if (previous && previous.getLses().getType() == op.getLses().getType())
      faults.push_back({"log-sum-exps of another attention", loc, [op, other = previous]() mutable {
                          op.getLsesMutable().assign(other.getLses());
                        }});
    previous = op;
  });
}

//===----------------------------------------------------------------------===//
// True rows
//===----------------------------------------------------------------------===//

/// An op counts true rows by other numbers than its neighbours, or takes rows that were not compacted.
void test::wrongCounts(func::FuncOp func, const PlacementAnalysis &, Faults &faults) {
  auto change = [&](Operation *op, OpOperand &counts, int64_t tokens) {
    faults.push_back({"other numbers in operand " + std::to_string(counts.getOperandNumber()) + " of " +
                          op->getName().getStringRef().str(),
                      op->getLoc(), [op, &counts, tokens] {
                        OpBuilder builder(op);
                        RankedTensorType type = typeOf(counts.get());
                        Value most = nn::ConstantOp::create(
                            builder, op->getLoc(), DenseElementsAttr::get(type, builder.getI64IntegerAttr(tokens)));
                        counts.set(nn::SubOp::create(builder, op->getLoc(), type, most, counts.get()));
                      }});
  };
  func.walk([&](Operation *op) {
    if (auto compact = dyn_cast<CompactOp>(op)) {
      change(op, compact.getCountsMutable(), compact.getTokens());
      faults.push_back({"the first rows in place of the true ones", op->getLoc(), [compact]() mutable {
                          OpBuilder builder(compact);
                          int64_t dim = compact.getDim();
                          Value rows = cut(builder, compact.getInput(), dim, 0, shapeOf(compact.getResult())[dim]);
                          compact.getResult().replaceAllUsesWith(rows);
                        }});
    }
    if (auto expand = dyn_cast<ExpandOp>(op))
      change(op, expand.getCountsMutable(), expand.getTokens());
    if (auto gather = dyn_cast<AllGatherVOp>(op))
      for (unsigned i = 1; i < op->getNumOperands(); i += 2)
        change(op, op->getOpOperand(i), gather.getTokens());
    if (auto scatter = dyn_cast<ReduceScatterVOp>(op))
      for (unsigned i = 1; i < op->getNumOperands(); i += 2)
        change(op, op->getOpOperand(i), scatter.getTokens());
  });
}

/// The rows of tokens of a step of serving, group by group, by the values [1, tokens, features] that have them. One of
/// each shape and kind of op will do.
static llvm::MapVector<Value, int64_t> findTokenRows(func::FuncOp func, const PlacementAnalysis &analysis) {
  llvm::MapVector<Value, int64_t> rows;
  BlockArgument tokens = nn::findInput(func, nn::kTokensInput);
  if (!tokens)
    return rows;
  SmallVector<int64_t> shape = analysis.getLayout(tokens).getGlobalShape();
  int64_t count = shape[0] * shape[1];
  llvm::DenseSet<std::pair<OperationName, Type>> known;
  for (Operation &op : func.getBody().front())
    for (Value value : op.getResults()) {
      if (!isFloats(value) || shapeOf(value).size() != 3 || !known.insert({op.getName(), value.getType()}).second)
        continue;
      SmallVector<int64_t> own = analysis.getLayout(value).getGlobalShape();
      if (count > 1 && own[0] == 1 && own[1] == count)
        rows[value] = 1;
    }
  return rows;
}

/// The rows of true ones, by the values that have them, and those of ops that compute rows one by one.
static llvm::MapVector<Value, int64_t> findTrueRows(func::FuncOp func) {
  llvm::MapVector<Value, int64_t> rows;
  for (Operation &op : func.getBody().front()) {
    if (auto compact = dyn_cast<CompactOp>(op))
      rows[compact.getResult()] = compact.getDim();
    if (auto gather = dyn_cast<AllGatherVOp>(op))
      for (auto [i, dim] : llvm::enumerate(gather.getDims()))
        rows[op.getResult(2 * i)] = dim;
    if (!op.hasTrait<Elementwise>() && !op.hasTrait<RowNorm>() && !op.hasTrait<Product>())
      continue;
    if (auto found = op.getNumOperands() ? rows.find(op.getOperand(0)) : rows.end();
        found != rows.end() && op.getNumResults() == 1 &&
        shapeOf(op.getResult(0)).size() == shapeOf(op.getOperand(0)).size() &&
        shapeOf(op.getResult(0))[found->second] == shapeOf(op.getOperand(0))[found->second])
      rows[op.getResult(0)] = found->second;
  }
  return rows;
}

/// Rows behind the true ones count: they are summed, or go where others were.
void test::sumRows(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  llvm::MapVector<Value, int64_t> rows = findTrueRows(func);
  for (auto [value, dim] : findTokenRows(func, analysis))
    rows.insert({value, dim});
  for (auto [value, dim] : rows) {
    if (!isFloats(value) || value.use_empty())
      continue;
    auto change = [&, value = value](StringRef what, std::function<Value(OpBuilder &)> make) {
      faults.push_back({what.str(), value.getLoc(), [value, make = std::move(make)] { rewire(value, make); }});
    };
    Location loc = value.getLoc();
    RankedTensorType type = typeOf(value);
    change("the sum of rows added to each", [=, value = value, dim = dim](OpBuilder &builder) {
      SmallVector<int64_t> shape(type.getShape());
      shape[dim] = 1;
      Value sum = nn::ReduceOp::create(builder, loc, type.clone(shape), nn::ReduceKind::Sum, value,
                                       ArrayRef<int64_t>{dim}, /*keepDims=*/true);
      return nn::AddOp::create(builder, loc, type, value, sum);
    });
    change("softmax over rows", [=, value = value, dim = dim](OpBuilder &builder) {
      return nn::SoftmaxOp::create(builder, loc, type, value, dim);
    });
    int64_t size = type.getDimSize(dim);
    if (size > 1)
      change("rows in another order", [=, value = value, dim = dim](OpBuilder &builder) {
        return concat(builder, {cut(builder, value, dim, 1, size - 1), cut(builder, value, dim, 0, 1)}, dim);
      });
  }
  // The first rows of tokens beside the true ones.
  func.walk([&](ExpandOp op) {
    for (Operation *other = op->getPrevNode(); other; other = other->getPrevNode()) {
      if (other->getNumResults() != 1 || other->getResult(0).getType() != op.getResult().getType())
        continue;
      faults.push_back({"the first rows of tokens added to the true ones", op.getLoc(), [op, other]() mutable {
                          OpBuilder builder(op);
                          Value rows = op.getInput();
                          Value first =
                              cut(builder, other->getResult(0), op.getDim(), 0, shapeOf(rows)[op.getDim()]);
                          op.getInputMutable().assign(
                              nn::AddOp::create(builder, op.getLoc(), rows.getType(), rows, first));
                        }});
      return;
    }
  });
}

//===----------------------------------------------------------------------===//
// Residuals
//===----------------------------------------------------------------------===//

/// A value that all ranks have whole is added to parts of a sum.
void test::residualInSum(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  llvm::DenseSet<Value> read = getReadValues(func);
  SmallVector<Value> before(func.getArguments());
  for (Operation &op : func.getBody().front()) {
    if (isa<AllReduceOp, ReduceScatterOp, ReduceScatterVOp>(op))
      for (OpOperand &operand : op.getOpOperands()) {
        Value parts = operand.get();
        const Layout &layout = analysis.getLayout(parts);
        if (!isFloats(parts) || !layout.isUnreduced() || layout.getReduction() != ReductionKind::Sum)
          continue;
        auto residual = llvm::find_if(llvm::reverse(before), [&](Value value) {
          return value.getType() == parts.getType() && read.contains(value) &&
                 !analysis.getLayout(value).uses(layout.getUnreduced());
        });
        if (residual == before.rend())
          continue;
        faults.push_back({"residual added on every rank", op.getLoc(), [&op, &operand, added = *residual] {
                            OpBuilder builder(&op);
                            Value parts = operand.get();
                            operand.set(nn::AddOp::create(builder, op.getLoc(), parts.getType(), parts, added));
                          }});
      }
    before.append(op.result_begin(), op.result_end());
  }
}
