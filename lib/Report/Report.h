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

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Support/DecisionLog.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

#include <optional>

namespace llvm {
class raw_ostream;
} // namespace llvm

namespace meshwright {

/// What ranks send in one run, by the cost model's algorithms, and the collectives
/// that they launch.
struct Traffic {
  /// Of the rank that sends most, and of all ranks.
  int64_t bytes = 0, bytesOfAll = 0;
  int64_t launches = 0;
};

/// Bytes that a rank holds.
struct Memory {
  int64_t weights = 0;
  /// What their packing for products takes besides: padding, and a second form of
  /// those that other ops read, too. Known once the program is scheduled.
  int64_t packing = 0;
  /// The most bytes of inputs and intermediate values alive at one time.
  int64_t activationsPeak = 0;

  /// The weights of one stage of a composed program, and the most bytes alive while
  /// it runs, those of other stages included.
  struct Module {
    std::string name;
    int64_t weights = 0, activationsPeak = 0;
  };
  /// In the order in which they run; none in a program of one model.
  std::vector<Module> modules;

  int64_t getAll() const { return weights + packing + activationsPeak; }
};

/// Seconds that a rank's collectives take in one run, by the cost model.
struct CommunicationEstimate {
  /// In which nothing is computed, and beside what is computed.
  double exposed = 0, hidden = 0;
  /// Of the whole run.
  double run = 0;
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
    std::vector<Alternative> alternatives;
  };

  /// What attention at one place of the source makes the ranks compute, in visible
  /// pairs of a query and a key, times heads and batch.
  struct AttentionWork {
    std::string order;
    int64_t largest = 0;
    double mean = 0;
    SourceLocation location;
  };

  struct Warning {
    std::string message;
    SourceLocation location;
    int64_t bytes = 0;
  };

  int64_t ranks = 1;
  std::vector<std::pair<std::string, int64_t>> mesh;
  std::string device;
  /// The target that the program is scheduled and compiled for.
  std::string target = "cpu";
  /// In program order of their first launch.
  std::vector<Collective> collectives;
  Traffic total;
  /// The plan without sequence parallelism and without the rewrites of
  /// *optimise*, where somebody made one.
  std::optional<Traffic> before;
  /// Where somebody scheduled the program.
  std::optional<CommunicationEstimate> communication;
  Memory memory;
  /// Empty where there is no attention, or more ranks than are counted one by one.
  /// `attentionBalance` is the largest over the mean of the ranks' work in all of it.
  std::vector<AttentionWork> attention;
  double attentionBalance = 1;
  std::vector<Decision> decisions;
  std::vector<Warning> warnings;
  /// What a run measured, as the runtime spells it; empty without one.
  std::string runText, runJson;
};

/// The report on an SPMD function (`dist.spmd`), with the decisions logged in its
/// context. Fails with a diagnostic where the function is none.
mlir::FailureOr<Report> buildReport(mlir::FunctionOpInterface function);

/// Adds the decisions logged in a context that somebody wants.
void addDecisions(Report &report, mlir::MLIRContext *context,
                  llvm::function_ref<bool(const Decision &)> wanted);

/// The axes of two or more ranks that shard nothing in an SPMD function: no sharding of an
/// argument or a result names them, and no op.
llvm::SmallVector<dist::MeshAxisAttr> getIdleAxes(mlir::FunctionOpInterface function);
/// The warning about such an axis.
std::string describeIdleAxis(dist::MeshAxisAttr axis);

/// Only its traffic: what a comparison needs.
mlir::FailureOr<Traffic> countTraffic(mlir::FunctionOpInterface function);

/// Only its memory, with each value in it from its definition to its last use. How a
/// program is scheduled may make it less: `planMemory` (passes/schedule).
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
