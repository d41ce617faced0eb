//===- Executable.h - compile in process and run on ranks -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_EXECUTABLE_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_EXECUTABLE_H

#include "Compile.h"

#include "meshwright/passes/schedule/Pipeline.h"
#include "meshwright/runtime/include/Session.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/LLVM.h"

#include <memory>
#include <string>
#include <vector>

namespace meshwright {

struct CompileOptions {
  /// `cpu`, `cpu:x86-64-v3`; empty: the target that the program is scheduled for.
  std::string target;
  /// The only entry to compile; empty: all entries.
  std::string entry;
  /// Keep every value with an `nn.id`, for `getProbedValues`. Only with one entry.
  bool probes = false;
  /// How programs are scheduled that are not scheduled yet.
  ScheduleOptions schedule;
};

/// A program's code, not loaded yet, and the description that the runtime needs.
struct CompiledProgram {
  rt::ProgramDescription description;
  std::vector<ObjectCode> objects;
  std::vector<ProbedOp> probes;
  CompileStatistics statistics;
};

/// Fails after an error. The module does not change.
mlir::FailureOr<CompiledProgram> compileProgram(mlir::ModuleOp module,
                                                const CompileOptions &options = {});

/// A program as machine code in this process, with all of its entries. An SPMD program runs on the
/// ranks of its mesh, a global one on one rank.
class Executable {
public:
  /// Fails after an error. The module does not change.
  static mlir::FailureOr<std::unique_ptr<Executable>> compile(mlir::ModuleOp module,
                                                              const CompileOptions &options = {});
  ~Executable();

  /// Starts a session, which takes parameters and runs. With probes the session must not outlive
  /// this object. Returns null after an error.
  std::unique_ptr<rt::Session> start(const std::string &backend, std::string &error);
  const rt::ProgramDescription &getDescription() const;

  /// A value with an `nn.id`, after a compilation with `probes` and a run: an array of local
  /// shape for each rank.
  struct ProbedValue {
    int64_t id;
    /// The op and its place in the source.
    std::string name;
    rt::DType type;
    std::vector<int64_t> localShape;
    /// An array for each rank.
    std::vector<std::vector<char>> values;
  };
  /// The probed values, in program order.
  const std::vector<ProbedValue> &getProbedValues() const;

private:
  struct LoadedProgram;
  explicit Executable(std::unique_ptr<LoadedProgram> loaded);
  std::unique_ptr<LoadedProgram> loaded;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_EXECUTABLE_H
