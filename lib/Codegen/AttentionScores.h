//===- AttentionScores.h - arithmetic of attention's scores -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Scores are products of queries and keys times `getScoreFactor`, bounded by the soft cap, in
// the unit that `getScoreUnit` states.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ATTENTIONSCORES_H
#define MESHWRIGHT_LIB_CODEGEN_ATTENTIONSCORES_H

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <optional>

namespace meshwright::lower {

/// 2^x of a number or a vector, for x of at most 1. Results that are not normal numbers become
/// zero.
mlir::Value emitExp2(mlir::ImplicitLocOpBuilder &builder, mlir::Value x);

/// Scores are kept in this unit: log2 e if they are exponents of two, 1 if a bias is added that
/// could overflow.
double getScoreUnit(nn::ScoresOpInterface op);
/// The factor of products of queries and keys, before the cap.
double getScoreFactor(nn::ScoresOpInterface op);
/// The same facts of an op as numbers.
struct ScoreRules {
  ScoreRules() = default;
  explicit ScoreRules(nn::ScoresOpInterface op);
  /// The unit, and the factor before the cap.
  double unit = 1, factor = 1;
  std::optional<double> cap;
  /// The factor of weights that are kept.
  double kept = 1;
};
/// Applies the soft cap, if the op has one, to products times the factor. The result has the
/// unit.
mlir::Value emitSoftCap(mlir::ImplicitLocOpBuilder &builder, nn::ScoresOpInterface op,
                        mlir::Value scores);
/// unit * cap * tanh(scores).
mlir::Value emitSoftCap(mlir::ImplicitLocOpBuilder &builder, double cap, double unit,
                        mlir::Value scores);

/// The factor of weights that are kept: 1 / (1 - probability), or 1 without dropout.
double getKeptFactor(nn::ScoresOpInterface op);

/// The log-sum-exp, a result or an operand. Null if the op has none.
mlir::Value getLogSumExp(nn::ScoresOpInterface op);
/// Returns true if the log-sum-exp is in f64 and the scores are not.
bool hasWideLogSumExp(nn::ScoresOpInterface op);
/// log(sum) + maximum of two scalars, in f64. A huge maximum, as a mask of the least finite
/// number has, would absorb the logarithm: it is replaced by a smaller number. Distinct maxima
/// stay so far apart that parts with the lesser one have no weight. Maxima from
/// `kFirstWideMaximum` on are huge.
constexpr double kFirstWideMaximum = 1 << 30;
mlir::Value emitWideLogSumExp(mlir::ImplicitLocOpBuilder &builder, nn::ScoresOpInterface op,
                              mlir::Value sum, mlir::Value maximum);
/// The reverse: the part of such a log-sum-exp that is subtracted from the scores, in their unit, and
/// the rest as an exponent of two.
std::pair<mlir::Value, mlir::Value> emitSplitLogSumExp(mlir::ImplicitLocOpBuilder &builder,
                                                       nn::ScoresOpInterface op, mlir::Value wide);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ATTENTIONSCORES_H
