//===- Program.cpp - the public class Program ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Batch.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/SourceNesting.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/compose/Compose.h"
#include "meshwright/passes/compose/Join.h"
#include "meshwright/runtime/include/Call.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/Progress.h"

#include "mlir/Bytecode/BytecodeWriter.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"

using namespace meshwright;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;
using mlir::ModuleOp;
using nn::NnDialect;

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

struct ProgressLine::Impl : rt::Progress {
  using Progress::Progress;
};

ProgressLine::ProgressLine(std::string_view what, int64_t total)
    : impl(std::make_shared<Impl>(std::string(what), total)) {}

void ProgressLine::step() {
  if (impl)
    impl->step();
}

void ProgressLine::end() { impl.reset(); }
void ProgressLine::hide() { Impl::hide(); }

std::string_view meshwright::toString(ElementType type) { return rt::nameOf(getRuntimeType(type)); }

size_t meshwright::getByteWidth(ElementType type) { return rt::sizeOf(getRuntimeType(type)); }

//===----------------------------------------------------------------------===//
// Contexts
//===----------------------------------------------------------------------===//

std::unique_ptr<mlir::MLIRContext> meshwright::createContext() {
  mlir::DialectRegistry registry;
  registerAllDialects(registry);
  auto context =
      std::make_unique<mlir::MLIRContext>(registry, mlir::MLIRContext::Threading::DISABLED);
  context->loadAllAvailableDialects();
  context->printOpOnDiagnostic(false);
  return context;
}

DiagnosticCollector::DiagnosticCollector(mlir::MLIRContext *context)
    : handler(context, [this](mlir::Diagnostic &diagnostic) {
        auto add = [this](mlir::Diagnostic &diagnostic) {
          Severity severity = Severity::Error;
          switch (diagnostic.getSeverity()) {
          case mlir::DiagnosticSeverity::Note:
            severity = Severity::Note;
            break;
          case mlir::DiagnosticSeverity::Remark:
            severity = Severity::Remark;
            break;
          case mlir::DiagnosticSeverity::Warning:
            severity = Severity::Warning;
            break;
          case mlir::DiagnosticSeverity::Error:
            break;
          }
          SourceLocation location = getSourceLocation(diagnostic.getLocation());
          diagnostics.push_back({severity, diagnostic.str(), location.file, location.line});
        };
        add(diagnostic);
        for (mlir::Diagnostic &note : diagnostic.getNotes())
          add(note);
      }) {}

//===----------------------------------------------------------------------===//
// Ports
//===----------------------------------------------------------------------===//

mlir::FunctionOpInterface meshwright::getEntry(ModuleOp module, llvm::StringRef name) {
  for (mlir::FunctionOpInterface entry : nn::getEntries(module))
    if (name.empty() || entry.getName() == name)
      return entry;
  return nullptr;
}

const Entry *meshwright::findEntry(const std::vector<Entry> &entries, std::string_view name,
                                   std::vector<Diagnostic> &diagnostics) {
  std::string known;
  for (const Entry &entry : entries) {
    if (name.empty() || entry.name == name)
      return &entry;
    known += (known.empty() ? "'" : ", '") + entry.name + "'";
  }
  Diagnostic error;
  error.message = "the program has no entry '" + std::string(name) + "': expected " +
                  (entries.size() > 1 ? "one of " : "") + known;
  diagnostics.push_back(std::move(error));
  return nullptr;
}

/// Makes a port of that type. In an SPMD function the attribute `dist.global` states the global
/// type.
static FailureOr<Port> getPort(mlir::StringAttr name, mlir::Type type, mlir::Attribute global,
                               llvm::function_ref<mlir::InFlightDiagnostic()> emitError) {
  if (auto attr = llvm::dyn_cast_or_null<mlir::TypeAttr>(global))
    type = attr.getValue();
  auto tensor = llvm::dyn_cast<mlir::RankedTensorType>(type);
  int64_t code =
      tensor && tensor.hasStaticShape() ? getTypeCode(tensor.getElementType()) : int64_t(-1);
  if (code < 0)
    return emitError() << "expected a tensor of static shape of " << listElementTypes() << ", got "
                       << type;
  tensor = getPackedType(tensor);
  if (!tensor)
    return emitError() << "expected an even last dimension, got " << type
                       << ": two elements share a byte";
  Port port;
  port.name = name.str();
  port.type = ElementType(code);
  port.shape.assign(tensor.getShape().begin(), tensor.getShape().end());
  return port;
}

namespace {

/// Reads the ports of a module's entries.
class PortReader {
public:
  FailureOr<Ports> read(ModuleOp module);

private:
  mlir::LogicalResult readArgument(mlir::FunctionOpInterface function, unsigned index,
                                   Entry &entry);
  mlir::LogicalResult readResult(mlir::FunctionOpInterface function, unsigned index, Entry &entry);
  mlir::LogicalResult readFunction(mlir::FunctionOpInterface function, Entry &entry);
  mlir::LogicalResult readEntry(mlir::FunctionOpInterface function, Entry &entry);
  bool isWidened(const Port &state) const;
  mlir::LogicalResult addParameter(Port port, mlir::Location loc);

  Ports ports;
  /// The places of parameters, for errors.
  std::vector<mlir::Location> places;
  /// The names in the current function.
  llvm::StringSet<> inputs, parameters, outputs;
};

} // namespace

static std::string describe(const Port &port) {
  return rt::describe(rt::DType(int64_t(port.type)), port.shape);
}

/// Adds a parameter that no entry before it has.
mlir::LogicalResult PortReader::addParameter(Port port, mlir::Location loc) {
  for (auto [known, place] : llvm::zip_equal(ports.parameters, places)) {
    if (known.name != port.name || known.offsets != port.offsets)
      continue;
    // Parts of one stored tensor may begin at one element.
    if (!port.offsets.empty() && known.shape != port.shape)
      continue;
    if (known.type != port.type || known.shape != port.shape) {
      auto error = mlir::emitError(loc)
                   << "parameter '" << port.name << "': expected one type, got " << describe(port)
                   << " here and " << describe(known) << " in another entry";
      error.attachNote(place) << "the other entry's";
      return error;
    }
    for (std::string &alias : port.aliases)
      if (!llvm::is_contained(known.aliases, alias))
        known.aliases.push_back(std::move(alias));
    return mlir::success();
  }
  ports.parameters.push_back(std::move(port));
  places.push_back(loc);
  return mlir::success();
}

mlir::LogicalResult PortReader::readArgument(mlir::FunctionOpInterface function, unsigned index,
                                             Entry &entry) {
  mlir::Location loc = function.getArgument(index).getLoc();
  auto emitError = [&] {
    return mlir::emitError(loc) << "argument " << index << " of '" << function.getName() << "'";
  };
  auto input = function.getArgAttrOfType<mlir::StringAttr>(index, NnDialect::kInputAttr);
  auto parameter = function.getArgAttrOfType<mlir::StringAttr>(index, NnDialect::kParameterAttr);
  if (!input && !parameter &&
      function.getArgAttrOfType<mlir::StringAttr>(index, NnDialect::kStateAttr))
    return mlir::success();
  if (!input == !parameter)
    return emitError() << ": expected one of 'nn.input' and 'nn.parameter', got "
                       << (input ? "both" : "none");
  FailureOr<Port> port = getPort(input ? input : parameter, function.getArgumentTypes()[index],
                                 function.getArgAttr(index, dist::DistDialect::kGlobalAttr),
                                 [&] { return emitError() << ": "; });
  if (failed(port))
    return failure();
  if (auto aliases =
          function.getArgAttrOfType<mlir::ArrayAttr>(index, NnDialect::kAliasesAttr))
    for (auto alias : aliases.getAsRange<mlir::StringAttr>())
      port->aliases.push_back(alias.str());
  if (auto offsets = function.getArgAttrOfType<mlir::DenseI64ArrayAttr>(
          index, NnDialect::kParameterOffsetsAttr))
    port->offsets = offsets.asArrayRef().vec();
  if (auto number = function.getArgAttrOfType<mlir::TypedAttr>(index, NnDialect::kDefaultAttr))
    port->defaultElement = nn::getElementBytes(number);
  // Several parameters may be parts of one stored tensor and share its name.
  bool isNew = input ? inputs.insert(port->name).second
                     : parameters.insert(port->name).second || !port->offsets.empty();
  if (!isNew)
    return emitError() << " is named '" << port->name << "', as one before it";
  if (!input)
    return addParameter(std::move(*port), loc);
  entry.inputs.push_back(std::move(*port));
  return mlir::success();
}

mlir::LogicalResult PortReader::readResult(mlir::FunctionOpInterface function, unsigned index,
                                           Entry &entry) {
  auto emitError = [&] {
    return function.emitError() << "result " << index << " of '" << function.getName() << "'";
  };
  auto name = function.getResultAttrOfType<mlir::StringAttr>(index, NnDialect::kOutputAttr);
  if (!name && function.getResultAttrOfType<mlir::StringAttr>(index, NnDialect::kStateAttr))
    return mlir::success();
  if (!name)
    return emitError() << " has no 'nn.output'";
  FailureOr<Port> port = getPort(name, function.getResultTypes()[index],
                                 function.getResultAttr(index, dist::DistDialect::kGlobalAttr),
                                 [&] { return emitError() << ": "; });
  if (failed(port))
    return failure();
  if (!outputs.insert(port->name).second)
    return emitError() << " is named '" << port->name << "', as one before it";
  entry.outputs.push_back(std::move(*port));
  return mlir::success();
}

/// Returns true if a state of type f32 starts as a parameter of a narrower type, which is known.
bool PortReader::isWidened(const Port &state) const {
  return state.type == ElementType::F32 &&
         llvm::any_of(ports.parameters, [&](const Port &known) {
           return known.name == state.name && known.shape == state.shape &&
                  (known.type == ElementType::BF16 || known.type == ElementType::F16);
         });
}

/// Finds the inputs whose dimension 0 is the batch. The ports have the global shapes, in an SPMD
/// program too.
static void findBatch(mlir::FunctionOpInterface function, std::vector<Port> &inputs) {
  llvm::StringMap<std::optional<bool>> stated;
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    if (auto name = function.getArgAttrOfType<mlir::StringAttr>(i, NnDialect::kInputAttr))
      stated[name.getValue()] = nn::getStatedBatch(function, i);
  nn::BatchRule rule;
  for (const Port &input : inputs)
    rule.add(input.shape, stated[input.name]);
  for (Port &input : inputs)
    input.isBatch = rule.isBatch(input.shape, stated[input.name]);
}

mlir::LogicalResult PortReader::readFunction(mlir::FunctionOpInterface function, Entry &entry) {
  inputs.clear(), parameters.clear(), outputs.clear();
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    if (failed(readArgument(function, i, entry)))
      return failure();
  findBatch(function, entry.inputs);
  for (unsigned i = 0; i < function.getNumResults(); ++i)
    if (failed(readResult(function, i, entry)))
      return failure();
  return mlir::success();
}

/// Reads an entry. Its ports are those of all steps of a call.
mlir::LogicalResult PortReader::readEntry(mlir::FunctionOpInterface function, Entry &entry) {
  if (failed(nn::verifyCall(function)))
    return failure();
  std::vector<std::vector<Port>> inputs, outputs;
  std::vector<int64_t> chunks;
  llvm::StringSet<> whole;
  for (nn::CallStep step : nn::getSteps(function)) {
    Entry part;
    if (failed(readFunction(step.function, part)))
      return failure();
    inputs.push_back(std::move(part.inputs));
    outputs.push_back(std::move(part.outputs));
    chunks.push_back(step.chunks);
    for (unsigned i = 0; i < step.function.getNumArguments(); ++i)
      if (nn::getStatedBatch(step.function, i) == false)
        whole.insert(
            step.function.getArgAttrOfType<mlir::StringAttr>(i, NnDialect::kInputAttr).getValue());
  }
  auto isCut = [](const Port &port) { return !port.shape.empty(); };
  entry.inputs = rt::joinPorts(inputs, chunks, [&](const Port &port) {
                   return isCut(port) && !whole.contains(port.name);
                 }).values;
  entry.outputs = rt::joinPorts(outputs, chunks, isCut).values;
  return mlir::success();
}

FailureOr<Ports> PortReader::read(ModuleOp module) {
  for (mlir::FunctionOpInterface function : nn::getEntries(module)) {
    Entry &entry = ports.entries.emplace_back();
    entry.name = function.getName().str();
    if (failed(readEntry(function, entry)))
      return failure();
  }
  if (ports.entries.empty())
    return module.emitError("expected a function 'main' with a body, or another public function");
  for (auto state : module.getOps<nn::StateOp>()) {
    FailureOr<Port> port = getPort(state.getSymNameAttr(), state.getMemoryType(), nullptr,
                                   [&] { return state.emitOpError(); });
    if (failed(port))
      return failure();
    port->role = state.getRole().value_or("").str();
    if (!state.getTransient())
      ports.states.push_back(*port);
    // A parameter that only the state's initial value needs is a parameter of the program.
    port->name = state.getInitialParameter().str();
    port->role.clear();
    if (!port->name.empty() && !isWidened(*port) && failed(addParameter(std::move(*port), state.getLoc())))
      return failure();
  }
  return std::move(ports);
}

FailureOr<Ports> meshwright::getPorts(ModuleOp module) { return PortReader().read(module); }

//===----------------------------------------------------------------------===//
// Program
//===----------------------------------------------------------------------===//

std::string meshwright::print(ModuleOp module, bool locations, bool generic) {
  std::string text;
  llvm::raw_string_ostream os(text);
  mlir::OpPrintingFlags flags;
  if (locations)
    flags.enableDebugInfo();
  if (generic)
    flags.printGenericOpForm();
  module.print(os, flags);
  return text;
}

mlir::OwningOpRef<ModuleOp> Program::Impl::cloneInto(mlir::MLIRContext *other) const {
  std::string bytecode;
  llvm::raw_string_ostream os(bytecode);
  if (failed(mlir::writeBytecodeToFile(*module, os)))
    return nullptr;
  // The buffer's name is a fixed text: names of files may contain any characters.
  return mlir::parseSourceString<ModuleOp>(bytecode, mlir::ParserConfig(other), "<module>");
}

Result<Program> Program::parse(std::string_view text, std::string_view name) {
  auto impl = std::make_shared<Impl>();
  impl->context = createContext();
  DiagnosticCollector collector(impl->context.get());
  if (std::optional<SourcePosition> deep = findDeepNesting(text)) {
    mlir::emitError(mlir::FileLineColLoc::get(impl->context.get(), llvm::StringRef(name),
                                              deep->line, deep->column))
        << kDeepNesting;
    return collector.take();
  }
  impl->module = mlir::parseSourceString<ModuleOp>(text, mlir::ParserConfig(impl->context.get()),
                                                    llvm::StringRef(name));
  if (!impl->module)
    return collector.take();
  FailureOr<Ports> ports = getPorts(*impl->module);
  if (failed(ports))
    return collector.take();
  impl->ports = std::move(*ports);
  impl->isSpmd = getEntry(*impl->module)->hasAttr(dist::DistDialect::kSpmdAttr);
  Program program;
  program.impl = std::move(impl);
  return {std::move(program), collector.take()};
}

Result<Program> Program::parseFile(std::string_view path) {
  auto buffer = llvm::MemoryBuffer::getFile(llvm::StringRef(path));
  if (std::error_code code = buffer.getError()) {
    Diagnostic diagnostic;
    diagnostic.message = std::string(path) + ": " + code.message();
    return std::vector<Diagnostic>{diagnostic};
  }
  llvm::StringRef text = (*buffer)->getBuffer();
  return parse({text.data(), text.size()}, path);
}

std::string Program::str(bool locations, bool generic) const {
  return print(*impl->module, locations, generic);
}
bool Program::isSpmd() const { return impl->isSpmd; }
const std::vector<Entry> &Program::getEntries() const { return impl->ports.entries; }
const std::vector<Port> &Program::getInputs() const { return getEntries().front().inputs; }
const std::vector<Port> &Program::getOutputs() const { return getEntries().front().outputs; }
const std::vector<Port> &Program::getParameters() const { return impl->ports.parameters; }
const std::vector<Port> &Program::getStates() const { return impl->ports.states; }

/// Makes one program of several. `combine` makes its module.
template <typename Combine>
static Result<std::shared_ptr<Program::Impl>> combinePrograms(const std::vector<Stage> &stages,
                                                               Combine combine) {
  auto impl = std::make_shared<Program::Impl>();
  impl->context = createContext();
  DiagnosticCollector collector(impl->context.get());
  std::vector<StageModule> modules;
  for (const Stage &stage : stages) {
    modules.push_back({stage.name, stage.program.getImpl().cloneInto(impl->context.get())});
    if (!modules.back().module)
      return collector.take();
  }
  FailureOr<mlir::OwningOpRef<ModuleOp>> module =
      combine(impl->context.get(), std::move(modules));
  if (failed(module))
    return collector.take();
  impl->module = std::move(*module);
  FailureOr<Ports> ports = getPorts(*impl->module);
  if (failed(ports))
    return collector.take();
  impl->ports = std::move(*ports);
  return {std::move(impl), collector.take()};
}

Result<Program> Program::compose(const std::vector<Stage> &stages,
                                 const std::vector<Connection> &connections,
                                 const std::vector<std::string> &loop, int64_t steps) {
  std::vector<StageConnection> wires;
  for (const Connection &connection : connections)
    wires.push_back({connection.input, connection.output});
  Result<std::shared_ptr<Impl>> combined =
      combinePrograms(stages, [&](mlir::MLIRContext *context, std::vector<StageModule> modules) {
        return composeStages(context, std::move(modules), wires, loop, steps);
      });
  if (!combined)
    return combined.getDiagnostics();
  Program program;
  program.impl = std::move(*combined);
  return {std::move(program), combined.getDiagnostics()};
}

Result<Program> Program::join(const std::vector<Stage> &programs) {
  Result<std::shared_ptr<Impl>> combined = combinePrograms(programs, joinEntries);
  if (!combined)
    return combined.getDiagnostics();
  Program program;
  program.impl = std::move(*combined);
  return {std::move(program), combined.getDiagnostics()};
}

/// Makes a program of a copy of another one's module, which `rewrite` changes.
template <typename Rewrite>
static Result<std::shared_ptr<Program::Impl>> rewriteProgram(const Program::Impl &from,
                                                              Rewrite rewrite) {
  auto made = std::make_shared<Program::Impl>();
  made->context = createContext();
  DiagnosticCollector collector(made->context.get());
  made->module = from.cloneInto(made->context.get());
  if (!made->module || failed(rewrite(*made->module)))
    return collector.take();
  FailureOr<Ports> ports = getPorts(*made->module);
  if (failed(ports))
    return collector.take();
  made->ports = std::move(*ports);
  return {std::move(made), collector.take()};
}

Result<Program> Program::differentiate(std::string_view loss,
                                       const std::vector<std::string> &parameters,
                                       const std::vector<std::string> &frozen) const {
  Result<std::shared_ptr<Impl>> made = rewriteProgram(*impl, [&](ModuleOp module) {
    return requestGradients(module, loss, parameters, frozen);
  });
  if (!made)
    return made.getDiagnostics();
  Program program;
  program.impl = std::move(*made);
  return {std::move(program), made.getDiagnostics()};
}

Result<Program> Program::train(const TrainOptions &options) const {
  Result<std::shared_ptr<Impl>> made =
      rewriteProgram(*impl, [&](ModuleOp module) { return buildSteps(module, options); });
  if (!made)
    return made.getDiagnostics();
  Program program;
  program.impl = std::move(*made);
  return {std::move(program), made.getDiagnostics()};
}

Result<Program> Program::serve(const ServeOptions &options) const {
  Result<std::shared_ptr<Impl>> made =
      rewriteProgram(*impl, [&](ModuleOp module) { return buildServing(module, options); });
  if (!made)
    return made.getDiagnostics();
  Program program;
  program.impl = std::move(*made);
  return {std::move(program), made.getDiagnostics()};
}
