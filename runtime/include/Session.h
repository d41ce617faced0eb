//===- Session.h - a program on ranks, with its state -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_SESSION_H
#define MESHWRIGHT_RUNTIME_INCLUDE_SESSION_H

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Program.h"
#include "meshwright/runtime/include/RunReport.h"
#include "meshwright/runtime/include/World.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshwright::rt {

class Checkpoint;
class CheckpointWriter;
class FolderLock;
class RankMemory;
struct CallRecord;

/// A program on the ranks of this process: the world of ranks, the weights, and the state, all of
/// them shared by the program's entries.
///
/// - Parameters are set once, and sharded and packed by the first run that needs them. Inputs
///   are sharded by each run.
/// - The arrays of parameters and inputs are not copied if a rank can read them in place.
/// - The state begins with its initial value. A run of an entry either commits all states that
///   the entry writes, on all ranks of all processes, or changes none
///   (docs/rationale/state-commit.md).
/// - Each rank has state buffers of its own. Entries write new values to second buffers, and a
///   commit exchanges them; or they replace rows, and a call that fails restores these from a log;
///   or a commit copies the new values.
/// - Any thread may call a session. Calls wait for one another.
/// - With ranks in several processes, all processes make the same calls in the same order,
///   except `setParameter`, `setPlaced`, `setPrepared`, `setInitial` and the functions that are
///   const.
class Session {
public:
  /// Returns null, with an error, if the backend cannot be opened. `code` has the functions of
  /// the description's entries; `owner` keeps them loaded.
  static std::unique_ptr<Session> create(ProgramDescription description,
                                         std::vector<mw_rt_entry> code, std::shared_ptr<void> owner,
                                         const std::string &backend, std::string &error);
  ~Session();

  const ProgramDescription &getDescription() const { return description; }
  World &getWorld() { return *world; }
  /// The ranks of this process, in order.
  const std::vector<int64_t> &getRanks() const { return ranks; }

  //===--------------------------------------------------------------------===//
  // Parameters
  //===--------------------------------------------------------------------===//

  /// Sets the stored tensor of a parameter, by name or alias, between runs. The array is not
  /// copied: it must stay, unchanged, until the session is destroyed or the parameter is set
  /// again. States that begin with it keep their value.
  bool setParameter(const std::string &name, const HostTensor &tensor, std::string &error);
  /// Set the part of a parameter that a rank of this process holds, unpacked or packed, and of
  /// the initial value of a state. The integers are indices in the description's lists.
  bool setPlaced(int64_t parameter, int64_t rank, Bytes part, std::string &error);
  bool setPrepared(int64_t prepared, int64_t rank, Bytes part, std::string &error);
  void setInitial(int64_t state, int64_t rank, Bytes part);
  /// Sets the hash of the weights (WeightsHash.h), for a program that serves.
  void setWeightsHash(std::string hash) { description.model.weights = std::move(hash); }
  /// Sets whether a call that fails leaves the state as it was, which is the default. Without
  /// recovery, calls need neither second buffers nor logs.
  void setRecovery(bool recovers) { this->recovers = recovers; }
  /// The names of the parameters that the program needs and that are not set.
  std::vector<std::string> getMissingParameters() const;

  //===--------------------------------------------------------------------===//
  // Runs
  //===--------------------------------------------------------------------===//

  /// Calls an entry once on all ranks and fills `outputs`, arrays of the sizes that the
  /// description states. `inputs` are in the order of `ProgramDescription::getCall`; one without
  /// data gets its default value. An output without memory, null, is left out. Runs the steps of the call, and commits the states that they
  /// write with the last one. After a failure in any step the state is as before, and `outputs` may
  /// have changed.
  /// If MESHWRIGHT_RUNS asks for more than one run, all start from the same state and must give
  /// the same bits. If the world is stuck after a failure, a rank may still read inputs and
  /// parameters: they must stay as long as the process.
  bool run(int64_t entry, const std::vector<HostTensor> &inputs,
           const std::vector<void *> &outputs, const RunOptions &options, std::string &error);

  /// The report of the last run that succeeded with `measure`. It has 0 ranks if there is none.
  RunReport getRunReport() const {
    std::lock_guard<std::timed_mutex> lock(running);
    return report;
  }

  /// The load of each layer of experts in the last call that succeeded, in their order.
  std::vector<ExpertLoad> getExpertLoads() const {
    std::lock_guard<std::timed_mutex> lock(running);
    return experts;
  }

  //===--------------------------------------------------------------------===//
  // State
  //===--------------------------------------------------------------------===//

  /// Forgets the state: the next call begins with the initial value.
  void restart();
  /// Copies the global tensors of all states that are not transient to `arrays`, in the order of
  /// the description. Every process receives them.
  bool getStates(const std::vector<void *> &arrays, std::string &error);
  /// Sets states by name. Sets all of them or, after an error, none: an unknown name, another
  /// shape or another type is an error.
  bool setStates(const std::map<std::string, HostTensor> &values, std::string &error);
  /// Writes all states that are not transient, and the extras, to a folder, which is created if it is
  /// not there: a file of each rank, and an index (docs/checkpoints.md). The state that was saved
  /// there before stays whole until the new one is. It is an error if another process saves there.
  bool save(const std::string &folder, std::string &error);
  /// Sets all states and the extras from a folder that `save` of any plan of the model wrote. Sets
  /// none after an error: states of another model, files that are missing or that changed. Other
  /// processes may save there meanwhile.
  bool load(const std::string &folder, std::string &error);

  /// Values that are saved beside the state, copied. `restart` forgets them. Returns false, with an
  /// error, for a learning rate that is none.
  bool setExtras(SavedExtras values, std::string &error);
  SavedExtras getExtras() const {
    std::lock_guard<std::timed_mutex> lock(running);
    return extras;
  }

private:
  Session() = default;

  bool checkDescription(std::string &error) const;
  bool checkRun(const Call &call, const std::vector<HostTensor> &inputs,
                const std::vector<void *> &outputs, std::string &error) const;
  bool runSteps(const Call &call, const std::vector<HostTensor> &inputs,
                const std::vector<void *> &outputs, const RunOptions &options, std::string &error);
  bool clearTransient(std::string &error);
  bool runStep(const CallStep &step, const std::vector<HostTensor> &inputs,
               const std::vector<void *> &outputs, const RunOptions &options, CallRecord &record,
               std::string &error);
  bool restore(std::string &error);
  bool addDefaults(int64_t entry, const Call &call, std::vector<HostTensor> &inputs,
                   std::string &error);
  bool runOnce(int64_t entry, const std::vector<HostTensor> &inputs,
               const std::vector<void *> &outputs, RunOptions &options,
               std::vector<RankBuffers> &buffers, std::string &error);
  bool repeat(int64_t entry, const std::vector<HostTensor> &inputs,
              const std::vector<void *> &outputs, RunOptions &options,
              std::vector<RankBuffers> &buffers, std::string &error);
  bool recordRun(int64_t entry, const RunOptions &options, CallRecord &record, std::string &error);
  bool finishRecord(const RunOptions &options, CallRecord &record, std::string &error);
  bool gatherTrace(Trace &trace, std::string &error);
  bool gatherExperts(std::string &error);
  bool findSeen(const EntryDescription &entry, CallRecord &record, std::string &error);
  bool isSplit() const { return int64_t(ranks.size()) < description.numRanks; }
  bool refuse(std::string &error, const std::string &message) const;
  bool decide(bool isFine, std::string &error) const;
  bool meet(const std::string &purpose, std::string &error);
  bool assemble(const ProgramValue &value, const std::string &kind,
                const std::vector<const void *> &parts, void *global, std::string &error);
  bool giveOutput(const ProgramValue &value, const std::vector<const void *> &parts, void *global,
                  int64_t gpu, std::string &error);
  bool isSameOnAll(const ProgramValue &value) const;
  bool shareOutputs(const EntryDescription &entry, const std::vector<void *> &outputs,
                    RunOptions &options, std::string &error);
  bool checkEnd(std::string &error);
  bool end(const std::string &why, std::string &error);
  /// Chooses some of the states.
  using Choose = std::function<bool(const ProgramState &)>;
  bool fillStates(const Choose &isGiven, std::string &error);
  bool startStates(std::string &error);
  std::string checkStates(const std::map<std::string, HostTensor> &values) const;
  bool beginChange(std::string &error);
  bool change(const Choose &isGiven, const std::function<HostTensor(const std::string &)> &read,
              std::string problem, std::string &error);
  std::unique_ptr<Checkpoint> openCheckpoint(const std::string &folder, std::string &error);
  /// Writes the learning rate of the extras, if there is one and the input is the learning rate.
  void giveRate(const ProgramValue &input, void *value) const;
  /// Returns false, with an error, if the input is the learning rate and is given none.
  bool checkRate(const ProgramValue &input, const HostTensor &given, std::string &error) const;
  bool writeFile(int64_t rank, const std::map<size_t, Memory> &whole, CheckpointWriter &writer,
                 std::string &error);
  bool assembleOthers(std::map<size_t, Memory> &whole, std::string &error);
  bool share(int64_t from, std::string &text, std::string &error);
  bool saveTo(CheckpointWriter &writer, const FolderLock *lock, std::string &error);
  bool getStatesLocked(const std::vector<void *> &arrays, std::string &error);
  bool commit(const EntryDescription &entry, const std::vector<RankBuffers> &buffers, bool isFine,
              std::string &error);
  size_t getPosition(int64_t rank) const;

  ProgramDescription description;
  std::vector<mw_rt_entry> code;
  std::shared_ptr<void> owner;
  /// The names of each entry's ops. They must outlive the world.
  std::shared_ptr<std::vector<OpNames>> ops;
  WorldPtr world;
  /// Ranks of this process.
  std::vector<int64_t> ranks;
  std::unique_ptr<RankMemory> memory;

  /// The values of inputs that calls left out, by entry and input.
  using Defaults = std::map<std::pair<int64_t, size_t>, Memory>;
  std::unique_ptr<Defaults> defaults = std::make_unique<Defaults>();
  /// The stored tensor of each parameter, and whether the parameter is set (or never needed).
  std::vector<HostTensor> stored;
  std::vector<bool> given;
  /// Parts of initial values that are stored already, by state and position of the rank.
  std::vector<std::vector<Bytes>> initial;
  SavedExtras extras;
  /// True if the state buffers have values. They do not at the start.
  bool isStarted = false;
  /// True if a call that fails leaves the state as it was.
  bool recovers = true;
  /// True if the last call failed after it replaced rows, which have not been restored yet.
  bool isChanged = false;
  /// True if the transient states have the values that they have between calls.
  bool isCleared = true;
  /// A failure after which the state is not known any more, or empty.
  std::string ended;
  RunReport report;
  std::vector<ExpertLoad> experts;
  /// A call holds it.
  mutable std::timed_mutex running;
};

/// The index of a folder that `Session::save` wrote.
inline constexpr const char *kStateIndex = "checkpoint.json";

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_SESSION_H
