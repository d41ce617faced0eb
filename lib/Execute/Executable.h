//===- Executable.h - compile in process and run on ranks -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_EXECUTABLE_H
#define MESHWRIGHT_LIB_EXECUTE_EXECUTABLE_H

#include "meshwright/runtime/include/Types.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/LLVM.h"
#include "llvm/Support/Error.h"

#include <memory>
#include <string>
#include <vector>

namespace meshwright {

/// A dense row-major array of the host, not owned. i1 is stored as bytes.
struct HostTensor {
  rt::DType type = rt::DType::F32;
  std::vector<int64_t> shape;
  const void *data = nullptr;
};

/// An argument or a result of a program, as the host sees it: global.
struct ProgramValue {
  /// `nn.input`, `nn.parameter` or `nn.output`.
  std::string name;
  rt::DType type = rt::DType::F32;
  std::vector<int64_t> shape;
  /// A rank's part, padding included.
  std::vector<int64_t> localShape;
  /// Parameters only: other names of the same weight.
  std::vector<std::string> aliases;
  /// Parameters only: where the value begins in the stored tensor
  /// (`nn.parameter_offsets`); empty where it is all of it.
  std::vector<int64_t> offsets;
  /// Its layout, printed; empty in a global program.
  std::string sharding;
};

struct CompileOptions {
  std::string backend = "local";
  /// Keep every value with an `nn.id`, so that `probe` can read it.
  bool probes = false;
};

struct RunOptions {
  /// Seconds that a rank may wait in one collective; 0: MESHWRIGHT_TIMEOUT, or
  /// 30.
  double timeout = 0;
};

/// A program compiled to machine code: an SPMD program, on the ranks of its
/// mesh, or a global one, on one rank.
class Executable {
public:
  /// Fails after an error diagnostic. The module is left as it is.
  static mlir::FailureOr<std::unique_ptr<Executable>> compile(mlir::ModuleOp module,
                                                              const CompileOptions &options = {});
  ~Executable();

  /// In the order of the program's arguments and results.
  const std::vector<ProgramValue> &getInputs() const;
  const std::vector<ProgramValue> &getParameters() const;
  const std::vector<ProgramValue> &getOutputs() const;
  int64_t getNumRanks() const;
  /// Bytes that a rank allocates for temporaries.
  int64_t getArenaBytes() const;

  /// Gives a parameter its stored tensor, by name or alias. Not copied: the
  /// array must live, unchanged, until the executable is destroyed (parameters
  /// that need no sharding are read where they are).
  llvm::Error setParameter(mlir::StringRef name, const HostTensor &tensor);
  /// Names of parameters that have no tensor yet.
  std::vector<std::string> getMissingParameters() const;

  /// Runs the program once: `inputs` in the order of `getInputs`; `outputs`
  /// point to arrays of the sizes that `getOutputs` states, which are filled.
  /// Runs wait for one another.
  llvm::Error run(mlir::ArrayRef<HostTensor> inputs, mlir::ArrayRef<void *> outputs,
                  const RunOptions &options = {});

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
