//===- Report.h - what an SPMD program sends and holds ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The report on a plan, as data, as text and as JSON: its collectives with the bytes that
// they send, the memory that a rank needs, and the decisions of passes with their reasons.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_REPORT_H
#define MESHWRIGHT_LIB_REPORT_REPORT_H

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Report/Fetches.h"
#include "meshwright/lib/Report/ProgramFacts.h"
#include "meshwright/lib/Report/Serving.h"
#include "meshwright/lib/Support/DecisionLog.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

#include <optional>

namespace llvm {
class raw_ostream;
} // namespace llvm

namespace meshwright {

/// The bytes that ranks send in one run, by the cost model's algorithms, and the
/// collectives that they launch.
struct Traffic {
  /// Bytes of the rank that sends most, and of all ranks together.
  int64_t bytes = 0, bytesOfAll = 0;
  int64_t launches = 0;
};

/// Bytes that a rank holds.
struct Memory {
  /// The parameters of all entries of the module, each once.
  int64_t weights = 0;
  /// Bytes that packing weights for products adds: padding, and a second form of weights
  /// that other ops read, too. Known once the program is scheduled.
  int64_t packing = 0;
  /// The buffers of the module's states, and the copies that a commit makes where a state
  /// becomes another one. Other new values are intermediate values until the commit.
  int64_t state = 0;
  /// States of training by their roles: what the optimizer keeps, parameters in f32 beside narrower
  /// ones, and sums of gradients. Trained parameters count as weights.
  int64_t optimizer = 0, masters = 0, gradients = 0;
  /// The pages of keys and values of a program that serves.
  int64_t cache = 0;
  /// The most bytes of inputs and intermediate values alive at one time.
  int64_t activationsPeak = 0;

  /// The weights of one stage of a composed program, and the most bytes alive while it
  /// runs, bytes of other stages included.
  struct Module {
    std::string name;
    int64_t weights = 0, activationsPeak = 0;
  };
  /// Stages in the order in which they run; empty in a program of one model.
  std::vector<Module> modules;

  /// All of it that stays between runs, without packing.
  int64_t getResident() const { return weights + state + optimizer + masters + gradients + cache; }
  int64_t getAll() const { return getResident() + packing + activationsPeak; }
};

/// Seconds that a rank's collectives take in one run, by the cost model.
struct CommunicationEstimate {
  /// Seconds without computation beside them, and with it.
  double exposed = 0, hidden = 0;
  /// Seconds of the whole run, and of kernels by their class (KernelWork::Class).
  double run = 0, kernels[4] = {};

  /// Adds the times of a part that runs so often.
  template <typename Time> void add(double runs, const Time &time) {
    exposed += runs * time.exposed;
    hidden += runs * time.hidden;
    run += runs * time.total;
    for (int i = 0; i < 4; ++i)
      kernels[i] += runs * time.kernels[i];
  }
};

/// Seconds that a run took: in all, of kernels by class, and of collectives.
struct MeasuredTimes {
  double run = 0, kernels[4] = {}, collectives = 0, exposed = 0;
};

/// The pass whose decision has the plans that the planner compared.
inline constexpr llvm::StringLiteral kPlannerPass = "choose-plan";
/// The pass in notes of the planner about other plans.
inline constexpr llvm::StringLiteral kPlannerNotes = "explain-plan";

struct Report {
  /// All launches of one kind and role, over the same axes and dimensions, from one place of
  /// the user's source.
  struct Collective {
    std::string kind;
    std::vector<std::string> axes;
    /// With the axes it names the stream of the launches.
    dist::CollectiveRole role = dist::CollectiveRole::Data;
    /// The dimensions that lose the axes, then the dimensions that gain them.
    std::vector<int64_t> dims;
    std::string dtype;
    /// The traffic of all launches together; of rows whose number depends on the data, at balanced load.
    Traffic traffic;
    SourceLocation location;
    /// The bytes that a rank sends if it has as many of such rows as there may be, all for other ranks.
    std::optional<int64_t> bytesAtCapacity = std::nullopt;
  };

  struct Decision {
    std::string pass;
    Outcome outcome;
    std::string message;
    SourceLocation location;
    std::vector<std::pair<std::string, double>> numbers;
    std::vector<Alternative> alternatives;
  };

  /// The work of attention at one place of the source: visible pairs of a query and a key,
  /// times heads and batch. `largest` and `mean` are over the ranks.
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

  /// A plan that a planner compared.
  struct PlanAlternative {
    /// The options that the planner chose, as `--parallelize` spells them.
    std::vector<std::pair<std::string, std::string>> options;
    bool isChosen = false;
    /// Of one run, by the cost model: in all, and of collectives without computation beside them.
    double seconds = 0, exposedSeconds = 0;
    int64_t memory = 0, bytes = 0;
    /// Why it lost to the chosen plan; empty for the chosen one.
    std::string reason;
  };

  int64_t ranks = 1;
  std::vector<std::pair<std::string, int64_t>> mesh;
  std::string device;
  /// The target that the program is scheduled and compiled for.
  std::string target = "cpu";
  /// The collectives, in program order of their first launch.
  std::vector<Collective> collectives;
  Traffic total;
  /// The traffic of the plan without sequence parallelism and without the rewrites of
  /// *optimise*, if the caller made it.
  std::optional<Traffic> before;
  /// Known once the program is scheduled.
  std::optional<CommunicationEstimate> communication;
  Memory memory;
  /// Empty if there is no attention, or more ranks than are counted one by one.
  /// `attentionBalance` is the largest work of a rank in all attention, over the mean.
  std::vector<AttentionWork> attention;
  double attentionBalance = 1;
  std::vector<Decision> decisions;
  std::vector<Warning> warnings;
  /// The plans that the planner compared, best first; empty if it chose nothing.
  std::vector<PlanAlternative> alternatives;
  /// The measurements of a run, as the runtime prints them; empty without a run.
  std::string runText, runJson;
  /// The times of a run of the entry that `communication` is about, if one was measured.
  std::optional<MeasuredTimes> measured;
  /// The load of a layer of experts in a run.
  struct Experts {
    SourceLocation location;
    std::vector<int64_t> rowsPerRank;
    int64_t fullestExpert = 0, dropped = 0;
  };
  /// The experts of each layer in the last run; empty without a run.
  std::vector<Experts> experts;
  /// Takes what a run measured from another report of the program. None of it is left there.
  void takeRun(Report &&other) {
    runText = std::exchange(other.runText, {});
    runJson = std::exchange(other.runJson, {});
    measured = std::exchange(other.measured, {});
    experts = std::exchange(other.experts, {});
  }
  /// True if the module has states of training.
  bool isTrained = false;
  /// Known once the program is scheduled, if ranks store weights in shards.
  std::optional<FetchReport> fetches;
  /// The parameters, states and inputs of the entry, in the order of its arguments.
  std::vector<TensorLayout> layouts;
  /// The launches and buffers of the entry, if the reader asks for them.
  std::optional<ProgramFacts> program;
  /// Known if the module's entries are steps of serving.
  std::optional<ServingReport> serving;
};

/// The report on an SPMD function (`dist.spmd`), with the decisions logged in its
/// context. Fails with a diagnostic if the function is no SPMD function.
mlir::FailureOr<Report> buildReport(mlir::FunctionOpInterface function);

/// Adds the decisions logged in a context for which `wanted` is true.
void addDecisions(Report &report, mlir::MLIRContext *context,
                  llvm::function_ref<bool(const Decision &)> wanted);

/// The axes of two or more ranks that shard nothing in an SPMD function: no sharding of an
/// argument or a result names them, and no op.
llvm::SmallVector<dist::MeshAxisAttr> getIdleAxes(mlir::FunctionOpInterface function);
/// The warning about such an axis.
std::string describeIdleAxis(dist::MeshAxisAttr axis);

/// Makes the alternatives of a report from the planner's decision, if the report has it.
void addAlternatives(Report &report);

/// The decision on the device that the plan assumes; null if the program's own mesh names it.
const Report::Decision *getDeviceDecision(const Report &report);

/// Counts only the traffic of a function, for comparisons.
mlir::FailureOr<Traffic> countTraffic(mlir::FunctionOpInterface function);

/// Counts only the memory of a function: each value is held from its definition to its last
/// use. A schedule may need less; see `planMemory` (passes/schedule).
Memory countMemory(mlir::FunctionOpInterface function);

/// Bytes on a rank of the parameters and states of the module that this function does not read,
/// and of the copies that its commit makes. A session holds all states and parameters.
struct Resident {
  int64_t weights = 0, state = 0;
};
Resident countResident(mlir::FunctionOpInterface function);

/// The parameters, states and inputs of a function, in the order of its arguments.
std::vector<TensorLayout> listLayouts(mlir::FunctionOpInterface function);

/// Adds the elements that each rank holds to the layouts of a function; not for more than 64 ranks.
void addShards(mlir::FunctionOpInterface function, std::vector<TensorLayout> &layouts);

/// Prints text: at most ten lines on time, memory, bytes and warnings, then layouts by pattern of names, and
/// then the parts of the report. Repeated layers share a line. Without `verbose` there are no decisions.
void printText(const Report &report, llvm::raw_ostream &os, bool verbose = true);
/// Parts of the text: the first lines, and the layouts.
void printSummary(const Report &report, llvm::raw_ostream &os);
void printLayouts(const Report &report, llvm::raw_ostream &os);

/// Prints JSON, schema 1; with the layouts where the report has the facts of the program.
void printJson(const Report &report, llvm::raw_ostream &os);

/// Writes `file`, as JSON if its name ends in `.json`, else as text. A file is written
/// whole or not at all. An empty name is the standard error, as text.
mlir::LogicalResult writeReport(const Report &report, llvm::StringRef file,
                                llvm::function_ref<mlir::LogicalResult(const llvm::Twine &)> error);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_REPORT_H
