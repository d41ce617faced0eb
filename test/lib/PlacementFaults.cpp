//===- PlacementFaults.cpp - faults to inject into SPMD programs ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every fault leaves IR that the ops' own verifiers accept. Where it may be the
// placement of some other global program it carries an excuse: local dimensions
// of size 1 do not tell a chunk from a whole.
//
//===----------------------------------------------------------------------===//

#include "PlacementFaults.h"

#include "Uses.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::test;
using namespace meshwright::dist;

namespace {

using Faults = std::vector<Fault>;

OpBuilder after(Operation *op) {
  OpBuilder builder(op);
  builder.setInsertionPointAfter(op);
  return builder;
}

bool isFloatTensor(Value value) {
  return isFloats(value) && cast<RankedTensorType>(value.getType()).getRank() > 0;
}

template <typename Visit> void forEachValue(func::FuncOp func, Visit visit) {
  for (BlockArgument argument : func.getArguments())
    visit(argument);
  for (Operation &op : func.getBody().front())
    for (Value result : op.getResults())
      visit(result);
}

ArrayAttr getAxesOf(Operation *op) { return op->getAttrOfType<ArrayAttr>("axes"); }

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

void dropReduction(func::FuncOp func, const PlacementAnalysis &, Faults &faults) {
  func.walk([&](AllReduceOp op) {
    faults.push_back({"all_reduce left out", op.getLoc(), [op]() mutable {
                        op->replaceAllUsesWith(op.getInputs());
                        op->erase();
                      }});
  });
  func.walk([&](ReduceScatterOp op) {
    faults.push_back({"reduce_scatter made a slice", op.getLoc(), [op]() mutable {
                        OpBuilder builder(op);
                        auto slice =
                            dist::SliceOp::create(builder, op.getLoc(), op.getResultTypes(),
                                                  op.getInputs(), op.getAxes(), op.getDims());
                        op->replaceAllUsesWith(slice);
                        op->erase();
                      }});
  });
}

void doubleReduction(func::FuncOp func, const PlacementAnalysis &, Faults &faults) {
  func.walk([&](Operation *op) {
    if (!isa<AllReduceOp, ReduceScatterOp>(op))
      return;
    faults.push_back(
        {"reduced once more", op->getLoc(), [op] {
           OpBuilder builder = after(op);
           auto again = AllReduceOp::create(builder, op->getLoc(), op->getResultTypes(),
                                            op->getResults(), ReductionKind::Sum, getAxesOf(op));
           for (auto [result, changed] : llvm::zip_equal(op->getResults(), again->getResults()))
             result.replaceAllUsesExcept(changed, again);
         }});
  });
}

/// A maximum that is summed, and a sum of which the maximum is taken.
void wrongKind(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  auto getOther = [](ReductionKind kind) {
    return kind == ReductionKind::Sum ? ReductionKind::Max : ReductionKind::Sum;
  };
  func.walk([&](Operation *op) {
    if (auto all = dyn_cast<AllReduceOp>(op))
      faults.push_back({"all_reduce of another kind", op->getLoc(), [all, getOther]() mutable {
                          all.setReduction(getOther(all.getReduction()));
                        }});
    if (auto scatter = dyn_cast<ReduceScatterOp>(op))
      faults.push_back({"reduce_scatter of another kind", op->getLoc(),
                        [scatter, getOther]() mutable {
                          scatter.setReduction(getOther(scatter.getReduction()));
                        }});
    auto reduce = dyn_cast<nn::ReduceOp>(op);
    if (reduce && analysis.getLayout(reduce.getResult()).isUnreduced() &&
        !analysis.getLayout(reduce.getInput()).isUnreduced())
      faults.push_back({"partial reduction of another kind", op->getLoc(), [reduce]() mutable {
                          reduce.setKind(reduce.getKind() == nn::ReduceKind::Max
                                             ? nn::ReduceKind::Sum
                                             : nn::ReduceKind::Max);
                        }});
  });
}

void wrongAxis(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  MeshAttr mesh = analysis.getMesh();
  func.walk([&](Operation *op) {
    ArrayAttr axes = getAxesOf(op);
    if (!axes || isa<AxisIndexOp, MaskPaddingOp>(op))
      return;
    AxisList own = getAxes(axes, mesh);
    int64_t shards = getNumShards(own);
    for (auto [i, axis] : llvm::enumerate(mesh.getAxes())) {
      Axis other{static_cast<int>(i), 1, axis.getSize()};
      if (other.size == 1 || anyOverlap(own, other) ||
          (other.size != shards && !isa<AllReduceOp, PartialOp>(op)))
        continue;
      faults.push_back(
          {op->getName().getStringRef().str() + " over \"" + axis.getName().str() + "\"",
           op->getLoc(),
           [op, mesh, other] { op->setAttr("axes", getAxesAttr(op->getContext(), other, mesh)); }});
    }
  });
}

//===----------------------------------------------------------------------===//
// Unreduced values
//===----------------------------------------------------------------------===//

/// Adds a value before the reduction, on every rank, instead of after it.
void earlyResidual(func::FuncOp func, const PlacementAnalysis &, Faults &faults) {
  func.walk([&](nn::AddOp add) {
    for (unsigned i : {0, 1}) {
      Operation *reduction = add->getOperand(i).getDefiningOp();
      Value other = add->getOperand(1 - i);
      if (!reduction || !isa<AllReduceOp, ReduceScatterOp>(reduction) ||
          reduction->getNumOperands() != 1)
        continue;
      auto partial = cast<RankedTensorType>(reduction->getOperand(0).getType());
      auto shape = cast<RankedTensorType>(other.getType()).getShape();
      auto reduced = cast<RankedTensorType>(reduction->getResult(0).getType());
      // It must broadcast against the partial value too.
      bool fits = add.getType() == reduced && shape.size() <= size_t(partial.getRank());
      for (size_t d = 0; fits && d < shape.size(); ++d)
        fits = shape[shape.size() - 1 - d] == partial.getDimSize(partial.getRank() - 1 - d) ||
               shape[shape.size() - 1 - d] == 1;
      if (!fits)
        continue;
      faults.push_back(
          {"added before the reduction", add.getLoc(), [add, reduction, other]() mutable {
             OpBuilder builder(add);
             Value partial = reduction->getOperand(0);
             Value sum =
                 nn::AddOp::create(builder, add.getLoc(), partial.getType(), partial, other);
             Operation *late = builder.clone(*reduction);
             late->setOperand(0, sum);
             add->replaceAllUsesWith(late);
             add->erase();
           }});
    }
  });
}

void nonlinear(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  forEachValue(func, [&](Value value) {
    if (!isFloatTensor(value) || !analysis.getLayout(value).isUnreduced())
      return;
    faults.push_back({"tanh of an unreduced value", value.getLoc(), [value] {
                        rewire(value, [&](OpBuilder &builder) {
                          return nn::TanhOp::create(builder, value.getLoc(), value.getType(),
                                                    value);
                        });
                      }});
  });
}

//===----------------------------------------------------------------------===//
// Dimensions that are read whole
//===----------------------------------------------------------------------===//

/// Returns true if a reshape may tell the chunks of a dimension apart as another dimension does:
/// 3 x 4 is 3 x 2 x 2, of which the second dimension is sharded. An op on the chunk is then right.
bool isReshaped(const PlacementAnalysis &analysis, Value value) {
  auto isReshape = [](Operation *op) { return isa_and_nonnull<nn::ReshapeOp>(op); };
  return analysis.hasSeveralCandidates(value) || isReshape(value.getDefiningOp()) ||
         llvm::any_of(value.getUsers(), isReshape);
}

StringRef getExcuse(const PlacementAnalysis &analysis, Value value) {
  return isReshaped(analysis, value) ? "read as a dimension of its own" : "";
}

void wholeOfShard(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  forEachValue(func, [&](Value value) {
    if (!isFloatTensor(value))
      return;
    const Layout &layout = analysis.getLayout(value);
    if (layout.isUnreduced())
      return;
    if (layout.dims.back().isSharded())
      faults.push_back({"norm over a sharded dimension", value.getLoc(),
                        [value] {
                          rewire(value, [&](OpBuilder &builder) {
                            return nn::RmsNormOp::create(builder, value.getLoc(), value.getType(),
                                                         value, Value(),
                                                         builder.getF64FloatAttr(1e-5), UnitAttr());
                          });
                        },
                        getExcuse(analysis, value)});
    for (auto [d, dim] : llvm::enumerate(layout.dims))
      if (dim.isSharded())
        faults.push_back({"softmax over a sharded dimension", value.getLoc(),
                          [value, d = d] {
                            rewire(value, [&](OpBuilder &builder) {
                              return nn::SoftmaxOp::create(builder, value.getLoc(), value.getType(),
                                                           value, d);
                            });
                          },
                          getExcuse(analysis, value)});
  });
}

/// Returns true if a condition is false in padding: a comparison of positions.
bool isMask(Value condition) {
  while (auto reshape = condition.getDefiningOp<nn::ReshapeOp>())
    condition = reshape.getInput();
  auto compare = condition.getDefiningOp<nn::CompareOp>();
  return compare && compare.getLhs().getDefiningOp<PositionsOp>();
}

/// Padding that is not finite where a sum reads it: unmasked, or one over zero.
void readInfinity(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  // Indices in padding may be as good as others.
  auto isLikeOthers = [&](Value value) {
    const Layout &layout = analysis.getLayout(value);
    return getElementTypeOrSelf(value.getType()).isInteger() && llvm::all_of(layout.dims, [&](const DimLayout &dim) {
             return llvm::all_of(dim.factors, [&](const LayoutFactor &factor) {
               return !factor.isPadded() || factor.padding == layout.data;
             });
           });
  };
  func.walk([&](nn::SelectOp op) {
    if (isMask(op.getCondition()))
      faults.push_back({"padding left unmasked", op.getLoc(), [op]() mutable {
                          op.replaceAllUsesWith(op.getLhs());
                          op.erase();
                        }, isLikeOthers(op.getLhs()) ? "of indices in range" : ""});
  });
  auto invert = [&](Operation *op, int64_t dim) {
    Value operand = op->getOperand(0);
    if (!isFloatTensor(operand))
      return;
    // One over another number than zero is finite, and the program another right one.
    bool mayBeZero = llvm::any_of(analysis.getLayout(operand).dims[dim].factors,
                                  [](const LayoutFactor &factor) {
                                    return factor.isPadded() && factor.padding.lower <= 0 &&
                                           factor.padding.upper >= 0;
                                  });
    if (!mayBeZero)
      return;
    faults.push_back({"infinity in padding", op->getLoc(), [op, operand] {
                        OpBuilder builder(op);
                        op->setOperand(0, nn::ReciprocalOp::create(builder, op->getLoc(),
                                                                   operand.getType(), operand));
                      }});
  };
  func.walk([&](nn::LinearOp op) { invert(op, op.getInput().getType().getRank() - 1); });
  func.walk([&](nn::ReduceOp op) {
    if (op.getKind() == nn::ReduceKind::Sum)
      for (int64_t dim : op.getDims())
        invert(op, dim);
  });
}

void readPadding(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  func.walk([&](MaskPaddingOp op) {
    if (analysis.getLayout(op.getResult()).dims[op.getDim()].isPadded())
      faults.push_back({"padding left unmasked", op.getLoc(), [op]() mutable {
                          op.replaceAllUsesWith(op.getInput());
                          op.erase();
                        }});
  });
  func.walk([&](nn::AttentionOp op) {
    if (op.getKvLength() && analysis.getLayout(op.getKey()).dims[2].isPadded())
      faults.push_back(
          {"kv_length left out", op.getLoc(), [op]() mutable { op.removeKvLengthAttr(); }});
  });
  forEachValue(func, [&](Value value) {
    if (!isFloatTensor(value))
      return;
    const Layout &layout = analysis.getLayout(value);
    if (layout.isUnreduced())
      return;
    for (auto [d, dim] : llvm::enumerate(layout.dims)) {
      if (dim.isSharded() || !dim.isPadded())
        continue;
      bool masked = llvm::all_of(dim.factors, [](const LayoutFactor &f) {
        return !f.isPadded() || f.padding == Padding::NegInf;
      });
      if (!masked)
        faults.push_back({"softmax over padding", value.getLoc(), [value, d = d] {
                            rewire(value, [&](OpBuilder &builder) {
                              return nn::SoftmaxOp::create(builder, value.getLoc(), value.getType(),
                                                           value, d);
                            });
                          }});
    }
  });
}

//===----------------------------------------------------------------------===//
// Control flow, chunks, results
//===----------------------------------------------------------------------===//

void rankDependent(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  MeshAttr mesh = analysis.getMesh();
  func.walk([&](Operation *op) {
    if (!isa<AllReduceOp, ReduceScatterOp, AllGatherOp, AllToAllOp, PermuteOp, RedistributeOp>(op))
      return;
    faults.push_back(
        {"collective under a condition on the rank", op->getLoc(), [op, mesh] {
           OpBuilder builder(op);
           Location loc = op->getLoc();
           auto i64 = RankedTensorType::get({}, builder.getI64Type());
           auto i1 = RankedTensorType::get({}, builder.getI1Type());
           Axis axis{0, 1, mesh.getAxes()[0].getSize()};
           Value index =
               AxisIndexOp::create(builder, loc, i64, getAxesAttr(op->getContext(), axis, mesh), 1);
           Value zero = nn::ConstantOp::create(
               builder, loc, i64, DenseElementsAttr::get(i64, builder.getI64IntegerAttr(0)));
           Value first = nn::CompareOp::create(builder, loc, i1, nn::CompareKind::Eq, index, zero);
           Value condition = tensor::ExtractOp::create(builder, loc, first, ValueRange());
           auto branch = scf::IfOp::create(builder, loc, op->getResultTypes(), condition, true);
           op->replaceAllUsesWith(branch);
           builder.setInsertionPointToStart(branch.thenBlock());
           scf::YieldOp::create(builder, loc, builder.clone(*op)->getResults());
           builder.setInsertionPointToStart(branch.elseBlock());
           scf::YieldOp::create(builder, loc, builder.clone(*op)->getResults());
           op->erase();
         }});
  });
}

void shuffleChunks(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  MeshAttr mesh = analysis.getMesh();
  llvm::DenseSet<Value> read = getReadValues(func);
  forEachValue(func, [&](Value value) {
    if (!read.contains(value))
      return;
    for (auto [d, dim] : llvm::enumerate(analysis.getLayout(value).dims)) {
      AxisList axes = dim.getAxes();
      // A sum or maximum over all chunks does not depend on their order.
      if (axes.empty() || isSummed(value, d))
        continue;
      faults.push_back({"chunks shifted by one rank", value.getLoc(), [value, axes, mesh] {
                          rewire(value, [&](OpBuilder &builder) {
                            return PermuteOp::create(
                                       builder, value.getLoc(), value.getType(), value,
                                       getAxesAttr(value.getContext(), axes, mesh),
                                       builder.getI64IntegerAttr(1), DenseI64ArrayAttr())
                                .getResult(0);
                          });
                        }});
    }
  });
  // Gathers over several axes, in another order.
  func.walk([&](Operation *op) {
    ArrayAttr axes = getAxesOf(op);
    if (!axes || axes.size() < 2 || !isa<AllGatherOp, AllToAllOp>(op))
      return;
    faults.push_back({"chunks gathered in another order", op->getLoc(), [op, axes] {
                        SmallVector<Attribute> reversed(axes.begin(), axes.end());
                        std::reverse(reversed.begin(), reversed.end());
                        op->setAttr("axes", ArrayAttr::get(op->getContext(), reversed));
                      }});
  });
}

void wrongOffset(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  func.walk([&](nn::EmbeddingOp op) {
    if (!op.getOffset() || !analysis.getLayout(op.getTable()).dims[0].isSharded())
      return;
    faults.push_back(
        {"offset left out", op.getLoc(), [op]() mutable { op.getOffsetMutable().clear(); }});
    if (auto index = op.getOffset().getDefiningOp<AxisIndexOp>())
      faults.push_back({"offset of another chunk size", op.getLoc(),
                        [index]() mutable { index.setChunk(index.getChunk() + 1); }});
  });
}

/// The signature promises something else that its local type allows.
void wrongResult(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  MeshAttr mesh = analysis.getMesh();
  FlatSymbolRefAttr symbol = getSpmdMeshSymbol(func);
  Operation *terminator = func.getBody().front().getTerminator();
  for (unsigned i = 0; i < func.getNumResults(); ++i) {
    // A constant has many layouts.
    if (matchPattern(terminator->getOperand(i), m_Constant()))
      continue;
    const Layout &layout = analysis.getLayout(terminator->getOperand(i));
    auto promise = [&](const char *description, Layout other) {
      canonicalize(other, mesh);
      Type element = getElementTypeOrSelf(func.getResultTypes()[i]);
      faults.push_back(
          {description, func.getLoc(), [=]() mutable {
             func.setResultAttr(i, DistDialect::kShardingAttr, getSharding(other, symbol, mesh));
             func.setResultAttr(
                 i, DistDialect::kGlobalAttr,
                 TypeAttr::get(RankedTensorType::get(other.getGlobalShape(), element)));
           }});
    };
    for (auto [a, axis] : llvm::enumerate(mesh.getAxes())) {
      Axis whole{static_cast<int>(a), 1, axis.getSize()};
      if (whole.size == 1)
        continue;
      if (!layout.uses(whole)) {
        Layout other = layout;
        other.addUnreduced(whole, other.getReduction());
        promise("result promised as unreduced", other);
        for (unsigned d = 0; d < layout.dims.size(); ++d) {
          if (layout.dims[d].isPadded())
            continue;
          // Equal elements have the layout that the signature promises.
          if (llvm::any_of(layout.dims[d].factors, [](const LayoutFactor &f) { return f.uniform; }))
            continue;
          Layout sharded = layout;
          LayoutFactor &factor = sharded.dims[d].factors.front();
          factor.axes.insert(factor.axes.begin(), whole);
          factor.size *= whole.size;
          factor.padded = factor.size;
          promise("result promised as sharded", sharded);
        }
      }
    }
    for (unsigned d = 0; d < layout.dims.size(); ++d) {
      if (!layout.dims[d].isSharded())
        continue;
      Layout other = layout;
      LayoutFactor whole;
      whole.size = whole.padded = layout.dims[d].getLocalSize();
      other.dims[d] = DimLayout(whole);
      promise("result promised as replicated", other);
    }
  }
}

/// A value of the same type but another layout takes an operand's place.
void substitute(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  DenseMap<Type, SmallVector<Value>> seen;
  auto add = [&](Value value) {
    // Few of a type are enough, and keep this linear.
    if (seen[value.getType()].size() < 16)
      seen[value.getType()].push_back(value);
  };
  for (BlockArgument argument : func.getArguments())
    add(argument);
  llvm::DenseSet<Value> read = getReadValues(func);
  for (Operation &op : func.getBody().front()) {
    bool isRead = op.getNumResults() == 0 ||
                  llvm::any_of(op.getResults(), [&](Value result) { return read.contains(result); });
    for (OpOperand &operand : op.getOpOperands())
      for (Value other : seen[operand.get().getType()]) {
        if (!isRead || !reads(operand))
          break;
        const Layout &have = analysis.getLayout(operand.get()), &want = analysis.getLayout(other);
        bool uniform = false;
        for (const Layout *layout : {&have, &want})
          for (const DimLayout &dim : layout->dims)
            for (const LayoutFactor &factor : dim.factors)
              uniform |= factor.uniform;
        if (uniform || have.sameShardingAs(want))
          continue;
        // Slices may make true sizes equal that differ.
        bool isPart = isa<nn::MaximumOp>(op) &&
                      (have.isUnreduced() ? have : want).getReduction() == ReductionKind::Max;
        bool isSize = have.getUnreduced() == want.getUnreduced() &&
                      have.getReduction() == want.getReduction() &&
                      llvm::equal(have.dims, want.dims, [](const DimLayout &a, const DimLayout &b) {
                        return a.getAxes() == b.getAxes() && a.factors.size() == b.factors.size();
                      });
        bool broadcasts = false;
        for (auto [a, b] : llvm::zip_equal(have.dims, want.dims))
          broadcasts |= a.getLocalSize() == 1 && a.getGlobalSize() != b.getGlobalSize() &&
                        (a.getGlobalSize() == 1 || b.getGlobalSize() == 1);
        bool ambiguous = isReshaped(analysis, other) || isReshaped(analysis, operand.get());
        Operation *user = &op;
        unsigned number = operand.getOperandNumber();
        faults.push_back({"operand " + std::to_string(number) + " of " +
                              op.getName().getStringRef().str() + " has layout " +
                              toString(want, analysis.getMesh()) + " in place of " +
                              toString(have, analysis.getMesh()),
                          op.getLoc(), [user, number, other] { user->setOperand(number, other); },
                          broadcasts  ? "broadcasts"
                          : isSize    ? "of another size"
                          : isPart    ? "as a part of a maximum"
                          : want.data == Padding::Zero ? "of zeros"
                          : ambiguous ? "read as a dimension of its own"
                                      : ""});
      }
    for (Value result : op.getResults())
      add(result);
  }
}

//===----------------------------------------------------------------------===//
// Rings
//===----------------------------------------------------------------------===//

/// The factor with its elements in contiguous order.
FactorShardingAttr withoutOrder(FactorShardingAttr factor) {
  return FactorShardingAttr::get(factor.getContext(), factor.getSize(), factor.getPadded(),
                                 TokenOrder::Contiguous, 1, factor.getAxes());
}

/// Changes the destinations of a permute.
SmallVector<int64_t> getPairs(PermuteOp op, MeshAttr mesh) {
  if (op.getPairs())
    return SmallVector<int64_t>(*op.getPairs());
  int64_t size = getNumShards(getAxes(op.getAxes(), mesh));
  SmallVector<int64_t> pairs;
  for (int64_t rank = 0; rank < size; ++rank)
    pairs.append({rank, (rank + int64_t(*op.getShift()) % size + size) % size});
  return pairs;
}

void breakRing(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  func.walk([&](nn::MergeAttentionOp op) {
    if (!analysis.getLayout(op.getFirst()).getPartOfSource())
      return;
    faults.push_back({"step left out", op.getLoc(), [op]() mutable {
                        op.getResult().replaceAllUsesWith(op.getFirst());
                        op.getLse().replaceAllUsesWith(op.getFirstLse());
                        op.erase();
                      }});
    faults.push_back({"chunk merged twice", op.getLoc(), [op]() mutable {
                        op.getSecondMutable().assign(op.getFirst());
                        op.getSecondLseMutable().assign(op.getFirstLse());
                      }});
    faults.push_back({"added without log-sum-exps", op.getLoc(), [op]() mutable {
                        OpBuilder builder(op);
                        Value sum = nn::AddOp::create(builder, op.getLoc(), op.getResult().getType(),
                                                      op.getFirst(), op.getSecond());
                        op.getResult().replaceAllUsesWith(sum);
                      }});
    if (!op.getLse().use_empty())
      faults.push_back({"log-sum-exp not merged", op.getLoc(), [op]() mutable {
                          op.getLse().replaceAllUsesWith(op.getFirstLse());
                        }});
    faults.push_back({"another part's log-sum-exp", op.getLoc(),
                      [op]() mutable { op.getSecondLseMutable().assign(op.getFirstLse()); }});
    faults.push_back({"step too many", op.getLoc(), [op]() mutable {
                        OpBuilder builder = after(op);
                        auto again = cast<nn::MergeAttentionOp>(builder.clone(*op));
                        op.getResult().replaceAllUsesExcept(again.getResult(), again);
                        again.getFirstMutable().assign(op.getResult());
                        again.getFirstLseMutable().assign(op.getLse());
                      }});
  });
  func.walk([&](PermuteOp op) {
    bool goesAround = llvm::any_of(
        op->getUsers(), [](Operation *user) { return isa<nn::ScoresOpInterface>(user); });
    if (!goesAround)
      return;
    SmallVector<int64_t> pairs = getPairs(op, analysis.getMesh());
    int64_t size = getNumShards(getAxes(op.getAxes(), analysis.getMesh()));
    SmallVector<int64_t> further = pairs;
    for (size_t i = 1; i < pairs.size(); i += 2)
      further[i] = (pairs[i] + 1) % size;
    faults.push_back({"wrong shift", op.getLoc(), [op, further]() mutable {
                        if (op.getShift())
                          op.setShift(*op.getShift() + 1);
                        else
                          op.setPairs(further);
                      }});
    for (size_t i = 0; pairs.size() > 2 && i < pairs.size(); i += 2)
      faults.push_back({"rank left out", op.getLoc(), [op, pairs, i]() mutable {
                          pairs.erase(pairs.begin() + i, pairs.begin() + i + 2);
                          op.removeShiftAttr();
                          op.setPairs(pairs);
                        }});
    if (op->getNumOperands() > 1)
      faults.push_back({"values of another step", op.getLoc(),
                        [op]() mutable { op->getResult(1).replaceAllUsesWith(op->getOperand(1)); }});
  });
  func.walk([&](PositionsOp op) {
    if (op.getFactor().getAxes().empty())
      return;
    faults.push_back({"positions of another step", op.getLoc(),
                      [op]() mutable { op.setShift(op.getShift() + 1); }});
    if (op.getFactor().getOrder() != TokenOrder::Contiguous)
      faults.push_back({"positions without the order", op.getLoc(),
                        [op]() mutable { op.setFactorAttr(withoutOrder(op.getFactor())); }});
  });
  func.walk([&](nn::AttentionOp op) {
    if (!op.getQPositions() || !analysis.getLayout(op.getKey()).dims[2].isSharded())
      return;
    faults.push_back({"mask without positions", op.getLoc(), [op]() mutable {
                        op.getQPositionsMutable().clear();
                        op.getKvPositionsMutable().clear();
                      }});
  });
  func.walk([&](nn::AttentionOp op) {
    if (op.getKvLengths() && op.getLse())
      faults.push_back({"lengths left out of a step", op.getLoc(),
                        [op]() mutable { op.getKvLengthsMutable().clear(); }});
  });
  func.walk([&](dist::SliceOp op) {
    bool goesAlong = llvm::all_of(
        op->getUsers(), [](Operation *user) { return isa<nn::ScoresOpInterface>(user); });
    if (goesAlong && !op->use_empty())
      faults.push_back({"mask or bias of another step", op.getLoc(),
                        [op]() mutable { op.setShift(op.getShift() + 1); }});
  });
  func.walk([&](ReorderOp op) {
    faults.push_back({"left in another order", op.getLoc(), [op]() mutable {
                        op.getResult().replaceAllUsesWith(op.getInput());
                        op.erase();
                      }});
  });
}

/// Gradients in the steps of a ring: a step left out or added twice, a chunk at another place.
void breakSteps(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  func.walk([&](nn::AddOp op) {
    if (!analysis.getLayout(op.getLhs()).getPartOfSource())
      return;
    for (unsigned i : {0, 1}) {
      faults.push_back({"step left out", op.getLoc(), [op, i]() mutable {
                          op.replaceAllUsesWith(op->getOperand(i));
                          op.erase();
                        }});
      faults.push_back({"step added twice", op.getLoc(),
                        [op, i] { op->setOperand(i, op->getOperand(1 - i)); }});
    }
  });
  func.walk([&](PlaceOp op) {
    SmallVector<int64_t> shifts(op.getShifts());
    for (int64_t &shift : shifts)
      ++shift;
    faults.push_back({"chunks one place further", op.getLoc(),
                      [op, shifts]() mutable { op.setShifts(shifts); }});
    if (shifts.size() < 2)
      return;
    SmallVector<int64_t> swapped(op.getShifts());
    std::swap(swapped.front(), swapped.back());
    faults.push_back({"chunks at each other's place", op.getLoc(),
                      [op, swapped]() mutable { op.setShifts(swapped); }});
    for (unsigned i = 0; i < shifts.size(); ++i) {
      faults.push_back({"chunk left out", op.getLoc(), [op, i]() mutable {
                          SmallVector<int64_t> rest(op.getShifts());
                          rest.erase(rest.begin() + i);
                          op.setShifts(rest);
                          op->eraseOperand(i);
                        }});
      faults.push_back({"chunk of another step", op.getLoc(), [op, i] {
                          op->setOperand(i, op->getOperand((i + 1) % op->getNumOperands()));
                        }});
    }
  });
}

/// A layout that differs from `layout` along one axis.
Layout useAnotherAxis(Layout layout, const Axis &axis) {
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors)
      if (anyOverlap(factor.axes, {axis})) {
        llvm::erase_if(factor.axes, [&](const Axis &own) { return own.axis == axis.axis; });
        factor.padded = factor.size;
        return layout;
      }
  if (!layout.dims.empty()) {
    LayoutFactor &factor = layout.dims[0].factors.front();
    factor.axes.push_back(axis);
    factor.padded = llvm::alignTo(factor.size, getNumShards(factor.axes));
  }
  return layout;
}

/// A place of a state that has another layout than the module says, or than the next call reads.
void wrongState(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  MeshAttr mesh = analysis.getMesh();
  FlatSymbolRefAttr symbol = getSpmdMeshSymbol(func);
  Operation *terminator = func.getBody().front().getTerminator();
  auto addLayouts = [&](StringAttr name, const Layout &layout) {
    for (auto [a, axis] : llvm::enumerate(mesh.getAxes())) {
      Axis whole{static_cast<int>(a), 1, axis.getSize()};
      if (whole.size == 1)
        continue;
      Layout other = useAnotherAxis(layout, whole);
      // A constant has many layouts, of which the state has another one than `layout`.
      auto isStated = [&](const Layout &layout) {
        return getExactSharding(layout, symbol, mesh) ==
               nn::lookupState(func, name)->getAttr(DistDialect::kShardingAttr);
      };
      if (!other.sameShardingAs(layout) && !isStated(other))
        faults.push_back({"state of another layout", func.getLoc(), [=]() {
                            nn::lookupState(func, name)->setAttr(
                                DistDialect::kShardingAttr, getExactSharding(other, symbol, mesh));
                          }});
      if (layout.uses(whole))
        continue;
      Layout partial = layout;
      partial.addUnreduced(whole, partial.getReduction());
      if (isStated(partial))
        continue;
      faults.push_back({"state that is a partial sum", func.getLoc(), [=]() {
                          nn::lookupState(func, name)->setAttr(
                              DistDialect::kShardingAttr, getExactSharding(partial, symbol, mesh));
                        }});
    }
  };
  for (BlockArgument argument : func.getArguments())
    if (auto name =
            func.getArgAttrOfType<StringAttr>(argument.getArgNumber(), nn::NnDialect::kStateAttr))
      addLayouts(name, analysis.getLayout(argument));
  for (OpOperand &operand : terminator->getOpOperands()) {
    auto name =
        func.getResultAttrOfType<StringAttr>(operand.getOperandNumber(), nn::NnDialect::kStateAttr);
    if (!name)
      continue;
    const Layout &layout = analysis.getLayout(operand.get());
    auto stated =
        nn::lookupState(func, name)->getAttrOfType<ShardingAttr>(DistDialect::kShardingAttr);
    addLayouts(name, layout);
    for (auto [a, axis] : llvm::enumerate(mesh.getAxes())) {
      Axis whole{static_cast<int>(a), 1, axis.getSize()};
      // Zeros may be written to a state that is a sum over this axis, as they are or on one rank.
      bool isOpen = stated && llvm::any_of(stated.getUnreduced(), [axis = axis](AxisRefAttr open) {
                      return open.getName() == axis.getName();
                    });
      if (whole.size == 1 || layout.uses(whole) || isOpen)
        continue;
      faults.push_back({"written unreduced", func.getLoc(), [=, &operand]() mutable {
                          OpBuilder builder(terminator);
                          Value value = operand.get();
                          operand.set(PartialOp::create(builder, func.getLoc(), value.getType(),
                                                        value,
                                                        getAxesAttr(func.getContext(), whole, mesh))
                                          .getResult(0));
                        }});
    }
    if (AxisList axes = layout.getShardedAxes(); !axes.empty())
      faults.push_back({"written by another rank", func.getLoc(), [=, &operand]() mutable {
                          OpBuilder builder(terminator);
                          Value value = operand.get();
                          operand.set(PermuteOp::create(builder, func.getLoc(), value.getType(),
                                                        value,
                                                        getAxesAttr(func.getContext(), axes, mesh),
                                                        builder.getI64IntegerAttr(1), DenseI64ArrayAttr())
                                          .getResult(0));
                        }});
    if (llvm::any_of(layout.dims, [](const DimLayout &dim) { return dim.isPadded(); }) &&
        isFloatTensor(operand.get()))
      faults.push_back({"written with padding of ones", func.getLoc(), [=, &operand]() mutable {
                          OpBuilder builder(terminator);
                          Value value = operand.get();
                          operand.set(nn::ExpOp::create(builder, func.getLoc(), value.getType(), value));
                        }});
  }
}

} // namespace

ArrayRef<FaultKind> meshwright::test::getFaultKinds() {
  static const FaultKind kinds[] = {
      {"drop-reduction", dropReduction}, {"double-reduction", doubleReduction},
      {"wrong-kind", wrongKind},         {"wrong-axis", wrongAxis},
      {"early-residual", earlyResidual}, {"nonlinear", nonlinear},
      {"whole-of-shard", wholeOfShard},  {"read-padding", readPadding},
      {"read-infinity", readInfinity},
      {"rank-dependent", rankDependent}, {"shuffle-chunks", shuffleChunks},
      {"wrong-offset", wrongOffset},     {"wrong-result", wrongResult},
      {"substitute", substitute},        {"break-ring", breakRing},
      {"break-steps", breakSteps},       {"wrong-state", wrongState},
      {"reduce-replicated", reduceReplicated},
      {"gather-replicated", gatherReplicated},
      {"local-collective", localCollective},
      {"wrong-mask", wrongMask},         {"constant-in-sum", constantInSum},
      {"swap-states", swapStates},       {"wrong-routing", wrongRouting},
      {"wrong-form", wrongForm},
      {"misread-rows", misreadRows},     {"reduce-sharded", reduceSharded},
      {"wrong-tables", wrongTables},     {"wrong-cache", wrongCache},
      {"stale-pages", stalePages},       {"wrong-parts", wrongParts},
      {"wrong-counts", wrongCounts},     {"sum-rows", sumRows},
      {"residual-in-sum", residualInSum},
  };
  return kinds;
}
