//===- Run.cpp - programs for those who run them --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright-c/Run.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Launches/IndexBound.h"
#include "meshwright/lib/Facade/PlanState.h"
#include "meshwright/lib/Execute/CompileBundle.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/passes/schedule/PlannedMemory.h"
#include "meshwright/runtime/include/SafeTensors.h"

#include "mlir/Parser/Parser.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace meshwright;
using mlir::failed;
using mlir::FailureOr;
using mlir::succeeded;

namespace {

/// A port with what it points to.
struct OwnedPort {
  Port port;
  std::vector<const char *> aliases;
  mw_port view;
};

} // namespace

struct mw_program {
  mw_say say = nullptr;
  void *user = nullptr;
  /// The program rewritten for several ranks, or else compiled as it is.
  std::optional<Plan> plan;
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::unique_ptr<Executable> executable;
  std::string backend, targetCpu;
  std::unique_ptr<rt::SafeTensorsFile> weights;
  std::map<std::string, rt::HostTensor, std::less<>> parameters;
  std::vector<OwnedPort> ports[3];
  std::string report;

  ~mw_program() {
    // Not unmapped where a rank that did not come back may read it.
    if (isStuck())
      (void)weights.release();
  }
  bool isStuck() const {
    return plan ? plan->isStuck() : executable && executable->getProgram().getWorld().isStuck();
  }
  void tell(const std::vector<Diagnostic> &diagnostics) const;
  int32_t fail(const std::string &message) const {
    say(user, MW_ERROR, "", message.c_str());
    return 1;
  }
  bool open(const char *path, const char *parallelize);
  bool compile(const char *backend, const char *targetCpu);
  bool buildReport(Report &report);
};

void mw_program::tell(const std::vector<Diagnostic> &diagnostics) const {
  for (const Diagnostic &diagnostic : diagnostics) {
    std::string where = diagnostic.file;
    if (!where.empty() && diagnostic.line)
      where += ":" + std::to_string(diagnostic.line);
    say(user, int32_t(diagnostic.severity), where.c_str(), diagnostic.message.c_str());
  }
}

//===----------------------------------------------------------------------===//
// Ports
//===----------------------------------------------------------------------===//

static int64_t codeOf(ElementType type) {
  switch (type) {
  case ElementType::F32:
    return MW_F32;
  case ElementType::BF16:
    return MW_BF16;
  case ElementType::F16:
    return MW_F16;
  case ElementType::F64:
    return MW_F64;
  case ElementType::I64:
    return MW_I64;
  case ElementType::I32:
    return MW_I32;
  case ElementType::I1:
    return MW_I1;
  }
  return MW_F32;
}

static ElementType typeOf(int64_t code) {
  switch (code) {
  case MW_BF16:
    return ElementType::BF16;
  case MW_F16:
    return ElementType::F16;
  case MW_F64:
    return ElementType::F64;
  case MW_I64:
    return ElementType::I64;
  case MW_I32:
    return ElementType::I32;
  case MW_I1:
    return ElementType::I1;
  default:
    return ElementType::F32;
  }
}

static std::vector<OwnedPort> ownPorts(const std::vector<Port> &ports) {
  std::vector<OwnedPort> owned(ports.size());
  for (size_t i = 0; i < ports.size(); ++i) {
    OwnedPort &to = owned[i];
    to.port = ports[i];
    for (const std::string &alias : to.port.aliases)
      to.aliases.push_back(alias.c_str());
    to.view = {to.port.name.c_str(),
               codeOf(to.port.type),
               int64_t(to.port.shape.size()),
               to.port.shape.data(),
               int64_t(to.aliases.size()),
               to.aliases.data(),
               0};
  }
  return owned;
}

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

bool mw_program::open(const char *path, const char *parallelize) {
  auto buffer = llvm::MemoryBuffer::getFile(path);
  if (std::error_code code = buffer.getError()) {
    fail(std::string(path) + ": " + code.message());
    return false;
  }
  context = createContext();
  {
    DiagnosticCollector collector(context.get());
    module = mlir::parseSourceString<mlir::ModuleOp>(
        (*buffer)->getBuffer(), mlir::ParserConfig(context.get()), llvm::StringRef(path));
    FailureOr<Ports> found = mlir::failure();
    if (module)
      found = getPorts(*module);
    tell(collector.take());
    if (failed(found))
      return false;
    ports[MW_INPUT] = ownPorts(found->inputs);
    ports[MW_PARAMETER] = ownPorts(found->parameters);
    ports[MW_OUTPUT] = ownPorts(found->outputs);
  }
  mlir::FunctionOpInterface main = getEntry(*module);
  size_t input = 0;
  for (unsigned i = 0; i < main.getNumArguments(); ++i)
    if (main.getArgAttr(i, nn::NnDialect::kInputAttr))
      ports[MW_INPUT][input++].view.index_bound = getIndexBound(main.getArgument(i));
  if (parallelize) {
    Result<Program> program = Program::parseFile(path);
    tell(program.getDiagnostics());
    if (!program)
      return false;
    Result<Plan> parallel = Plan::parallelize(*program, parallelize);
    tell(parallel.getDiagnostics());
    if (!parallel)
      return false;
    plan = *parallel;
  }
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

int64_t mw_program_count(const mw_program *program, int32_t kind) {
  return program->ports[kind].size();
}

const mw_port *mw_program_port(const mw_program *program, int32_t kind, int64_t index) {
  return &program->ports[kind][index].view;
}

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

static std::vector<int64_t> shapeOf(const mw_tensor &tensor) {
  return std::vector<int64_t>(tensor.shape, tensor.shape + tensor.rank);
}

static HostArray toArray(const mw_tensor &tensor) {
  return {typeOf(tensor.dtype), shapeOf(tensor), tensor.data};
}

static rt::HostTensor toHostTensor(const mw_tensor &tensor) {
  return {rt::DType(tensor.dtype), shapeOf(tensor), tensor.data};
}

int32_t mw_program_load_weights(mw_program *program, const char *path) {
  std::string error;
  auto weights = rt::SafeTensorsFile::open(path, error);
  if (!weights)
    return program->fail(error);
  // All or none: the file before this one goes, or this one.
  std::map<std::string, rt::HostTensor, std::less<>> parameters;
  for (const OwnedPort &owned : program->ports[MW_PARAMETER]) {
    const Port &port = owned.port;
    const rt::SafeTensorsFile::Tensor *tensor = weights->find(port.name);
    for (const std::string &alias : port.aliases)
      if (!tensor)
        tensor = weights->find(alias);
    if (!tensor)
      return program->fail(std::string(path) + " has no tensor '" + port.name +
                           "', a parameter of the program");
    if (!tensor->supported)
      return program->fail("parameter '" + port.name + "' is of type " + tensor->storedType +
                           " in " + path + ", which programs do not have");
    rt::HostTensor stored{tensor->type, tensor->shape, tensor->data};
    rt::ProgramValue expected;
    expected.name = port.name;
    expected.type = rt::DType(codeOf(port.type));
    expected.shape = port.shape;
    expected.offsets = port.offsets;
    if (std::string problem = rt::checkParameter(expected, stored); !problem.empty())
      return program->fail(std::string(path) + ": " + problem);
    parameters.insert_or_assign(port.name, stored);
  }
  if (program->plan)
    for (const auto &[name, stored] : parameters)
      // Checked above.
      (void)program->plan->setParameter(name,
                                        {typeOf(int64_t(stored.type)), stored.shape, stored.data});
  program->parameters = std::move(parameters);
  if (program->isStuck())
    (void)program->weights.release();
  program->weights = std::move(weights);
  program->executable.reset();
  return 0;
}

int32_t mw_program_is_stuck(const mw_program *program) { return program->isStuck(); }

/// For programs that run as they are.
bool mw_program::compile(const char *backend, const char *targetCpu) {
  if (executable && this->backend == backend && this->targetCpu == targetCpu)
    return true;
  DiagnosticCollector collector(context.get());
  CompileOptions options;
  options.backend = backend;
  options.targetCpu = targetCpu;
  FailureOr<std::unique_ptr<Executable>> compiled = Executable::compile(*module, options);
  tell(collector.take());
  if (failed(compiled))
    return false;
  for (const auto &[name, tensor] : parameters)
    if (std::string error; !(*compiled)->getProgram().setParameter(name, tensor, error)) {
      fail(error);
      return false;
    }
  executable = std::move(*compiled);
  this->backend = backend;
  this->targetCpu = targetCpu;
  return true;
}

static std::vector<HostArray> toArrays(const mw_program *program, const mw_tensor *inputs) {
  std::vector<HostArray> arrays;
  for (size_t i = 0; i < program->ports[MW_INPUT].size(); ++i)
    arrays.push_back(toArray(inputs[i]));
  return arrays;
}

int32_t mw_program_run(mw_program *program, const mw_tensor *inputs, void *const *outputs,
                       const mw_run_options *options) {
  std::vector<void *> results(outputs, outputs + program->ports[MW_OUTPUT].size());
  const char *backend = options->backend ? options->backend : "local";
  const char *targetCpu = options->target_cpu ? options->target_cpu : "";
  if (program->plan) {
    RunOptions settings;
    settings.backend = backend;
    settings.threadsPerRank = options->threads_per_rank;
    settings.timeout = options->timeout;
    settings.checkFinite = options->check_finite != 0;
    settings.measure = options->measure != 0;
    settings.targetCpu = targetCpu;
    if (options->trace)
      settings.trace = options->trace;
    Result<bool> done = program->plan->run(toArrays(program, inputs), results, settings);
    program->tell(done.getDiagnostics());
    return done ? 0 : 1;
  }
  if (!program->compile(backend, targetCpu))
    return 1;
  std::vector<rt::HostTensor> tensors;
  for (size_t i = 0; i < program->ports[MW_INPUT].size(); ++i)
    tensors.push_back(toHostTensor(inputs[i]));
  rt::RunOptions settings;
  settings.threadsPerRank = options->threads_per_rank;
  settings.timeout = options->timeout;
  settings.checkFinite = options->check_finite != 0;
  settings.measure = options->measure != 0;
  if (options->trace)
    settings.traceFile = options->trace;
  std::string error;
  if (!program->executable->getProgram().run(tensors, results, settings, error))
    return program->fail(error);
  return 0;
}

int32_t mw_program_check(mw_program *program, const mw_tensor *inputs, double tolerance) {
  if (!program->plan)
    return program->fail("a check compares a rewritten program with the one it was: expected "
                         "options to parallelize");
  Result<CheckResult> result = program->plan->check(toArrays(program, inputs), tolerance);
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
  if (program->plan) {
    program->report = program->plan->report(json ? ReportFormat::Json : ReportFormat::Text);
    return program->report.c_str();
  }
  Report report;
  if (!program->buildReport(report))
    return nullptr;
  program->report = toString(report, json ? ReportFormat::Json : ReportFormat::Text);
  return program->report.c_str();
}

bool mw_program::buildReport(Report &report) {
  mlir::FunctionOpInterface main = getEntry(*module);
  if (main->hasAttr(dist::DistDialect::kSpmdAttr)) {
    DiagnosticCollector collector(context.get());
    FailureOr<Report> built = ::meshwright::buildReport(main);
    tell(collector.take());
    if (failed(built))
      return false;
    report = std::move(*built);
  }
  // A program for one rank sends nothing.
  report.memory = planMemory(main).memory;
  if (!executable)
    return true;
  if (rt::RunReport run = executable->getProgram().getRunReport(); run.ranks > 0) {
    report.runText = run.toText();
    report.runJson = run.toJson();
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Compiling ahead of time
//===----------------------------------------------------------------------===//

int32_t mw_program_compile(mw_program *program, const char *bundle, const char *target_cpu) {
  std::string target = target_cpu ? target_cpu : "";
  if (program->plan) {
    Result<CompileSummary> done = program->plan->compile(bundle, target);
    program->tell(done.getDiagnostics());
    return done ? 0 : 1;
  }
  BundleOptions options;
  options.compile.targetCpu = target;
  Report report;
  if (!program->buildReport(report))
    return 1;
  options.textReport = toString(report, ReportFormat::Text);
  options.jsonReport = toString(report, ReportFormat::Json);
  DiagnosticCollector collector(program->context.get());
  bool fine = succeeded(compileBundle(*program->module, bundle, program->parameters, options));
  program->tell(collector.take());
  return fine ? 0 : 1;
}
