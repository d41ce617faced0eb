//===- Executable.h - compile in process and run on ranks -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_EXECUTABLE_H
#define MESHWRIGHT_LIB_EXECUTE_EXECUTABLE_H

#include "Compile.h"

#include "meshwright/passes/schedule/Pipeline.h"
#include "meshwright/runtime/include/Program.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/LLVM.h"

#include <memory>
#include <string>
#include <vector>

namespace meshwright {

struct CompileOptions {
  std::string backend = "local";
  /// `cpu`, `cpu:x86-64-v3`; empty: the target that the program is scheduled for.
  std::string target;
  /// Keep every value with an `nn.id`, so that `probe` can read it.
  bool probes = false;
  /// For programs that are not scheduled yet.
  ScheduleOptions schedule;
};

/// A program's code, not loaded yet, and what it needs to run.
struct CompiledProgram {
  rt::ProgramDescription description;
  std::vector<ObjectCode> objects;
  std::vector<ProbedOp> probes;
  CompileStatistics statistics;
};

/// Fails after an error diagnostic. The module is left as it is.
mlir::FailureOr<CompiledProgram> compileProgram(mlir::ModuleOp module,
                                                const CompileOptions &options = {});

/// A program compiled to machine code: an SPMD program, on the ranks of its
/// mesh, or a global one, on one rank.
class Executable {
public:
  /// Fails after an error diagnostic. The module is left as it is.
  static mlir::FailureOr<std::unique_ptr<Executable>> compile(mlir::ModuleOp module,
                                                              const CompileOptions &options = {});
  ~Executable();

  /// Takes parameters and runs.
  rt::Program &getProgram();
  const rt::ProgramDescription &getDescription() const;

  /// After compile with `probes` and a run: the value with that `nn.id`, as the
  /// ranks held it (one array of local shape a rank).
  struct ProbedValue {
    int64_t id;
    /// The op and where it comes from.
    std::string name;
    rt::DType type;
    std::vector<int64_t> localShape;
    /// One a rank.
    std::vector<std::vector<char>> values;
  };
  /// In program order.
  const std::vector<ProbedValue> &getProbedValues() const;

private:
  struct State;
  explicit Executable(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_EXECUTE_EXECUTABLE_H
