//===- Program.h - a compiled program, ready to run -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A compiled program is code and a description of its arguments, results and memory. The
// compiler makes both, and a bundle keeps them on disk. A `Program` runs them on ranks, with
// weights and inputs.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_PROGRAM_H
#define MESHWRIGHT_RUNTIME_INCLUDE_PROGRAM_H

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/RunReport.h"
#include "meshwright/runtime/include/Sharding.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/World.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshwright::rt {

class RankMemory;

/// A dense row-major array of the host, not owned. i1 is stored as bytes.
struct HostTensor {
  DType type = DType::F32;
  std::vector<int64_t> shape;
  const void *data = nullptr;
};

/// Bytes, and an owner that keeps them. They may be a part of the owner's memory.
struct Bytes {
  std::shared_ptr<const void> data;
  int64_t size = 0;
};

/// An input, a parameter or a result of a program.
struct ProgramValue {
  /// `nn.input`, `nn.parameter` or `nn.output`.
  std::string name;
  DType type = DType::F32;
  /// The global shape, which the host uses.
  std::vector<int64_t> shape;
  /// The shape of a rank's part, padding included.
  std::vector<int64_t> localShape;
  /// Parameters only: other names of the same weight.
  std::vector<std::string> aliases;
  /// Parameters only: the index in the stored tensor at which the value begins
  /// (`nn.parameter_offsets`); empty if the value is the whole tensor.
  std::vector<int64_t> offsets;
  /// Inputs that the program reads as indices: the exclusive upper bound of elements. 0 for
  /// other inputs.
  int64_t indexBound = 0;
  /// The layout as text; empty in a global program.
  std::string sharding;
  ShardedLayout layout;
  /// The axes over which an input or parameter is a partial sum: the first rank along them holds
  /// the whole value, the other ranks hold zeros.
  mw_rt_axes unreduced = {};

  int64_t getLocalBytes() const { return countOf(localShape) * sizeOf(type); }
  /// The first of the ranks that hold the same part as this one.
  int64_t getHolder(int64_t rank) const;
};

/// One of the `arguments` of a program's entry.
struct ProgramArgument {
  bool isParameter = false;
  /// The index in the list of parameters, or of inputs.
  int64_t index = 0;
  /// Whether the entry reads the argument itself. If not, the entry is passed null and reads
  /// packed parts at most.
  bool isRead = true;
};

/// One of the `prepared` of a program's entry: a parameter, or a contiguous part of one, packed.
struct PreparedParameter {
  /// The argument, and the offset of the part in bytes.
  int64_t argument = 0, offset = 0;
  mw_rt_packing packing = {};
};

/// Everything about a program except its code.
struct ProgramDescription {
  int64_t numRanks = 1;
  /// The bytes of a rank's arena, which holds its temporaries.
  int64_t arenaBytes = 0;
  std::vector<ProgramValue> inputs, parameters, outputs;
  /// In the order of the entry's parameters. Outputs are in the order of its results already.
  std::vector<ProgramArgument> arguments;
  std::vector<PreparedParameter> prepared;
  std::vector<Bytes> constants;
  /// Names of ops, for errors and traces.
  std::vector<std::string> ops;
  /// The other ops that are fused into the kernel of an op, by the op's number.
  std::map<int64_t, std::string> fused;
  /// The processor that the code was compiled for, and the extensions that it uses, as LLVM
  /// spells them.
  std::string targetCpu;
  std::vector<std::string> targetFeatures;

  const ProgramValue &getValue(const ProgramArgument &argument) const {
    return (argument.isParameter ? parameters : inputs)[argument.index];
  }
};

/// Writes a rank's part of an input or a parameter to `local`, from the stored tensor.
void place(const ProgramValue &value, int64_t rank, const HostTensor &stored, void *local);

/// Returns an empty string if the tensor fits the parameter, else an error.
std::string checkParameter(const ProgramValue &parameter, const HostTensor &tensor);

/// A program on the ranks of this process.
///
/// - Parameters are set once and sharded and packed by the first run. Inputs are sharded by
///   each run.
/// - The arrays of parameters and inputs are not copied if a rank can read them in place.
/// - Any thread may run a program. Runs wait for one another.
class Program {
public:
  /// Returns null, with an error, if the backend cannot be opened. `code` keeps the entry loaded.
  static std::unique_ptr<Program> create(ProgramDescription description, mw_rt_entry entry,
                                         std::shared_ptr<void> code, const std::string &backend,
                                         std::string &error);
  ~Program();

  const ProgramDescription &getDescription() const { return description; }
  World &getWorld() { return *world; }
  /// The ranks of this process, in order.
  const std::vector<int64_t> &getRanks() const { return ranks; }

  /// Sets the stored tensor of a parameter, by name or alias, between runs. The array is not
  /// copied: it must stay, unchanged, until the program is destroyed or the parameter is set
  /// again.
  bool setParameter(const std::string &name, const HostTensor &tensor, std::string &error);
  /// Sets the part of a parameter that a rank of this process holds: unpacked (an index in the
  /// description's `arguments`) or packed (an index in `prepared`).
  bool setPlaced(int64_t argument, int64_t rank, Bytes part, std::string &error);
  bool setPrepared(int64_t prepared, int64_t rank, Bytes part, std::string &error);
  /// The names of the parameters that the program reads and that are not set.
  std::vector<std::string> getMissingParameters() const;

  /// Runs once on all ranks and fills `outputs`, arrays of the sizes that the description
  /// states. `inputs` are in the order of the description. If MESHWRIGHT_RUNS asks for more than
  /// one run, all must give the same bits. If the world is stuck after a failure, a rank may
  /// still read inputs and parameters: they must stay as long as the process.
  bool run(const std::vector<HostTensor> &inputs, const std::vector<void *> &outputs,
           const RunOptions &options, std::string &error);

  /// The report of the last run that succeeded with `measure`. It has 0 ranks if there is none.
  RunReport getRunReport() const {
    std::lock_guard<std::mutex> lock(running);
    return report;
  }

private:
  Program() = default;

  bool runOnce(const std::vector<HostTensor> &inputs, const std::vector<void *> &outputs,
               const RunOptions &options, std::string &error);
  bool checkRun(const std::vector<HostTensor> &inputs, const std::vector<void *> &outputs,
                std::string &error) const;
  bool gatherTrace(Trace &trace, std::string &error);
  bool findSeen(std::string &error);
  bool refuse(std::string &error, const std::string &message) const;
  bool collect(const std::vector<RankBuffers> &buffers, const std::vector<void *> &outputs,
               std::string &error);
  size_t getPosition(int64_t rank) const;

  ProgramDescription description;
  std::shared_ptr<void> code;
  mw_rt_entry entry = nullptr;
  WorldPtr world;
  /// Ranks of this process.
  std::vector<int64_t> ranks;
  std::unique_ptr<RankMemory> memory;

  /// By parameter: the stored tensor, and whether the parameter is set (or never read).
  std::vector<HostTensor> stored;
  std::vector<bool> given;
  RunReport report;
  /// A run holds it.
  mutable std::mutex running;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PROGRAM_H
