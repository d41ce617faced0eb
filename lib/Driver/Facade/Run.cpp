//===- Run.cpp - the C interface of the tools -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright-c/Run.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Driver/Facade/Handles.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Driver/Facade/WeightTensors.h"
#include "meshwright/lib/Launches/IndexBound.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/runtime/include/RandomWeights.h"
#include "meshwright/runtime/include/SafeTensors.h"
#include "meshwright/runtime/include/SessionHandle.h"

using namespace meshwright;

/// A plan, the file of its weights, and views of its ports. Everything that this interface
/// does is done by the plan.
struct mw_program {
  mw_say say = nullptr;
  void *user = nullptr;
  std::optional<Plan> plan;
  std::vector<rt::WeightTensor> tensors;
  /// Own the memory of the parameters: one or the other.
  std::unique_ptr<rt::SafeTensorsFile> weights;
  std::vector<rt::Memory> randomWeights;
  /// Parameters, and the inputs and outputs of each entry.
  std::vector<OwnedPort> parameters;
  std::vector<EntryPorts> entries;
  size_t selected = 0;
  std::string report;

  ~mw_program() { ownWeights(nullptr, {}); }
  /// Takes the memory of the parameters, and frees that of those before, unless a rank that
  /// did not come back may still read it.
  void ownWeights(std::unique_ptr<rt::SafeTensorsFile> file, std::vector<rt::Memory> memory) {
    if (plan && plan->isStuck()) {
      (void)weights.release();
      for (rt::Memory &old : randomWeights)
        (void)old.release();
    }
    weights = std::move(file);
    randomWeights = std::move(memory);
  }
  void tell(const std::vector<Diagnostic> &diagnostics) const;
  int32_t fail(const std::string &message) const {
    say(user, MW_ERROR, "", message.c_str());
    return 1;
  }
  bool open(const char *path, const char *parallelize);
  const std::vector<OwnedPort> &getPorts(int32_t kind) const {
    const EntryPorts &entry = entries[selected];
    return kind == MW_PARAMETER ? parameters : kind == MW_INPUT ? entry.inputs : entry.outputs;
  }
};

void mw_program::tell(const std::vector<Diagnostic> &diagnostics) const {
  meshwright::tell(diagnostics, say, user);
}

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

int32_t mw_check_options(const char *parallelize, const char *target, mw_say say, void *user) {
  auto fail = [&](const llvm::Twine &message) -> mlir::LogicalResult {
    say(user, MW_ERROR, "", message.str().c_str());
    return mlir::failure();
  };
  if (parallelize && failed(readParallelizeOptions(parallelize, fail)))
    return 1;
  if (!target)
    return 0;
  auto known = getKernelTarget(target);
  return known ? 0 : int32_t(failed(fail(toString(known.takeError()))));
}

bool mw_program::open(const char *path, const char *parallelize) {
  Result<Program> program = Program::parseFile(path);
  tell(program.getDiagnostics());
  if (!program)
    return false;
  parameters = ownPorts(program->getParameters());
  tensors = getWeightTensors(program->getImpl());
  for (OwnedPort &owned : parameters)
    owned.view.index_bound = llvm::find_if(tensors, [&](const rt::WeightTensor &tensor) {
                               return tensor.name == owned.port.name;
                             })->indexBound;
  for (const Entry &entry : program->getEntries()) {
    EntryPorts &ports = entries.emplace_back();
    ports.inputs = ownPorts(entry.inputs);
    ports.outputs = ownPorts(entry.outputs);
    auto function = getEntry(*program->getImpl().module, entry.name);
    size_t next = 0;
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (function.getArgAttr(i, nn::NnDialect::kInputAttr))
        ports.inputs[next++].view.index_bound = getIndexBound(function.getArgument(i));
  }
  Result<Plan> planned =
      parallelize ? Plan::parallelize(*program, parallelize) : Plan::asIs(*program);
  tell(planned.getDiagnostics());
  if (!planned)
    return false;
  plan = *planned;
  return true;
}

mw_program *mw_program_open(const char *path, const char *parallelize, mw_say say, void *user) {
  auto program = std::make_unique<mw_program>();
  program->say = say;
  program->user = user;
  if (!program->open(path, parallelize))
    return nullptr;
  return program.release();
}

void mw_program_close(mw_program *program) { delete program; }

int32_t mw_program_select(mw_program *program, const char *entry) {
  std::vector<Diagnostic> diagnostics;
  const std::vector<Entry> &entries = program->plan->getEntries();
  const Entry *found = findEntry(entries, entry ? entry : "", diagnostics);
  program->tell(diagnostics);
  if (!found)
    return 1;
  program->selected = found - entries.data();
  return 0;
}

int64_t mw_program_count(const mw_program *program, int32_t kind) {
  if (kind == MW_INPUT || kind == MW_OUTPUT || kind == MW_PARAMETER)
    return program->getPorts(kind).size();
  program->fail("ports of kind " + std::to_string(kind) +
                ": expected MW_INPUT, MW_OUTPUT or MW_PARAMETER");
  return -1;
}

const mw_port *mw_program_port(const mw_program *program, int32_t kind, int64_t index) {
  int64_t count = mw_program_count(program, kind);
  if (index >= 0 && index < count)
    return &program->getPorts(kind)[index].view;
  if (count >= 0)
    program->fail("port " + std::to_string(index) + ": expected a number from 0 on, below " +
                  std::to_string(count));
  return nullptr;
}

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

/// Returns none, with an error, if a tensor's type or rank is not valid.
static std::optional<std::vector<HostArray>> getInputs(const mw_program *program,
                                                       const mw_tensor *inputs) {
  const std::vector<OwnedPort> &ports = program->getPorts(MW_INPUT);
  for (size_t i = 0; i < ports.size(); ++i)
    if (!rt::sizeOf(rt::DType(inputs[i].dtype)) || inputs[i].rank < 0) {
      program->fail("input '" + ports[i].port.name +
                    "': expected a type of meshwright-c/ElementTypes.def with 0 dimensions or "
                    "more, got type " +
                    std::to_string(inputs[i].dtype) + " with " + std::to_string(inputs[i].rank) +
                    " dimensions");
      return std::nullopt;
    }
  return toArrays(inputs, ports.size());
}

int32_t mw_program_load_weights(mw_program *program, const char *path) {
  std::string error;
  auto weights = rt::SafeTensorsFile::open(path, error);
  if (!weights)
    return program->fail(error);
  // All parameters are checked before any is set: after an error the file before this one
  // stays in use.
  std::map<std::string, HostArray> parameters;
  for (const OwnedPort &owned : program->parameters) {
    const Port &port = owned.port;
    const rt::SafeTensorsFile::Tensor *tensor =
        weights->findParameter(port.name, port.aliases, error);
    if (!tensor)
      return program->fail(error);
    rt::HostTensor stored{tensor->type, tensor->shape, tensor->data};
    rt::ProgramValue expected;
    expected.name = port.name;
    expected.type = getRuntimeType(port.type);
    expected.shape = port.shape;
    expected.offsets = port.offsets;
    if (std::string problem = rt::checkParameter(expected, stored); !problem.empty())
      return program->fail(std::string(path) + ": " + problem);
    parameters.insert_or_assign(
        port.name, HostArray{getElementType(tensor->type), tensor->shape, tensor->data});
  }
  for (const auto &[name, array] : parameters)
    (void)program->plan->setParameter(name, array);
  program->ownWeights(std::move(weights), {});
  return 0;
}

int32_t mw_program_random_weights(mw_program *program, uint64_t seed) {
  std::vector<rt::Memory> memory;
  for (const rt::WeightTensor &tensor : program->tensors) {
    memory.push_back(rt::drawWeight(tensor, seed));
    if (!memory.back())
      return program->fail("out of memory for parameter '" + tensor.name + "'");
  }
  for (auto [tensor, values] : llvm::zip_equal(program->tensors, memory)) {
    Result<bool> done = program->plan->setParameter(
        tensor.name, {getElementType(tensor.type), tensor.shape, values.get()});
    program->tell(done.getDiagnostics());
    if (!done)
      return 1;
  }
  program->ownWeights(nullptr, std::move(memory));
  return 0;
}

int32_t mw_program_is_stuck(const mw_program *program) { return program->plan->isStuck(); }

int32_t mw_program_run(mw_program *program, const mw_tensor *inputs, void *const *outputs,
                       const mw_run_options *options) {
  std::optional<std::vector<HostArray>> arrays = getInputs(program, inputs);
  if (!arrays)
    return 1;
  if (options->state && !*options->state)
    return program->fail(rt::kEmptyState);
  std::vector<void *> results(outputs, outputs + program->getPorts(MW_OUTPUT).size());
  RunOptions settings;
  settings.entry = program->plan->getEntries()[program->selected].name;
  if (options->state)
    settings.state = options->state;
  if (options->save_state)
    settings.saveState = options->save_state;
  settings.recover = options->no_recover == 0;
  if (options->backend)
    settings.backend = options->backend;
  settings.threadsPerRank = options->threads_per_rank;
  settings.timeout = options->timeout;
  settings.checkFinite = options->check_finite != 0;
  settings.measure = options->measure != 0;
  if (options->target)
    settings.target = options->target;
  if (options->trace)
    settings.trace = options->trace;
  Result<bool> done = program->plan->run(*arrays, results, settings);
  program->tell(done.getDiagnostics());
  return done ? 0 : 1;
}

int32_t mw_program_check(mw_program *program, const mw_tensor *inputs, double tolerance) {
  std::optional<std::vector<HostArray>> arrays = getInputs(program, inputs);
  if (!arrays)
    return 1;
  Result<CheckResult> result = program->plan->check(
      *arrays, tolerance,
      program->plan->getEntries()[program->selected].name);
  program->tell(result.getDiagnostics());
  if (!result)
    return 1;
  for (const OutputDifference &output : result->outputs) {
    char text[64];
    std::snprintf(text, sizeof(text), "' differs by %.2e", output.difference);
    program->say(program->user, MW_NOTE, "", ("output '" + output.name + text).c_str());
  }
  if (result->passed)
    return 0;
  std::string where = result->file;
  if (!where.empty() && result->line)
    where += ":" + std::to_string(result->line);
  program->say(program->user, MW_ERROR, where.c_str(),
               ("the check failed: " + result->firstDifference).c_str());
  return 3;
}

const char *mw_program_report(mw_program *program, int32_t json) {
  std::vector<Diagnostic> diagnostics;
  bool isComplete = mlir::succeeded(program->plan->getImpl().completeReport(diagnostics));
  program->tell(diagnostics);
  if (!isComplete)
    return nullptr;
  program->report = program->plan->report(json ? ReportFormat::Json : ReportFormat::Text, /*entry=*/"",
                                          /*verbose=*/json != 1);
  return program->report.c_str();
}

mw_session *mw_program_start(mw_program *program, const mw_run_options *options) {
  if (options->state && !*options->state) {
    program->fail(rt::kEmptyState);
    return nullptr;
  }
  Result<Session> session = program->plan->start(toSessionOptions(*options));
  program->tell(session.getDiagnostics());
  if (!session)
    return nullptr;
  const Session::Impl &impl = session->getImpl();
  return rt::openHandle(impl.session, impl.options, program->say, program->user);
}

//===----------------------------------------------------------------------===//
// Compiling ahead of time
//===----------------------------------------------------------------------===//

static int32_t compile(mw_program *program, const char *bundle, const char *target,
                       bool withWeights) {
  Result<CompileSummary> done = program->plan->compile(bundle, target ? target : "", withWeights);
  program->tell(done.getDiagnostics());
  return done ? 0 : 1;
}

int32_t mw_program_compile(mw_program *program, const char *bundle, const char *target) {
  return compile(program, bundle, target, /*withWeights=*/true);
}

int32_t mw_program_compile_without_weights(mw_program *program, const char *bundle,
                                           const char *target) {
  return compile(program, bundle, target, /*withWeights=*/false);
}
