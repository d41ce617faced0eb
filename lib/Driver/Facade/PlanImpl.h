//===- PlanImpl.h - plans and sessions behind handles -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_PLANIMPL_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_PLANIMPL_H

#include "meshwright/lib/Driver/Execute/Executable.h"
#include "meshwright/lib/Driver/Facade/ProgramImpl.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "llvm/ADT/StringMap.h"

#include <array>
#include <atomic>
#include <map>
#include <mutex>

namespace meshwright {

inline Diagnostic makeError(std::string message) {
  return {Severity::Error, std::move(message), "", 0};
}

/// A handler of errors that adds them to a list.
inline auto collectInto(std::vector<Diagnostic> &errors) {
  return [&errors](const llvm::Twine &message) -> mlir::LogicalResult {
    errors.push_back(makeError(message.str()));
    return mlir::failure();
  };
}

/// Reads options of `parallelize`. Fails after an error.
mlir::FailureOr<ParallelizeOptions> readOptions(std::string_view text,
                                                std::vector<Diagnostic> &errors);

/// `verbose` text has the decisions.
std::string toString(const Report &report, ReportFormat format, bool verbose);

/// The number of an element type is its row in meshwright-c/ElementTypes.def.
inline rt::DType getRuntimeType(ElementType type) { return rt::DType(int64_t(type)); }
inline ElementType getElementType(rt::DType type) { return ElementType(int(type)); }

class WidenedParameters;

/// The data behind the public class Plan.
struct Plan::Impl {
  std::shared_ptr<const Program::Impl> program;
  /// Null for a program that runs as it is.
  std::optional<ParallelizeOptions> options;
  std::unique_ptr<mlir::MLIRContext> context;
  /// The module after each phase except the last, which is made on demand. Null for the
  /// phases before an SPMD program enters. A program that runs as it is has one module.
  std::array<mlir::OwningOpRef<mlir::ModuleOp>, 4> phases;
  /// The program before it is decided what is computed or gathered again, if a memory ceiling decides it; else
  /// null.
  mlir::OwningOpRef<mlir::ModuleOp> optimised;
  /// `planned` is the report before the parts that depend on the target. `report` is for
  /// `target`.
  Report planned, report;
  /// The traffic of each entry before the program was optimised, if the plan has no sequence
  /// parallelism. A report compares with it.
  llvm::StringMap<Traffic> plain;
  /// Whether the report has its last parts: the plan that it is compared with, and the
  /// schedule.
  bool isComplete = false;
  std::map<std::string, HostArray, std::less<>> parameters;
  /// The parameters that are computed from these at load; null if there are none.
  std::shared_ptr<WidenedParameters> widened;
  /// True if the plan chooses the chunks of collectives under its ceiling, for its target.
  bool choosesChunks = false;
  /// Compiled by the first run or session that needs it.
  std::shared_ptr<Executable> executable;
  /// The session of `run`, and its backend. A run keeps the session that it uses: another thread
  /// may ask for another backend meanwhile.
  std::shared_ptr<rt::Session> session;
  std::string backend;
  /// The target that the executed phase names, that the report describes, and that
  /// `executable` is for; and the target that the program came with.
  std::string target = "cpu", ownTarget = "cpu";
  /// True if a rank has not come back from a run that failed.
  mutable std::atomic<bool> stuck{false};
  /// Protects the members above. Not held while a program runs.
  std::mutex mutex;
  /// Held while a call of `run` uses a session.
  std::mutex calling;

  mlir::ModuleOp get(PlanPhase phase) const {
    const auto &module = phases[static_cast<size_t>(phase)];
    return module ? module.get() : mlir::ModuleOp();
  }
  /// Returns the phase that runs: Global for a global program that runs as it is, else Spmd.
  PlanPhase getExecutedPhase() const {
    return get(PlanPhase::Spmd) ? PlanPhase::Spmd : PlanPhase::Global;
  }
  /// Returns how the executed phase is scheduled. The result of a plan is proved. A program
  /// that runs as it is may have a placement that no proof can derive.
  ScheduleOptions getScheduleOptions() const;
  mlir::OwningOpRef<mlir::ModuleOp> schedule() const;
  /// Sets `plain`, from the partitioned program.
  mlir::LogicalResult countPlain(mlir::ModuleOp module);
  /// Ends planning: keeps the report and the target of the executed phase.
  void keepPlanned();
  /// Adds the plan's requests to the schedule of an SPMD program, and the decisions about them
  /// to `report`. Fails if the program does not keep to the plan's ceiling.
  mlir::LogicalResult requestSchedule(mlir::ModuleOp module);
  /// Returns true if a lower ceiling may ask for a program that stores less.
  bool mayStoreLess() const;
  /// The least ceiling under which the program can be planned. A lower ceiling may ask for more to be computed
  /// or gathered again than the plan does. None if no plan can be found.
  std::optional<int64_t> findLeastCeiling() const;
  /// Makes a target the one to schedule, report and compile for; empty: the plan's own.
  /// Fails, and changes nothing, if the target is unknown, if the program is planned for
  /// another one, or if it exceeds the plan's ceiling on this one.
  mlir::LogicalResult setTarget(llvm::StringRef text, std::vector<Diagnostic> &diagnostics);
  /// Adds the last parts of the report, if they are missing. `completeReport` locks the
  /// mutex; the caller of `completeReportLocked` holds it.
  mlir::LogicalResult completeReport(std::vector<Diagnostic> &diagnostics);
  mlir::LogicalResult completeReportLocked(std::vector<Diagnostic> &diagnostics);
  mlir::FailureOr<std::unique_ptr<Executable>> compile(PlanPhase phase,
                                                       const CompileOptions &options,
                                                       std::vector<Diagnostic> &diagnostics) const;
  /// Makes a target the one to run for, and compiles for it unless that is done. The caller holds
  /// the mutex.
  mlir::LogicalResult compileFor(llvm::StringRef target, std::vector<Diagnostic> &diagnostics);
  /// The target to run for with a backend: the given one, the plan's own if it is for the same kind
  /// of device, or that of the backend's devices. Fails if the backend has none.
  mlir::FailureOr<std::string> chooseTarget(llvm::StringRef given, const std::string &backend,
                                            std::vector<Diagnostic> &diagnostics) const;
  /// The values of the parameters of a program of the plan. Users give some, and widened weights are
  /// computed from these. Fails with an error.
  bool getTensors(const rt::ProgramDescription &description,
                  std::map<std::string, rt::HostTensor, std::less<>> &tensors,
                  std::string &error) const;
  /// The hash of the parameters that users gave, as rt::WeightsHash has it; empty for a program that does not
  /// serve.
  std::string hashWeights() const;
  /// Starts a session with the plan's parameters. Returns null after an error.
  std::unique_ptr<rt::Session> start(Executable &executable, const std::string &backend,
                                     std::vector<Diagnostic> &diagnostics) const;
  /// Runs a session from its initial state, or from a saved one, and saves the state if the
  /// options ask for it.
  mlir::LogicalResult run(rt::Session &session, const std::vector<HostArray> &inputs,
                          const std::vector<void *> &outputs, const RunOptions &options,
                          std::vector<Diagnostic> &diagnostics) const;
};

rt::HostTensor toHostTensor(const HostArray &array);

/// Checks the arguments of a call and runs an entry of a session. The state stays.
mlir::LogicalResult callEntry(rt::Session &session, const std::vector<HostArray> &inputs,
                              const std::vector<void *> &outputs, std::string_view entry,
                              const rt::RunOptions &options,
                              std::vector<Diagnostic> &diagnostics);

/// The data behind the public class Session.
struct Session::Impl {
  std::shared_ptr<rt::Session> session;
  std::vector<Entry> entries;
  std::vector<Port> states;
  /// Threads and timeout of its calls.
  rt::RunOptions options;

  static Session wrap(std::shared_ptr<Impl> impl) {
    Session session;
    session.impl = std::move(impl);
    return session;
  }
};

/// Makes a public session of a runtime session that starts: loads the state that the options
/// name. Fails with diagnostics.
Result<Session> openSession(std::shared_ptr<rt::Session> session, const SessionOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_PLANIMPL_H
