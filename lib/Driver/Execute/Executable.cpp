//===- Executable.cpp - compile in process and run on ranks ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Executable.h"

#include "Jit.h"
#include "Signature.h"

#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Driver/Program/Lower.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/bind/PackElements.h"
#include "meshwright/runtime/include/Cpu.h"
#include "meshwright/runtime/include/Progress.h"

#include <cstring>

using namespace mlir;

namespace meshwright {

struct Executable::LoadedProgram {
  rt::ProgramDescription description;
  std::shared_ptr<LoadedCode> code;
  std::vector<ProbedValue> probed;
};

/// Bytes that own their data.
static rt::Bytes own(std::vector<char> data) {
  auto owner = std::make_shared<std::vector<char>>(std::move(data));
  return {std::shared_ptr<const void>(owner, owner->data()), int64_t(owner->size())};
}

/// Adds the lowered code of an entry to its description.
static void addCode(LoweredProgram &lowered, rt::EntryDescription &entry,
                    rt::ProgramDescription &program) {
  entry.arenaBytes = lowered.arenaBytes;
  for (const PreparedWeight &prepared : lowered.prepared) {
    const rt::ProgramArgument &from = entry.arguments[prepared.argument];
    rt::PreparedWeight wanted{from.kind, from.index, prepared.offset, prepared.packing};
    auto known = llvm::find_if(program.prepared, [&](const rt::PreparedWeight &other) {
      return other.isOf(wanted.kind, wanted.index) && other.offset == wanted.offset &&
             std::memcmp(&other.packing, &wanted.packing, sizeof(wanted.packing)) == 0;
    });
    entry.prepared.push_back(known - program.prepared.begin());
    if (known == program.prepared.end())
      program.prepared.push_back(wanted);
  }
  for (auto [argument, isRead] : llvm::zip_equal(entry.arguments, lowered.isRead))
    argument.isRead = isRead;
  // Results that are states come last.
  for (const StateResult &result :
       ArrayRef<StateResult>(lowered.results).take_back(entry.stateResults.size()))
    entry.updates.push_back({result.kind == UpdateKind::Rows    ? rt::StateUpdate::Rows
                             : result.kind == UpdateKind::Whole ? rt::StateUpdate::Whole
                                                                : rt::StateUpdate::Elsewhere,
                             result.logBytes});
  program.calls.insert(lowered.calls.begin(), lowered.calls.end());
  entry.ops = std::move(lowered.ops);
  entry.fused = std::move(lowered.fused);
  entry.arenaInUse = std::move(lowered.arenaInUse);
  for (LoweredConstant &constant : lowered.constants) {
    rt::ProgramConstant &added = entry.constants.emplace_back();
    added.data = own(std::move(constant.data));
    added.axes = constant.axes;
  }
}

/// Returns true for a program that is not bound, has gradients, or rounds weights.
static bool needsPreparation(ModuleOp module) {
  return !module.getOps<nn::StateOp>().empty() ||
         module
             .walk([](Operation *op) {
               auto fetch = dyn_cast<dist::FetchOp>(op);
               return isa<nn::GradientOp>(op) || (fetch && fetch.getForm())
                          ? WalkResult::interrupt()
                          : WalkResult::advance();
             })
             .wasInterrupted();
}

FailureOr<CompiledProgram> compileProgram(ModuleOp given, const CompileOptions &options) {
  // A program that runs as it is still reads and writes its state by name, and has its gradients.
  OwningOpRef<ModuleOp> bound;
  ModuleOp module = given;
  if (needsPreparation(given)) {
    bound = given.clone();
    module = *bound;
    if (failed(prepareAsIs(module)))
      return failure();
  }
  SmallVector<FunctionOpInterface> wanted = nn::getEntries(module);
  llvm::erase_if(wanted, [&](FunctionOpInterface entry) {
    return !options.entry.empty() && entry.getName() != options.entry;
  });
  // The signature has the types of the program, its code those of bytes.
  OwningOpRef<ModuleOp> packed;
  if (sharesBytes(module)) {
    packed = module.clone();
    if (failed(packElements(*packed)))
      return failure();
  }
  SmallVector<func::FuncOp> entries;
  for (FunctionOpInterface function : nn::getRunFunctions(wanted))
    if (auto entry = dyn_cast<func::FuncOp>(*function))
      entries.push_back(entry);
  if (entries.empty())
    return emitError(module.getLoc(), "the module has no entry")
           << (options.entry.empty() ? "" : " '" + options.entry + "'")
           << ": expected a public function with a body";
  rt::Progress progress("compiling");
  CompiledProgram program;
  rt::ProgramDescription &description = program.description;
  std::shared_ptr<const KernelTarget> target = getKernelTarget(entries.front(), options.target);
  if (!target)
    return failure();
  LowerOptions lowering;
  lowering.probes = options.probes;
  lowering.schedule = options.schedule;
  lowering.target = target;
  Signatures signatures(module, description);
  std::vector<LoweredProgram> lowered;
  for (auto [i, function] : llvm::enumerate(entries)) {
    lowering.symbol = rt::getEntrySymbol(i);
    if (failed(signatures.add(function)))
      return failure();
    FailureOr<LoweredProgram> code = lowerProgram(
        packed ? packed->lookupSymbol<func::FuncOp>(function.getName()) : function, lowering);
    if (failed(code))
      return failure();
    addCode(*code, description.entries.back(), description);
    if (dist::MeshAttr mesh = dist::getSpmdMesh(function))
      description.entries.back().seconds =
          double(getProgramCost(function, CostModel(mesh)).getTime()) * 1e-12;
    lowered.push_back(std::move(*code));
  }
  if (failed(signatures.finish()))
    return failure();
  description.serving = nn::getServingSizes(given);
  if (std::optional<nn::ModelHash> hash = nn::getModelHash(given))
    description.model = {hash->parameters, hash->operations, ""};
  auto code = compileCode(lowered, *target, &program.statistics);
  if (!code)
    return emitError(entries.front().getLoc()) << llvm::toString(code.takeError());
  program.objects = std::move(code->objects);
  for (auto &[name, text] : code->kernels) {
    // The end of the text is a zero byte.
    std::vector<char> bytes(text.c_str(), text.c_str() + text.size() + 1);
    description.kernels.push_back({name, own(std::move(bytes))});
  }
  description.targetChip = target->getDeviceChip();
  program.probes = std::move(lowered.front().probes);
  description.targetCpu = target->getHost().cpu;
  description.targetFeatures = target->getHost().select(rt::getKnownFeatures());
  return program;
}

FailureOr<std::unique_ptr<Executable>> Executable::compile(ModuleOp module,
                                                           const CompileOptions &options) {
  FailureOr<CompiledProgram> compiled = compileProgram(module, options);
  if (failed(compiled))
    return failure();
  std::string missing = rt::getMissingFeatures(compiled->description.targetFeatures);
  if (!missing.empty())
    return emitError(module.getLoc()) << "cannot run code for '" << compiled->description.targetCpu
                                      << "' here: this processor has no " << missing;
  auto code = LoadedCode::load(compiled->objects, compiled->description.entries.size());
  if (!code)
    return emitError(module.getLoc(), "cannot be loaded: ") << llvm::toString(code.takeError());
  auto loaded = std::make_unique<LoadedProgram>();
  loaded->description = std::move(compiled->description);
  loaded->code = std::move(*code);
  for (const ProbedOp &probe : compiled->probes) {
    ProbedValue value{probe.id, probe.name, rt::DType(probe.type), probe.shape, {}};
    value.values.resize(loaded->description.numRanks);
    loaded->probed.push_back(std::move(value));
  }
  return std::unique_ptr<Executable>(new Executable(std::move(loaded)));
}

Executable::Executable(std::unique_ptr<LoadedProgram> loaded) : loaded(std::move(loaded)) {}
Executable::~Executable() = default;

std::unique_ptr<rt::Session> Executable::start(const std::string &backend, std::string &error) {
  auto session = rt::Session::create(loaded->description, loaded->code->getEntries(), loaded->code,
                                     backend, error);
  if (!session || loaded->probed.empty())
    return session;
  session->getWorld().setProbe(
      [raw = loaded.get()](int64_t rank, int64_t probe, const void *data) {
        ProbedValue &value = raw->probed[probe];
        auto *bytes = static_cast<const char *>(data);
        value.values[rank].assign(bytes,
                                  bytes + rt::countOf(value.localShape) * rt::sizeOf(value.type));
      });
  return session;
}

const rt::ProgramDescription &Executable::getDescription() const { return loaded->description; }
const std::vector<Executable::ProbedValue> &Executable::getProbedValues() const {
  return loaded->probed;
}

} // namespace meshwright
