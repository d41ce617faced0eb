//===- CollectiveFaults.cpp - faults of collectives and of equal elements -===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Collectives that are left out, added, or replaced by local ops of the same type. None of the
// programs is the placement of another one: a value that is equal on all ranks is summed, or a rank
// has the chunk of another one.
//
//===----------------------------------------------------------------------===//

#include "PlacementFaults.h"

#include "Uses.h"

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::test;
using namespace meshwright::dist;

using Faults = std::vector<Fault>;

/// Visits each axis of the mesh over which a value of floats is replicated.
static void
forEachReplicated(func::FuncOp func, const PlacementAnalysis &analysis,
                  function_ref<void(Value value, ArrayAttr axes, int64_t size)> visit) {
  MeshAttr mesh = analysis.getMesh();
  auto visitValue = [&](Value value) {
    if (!isFloats(value) || value.use_empty())
      return;
    for (auto [i, axis] : llvm::enumerate(mesh.getAxes())) {
      Axis whole{static_cast<int>(i), 1, axis.getSize()};
      if (whole.size > 1 && !analysis.getLayout(value).uses(whole))
        visit(value, getAxesAttr(func.getContext(), whole, mesh), whole.size);
    }
  };
  for (BlockArgument argument : func.getArguments())
    visitValue(argument);
  for (Operation &op : func.getBody().front())
    for (Value result : op.getResults())
      visitValue(result);
}

/// Sums of values that each rank has whole: they are as many times too large as there are ranks.
void test::reduceReplicated(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  forEachReplicated(func, analysis, [&](Value value, ArrayAttr axes, int64_t) {
    Location loc = value.getLoc();
    faults.push_back({"replicated value summed", loc, [value, axes, loc] {
                        rewire(value, [&](OpBuilder &builder) {
                          return AllReduceOp::create(builder, loc, TypeRange{value.getType()},
                                                     ValueRange{value}, ReductionKind::Sum, axes)
                              ->getResult(0);
                        });
                      }});
  });
}

/// Sums of chunks that ranks have of their own, as of the gradients of other experts.
void test::reduceSharded(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  llvm::DenseSet<Value> read = getReadValues(func);
  for (Operation &op : func.getBody().front())
    for (Value value : op.getResults()) {
      AxisList axes = analysis.getLayout(value).getShardedAxes();
      if (!isFloats(value) || !read.contains(value) || axes.empty())
        continue;
      Location loc = value.getLoc();
      ArrayAttr attr = getAxesAttr(func.getContext(), axes, analysis.getMesh());
      faults.push_back({"chunks summed", loc, [=] {
                          rewire(value, [&](OpBuilder &builder) {
                            return AllReduceOp::create(builder, loc, TypeRange{value.getType()}, ValueRange{value},
                                                       ReductionKind::Sum, attr)
                                ->getResult(0);
                          });
                        }});
    }
}

/// The same in two steps: chunks that are no chunks are gathered, and their sum is taken.
void test::gatherReplicated(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  forEachReplicated(func, analysis, [&](Value value, ArrayAttr axes, int64_t ranks) {
    RankedTensorType type = typeOf(value);
    // The chunks of a sharded dimension would be rows of another one.
    if (type.getRank() == 0 || analysis.getLayout(value).dims[0].isSharded())
      return;
    Location loc = value.getLoc();
    faults.push_back({"replicated value gathered and summed", loc, [=] {
                        rewire(value, [&](OpBuilder &builder) -> Value {
                          SmallVector<int64_t> all(type.getShape());
                          SmallVector<int64_t> split(type.getShape());
                          all[0] *= ranks;
                          split.insert(split.begin(), ranks);
                          Value gathered =
                              AllGatherOp::create(builder, loc, TypeRange{type.clone(all)},
                                                  ValueRange{value}, axes, ArrayRef<int64_t>{0})
                                  ->getResult(0);
                          Value apart =
                              nn::ReshapeOp::create(builder, loc, type.clone(split), gathered);
                          return nn::ReduceOp::create(builder, loc, type, nn::ReduceKind::Sum,
                                                      apart, ArrayRef<int64_t>{0}, false);
                        });
                      }});
  });
}

/// Collectives replaced by ops of one rank.
void test::localCollective(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  func.walk([&](Operation *op) {
    if (!isa<AllGatherOp, dist::SliceOp, AllToAllOp, PermuteOp, PartialOp, RedistributeOp>(op))
      return;
    for (unsigned i = 0; i < op->getNumOperands(); ++i) {
      Value operand = op->getOperand(i), result = op->getResult(i);
      if (result.use_empty())
        continue;
      RankedTensorType from = typeOf(operand), to = typeOf(result);
      // A part of zeros, or a chunk that is all there is, does not matter.
      if (from == to && analysis.getLayout(operand).sameShardingAs(analysis.getLayout(result)))
        continue;
      if (from == to) {
        faults.push_back({op->getName().getStringRef().str() + " left out", op->getLoc(),
                          [=]() mutable { result.replaceAllUsesWith(operand); }});
        continue;
      }
      if (auto gather = dyn_cast<AllGatherOp>(op)) {
        int64_t dim = gather.getDims()[i], count = to.getDimSize(dim) / from.getDimSize(dim);
        faults.push_back({"own chunk in place of all", op->getLoc(), [=]() mutable {
                            OpBuilder builder(op);
                            SmallVector<Value> copies(count, operand);
                            Value joined =
                                nn::ConcatOp::create(builder, op->getLoc(), to, copies, dim);
                            result.replaceAllUsesWith(joined);
                          }});
      }
      if (auto slice = dyn_cast<dist::SliceOp>(op)) {
        int64_t dim = slice.getDims()[i];
        faults.push_back({"first chunk on all ranks", op->getLoc(), [=]() mutable {
                            OpBuilder builder(op);
                            SmallVector<int64_t> starts(from.getRank(), 0), strides(from.getRank(), 1),
                                limits(from.getShape());
                            limits[dim] = to.getDimSize(dim);
                            result.replaceAllUsesWith(nn::SliceOp::create(
                                builder, op->getLoc(), to, operand, starts, limits, strides));
                          },
                          to.getDimSize(dim) == 1 ? "which broadcasts" : ""});
      }
    }
    if (auto slice = dyn_cast<dist::SliceOp>(op))
      faults.push_back({"chunk of the next rank", op->getLoc(),
                        [slice]() mutable { slice.setShift(slice.getShift() + 1); }});
    if (auto permute = dyn_cast<PermuteOp>(op); permute && permute.getShift())
      faults.push_back({"one rank further", op->getLoc(),
                        [permute]() mutable { permute.setShift(*permute.getShift() + 1); }});
  });
}

/// Masks that end one row too early or too late, and sums of constants in place of values.
void test::wrongMask(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  func.walk([&](MaskPaddingOp op) {
    for (int64_t size : {int64_t(op.getSize()) - 1, int64_t(op.getSize()) + 1})
      if (size > 0)
        faults.push_back({"mask of another size", op.getLoc(),
                          [op, size]() mutable { op.setSize(size); }});
  });
  func.walk([&](PositionsOp op) {
    FactorShardingAttr factor = op.getFactor();
    LayoutFactor own = getFactor(factor, analysis.getMesh());
    for (int64_t size : {own.size - 1, own.size + 1}) {
      if (size <= 0 || size > own.padded)
        continue;
      auto other = FactorShardingAttr::get(op.getContext(), size, own.padded, factor.getOrder(),
                                           factor.getOrderRanks(), factor.getAxes());
      faults.push_back({"positions of another size", op.getLoc(),
                        [op, other]() mutable { op.setFactorAttr(other); }});
    }
  });
}

/// Returns true if values have other layouts, or none, where an op does not state those of its operands. Else it
/// states what other operands show.
static bool needsStatement(func::FuncOp func, Operation *op, const PlacementAnalysis &analysis) {
  Attribute stated = op->removeAttr(kOperandsAttr);
  ScopedDiagnosticHandler silent(func.getContext(), [](Diagnostic &) { return success(); });
  FailureOr<PlacementAnalysis> other = PlacementAnalysis::run(func);
  op->setAttr(kOperandsAttr, stated);
  return failed(other) || llvm::any_of(func.getBody().front(), [&](Operation &own) {
           return llvm::any_of(own.getResults(), [&](Value value) {
             const Layout *layout = other->lookup(value);
             return layout && !layout->sameShardingAs(analysis.getLayout(value));
           });
         });
}

void test::constantInSum(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  func.walk([&](nn::ReduceOp op) {
    if (!analysis.getLayout(op.getResult()).isUnreduced() || !isFloats(op.getInput()) ||
        analysis.getLayout(op.getInput()).isUnreduced())
      return;
    faults.push_back({"sum of a constant in place of a value", op.getLoc(), [op]() mutable {
                        OpBuilder builder(op);
                        auto type = op.getInput().getType();
                        Value ones = nn::ConstantOp::create(
                            builder, op.getLoc(),
                            DenseElementsAttr::get(type,
                                                   builder.getFloatAttr(type.getElementType(), 1.0)));
                        op.getInputMutable().assign(ones);
                        op->removeAttr(kOperandsAttr);
                      }});
  });
  func.walk([&](Operation *op) {
    if (op->hasAttr(kOperandsAttr) && needsStatement(func, op, analysis))
      faults.push_back({"layout of an operand not stated", op->getLoc(),
                        [op] { op->removeAttr(kOperandsAttr); }});
  });
}

/// Returns true if a value has equal elements along some dimension: it has every layout there.
static bool hasEqualElements(const Layout &layout) {
  return llvm::any_of(layout.dims, [](const DimLayout &dim) {
    return llvm::any_of(dim.factors, [](const LayoutFactor &factor) { return factor.uniform; });
  });
}

/// Two states of one local type get each other's new values. They have different layouts.
void test::swapStates(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  Operation *terminator = func.getBody().front().getTerminator();
  auto isState = [&](unsigned i) {
    return bool(func.getResultAttr(i, nn::NnDialect::kStateAttr));
  };
  for (unsigned i = 0; i < func.getNumResults(); ++i)
    for (unsigned j = 0; j < i; ++j) {
      Value a = terminator->getOperand(i), b = terminator->getOperand(j);
      if (!isState(i) || !isState(j) || a.getType() != b.getType() ||
          analysis.getLayout(a).sameShardingAs(analysis.getLayout(b)) ||
          hasEqualElements(analysis.getLayout(a)) || hasEqualElements(analysis.getLayout(b)))
        continue;
      faults.push_back({"states written in another order", func.getLoc(), [=] {
                          terminator->setOperand(i, b);
                          terminator->setOperand(j, a);
                        }});
    }
}
