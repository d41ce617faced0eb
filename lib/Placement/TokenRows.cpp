//===- TokenRows.cpp - tokens of a step stay apart ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A dimension is a list of pieces, of which some are rows of tokens: a reshape may give rows and heads to one
// dimension, and take them apart again. The rules of ops say where pieces go.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/TokenRows.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// A piece of a dimension of local values.
struct RowPiece {
  int64_t size;
  bool isRows;
};
/// The pieces of a dimension, major to minor.
using RowPieces = SmallVector<RowPiece, 1>;
using ValuePieces = SmallVector<RowPieces, 4>;

class TokensProof {
public:
  TokensProof(func::FuncOp func, const PlacementAnalysis &layouts) : layouts(layouts) { addInputs(func); }
  LogicalResult visit(Operation *op);

private:
  void addInputs(func::FuncOp func);
  /// Notes the pieces of a value, if some are rows.
  void set(Value value, ValuePieces pieces);
  void visitCollective(CollectiveOpInterface op);
  LogicalResult visitRuled(Operation *op, const FactorRule &rule);
  /// Returns true if the op treats rows of an operand that it reads whole as the numbers of tokens say.
  bool knowsTokens(Operation *op, unsigned operand, unsigned dim) const;
  /// Returns true if the op keeps all true elements of a dimension at their places.
  bool keepsElements(Operation *op, unsigned operand, unsigned dim) const;

  const PlacementAnalysis &layouts;
  ProgramMap<Value, ValuePieces> piecesOf;
};

} // namespace

static bool hasRows(ArrayRef<RowPiece> pieces) {
  return llvm::any_of(pieces, [](const RowPiece &piece) { return piece.isRows; });
}

/// The pieces of a dimension that has another size on its ranks now.
static RowPieces resize(ArrayRef<RowPiece> pieces, int64_t size) {
  int64_t minor = 1;
  for (const RowPiece &piece : pieces.drop_front())
    minor *= piece.size;
  RowPieces own(pieces);
  if (size % minor == 0)
    own.front().size = size / minor;
  else
    own.assign({{size, hasRows(pieces)}});
  return own;
}

/// Gives each factor of a dimension its pieces. Where they do not fit, each factor is rows if any piece is.
static SmallVector<RowPieces> split(ArrayRef<RowPiece> pieces, ArrayRef<int64_t> sizes) {
  SmallVector<RowPieces> all;
  RowPieces rest(llvm::reverse(pieces));
  for (int64_t size : sizes) {
    RowPieces own;
    while (size > 1 && !rest.empty()) {
      RowPiece &next = rest.back();
      if (size % next.size == 0) {
        own.push_back(next);
        size /= next.size;
        rest.pop_back();
      } else if (next.size % size == 0) {
        own.push_back({size, next.isRows});
        next.size /= size;
        size = 1;
      } else {
        break;
      }
    }
    if (size > 1)
      return SmallVector<RowPieces>(sizes.size(), RowPieces{{1, hasRows(pieces)}});
    all.push_back(std::move(own));
  }
  return all;
}

/// Returns true if a value depends on what the caller gives in each step.
static bool comesAtRunTime(Value value) {
  llvm::SmallDenseSet<Value, 16> seen{value};
  SmallVector<Value> open{value};
  while (!open.empty()) {
    Value next = open.pop_back_val();
    if (auto argument = dyn_cast<BlockArgument>(next)) {
      auto func = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
      if (func && func.getArgAttr(argument.getArgNumber(), nn::NnDialect::kInputAttr))
        return true;
      continue;
    }
    for (Value operand : next.getDefiningOp()->getOperands())
      if (seen.insert(operand).second)
        open.push_back(operand);
  }
  return false;
}

void TokensProof::set(Value value, ValuePieces pieces) {
  auto isPlain = [](const RowPieces &own) { return !hasRows(own); };
  if (!llvm::all_of(pieces, isPlain))
    piecesOf[value] = std::move(pieces);
}

void TokensProof::addInputs(func::FuncOp func) {
  auto module = func->getParentOfType<ModuleOp>();
  if (!module || !nn::getServingSizes(module))
    return;
  for (StringRef name : {nn::kTokensInput, nn::kPositionsInput, nn::kSlotsInput}) {
    BlockArgument input = nn::findInput(func, name);
    const Layout *layout = input ? layouts.lookup(input) : nullptr;
    if (!layout)
      continue;
    ValuePieces pieces;
    for (const DimLayout &dim : layout->dims)
      pieces.push_back({{dim.getLocalSize(), dim.isSharded() || dim.getGlobalSize() > 1}});
    set(input, std::move(pieces));
  }
}

bool TokensProof::keepsElements(Operation *op, unsigned operand, unsigned dim) const {
  if (!op->hasTrait<TakesPart>() && !op->hasTrait<TouchesPadding>())
    return false;
  const Layout *from = layouts.lookup(op->getOperand(operand)), *to = layouts.lookup(op->getResult(0));
  return from && to && from->getRank() == to->getRank() &&
         from->dims[dim].getGlobalSize() == to->dims[dim].getGlobalSize();
}

bool TokensProof::knowsTokens(Operation *op, unsigned operand, unsigned dim) const {
  // A write takes the slot of each row, and attention their numbers.
  if (isa<PagesOpInterface>(op))
    return true;
  auto lookup = dyn_cast<LookupOpInterface>(op);
  if (!lookup || !op->hasTrait<MovesOnly>())
    return false;
  Value indices = op->getOperand(lookup.getIndexOperand());
  if (op->hasTrait<ReplacesRows>())
    return true;
  return lookup.getTableOperand() == operand && lookup.getTableDim() == dim && comesAtRunTime(indices) &&
         !piecesOf.contains(indices);
}

/// Rows move as they are: their layout says which of them a rank has.
void TokensProof::visitCollective(CollectiveOpInterface op) {
  if (op->getNumOperands() != op->getNumResults())
    return;
  for (auto [operand, result] : llvm::zip_equal(op->getOperands(), op->getResults())) {
    auto found = piecesOf.find(operand);
    ArrayRef<int64_t> shape = shapeOf(result);
    if (found == piecesOf.end() || found->second.size() != shape.size())
      continue;
    ValuePieces own;
    for (auto [pieces, size] : llvm::zip_equal(found->second, shape))
      own.push_back(resize(pieces, size));
    set(result, std::move(own));
  }
}

LogicalResult TokensProof::visitRuled(Operation *op, const FactorRule &rule) {
  SmallVector<RowPieces> ofFactors(rule.factors.size());
  std::optional<unsigned> taken;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto found = piecesOf.find(operand);
    if (found == piecesOf.end())
      continue;
    for (auto [d, pieces] : llvm::enumerate(found->second)) {
      const FactorRule::DimFactors &factors = rule.operands[i][d];
      if (!hasRows(pieces))
        continue;
      SmallVector<int64_t> sizes;
      for (int factor : factors)
        sizes.push_back(rule.factors[factor].size);
      auto isApart = [&](int factor) { return rule.factors[factor].kind == FactorKind::Parallel; };
      SmallVector<RowPieces> own = split(pieces, sizes);
      for (auto [factor, of] : llvm::zip_equal(factors, own))
        if (hasRows(of))
          ofFactors[factor] = of;
      bool isKept = llvm::all_of(llvm::zip_equal(factors, own), [&](auto pair) {
        return isApart(std::get<0>(pair)) || !hasRows(std::get<1>(pair));
      });
      if (isKept)
        continue;
      if (keepsElements(op, i, d)) {
        for (int factor : rule.results[0][d])
          ofFactors[factor] = resize(pieces, rule.factors[factor].size);
        continue;
      }
      if (knowsTokens(op, i, d)) {
        if (isa<LookupOpInterface>(op))
          taken = i;
        continue;
      }
      InFlightDiagnostic error =
          op->emitOpError() << "joins rows of tokens along dimension " << d << " of operand " << i
                            << ", of which those behind the tokens of a group would count: expected an op that "
                               "computes each token by itself";
      error.attachNote(operand.getLoc()) << "operand " << i << " is from here";
      return error;
    }
  }
  // Pages have no rows of tokens.
  auto pages = dyn_cast<PagesOpInterface>(op);
  if (op->hasTrait<ReplacesRows>() || (pages && pages.getWritten()))
    return success();
  // Rows that an index takes are rows of tokens, too.
  if (taken)
    for (const FactorRule::DimFactors &factors : rule.operands[cast<LookupOpInterface>(op).getIndexOperand()])
      for (int factor : factors)
        if (rule.factors[factor].size > 1 && !FactorRule::hasFactor(rule.operands[*taken], factor))
          ofFactors[factor].assign({{rule.factors[factor].size, true}});
  for (auto [result, dims] : llvm::zip_equal(op->getResults(), rule.results)) {
    ValuePieces own;
    for (const FactorRule::DimFactors &factors : dims) {
      RowPieces &pieces = own.emplace_back();
      for (int factor : factors)
        if (ofFactors[factor].empty())
          pieces.push_back({rule.factors[factor].size, false});
        else
          pieces.append(ofFactors[factor]);
      if (pieces.empty())
        pieces.push_back({1, false});
    }
    set(result, std::move(own));
  }
  return success();
}

/// Returns true if an op keeps elements where a condition holds, which comes at run time, and makes the others zero.
/// A row that one of several ranks has is taken so: the other ranks have zeros, and a sum over the ranks follows.
static bool keepsChosenRows(Operation *op) {
  return op->hasTrait<Elementwise>() && op->getNumOperands() == 3 && elementOf(op->getOperand(0)).isInteger(1) &&
         padding::getSplat(op->getOperand(2)) == 0.0 && comesAtRunTime(op->getOperand(0));
}

LogicalResult TokensProof::visit(Operation *op) {
  bool reads = llvm::any_of(op->getOperands(), [&](Value operand) { return piecesOf.contains(operand); });
  if (!reads || op->hasTrait<OpTrait::IsTerminator>())
    return success();
  if (!piecesOf.contains(op->getOperand(0)) && keepsChosenRows(op))
    return success();
  // These move or add rows behind the tokens.
  if (isa<CompactOp, ExpandOp, PadOp>(op)) {
    ValuePieces pieces = piecesOf.lookup(op->getOperand(0));
    for (auto [own, size] : llvm::zip_equal(pieces, shapeOf(op->getResult(0))))
      own = resize(own, size);
    set(op->getResult(0), std::move(pieces));
    return success();
  }
  if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op))
    return visitRuled(op, ruled.getFactorRule());
  if (auto collective = dyn_cast<CollectiveOpInterface>(op))
    visitCollective(collective);
  return success();
}

LogicalResult meshwright::verifyTokenRows(func::FuncOp func, const PlacementAnalysis &layouts) {
  TokensProof proof(func, layouts);
  for (Operation &op : func.getBody().front())
    if (failed(proof.visit(&op)))
      return failure();
  return success();
}
