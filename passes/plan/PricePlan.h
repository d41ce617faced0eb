//===- PricePlan.h - time and memory of a finished plan ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLAN_PRICEPLAN_H
#define MESHWRIGHT_PASSES_PLAN_PRICEPLAN_H

#include "meshwright/lib/Support/IsolatedModule.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"
#include "meshwright/passes/plan/ShortProgram.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshwright {

/// The numbers of a finished plan, of the default entry.
struct PlanPrice {
  /// Why there is no such plan; empty if there is one.
  std::string refusal;
  /// Of one call, by the cost model: all of it, and collectives without computation beside them.
  double seconds = 0, exposed = 0;
  /// Bytes that a rank holds, and that it sends.
  int64_t memory = 0, bytes = 0;

  bool isPlanned() const { return refusal.empty(); }
  /// Returns true if all numbers are equal.
  bool equals(const PlanPrice &other) const {
    return isPlanned() && other.isPlanned() && seconds == other.seconds && exposed == other.exposed &&
           memory == other.memory && bytes == other.bytes;
  }
};

/// Plans copies of a program, on the caller's thread. Nothing reaches the program's context.
class PlanPricer {
public:
  /// With short programs their prices are extended to a price of the whole.
  PlanPricer(mlir::ModuleOp program, const ShortPrograms *shorts);

  /// Runs all phases. The options have a mesh; with short programs, no memory ceiling.
  PlanPrice price(const ParallelizeOptions &options);
  /// Seconds of kernels and of collectives before the program is scheduled, without overlap. None if
  /// there is no plan. Takes a fraction of the time of `price`.
  struct Estimate {
    double compute = 0, communication = 0;
  };
  std::optional<Estimate> estimate(const ParallelizeOptions &options);
  /// The least memory ceiling that a plan with these options keeps to; 0 if there is no plan. Expects
  /// the whole program.
  int64_t findLeastMemory(ParallelizeOptions options);

private:
  PlanPrice price(mlir::ModuleOp program, const ParallelizeOptions &options);

  const ShortPrograms *shorts;
  /// The whole program, or the short one of few layers.
  IsolatedModule copy;
  /// The short program of more layers, in the same context.
  mlir::OwningOpRef<mlir::ModuleOp> more;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLAN_PRICEPLAN_H
