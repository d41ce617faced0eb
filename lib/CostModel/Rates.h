//===- Rates.h - measured rates of a device ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A preset has one rate for products and one for memory. A calibrated device has tables of
// rates, by classes of kernels and collectives.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_COSTMODEL_RATES_H
#define MESHWRIGHT_LIB_COSTMODEL_RATES_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <string>
#include <utility>

namespace meshwright {

/// Rates by size. Between two sizes the time of a unit, size / rate, is linear. Beyond the
/// smallest and the largest size the rate is constant.
class RateTable {
public:
  bool empty() const { return points.empty(); }
  /// Sizes and rates are above 0, and each size is larger than the one before.
  llvm::ArrayRef<std::pair<double, double>> get() const { return points; }
  void add(double size, double rate) { points.emplace_back(size, rate); }
  double getRate(double size) const;
  double getLargestRate() const;

  /// Reads `1:2e9;16:3e10`. Returns false, with the reason, if the text is wrong.
  static bool parse(llvm::StringRef text, RateTable &table, std::string &error);
  /// Checks and adds a point.
  bool addChecked(double size, double rate, std::string &error);
  std::string str() const;

private:
  llvm::SmallVector<std::pair<double, double>, 0> points;
};

/// The rates of a calibrated device, per rank.
struct Rates {
  /// Tables by element type of the operands.
  enum Type { F32, BF16, F16, kNumTypes };

  /// Operations per second of products with packed weights, by rows; of products of two
  /// other values, by rows; of attention and of its gradients, by operations for each row of
  /// queries.
  RateTable products[kNumTypes], plainProducts[kNumTypes];
  RateTable attention[kNumTypes], attentionGradients[kNumTypes];
  /// Bytes per second: of row kernels and of kernels that only move elements, by their bytes;
  /// of weights that products of few rows read, by the bytes of all weights of the program.
  RateTable rows, moves, weights;
  /// Bytes per second that a rank sends, by the bytes that it sends in a collective, in the
  /// order of dist::CollectiveKind's kinds that communicate.
  RateTable allReduce, reduceScatter, allGather, allToAll, permute, redistribute;
  /// Seconds of a row kernel for an element of a cheap op, and of another op.
  double cheapElement = 0, costlyElement = 0;
};

/// A key of a device's spelling that names a table.
struct RateKey {
  llvm::StringLiteral name;
  RateTable &(*get)(Rates &rates);
};
llvm::ArrayRef<RateKey> getRateKeys();

} // namespace meshwright

#endif // MESHWRIGHT_LIB_COSTMODEL_RATES_H
