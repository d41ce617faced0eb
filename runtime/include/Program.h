//===- Program.h - a compiled program, ready to run -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A compiled program is code and a description of it: what it takes, gives and
// needs. The compiler makes both; a bundle keeps them on disk. Here they meet
// ranks, weights and inputs.
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

/// Bytes that may be part of something larger, which lives as long as they do.
struct Bytes {
  std::shared_ptr<const void> data;
  int64_t size = 0;
};

/// An input, a parameter or a result of a program.
struct ProgramValue {
  /// `nn.input`, `nn.parameter` or `nn.output`.
  std::string name;
  DType type = DType::F32;
  /// As the host sees it: global.
  std::vector<int64_t> shape;
  /// A rank's part, padding included.
  std::vector<int64_t> localShape;
  /// Parameters only: other names of the same weight.
  std::vector<std::string> aliases;
  /// Parameters only: where the value begins in the stored tensor
  /// (`nn.parameter_offsets`); empty where it is all of it.
  std::vector<int64_t> offsets;
  /// Inputs that the program reads as indices: they must be below it; 0 for others.
  int64_t indexBound = 0;
  /// Its layout, printed; empty in a global program.
  std::string sharding;
  ShardedLayout layout;
  /// Inputs and parameters that are partial sums over these axes: the first rank
  /// along them holds all of the sum, others zeros.
  mw_rt_axes unreduced = {};

  int64_t getLocalBytes() const { return countOf(localShape) * sizeOf(type); }
  /// The first of the ranks that hold the same part as this one.
  int64_t getHolder(int64_t rank) const;
};

/// What a program's entry gets as one of its `arguments`.
struct ProgramArgument {
  bool isParameter = false;
  /// In the list of inputs, or that of parameters.
  int64_t index = 0;
  /// Whether the entry reads it as it lies; else null is passed.
  bool isRead = true;
};

/// What an entry gets as one of its `prepared`: an argument, a parameter, or a
/// part of one in one piece, in another order of elements.
struct PreparedParameter {
  /// The argument, and the bytes before the part.
  int64_t argument = 0, offset = 0;
  mw_rt_packing packing = {};
};

/// All there is to know of a program beside its code.
struct ProgramDescription {
  int64_t numRanks = 1;
  /// Bytes of temporaries of a rank.
  int64_t arenaBytes = 0;
  std::vector<ProgramValue> inputs, parameters, outputs;
  /// In the entry's order; outputs have one order only.
  std::vector<ProgramArgument> arguments;
  std::vector<PreparedParameter> prepared;
  std::vector<Bytes> constants;
  /// Names of ops, for errors and traces.
  std::vector<std::string> ops;
  /// The ops that are in one kernel with an op, by its number.
  std::map<int64_t, std::string> fused;
  /// The processor it was compiled for, and what of it the code uses, as LLVM
  /// spells them.
  std::string targetCpu;
  std::vector<std::string> targetFeatures;

  const ProgramValue &getValue(const ProgramArgument &argument) const {
    return (argument.isParameter ? parameters : inputs)[argument.index];
  }
};

/// A rank's part of an input or a parameter, from the stored tensor.
void place(const ProgramValue &value, int64_t rank, const HostTensor &stored, void *local);

/// An empty string, or what is wrong with a tensor for a parameter.
std::string checkParameter(const ProgramValue &parameter, const HostTensor &tensor);

/// A program on its ranks, those of them that live in this process.
class Program {
public:
  /// Null, with an error, where there is no such backend. `code` keeps the entry
  /// loaded.
  static std::unique_ptr<Program> create(ProgramDescription description, mw_rt_entry entry,
                                         std::shared_ptr<void> code, const std::string &backend,
                                         std::string &error);
  ~Program();

  const ProgramDescription &getDescription() const { return description; }
  World &getWorld() { return *world; }
  /// Those of this process, in order.
  const std::vector<int64_t> &getRanks() const { return ranks; }

  /// Gives a parameter its stored tensor, by name or alias, between runs. Not copied:
  /// the array must live, unchanged, until the program is destroyed or has another one
  /// (parameters that need no sharding are read where they are).
  bool setParameter(const std::string &name, const HostTensor &tensor, std::string &error);
  /// Gives a rank of this process its part of a parameter, as it lies (an index in
  /// the description's `arguments`) or packed (in `prepared`).
  bool setPlaced(int64_t argument, int64_t rank, Bytes part, std::string &error);
  bool setPrepared(int64_t prepared, int64_t rank, Bytes part, std::string &error);
  /// Names of parameters that the program reads and that have no value yet.
  std::vector<std::string> getMissingParameters() const;

  /// `inputs` are in the order of the description's; `outputs` point to arrays of
  /// the sizes that it states, which are filled. Runs wait for one another. Where
  /// MESHWRIGHT_RUNS asks for more than one run, all must give the same bits.
  /// After a failure where the world is stuck, a rank may read inputs and parameters
  /// still: they must stay as long as the process.
  bool run(const std::vector<HostTensor> &inputs, const std::vector<void *> &outputs,
           const RunOptions &options, std::string &error);

  /// Of the last run that succeeded with `measure`; none has 0 ranks.
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

  /// By parameter: the stored tensor, and whether there is a value.
  std::vector<HostTensor> stored;
  std::vector<bool> given;
  RunReport report;
  /// Held by a run.
  mutable std::mutex running;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PROGRAM_H
