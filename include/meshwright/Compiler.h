//===- Compiler.h - Meshwright from C++ -------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All of Meshwright for a program that does not use MLIR: it reads a model's IR, makes a
// parallel plan, reports on the plan and runs it. Functions do not throw; errors are returned as
// diagnostics. Objects are handles, and copies share their data.
//
//   auto program = meshwright::Program::parseFile("model.mlir");
//   auto plan = meshwright::Plan::parallelize(*program, "mesh=tp=4");
//   std::puts(plan->report(meshwright::ReportFormat::Text).c_str());
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_COMPILER_H
#define MESHWRIGHT_COMPILER_H

#include "meshwright/Serving.h"
#include "meshwright/Training.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshwright {

enum class Severity { Note, Remark, Warning, Error };

struct Diagnostic {
  Severity severity = Severity::Error;
  std::string message;
  /// Empty and 0 where unknown.
  std::string file;
  int64_t line = 0;
};

/// A value, or the errors that say why there is none. Both may come with warnings.
template <typename T> class Result {
public:
  Result(std::vector<Diagnostic> diagnostics) : diagnostics(std::move(diagnostics)) {}
  Result(T value, std::vector<Diagnostic> diagnostics = {})
      : value(std::move(value)), diagnostics(std::move(diagnostics)) {}

  explicit operator bool() const { return value.has_value(); }
  T &operator*() { return *value; }
  const T &operator*() const { return *value; }
  T *operator->() { return &*value; }
  const T *operator->() const { return &*value; }
  const std::vector<Diagnostic> &getDiagnostics() const { return diagnostics; }

private:
  std::optional<T> value;
  std::vector<Diagnostic> diagnostics;
};

/// Element types: F32, BF16, ... Booleans take a byte each, 0 or 1.
enum class ElementType {
#define MW_ELEMENT_TYPE(ID, ...) ID,
#include "meshwright-c/ElementTypes.def"
};

/// The name in IR: "f32".
std::string_view toString(ElementType type);
size_t getByteWidth(ElementType type);

/// An input, a parameter, an output or a state of a program, with its global type. Where two
/// elements share a byte (F4E2M1FN), the last dimension of shapes counts bytes, here and in arrays.
struct Port {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<int64_t> shape;
  /// Parameters only: other names of the same weight.
  std::vector<std::string> aliases;
  /// Parameters only: the index in the stored tensor of that name at which the value begins.
  /// Empty if the value is the whole tensor.
  std::vector<int64_t> offsets;
  /// Inputs only: the bytes of each element in a call that leaves the input out, which is an array
  /// without data. Empty if every call has to give the input.
  std::string defaultElement;
  /// States only: the part in training, as "parameter" or "optimizer". Empty if there is none.
  std::string role;
  /// Inputs only: dimension 0 is the batch, which data parallelism splits and microbatches cut.
  bool isBatch = false;
};

/// A box of an array, at an index in it. Strides are in elements.
struct ArrayPiece {
  std::vector<int64_t> offsets, shape, strides;
  const void *data = nullptr;
};

/// A dense row-major array in host memory, which the caller owns. Without data it stands for an
/// input that has a default value.
struct HostArray {
  ElementType type = ElementType::F32;
  std::vector<int64_t> shape;
  const void *data = nullptr;
  /// For inputs of calls: the number of the GPU in whose memory the data is, or -1 for the host's.
  int64_t gpu = -1;
  /// For parameters: the pieces that cover an array which is not in one place, in place of `data`.
  std::vector<ArrayPiece> pieces = {};
};

/// The memory of a GPU, for inputs and outputs of calls on a backend whose devices are GPUs.
class GpuMemory {
public:
  static Result<GpuMemory> open(std::string_view backend, int64_t gpu);
  /// The stream of the driver on which calls read inputs. Inputs have to be there in its order.
  uintptr_t getStream() const;
  /// Uninitialised memory, which its last owner frees.
  Result<std::shared_ptr<void>> allocate(int64_t bytes) const;

private:
  struct Impl;
  std::shared_ptr<Impl> impl;
};

/// A line on standard error that says how far a long piece of work is, if that is a terminal:
/// "reading checkpoint: 12 of 163, 3 s". It appears after half a second and goes with this object.
class ProgressLine {
public:
  ProgressLine(std::string_view what, int64_t total);
  /// Another part is done.
  void step();
  void end();
  /// Shows no lines for the rest of the process.
  static void hide();

private:
  struct Impl;
  std::shared_ptr<Impl> impl;
};

/// A public function of a program, which callers may run.
struct Entry {
  std::string name;
  std::vector<Port> inputs, outputs;
};

struct Connection;
struct Stage;

/// A model: one MLIR module. Its public functions are its entries, which share its parameters and
/// states.
class Program {
public:
  /// `name` stands for the text in diagnostics.
  static Result<Program> parse(std::string_view text, std::string_view name = "<text>");
  static Result<Program> parseFile(std::string_view path);

  /// Joins programs for one device into one program. The stages run in the given order; the
  /// stages of `loop`, which must be neighbours, run `steps` times. An input that no
  /// connection feeds is an input of the result, named "<stage>.<input>". So is an input of
  /// the loop that is fed by the same or a later stage: the first step reads it. Parameters
  /// are named "<stage>.<parameter>". Outputs are those of the last stage.
  static Result<Program> compose(const std::vector<Stage> &stages,
                                 const std::vector<Connection> &connections,
                                 const std::vector<std::string> &loop = {}, int64_t steps = 1);

  /// Makes one program whose entries are those of the given programs, under the given names; of
  /// a program with several, as "ENTRY,NAME". Parameters and states of one name are one.
  static Result<Program> join(const std::vector<Stage> &programs);

  /// Makes a program whose outputs are those of this one, then `grad.NAME` for each parameter
  /// that a pattern matches: the gradient of an output, given by its position or name, with
  /// respect to it. Parameters in `frozen` have none.
  Result<Program> differentiate(std::string_view loss, const std::vector<std::string> &parameters,
                                const std::vector<std::string> &frozen = {}) const;

  /// Makes a program with the entries `step`, which updates the parameters by an optimizer, and
  /// `evaluate`. The parameters are states of it.
  Result<Program> train(const TrainOptions &options) const;

  /// Makes a program whose entries are steps of serving, `tokens=T` for each bucket, from the
  /// forward pass of a causal language model at the most tokens of a request: ids [1, length] to
  /// logits [1, length, vocabulary], its first output.
  Result<Program> serve(const ServeOptions &options) const;

  /// Returns the program as MLIR, optionally with source locations, and in the generic form of ops.
  std::string str(bool locations = false, bool generic = false) const;
  /// Returns true if the program already is an SPMD program (`dist.spmd`).
  bool isSpmd() const;

  /// The default entry is the first: `main`, or the first of the module if there is no `main`.
  const std::vector<Entry> &getEntries() const;
  /// The inputs and outputs of the default entry.
  const std::vector<Port> &getInputs() const;
  const std::vector<Port> &getOutputs() const;
  /// The parameters and states of all entries.
  const std::vector<Port> &getParameters() const;
  const std::vector<Port> &getStates() const;

  struct Impl;
  const Impl &getImpl() const { return *impl; }

private:
  friend class Plan;
  std::shared_ptr<const Impl> impl;
};

/// A program in a composition or a join.
struct Stage {
  std::string name;
  Program program;
};

/// "<stage>.<input>" is fed by "<stage>.<position of an output>".
struct Connection {
  std::string input, output;
};

/// The phases of a plan.
enum class PlanPhase {
  /// The program as it was imported.
  Global,
  /// Shardings on the values for which policies choose one.
  Annotated,
  /// Shardings on every value.
  Propagated,
  /// Local shapes and collectives.
  Spmd,
  /// Launches, with offsets in memory.
  Rt,
};

enum class ReportFormat { Text, Json };

/// The largest difference between an output and that of the unsharded program, relative to the
/// output's largest entry.
struct OutputDifference {
  std::string name;
  double difference = 0;
};

struct CheckResult {
  std::vector<OutputDifference> outputs;
  /// True if all outputs and states are within the tolerance.
  bool passed = true;
  /// If they are not: the first value in program order that differs, as text.
  std::string firstDifference;
  std::string file;
  int64_t line = 0;
};

/// Statistics of a compilation ahead of time.
struct CompileSummary {
  /// The distinct kernels of the program, and how many of them came from the cache on disk.
  int64_t kernels = 0, cachedKernels = 0;
  /// The other kernels: the ops of each, and the milliseconds that it took to compile.
  std::vector<std::pair<std::string, double>> compiledKernels;
  /// The time to compile the entry, the program's list of calls.
  double entryMilliseconds = 0;
};

/// Options of a run.
struct RunOptions {
  /// The entry to run; empty: the default one.
  std::string entry;
  std::string backend = "local";
  /// Threads that a rank computes with. 0 stands for MESHWRIGHT_THREADS, or 1. Results do not
  /// depend on it.
  int64_t threadsPerRank = 0;
  /// Seconds that a rank may wait in one collective. 0 stands for MESHWRIGHT_TIMEOUT, or 30.
  double timeout = 0;
  /// Fail if an op produces NaN or infinity, and name the first such op.
  bool checkFinite = false;
  /// The file for a trace of all ranks and streams, in the Chrome trace format. Empty for
  /// none.
  std::string trace;
  /// Measure time and memory, and add them to the report.
  bool measure = false;
  /// The target to compile for: `cpu` (this machine's processor) or `cpu:NAME` (a processor by
  /// LLVM's name). Empty: the target that the plan was made for. Another target than the plan's
  /// schedules anew, and reports then describe it.
  std::string target;
  /// A folder of a saved state to start from; empty: the program's initial state.
  std::string state;
  /// A folder to save the state to after the run; empty for none.
  std::string saveState;
  /// Recovers as `SessionOptions` says. No state is saved after a run that fails.
  bool recover = true;
  /// The number of the GPU in whose memory the outputs are, or -1 for the host's.
  int64_t outputGpu = -1;
};

/// Options of a session. Members as in `RunOptions`.
struct SessionOptions {
  std::string backend = "local";
  int64_t threadsPerRank = 0;
  double timeout = 0;
  std::string target;
  std::string state;
  /// True if a call that fails leaves the state as it was. Without recovery the state may be
  /// anything after a failure, and calls keep no second buffers and no logs.
  bool recover = true;
  /// "on", "off" or "auto": says if calls run as captured graphs of a GPU, which later calls
  /// repeat. "on" is an error where nothing can be captured.
  std::string graphs = "auto";
  /// For a bundle without weights: a safetensors file, or the seed of random weights. Others take
  /// neither.
  std::string weights;
  std::optional<uint64_t> randomWeights;
};

/// A state and its new value.
struct NamedArray {
  std::string name;
  HostArray array;
};

/// A running program: its ranks, its weights on them, and its state, which stays from call to
/// call. Copies share one session; it ends with the last of them. Threads may share a session; its
/// calls wait for one another.
class Session {
public:
  const std::vector<Entry> &getEntries() const;
  const std::vector<Port> &getStates() const;
  /// How the states map to PyTorch's `state_dict`s. None but the sessions of a bundle have it, if
  /// the bundle was compiled with it. The data of tensors is read in place.
  const std::optional<StateDictLayout> &getStateDict() const;

  /// Runs an entry (empty: the default one) once on all ranks. Commits its writes of state if the
  /// run succeeds on all ranks; otherwise the state stays as it was. `inputs` and `outputs` are in
  /// the order of the entry's. The outputs are in the memory of the GPU of number `outputGpu`, or
  /// in the host's if it is -1. The result is true.
  Result<bool> run(const std::vector<HostArray> &inputs, const std::vector<void *> &outputs,
                   std::string_view entry = "", bool checkFinite = false, int64_t outputGpu = -1);
  /// Copies the global tensors of all states to `arrays`, in the order of `getStates`. The result
  /// is true.
  Result<bool> getState(const std::vector<void *> &arrays) const;
  /// Sets states: all that are given, or none after an error. The result is true.
  Result<bool> setState(const std::vector<NamedArray> &values);
  /// Writes the state to a folder, whole or not at all. Sessions of any plan of the program can
  /// start from it. The result is true.
  Result<bool> save(std::string_view folder) const;
  /// Values that are saved beside the state. Those of a session that starts from a saved state are in
  /// it. It is an error if a learning rate is negative or not finite. The result is true.
  SavedExtras getExtras() const;
  Result<bool> setExtras(SavedExtras extras);

  /// Returns true if a rank has not come back from a call that failed. It may still read the
  /// inputs and parameters, which must stay as long as the process.
  bool isStuck() const;
  /// Returns true if the program serves requests, for a `Server`.
  bool serves() const;

  struct Impl;
  Impl &getImpl() const { return *impl; }

private:
  friend class Plan;
  friend class Bundle;
  std::shared_ptr<Impl> impl;
};

/// A request and its logits, which both grow with its steps.
struct ServedRequest {
  std::shared_ptr<const Request> request;
  /// The rows of logits that chose the new tokens, in `Server::getLogitsType`. Null if the request
  /// did not ask for them.
  std::shared_ptr<const std::vector<char>> logits;
};

/// Serves requests by the calls of a session. Copies share one server. Threads may share it; its calls
/// wait for one another. A thread that reads a request must not do so during a step.
class Server {
public:
  /// Goes on with the requests of the state that the session started from. It is an error if the
  /// program does not serve.
  static Result<Server> open(const Session &session);

  const ServingSizes &getSizes() const;
  ElementType getLogitsType() const;
  /// The names of the entries, in the order of `ServingStats::calls`.
  std::vector<std::string> getEntries() const;

  /// Adds a request. It is an error if it cannot be served.
  Result<ServedRequest> submit(const std::vector<int64_t> &prompt, const RequestOptions &options);
  /// Ends a request; one that is done stays as it is. The result is true.
  Result<bool> cancel(const ServedRequest &request);
  /// The requests that wait or run, in the order of submission.
  std::vector<ServedRequest> getRequests() const;
  ServingStats getStats() const;
  /// Runs one batch. The result is how many tokens it computed: 0 if no request waits or runs. A
  /// step that fails changes no request.
  Result<int64_t> step();
  /// Runs each entry once, without requests. The result is true.
  Result<bool> warmUp();
  /// Writes the state and the requests to a folder, whole or not at all. The result is true.
  Result<bool> save(std::string_view folder) const;

private:
  struct Impl;
  std::shared_ptr<Impl> impl;
};

/// Sets a function that calls ask while they wait, about ten times a second, on the thread of the call.
/// If it returns true, the call fails and leaves the state as it was. Null, the default, for none.
void setInterruptCheck(bool (*check)());
/// Ends all calls that run, and refuses new ones, because the process ends. Returns false if a rank is
/// still at work after so many seconds.
bool endRuns(double seconds);

/// A compiled program on disk (docs/bundles.md).
class Bundle {
public:
  /// Reads the description of a bundle.
  static Result<Bundle> open(std::string_view path);
  const std::vector<Entry> &getEntries() const;
  const std::vector<Port> &getStates() const;
  int64_t getNumRanks() const;
  /// Starts a session. A bundle takes no `target`.
  Result<Session> start(const SessionOptions &options = {}) const;

  struct Impl;

private:
  std::shared_ptr<const Impl> impl;
};

/// A program that is ready to run: rewritten for the ranks of a mesh, or as it is. Threads may
/// share a plan; its runs wait for one another.
class Plan {
public:
  /// The groups of requests of a program that serves, for these options of `parallelize`: the ranks
  /// of data parallelism, times the groups of data-parallel attention.
  static Result<int64_t> countGroups(std::string_view options);
  /// The ranks over which such a program deals the pages of a group: 1 for a cache by heads.
  static Result<int64_t> countDealt(std::string_view options);
  /// How the tokens of its groups meet.
  static Result<TokenGather> getTokenGather(std::string_view options);
  /// `options` as for `sharding-opt --parallelize`.
  static Result<Plan> parallelize(const Program &program, std::string_view options);

  /// Plans to run a program as it is: an SPMD program on its ranks, a global one on one
  /// rank.
  static Result<Plan> asIs(const Program &program);

  /// Returns a phase as MLIR. Fails for a phase that the plan does not have: an SPMD program
  /// enters after the first phases.
  Result<std::string> str(PlanPhase phase, bool locations = false, bool generic = false) const;
  /// Describes an entry (empty: the default one), and the memory that all entries share. The
  /// report on the default entry also has what the last run with `measure` measured. Empty for
  /// an unknown entry, and for an SPMD program that runs as it is and whose layouts are wrong. With
  /// `verbose` text has the decisions, and JSON the launches, buffers and layouts of the entry.
  std::string report(ReportFormat format, std::string_view entry = "", bool verbose = false) const;
  int64_t getNumRanks() const;
  /// The ports are those of `Program`.
  const std::vector<Entry> &getEntries() const;
  const std::vector<Port> &getInputs() const;
  const std::vector<Port> &getOutputs() const;
  const std::vector<Port> &getParameters() const;
  const std::vector<Port> &getStates() const;

  /// Sets the stored tensor of a parameter, by name or alias. The array must stay as long as
  /// the plan. If its contents change, the parameter must be set again. The result is true.
  Result<bool> setParameter(std::string_view name, const HostArray &array);

  /// Starts a session, and compiles before if necessary. The session keeps the parameters that are
  /// set now: their arrays must stay, unchanged, as long as the session.
  Result<Session> start(const SessionOptions &options = {});

  /// Runs once on all ranks, and compiles before if necessary: a session of one call, which starts
  /// from the initial state. `inputs` are in the order of the entry's inputs. `outputs` are arrays
  /// in the order of its outputs, which are filled. The result is true.
  Result<bool> run(const std::vector<HostArray> &inputs, const std::vector<void *> &outputs,
                   const RunOptions &options = {});

  /// Returns true if a rank has not come back from a run or check that failed. It may still
  /// read the inputs and parameters, which must stay as long as the process.
  bool isStuck() const;

  /// Compiles for a target, as in `RunOptions`, and writes a bundle, a folder that runs without the
  /// compiler (docs/bundles.md): whole or not at all, over nothing but another bundle or an empty
  /// folder. A bundle without weights needs no parameters here; they are given to each session of
  /// it (`SessionOptions`). The sessions of the bundle have the `stateDict`.
  Result<CompileSummary> compile(std::string_view path, std::string_view target = "",
                                 bool withWeights = true,
                                 const std::optional<StateDictLayout> &stateDict = {});

  /// Runs an entry of the plan (empty: the default one), runs the unsharded program on one rank,
  /// and compares the outputs and the state after it. A negative tolerance stands for that of the
  /// outputs' types: f32 1e-5, bf16 2e-2.
  Result<CheckResult> check(const std::vector<HostArray> &inputs, double tolerance = -1,
                            std::string_view entry = "");

  struct Impl;
  Impl &getImpl() const { return *impl; }

private:
  std::shared_ptr<Impl> impl;
};

} // namespace meshwright

#endif // MESHWRIGHT_COMPILER_H
