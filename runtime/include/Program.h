//===- Program.h - the description of a compiled program --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A compiled program is code and a description of its arguments, results and memory. The
// compiler makes both, and a bundle keeps them on disk. A session (Session.h) runs them on ranks.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_PROGRAM_H
#define MESHWRIGHT_RUNTIME_INCLUDE_PROGRAM_H

#include "meshwright/Serving.h"
#include "meshwright/Training.h"
#include "meshwright/runtime/include/Call.h"
#include "meshwright/runtime/include/Sharding.h"
#include "meshwright/runtime/include/Types.h"

#include <array>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace meshwright::rt {

/// A dense row-major array of the caller, not owned. i1 is stored as bytes.
struct HostTensor {
  DType type = DType::F32;
  std::vector<int64_t> shape;
  const void *data = nullptr;
  /// The number of the GPU in whose memory the data is, or -1 for the host's. Only inputs of calls
  /// may be in a GPU's memory, on backends whose devices are GPUs.
  int64_t gpu = -1;
  /// Parameters only: the pieces that cover an array which is not in one place. `data` is null
  /// then.
  std::vector<TensorPiece> pieces = {};
  /// Parameters only: computes the array, which is in no place yet. Returns null, with an error, where it
  /// cannot. `data` is null then.
  std::function<std::shared_ptr<const void>(std::string &)> compute = {};

  /// Calls `visit` with the elements of the array, or of the box of `extents` at `offsets`: runs of
  /// elements that are next to each other in memory.
  void visitRuns(const std::vector<int64_t> &offsets, const std::vector<int64_t> &extents,
                 const std::function<void(const void *, int64_t)> &visit) const;
};

/// Returns a tensor whose array is there: one that is to be computed is, and kept as long as the result.
/// Returns null, with an error, where it cannot be.
std::shared_ptr<const HostTensor> getPresent(const HostTensor &tensor, std::string &error);

/// Bytes, and an owner that keeps them. They may be a part of the owner's memory.
struct Bytes {
  std::shared_ptr<const void> data;
  int64_t size = 0;
};

/// An input, a parameter, a state or an output of a program.
struct ProgramValue {
  /// `nn.input`, `nn.parameter`, `nn.state` or `nn.output`.
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
  /// Parameters only: the bound on elements that the proof of padding relies on. Infinity if it
  /// relies on none.
  double magnitude = std::numeric_limits<double>::infinity();
  /// Inputs that the program reads as indices: the exclusive upper bound of elements. 0 for
  /// other inputs.
  int64_t indexBound = 0;
  /// Inputs only: the bytes of each element in a call that leaves the input out. Empty if every
  /// call has to give it.
  std::string defaultElement;
  /// The layout as text; empty in a global program.
  std::string sharding;
  ShardedLayout layout;
  /// The axes over which the value is unreduced: it is the sum or the maximum of the ranks' parts.
  /// If an argument is a partial sum, the first rank along them is given the value and the
  /// other ranks are given zeros. The parts of a maximum are all given the value.
  mw_rt_axes unreduced = {};
  /// MW_RT_SUM or MW_RT_MAX.
  int64_t reduction = MW_RT_SUM;
  /// Inputs only: each run of a step is given all of it, in place of a chunk.
  bool isWhole = false;

  /// Returns true for the name and the aliases.
  bool isNamed(const std::string &other) const;
  int64_t getLocalBytes() const { return countOf(localShape) * sizeOf(type); }
  /// Returns true if the rank's part of an argument is zeros for every value.
  bool isZeroOn(int64_t rank) const;
  /// The first of the ranks that hold the same part as this one.
  int64_t getHolder(int64_t rank) const;
};

/// The role of a state that holds the keys and values of requests. A session that starts from a
/// saved state of other pages computes them again.
inline constexpr const char *kCacheRole = "cache";

/// Memory that outlives a call. Entries read it as arguments and write it as results.
struct ProgramState {
  /// Its name, type, shapes and layout.
  ProgramValue value;
  /// The value of a session that starts: the parameter of that name, or, if it is empty, `fill`
  /// in each element.
  std::string parameter;
  /// The bytes of one element.
  std::string fill;
  /// Its part: "parameter", "master", "optimizer" or "gradient" in training, "cache" in serving, or empty.
  std::string role;
  /// It begins with `fill`, and callers neither see nor save it.
  bool isTransient = false;

  /// Returns true if it can begin as this parameter: one of its type, or of a narrower one for f32.
  bool canBegin(const ProgramValue &parameter) const {
    bool isNarrower = parameter.type != value.type && getComputeType(parameter.type) == value.type;
    return (parameter.type == value.type || isNarrower) && parameter.shape == value.shape;
  }
};

/// How an entry gives a state its new value.
struct StateUpdate {
  enum Kind {
    /// It computes the value in memory of its own.
    Elsewhere,
    /// It writes the value to memory that the caller passes: the state's, or as much.
    Whole,
    /// It replaces rows of the state, and saves the old ones in a log that the caller passes.
    Rows
  };
  Kind kind = Elsewhere;
  int64_t logBytes = 0;
};

/// One of the `arguments` of an entry.
struct ProgramArgument {
  enum Kind { Input, Parameter, State };
  Kind kind = Input;
  /// The index in the entry's list of inputs, or in the program's list of parameters or states.
  int64_t index = 0;
  /// True if the entry reads the argument itself. If not, the entry is passed null and reads
  /// packed parts at most.
  bool isRead = true;
};

/// A weight, or a contiguous part of one, in the form of its readers. A parameter is prepared at
/// load, and a state after each update, before an entry reads it next.
struct PreparedWeight {
  ProgramArgument::Kind kind = ProgramArgument::Parameter;
  /// The index of the parameter or state, and the offset of the part in bytes.
  int64_t index = 0, offset = 0;
  mw_rt_packing packing = {};

  bool isOf(ProgramArgument::Kind otherKind, int64_t other) const {
    return kind == otherKind && index == other;
  }
};

/// An array that the code of an entry reads. If it differs between ranks, it has a part of equal
/// size for each coordinate over `axes`.
struct ProgramConstant {
  Bytes data;
  mw_rt_axes axes = {};
};

/// An entry of a program: a function that callers may run, or one that steps of their calls run.
struct EntryDescription {
  std::string name = "main";
  /// The steps of a call. The last one runs this entry, once. Empty if it is the only one.
  std::vector<CallStep> steps;
  /// The bytes of a rank's arena, which holds the entry's temporaries.
  int64_t arenaBytes = 0;
  /// The predicted time of a call; 0 if it is not known.
  double seconds = 0;
  std::vector<ProgramValue> inputs, outputs;
  /// In the order of the entry's parameters.
  std::vector<ProgramArgument> arguments;
  /// The entry's `prepared`: indices in the program's list.
  std::vector<int64_t> prepared;
  /// The results of the entry are the outputs and then the new values of these states.
  std::vector<int64_t> stateResults;
  /// How the entry makes each of these values. A value that the list lacks is `Elsewhere`.
  std::vector<StateUpdate> updates;
  std::vector<ProgramConstant> constants;
  /// Names of ops, for errors and traces.
  std::vector<std::string> ops;
  /// The bytes of the arena that values take while an op runs, by the op's number, for traces. Empty if
  /// they are not known.
  std::vector<int64_t> arenaInUse;
  /// The other ops that are fused into the kernel of an op, by the op's number.
  std::map<int64_t, std::string> fused;

  /// The sizes of the arrays that the entry's code is given: arguments, packed weights, constants
  /// and results.
  std::array<size_t, 4> getArraySizes() const {
    return {arguments.size(), prepared.size(), constants.size(),
            outputs.size() + stateResults.size()};
  }
};

/// A call of an entry: its steps, at least one, and its inputs and outputs with their global shapes.
struct Call {
  std::vector<CallStep> steps;
  CallPorts<ProgramValue> inputs, outputs;
};

/// A kernel of a program for a device that has code of its own (`mw_rt_device_kernel`).
struct DeviceKernel {
  std::string name;
  /// PTX, which ends with a zero byte.
  Bytes text;
  /// The same as machine code of the chip; empty if it was not assembled.
  Bytes binary = {};
};

/// A tensor in a file of weights: parameters are tensors or parts of tensors.
struct WeightTensor {
  std::string name;
  /// Other names of the same tensor.
  std::vector<std::string> aliases;
  DType type = DType::F32;
  std::vector<int64_t> shape;
  /// If the program reads it as indices: their exclusive upper bound. 0 for others.
  int64_t indexBound = 0;
};

/// The model of a program that serves, by hashes. A saved session has them, and another one starts from it
/// only if they are equal. An empty one is not known, and is not compared.
struct ModelIdentity {
  /// Of names and types of the parameters.
  std::string parameters;
  /// Of the operations at one `max_length`. They are compared only if that is equal.
  std::string operations;
  /// Of a sample of the weights (WeightsHash.h).
  std::string weights;
};

/// Everything about a program except its code. Its entries share parameters and states: each is
/// here once, in one layout.
struct ProgramDescription {
  int64_t numRanks = 1;
  std::vector<ProgramValue> parameters;
  std::vector<ProgramState> states;
  std::vector<PreparedWeight> prepared;
  /// The first is the default. Functions that callers may not run come last.
  std::vector<EntryDescription> entries;
  /// The processor that the code was compiled for, and the extensions that it uses, as LLVM
  /// spells them.
  std::string targetCpu;
  std::vector<std::string> targetFeatures;
  /// The chip that the kernels were compiled for ("sm_90a"), and the kernels. Empty if the processor
  /// performs them.
  std::string targetChip;
  std::vector<DeviceKernel> kernels;
  /// The kinds of the calls that the device must perform (MW_RT_CALL_...).
  std::set<int64_t> calls;
  /// The tensors that the program's weights are, if they are not stored with it.
  std::vector<WeightTensor> tensors;
  /// Only a program that trains has it, and only its bundle knows it.
  std::optional<StateDictLayout> stateDict;
  /// Only a program that serves has them. Its entries that callers run are steps of serving.
  std::optional<ServingSizes> serving;
  /// Empty for other programs. A program whose weights are given later has no hash of them.
  ModelIdentity model;

  const ProgramValue &getValue(const EntryDescription &entry,
                               const ProgramArgument &argument) const {
    return argument.kind == ProgramArgument::Input       ? entry.inputs[argument.index]
           : argument.kind == ProgramArgument::Parameter ? parameters[argument.index]
                                                         : states[argument.index].value;
  }
  const ProgramValue &getValue(const PreparedWeight &weight) const {
    return weight.kind == ProgramArgument::State ? states[weight.index].value
                                                 : parameters[weight.index];
  }
  /// The target as `--target` spells it: `cpu` or `gpu:sm_90a`.
  std::string getTarget() const { return targetChip.empty() ? "cpu" : "gpu:" + targetChip; }
  Call getCall(int64_t entry) const;
  /// Returns true for a function that only steps of other entries run.
  bool isPart(int64_t entry) const;
  /// Returns an empty string if the steps of all entries are valid, else an error:
  ///  - inputs of an entry have different names, and so have outputs;
  ///  - the last step runs the entry itself, once; the others run entries without steps;
  ///  - chunks and times are positive, and `until` is an output of type i1 without dimensions;
  ///  - the steps before the last one write transient states alone;
  ///  - inputs of one name have one type and one shape, and all or none are whole; so have outputs.
  std::string checkSteps() const;
  /// Returns the index of an entry, or that of the first entry for an empty name. Returns -1,
  /// with an error that lists the entries, if there is none of that name.
  int64_t findEntry(const std::string &name, std::string &error) const;
  /// Returns the index of the parameter of that name or alias that is a whole stored tensor, or -1.
  int64_t findParameter(const std::string &name) const;
  /// Returns the tensor that a parameter is, or is a part of; null if the list has none.
  const WeightTensor *findTensor(const ProgramValue &parameter) const;
  /// For each parameter, true if an entry reads it as it is stored.
  std::vector<bool> findReadParameters() const;
};

/// The name of the function of an entry in compiled code.
inline std::string getEntrySymbol(int64_t entry) {
  return entry == 0 ? "mw_main" : "mw_entry_" + std::to_string(entry);
}

/// Writes a rank's part of an argument to `local`, from the stored tensor. Widens one of type bf16
/// or f16 to f32 if the value is of that type.
void place(const ProgramValue &value, int64_t rank, const HostTensor &stored, void *local);

/// Returns an empty string if the tensor fits the parameter, else an error. Reads the elements of
/// a parameter of limited magnitude.
std::string checkParameter(const ProgramValue &parameter, const HostTensor &tensor);

/// Writes a rank's part of a state whose elements all have one value, the `element`.
/// Returns false if there is no memory.
bool placeFill(const ProgramValue &value, int64_t rank, const std::string &element, void *local);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PROGRAM_H
