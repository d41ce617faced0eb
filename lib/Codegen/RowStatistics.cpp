//===- RowStatistics.cpp - sums and extremes of rows ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/RowStatistics.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

Type getTypeOf(const Statistic &statistic) {
  return getComputeType(getElementTypeOrSelf(statistic.op->getOperand(0).getType()));
}

Reducer::Reducer(Builder &builder, const Statistic &statistic)
    : b(builder), type(getTypeOf(statistic)), isFloat(isa<FloatType>(type)) {
  switch (statistic.kind) {
  case Statistic::Max:
    // The maximum that softmax subtracts may ignore NaN: the result is NaN in any case.
    kind = !isFloat                           ? vector::CombiningKind::MAXSI
           : isa<nn::SoftmaxOp>(statistic.op) ? vector::CombiningKind::MAXNUMF
                                              : vector::CombiningKind::MAXIMUMF;
    break;
  case Statistic::Min:
    kind = isFloat ? vector::CombiningKind::MINIMUMF : vector::CombiningKind::MINSI;
    break;
  default:
    kind = vector::CombiningKind::ADD;
  }
}

static Value makeNeutral(Builder &b, Type type, vector::CombiningKind kind) {
  Type element = getElementTypeOrSelf(type);
  if (kind == vector::CombiningKind::ADD)
    return emitConstant(b, type, 0);
  bool isMax = kind != vector::CombiningKind::MINIMUMF && kind != vector::CombiningKind::MINSI;
  double infinity = std::numeric_limits<double>::infinity();
  if (isa<FloatType>(element))
    return emitConstant(b, type, isMax ? -infinity : infinity);
  unsigned bits = element.getIntOrFloatBitWidth();
  APInt extreme = isMax ? APInt::getSignedMinValue(bits) : APInt::getSignedMaxValue(bits);
  if (auto vector = dyn_cast<VectorType>(type))
    return arith::ConstantOp::create(b, DenseElementsAttr::get(vector, extreme));
  return arith::ConstantOp::create(b, b.getIntegerAttr(element, extreme));
}

Value Reducer::getNeutral(int64_t width) {
  return makeNeutral(b, VectorType::get(width, type), kind);
}
Value Reducer::getNeutral() { return makeNeutral(b, type, kind); }

Value Reducer::combine(Value lhs, Value rhs) {
  switch (kind) {
  case vector::CombiningKind::ADD:
    if (!isFloat)
      return arith::AddIOp::create(b, lhs, rhs);
    // Squares are added in one instruction.
    return arith::AddFOp::create(b, lhs, rhs, arith::FastMathFlags::contract);
  case vector::CombiningKind::MAXNUMF: {
    Value above = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, rhs, lhs);
    return arith::SelectOp::create(b, above, rhs, lhs);
  }
  case vector::CombiningKind::MAXIMUMF:
    return arith::MaximumFOp::create(b, lhs, rhs);
  case vector::CombiningKind::MINIMUMF:
    return arith::MinimumFOp::create(b, lhs, rhs);
  case vector::CombiningKind::MAXSI:
    return arith::MaxSIOp::create(b, lhs, rhs);
  default:
    return arith::MinSIOp::create(b, lhs, rhs);
  }
}

Value Reducer::reduce(Value vector) {
  int64_t width = cast<VectorType>(vector.getType()).getNumElements();
  while (width > 1) {
    int64_t half = width / 2;
    Value low = vector::ExtractStridedSliceOp::create(b, vector, int64_t(0), half, int64_t(1));
    Value high = vector::ExtractStridedSliceOp::create(b, vector, half, half, int64_t(1));
    Value next = combine(low, high);
    if (width % 2) {
      Value last = vector::ExtractOp::create(b, vector, width - 1);
      Value first = vector::ExtractOp::create(b, next, int64_t(0));
      next = vector::InsertOp::create(b, combine(first, last), next, int64_t(0));
    }
    vector = next;
    width = half;
  }
  return vector::ExtractOp::create(b, vector, int64_t(0));
}

/// 1 / sqrt(sum / count + eps).
static Value emitInverseRoot(Builder &b, Value sum, int64_t count, double eps) {
  Type type = sum.getType();
  Value mean = arith::DivFOp::create(b, sum, emitConstant(b, type, count));
  Value shifted = arith::AddFOp::create(b, mean, emitConstant(b, type, eps));
  return arith::DivFOp::create(b, emitConstant(b, type, 1), math::SqrtOp::create(b, shifted));
}

/// The statistic that elements use, from the sum or the extreme of the whole row.
Value finishStatistic(Builder &b, const Statistic &statistic, Value value) {
  Type type = value.getType();
  auto compare = [&](arith::CmpFPredicate predicate, double constant) -> Value {
    return arith::CmpFOp::create(b, predicate, value, emitConstant(b, type, constant));
  };
  if (auto norm = dyn_cast<nn::RmsNormOp>(statistic.op))
    return emitInverseRoot(b, value, statistic.columns, norm.getEps().convertToDouble());
  if (auto norm = dyn_cast<nn::LayerNormOp>(statistic.op)) {
    if (statistic.stage == 1)
      return emitInverseRoot(b, value, statistic.columns, norm.getEps().convertToDouble());
    return arith::DivFOp::create(b, value, emitConstant(b, type, statistic.columns));
  }
  if (isa<nn::SoftmaxOp>(statistic.op)) {
    // A row of -inf gives zeros.
    Value zero = emitConstant(b, type, 0);
    if (statistic.stage == 0) {
      Value isEmpty = compare(arith::CmpFPredicate::OEQ, -std::numeric_limits<double>::infinity());
      return arith::SelectOp::create(b, isEmpty, zero, value);
    }
    Value inverse = arith::DivFOp::create(b, emitConstant(b, type, 1), value);
    return arith::SelectOp::create(b, compare(arith::CmpFPredicate::OEQ, 0), zero, inverse);
  }
  if (cast<nn::ReduceOp>(statistic.op).getKind() != nn::ReduceKind::Mean)
    return value;
  Value count = emitConstant(b, type, statistic.columns);
  if (isa<FloatType>(type))
    return arith::DivFOp::create(b, value, count);
  return arith::FloorDivSIOp::create(b, value, count);
}

} // namespace meshwright::lower
