//===- CountedRows.cpp - true rows keep their numbers ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/CountedRows.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/ADT/DenseMap.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// The rows of a dimension: the true ones of groups of `tokens` rows, `counts` of each.
struct Rows {
  Value counts;
  int64_t tokens, sum, dim;

  /// Returns true if the rows are as many, of the same groups.
  bool isAs(const Rows &other) const {
    return counts == other.counts && tokens == other.tokens && sum == other.sum;
  }
};

class RowsProof {
public:
  explicit RowsProof(const PlacementAnalysis &layouts) : layouts(layouts) {}
  LogicalResult visit(Operation *op);

private:
  Value getSource(Value counts) const {
    Value source = sources.lookup(counts);
    return source ? source : counts;
  }
  /// Checks rows that go back to the places of their groups.
  LogicalResult checkReturn(Operation *op, unsigned operand, const Rows &want);
  LogicalResult visitExchange(CollectiveOpInterface op, int64_t tokens, int64_t sum, ArrayRef<int64_t> dims,
                              bool gathers);
  LogicalResult visitOther(Operation *op);
  void visitCollective(CollectiveOpInterface op);
  /// Returns true if an op adds padding behind the rows of its operand, or drops it.
  bool keepsTrueRows(Operation *op, const Rows &rows) const;
  /// Returns true if a value may meet rows of any numbers: the caller vouches for it, or its rows are equal.
  bool fitsAll(Value value, int64_t dim) const;
  /// Checks that the operands that meet true rows, whose factors are given, are such rows.
  LogicalResult checkOthers(Operation *op, const FactorRule &rule, const FactorRule::DimFactors &factors,
                            const Rows &rows);

  const PlacementAnalysis &layouts;
  ProgramMap<Value, Rows> rowsOf;
  /// For numbers of rows that a collective gives, the operand from which they come.
  ProgramMap<Value, Value> sources;
};

} // namespace

static void note(InFlightDiagnostic &error, const Rows &rows, StringRef what) {
  error.attachNote(rows.counts.getLoc()) << what << " have up to " << rows.sum << " true rows of groups of "
                                         << rows.tokens << ", whose numbers are here";
}

bool RowsProof::fitsAll(Value value, int64_t dim) const {
  const Layout *layout = layouts.lookup(value);
  return isa<BlockArgument>(value) || (layout && llvm::all_of(layout->dims[dim].factors, [](const LayoutFactor &factor) {
           return factor.uniform || factor.padded == 1;
         }));
}

LogicalResult RowsProof::checkReturn(Operation *op, unsigned operand, const Rows &want) {
  auto have = rowsOf.find(op->getOperand(operand));
  // A single row meets no others.
  if (have == rowsOf.end() && (want.sum == 1 || fitsAll(op->getOperand(operand), want.dim)))
    return success();
  if (have == rowsOf.end()) {
    InFlightDiagnostic error = op->emitOpError()
                               << "expected rows that were compacted by the numbers that it reads, got rows in operand "
                               << operand << " that were not compacted";
    note(error, want, "their places");
    return error;
  }
  if (have->second.isAs(want) && have->second.dim == want.dim)
    return success();
  InFlightDiagnostic error = op->emitOpError() << "expected rows that were compacted by the numbers that it reads, got "
                                                  "others in operand "
                                               << operand;
  note(error, have->second, "the rows");
  note(error, want, "their places");
  return error;
}

LogicalResult RowsProof::visitExchange(CollectiveOpInterface op, int64_t tokens, int64_t sum,
                                       ArrayRef<int64_t> dims, bool gathers) {
  for (auto [i, dim] : llvm::enumerate(dims)) {
    Rows rows{getSource(op->getOperand(2 * i + 1)), tokens, sum, dim};
    sources[op->getResult(2 * i + 1)] = rows.counts;
    if (gathers)
      rowsOf[op->getResult(2 * i)] = rows;
    else if (failed(checkReturn(op, 2 * i, rows)))
      return failure();
  }
  return success();
}

/// Rows move as they are: their layout says which of them a rank has, and the ops that compact and expand read all.
void RowsProof::visitCollective(CollectiveOpInterface op) {
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    if (auto rows = rowsOf.find(op->getOperand(i)); rows != rowsOf.end()) {
      Rows own = rows->second;
      rowsOf[op->getResult(i)] = own;
    }
}

LogicalResult RowsProof::checkOthers(Operation *op, const FactorRule &rule, const FactorRule::DimFactors &factors,
                                     const Rows &rows) {
  for (auto [i, dims] : llvm::enumerate(rule.operands)) {
    Value operand = op->getOperand(i);
    auto at = llvm::find(dims, factors);
    if (at == dims.end() || rowsOf.contains(operand) || fitsAll(operand, at - dims.begin()))
      continue;
    InFlightDiagnostic error = op->emitOpError() << "joins true rows with operand " << i
                                                 << ", whose rows were not compacted: expected dist.compact before";
    note(error, rows, "the rows");
    return error;
  }
  return success();
}

bool RowsProof::keepsTrueRows(Operation *op, const Rows &rows) const {
  if (isa<PadOp>(op))
    return true;
  auto slice = dyn_cast<nn::SliceOp>(op);
  return slice && slice.getStarts()[rows.dim] == 0 && slice.getStrides()[rows.dim] == 1 &&
         slice.getLimits()[rows.dim] >= rows.sum;
}

/// An op computes rows one by one, of operands that have the same ones.
LogicalResult RowsProof::visitOther(Operation *op) {
  std::optional<FactorRule> rule;
  std::optional<std::pair<unsigned, Rows>> first;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto found = rowsOf.find(operand);
    if (found == rowsOf.end())
      continue;
    Rows rows = found->second;
    if (keepsTrueRows(op, rows)) {
      rowsOf[op->getResult(0)] = rows;
      continue;
    }
    auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
    if (!rule && ruled)
      rule = ruled.getFactorRule();
    auto refuse = [&, i = i] {
      InFlightDiagnostic error = op->emitOpError()
                                 << "joins rows of operand " << i
                                 << ", of which those behind the true ones would count: expected dist.expand before";
      note(error, rows, "its rows");
      return LogicalResult(error);
    };
    if (!rule || op->hasTrait<OpTrait::IsTerminator>())
      return refuse();
    if (first && !first->second.isAs(rows)) {
      InFlightDiagnostic error = op->emitOpError() << "joins operands " << first->first << " and " << i
                                                   << ", which have true rows of different numbers";
      note(error, first->second, "the one");
      note(error, rows, "the other one");
      return error;
    }
    if (!first)
      first.emplace(i, rows);
    const FactorRule::DimFactors &factors = rule->operands[i][rows.dim];
    // A view need not say where a dimension of one row goes.
    if (factors.empty() && rows.sum == 1 && op->hasTrait<View>())
      continue;
    bool isKept = llvm::all_of(factors, [&](int factor) {
      return rule->factors[factor].kind == FactorKind::Parallel;
    });
    for (auto [result, dims] : llvm::zip_equal(op->getResults(), rule->results)) {
      auto at = llvm::find(dims, factors);
      isKept &= at != dims.end() && !factors.empty();
      if (isKept)
        rowsOf[result] = {rows.counts, rows.tokens, rows.sum, int64_t(at - dims.begin())};
    }
    if (!isKept)
      return refuse();
    if (failed(checkOthers(op, *rule, factors, rows)))
      return failure();
  }
  return success();
}

LogicalResult RowsProof::visit(Operation *op) {
  if (auto compact = dyn_cast<CompactOp>(op)) {
    rowsOf[compact.getResult()] = {getSource(compact.getCounts()), int64_t(compact.getTokens()),
                                   int64_t(compact.getRows()), int64_t(compact.getDim())};
    return success();
  }
  if (auto expand = dyn_cast<ExpandOp>(op))
    return checkReturn(op, 0,
                       {getSource(expand.getCounts()), int64_t(expand.getTokens()),
                        int64_t(expand.getRows()), int64_t(expand.getDim())});
  if (auto gather = dyn_cast<AllGatherVOp>(op))
    return visitExchange(gather, gather.getTokens(), gather.getRows(), gather.getDims(), /*gathers=*/true);
  if (auto scatter = dyn_cast<ReduceScatterVOp>(op))
    return visitExchange(scatter, scatter.getTokens(), scatter.getRows(), scatter.getDims(), /*gathers=*/false);
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  if (!collective || isa<ShardingRuleOpInterface>(op))
    return visitOther(op);
  visitCollective(collective);
  return success();
}

LogicalResult meshwright::verifyCountedRows(func::FuncOp func, const PlacementAnalysis &layouts) {
  RowsProof proof(layouts);
  for (Operation &op : func.getBody().front())
    if (failed(proof.visit(&op)))
      return failure();
  return success();
}
