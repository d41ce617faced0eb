//===- Report.h - what an SPMD program sends and holds ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a plan costs: its collectives with the bytes they send, the memory a rank
// needs, what passes decided and why. As data, as text and as JSON.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_REPORT_H
#define MESHWRIGHT_LIB_REPORT_REPORT_H

#include "meshwright/lib/Support/DecisionLog.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

#include <optional>

namespace llvm {
class raw_ostream;
} // namespace llvm

namespace meshwright {

/// Bytes that a rank sends in one run, by the cost model's algorithms, the
/// largest over the ranks, and the collectives it launches.
struct Traffic {
  int64_t bytes = 0;
  int64_t launches = 0;
};

/// Bytes that a rank holds.
struct Memory {
  int64_t weights = 0;
  /// The most bytes of inputs and intermediate values alive at one time.
  int64_t activationsPeak = 0;
};

struct Report {
  /// All launches of one kind, over the same axes and dimensions, that come from
  /// one place of the user's source.
  struct Collective {
    std::string kind;
    std::vector<std::string> axes;
    /// The dimension it acts on; `from` and `to` of an all-to-all.
    std::vector<int64_t> dims;
    std::string dtype;
    /// Of all launches together.
    Traffic traffic;
    SourceLocation location;
  };

  struct Decision {
    std::string pass;
    Outcome outcome;
    std::string message;
    SourceLocation location;
    std::vector<std::pair<std::string, double>> numbers;
  };

  struct Warning {
    std::string message;
    SourceLocation location;
    int64_t bytes = 0;
  };

  int64_t ranks = 1;
  std::vector<std::pair<std::string, int64_t>> mesh;
  std::string device;
  /// In program order of their first launch.
  std::vector<Collective> collectives;
  Traffic total;
  /// The plan without sequence parallelism and without the rewrites of
  /// *optimise*, where somebody made one.
  std::optional<Traffic> before;
  Memory memory;
  std::vector<Decision> decisions;
  std::vector<Warning> warnings;
  /// What a run measured, as the runtime spells it; empty without one.
  std::string runText, runJson;
};

/// The report on an SPMD function (`dist.spmd`), with the decisions logged in its
/// context. Fails with a diagnostic where the function is none.
mlir::FailureOr<Report> buildReport(mlir::FunctionOpInterface function);

/// Only its traffic: what a comparison needs.
mlir::FailureOr<Traffic> countTraffic(mlir::FunctionOpInterface function);

/// Only its memory.
Memory countMemory(mlir::FunctionOpInterface function);

/// For people: repeated layers share a line.
void printText(const Report &report, llvm::raw_ostream &os);

/// Schema 1.
void printJson(const Report &report, llvm::raw_ostream &os);

/// Writes `file`, JSON where its name ends in `.json`, else text; whole or not at
/// all. The standard error, as text, if empty.
mlir::LogicalResult writeReport(const Report &report, llvm::StringRef file,
                                llvm::function_ref<mlir::LogicalResult(const llvm::Twine &)> error);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_REPORT_H
