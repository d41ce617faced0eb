//===- Compose.cpp - several programs as one ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Stages run one after another in one function. The ops of the loop's stages are repeated
// for each step. All steps share the arguments of parameters, and equal kernels are
// compiled once.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/compose/Compose.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Stages/Stages.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"

using namespace meshwright;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;
using mlir::LogicalResult;
using mlir::success;
using mlir::Value;
using nn::NnDialect;

namespace {

/// A stage of the composed program.
struct ComposedStage {
  std::string name;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::func::FuncOp main;
  bool inLoop = false;
  /// For each argument, the stage that feeds it and the number of the result; -1 for inputs
  /// of the pipeline and parameters.
  std::vector<std::pair<int64_t, int64_t>> sources;
  /// For each argument, the argument of the composed function; null if only a stage feeds it.
  std::vector<Value> arguments;
  /// The results in the latest step.
  std::vector<Value> results;
  /// The values of the stage's states before the next step, by their names in the stage, in the
  /// order of their first use. Those of `written` are new.
  llvm::MapVector<mlir::Attribute, Value> states;
  llvm::SmallDenseSet<mlir::Attribute> written;
};

class Composer {
public:
  explicit Composer(mlir::MLIRContext *context) : context(context), builder(context) {}

  LogicalResult addStages(std::vector<StageModule> stages);
  LogicalResult setLoop(llvm::ArrayRef<std::string> names, int64_t steps);
  LogicalResult connect(llvm::ArrayRef<StageConnection> connections);
  FailureOr<mlir::OwningOpRef<mlir::ModuleOp>> build();

private:
  mlir::InFlightDiagnostic emitError() const {
    return mlir::emitError(mlir::UnknownLoc::get(context), "compose: ");
  }
  /// The stages' names, for errors.
  std::string listStages() const;
  /// The index of a stage, or -1.
  int64_t find(llvm::StringRef name) const;
  LogicalResult connectOne(const StageConnection &connection);
  LogicalResult copyMeshes(mlir::ModuleOp module);
  void addArguments(mlir::func::FuncOp main);
  void copyStates();
  void runStage(ComposedStage &stage, bool isFirstStep);
  Value readState(ComposedStage &stage, nn::ReadOp read);
  void writeStates(ComposedStage &stage);
  mlir::StringAttr prefix(const ComposedStage &stage, llvm::StringRef name) {
    return builder.getStringAttr(stage.name + "." + name);
  }
  /// Returns true if an input of the pipeline feeds the argument in the first step.
  bool startsOutside(const ComposedStage &stage, int64_t index, int64_t source) const {
    return stage.inLoop && stages[source].inLoop && source >= index;
  }

  mlir::MLIRContext *context;
  mlir::OpBuilder builder;
  std::vector<ComposedStage> stages;
  int64_t steps = 1;
};

} // namespace

std::string Composer::listStages() const {
  std::string names;
  for (const ComposedStage &stage : stages)
    names += (names.empty() ? "" : ", ") + stage.name;
  return names;
}

int64_t Composer::find(llvm::StringRef name) const {
  for (auto [i, stage] : llvm::enumerate(stages))
    if (stage.name == name)
      return i;
  return -1;
}

LogicalResult Composer::addStages(std::vector<StageModule> given) {
  if (given.empty())
    return emitError() << "there are no models: expected one at least";
  for (StageModule &stage : given) {
    if (stage.name.empty() || llvm::StringRef(stage.name).contains('.'))
      return emitError() << "stage '" << stage.name
                         << "' has a name that is empty or has a dot: expected a plain name";
    if (find(stage.name) >= 0)
      return emitError() << "two stages are named '" << stage.name << "'";
    ComposedStage composed;
    composed.name = stage.name;
    composed.module = std::move(stage.module);
    auto entries = nn::getEntries(*composed.module);
    if (entries.size() > 1)
      return emitError() << "stage '" << stage.name << "': expected one entry, got "
                         << entries.size();
    composed.main = entries.empty() ? mlir::func::FuncOp()
                                    : llvm::dyn_cast<mlir::func::FuncOp>(*entries.front());
    if (!composed.main || !composed.main.getBody().hasOneBlock())
      return emitError() << "stage '" << stage.name << "' is no function of one block";
    if (composed.main->hasAttr(dist::DistDialect::kSpmdAttr))
      return emitError() << "stage '" << stage.name
                         << "' is an SPMD program already: expected one for one device";
    composed.sources.assign(composed.main.getNumArguments(), {-1, -1});
    stages.push_back(std::move(composed));
  }
  return success();
}

LogicalResult Composer::setLoop(llvm::ArrayRef<std::string> names, int64_t count) {
  if (count < 1)
    return emitError() << "steps: expected 1 or more, got " << count;
  if (names.empty() && count > 1)
    return emitError() << "steps is " << count << " without a loop: expected stages in 'loop'";
  steps = count;
  for (const std::string &name : names) {
    int64_t index = find(name);
    if (index < 0)
      return emitError() << "loop names stage '" << name << "': expected one of " << listStages();
    stages[index].inLoop = true;
  }
  // The loop's stages are neighbours.
  bool left = false;
  for (size_t i = 0; i + 1 < stages.size(); ++i) {
    left |= stages[i].inLoop && !stages[i + 1].inLoop;
    if (left && stages[i + 1].inLoop)
      return emitError() << "stage '" << stages[i].name
                         << "' stands between stages of the loop: expected the loop's stages to "
                            "follow one another";
  }
  return success();
}

LogicalResult Composer::connectOne(const StageConnection &connection) {
  auto [stageName, inputName] = llvm::StringRef(connection.input).split('.');
  int64_t to = find(stageName);
  if (to < 0)
    return emitError() << "connect names '" << connection.input << "': there is no stage '"
                       << stageName << "': expected one of " << listStages();
  ComposedStage &target = stages[to];
  int64_t argument = -1;
  std::string known;
  for (unsigned i = 0; i < target.main.getNumArguments(); ++i)
    if (auto name = target.main.getArgAttrOfType<mlir::StringAttr>(i, NnDialect::kInputAttr)) {
      known += (known.empty() ? "" : ", ") + name.str();
      if (name == inputName)
        argument = i;
    }
  if (argument < 0)
    return emitError() << "connect names '" << connection.input << "': stage '" << stageName
                       << "' has no input '" << inputName << "': expected one of " << known;
  auto [sourceName, position] = llvm::StringRef(connection.output).rsplit('.');
  int64_t from = find(sourceName), result = 0;
  if (from < 0 || position.getAsInteger(10, result))
    return emitError() << "'" << connection.input << "' is connected to '" << connection.output
                       << "': expected \"stage.position of an output\" with a stage of "
                       << listStages();
  int64_t count = stages[from].main.getNumResults();
  if (result < 0 || result >= count)
    return emitError() << "'" << connection.input << "' is connected to output " << result
                       << " of stage '" << sourceName << "', which has " << count;
  if (from >= to && !startsOutside(target, to, from))
    return emitError() << "'" << connection.input << "' is connected to stage '" << sourceName
                       << "', which does not run before it: expected an earlier stage, or both "
                          "in the loop";
  mlir::Type expected = target.main.getArgumentTypes()[argument];
  mlir::Type got = stages[from].main.getResultTypes()[result];
  if (expected != got)
    return emitError() << "'" << connection.input << "' is " << expected << ", but '"
                       << connection.output << "' is " << got;
  if (target.sources[argument].first >= 0)
    return emitError() << "'" << connection.input << "' is connected twice";
  target.sources[argument] = {from, result};
  return success();
}

LogicalResult Composer::connect(llvm::ArrayRef<StageConnection> connections) {
  for (const StageConnection &connection : connections)
    if (failed(connectOne(connection)))
      return failure();
  return success();
}

void Composer::addArguments(mlir::func::FuncOp main) {
  mlir::Block &body = main.getBody().front();
  for (auto [index, stage] : llvm::enumerate(stages)) {
    stage.arguments.resize(stage.main.getNumArguments());
    for (unsigned i = 0; i < stage.main.getNumArguments(); ++i) {
      int64_t source = stage.sources[i].first;
      if (source >= 0 && !startsOutside(stage, index, source))
        continue;
      mlir::BlockArgument inner = stage.main.getArgument(i);
      stage.arguments[i] = body.addArgument(inner.getType(), inner.getLoc());
    }
  }
  main.setType(
      builder.getFunctionType(body.getArgumentTypes(), stages.back().main.getResultTypes()));
  for (ComposedStage &stage : stages)
    for (auto [i, value] : llvm::enumerate(stage.arguments)) {
      if (!value)
        continue;
      llvm::SmallVector<mlir::NamedAttribute> attrs;
      for (mlir::NamedAttribute attr : mlir::function_interface_impl::getArgAttrs(stage.main, i)) {
        mlir::Attribute named = attr.getValue();
        if (attr.getName() == NnDialect::kInputAttr || attr.getName() == NnDialect::kParameterAttr)
          named = prefix(stage, llvm::cast<mlir::StringAttr>(named).getValue());
        if (attr.getName() == NnDialect::kAliasesAttr) {
          llvm::SmallVector<mlir::Attribute> aliases;
          for (auto alias : llvm::cast<mlir::ArrayAttr>(named).getAsRange<mlir::StringAttr>())
            aliases.push_back(prefix(stage, alias.getValue()));
          named = builder.getArrayAttr(aliases);
        }
        attrs.push_back({attr.getName(), named});
      }
      main.setArgAttrs(llvm::cast<mlir::BlockArgument>(value).getArgNumber(), attrs);
    }
  for (unsigned i = 0; i < stages.back().main.getNumResults(); ++i)
    main.setResultAttrs(i, stages.back().main.getResultAttrDict(i));
}

void Composer::copyStates() {
  for (ComposedStage &stage : stages)
    for (auto state : stage.module->getOps<nn::StateOp>()) {
      auto copy = llvm::cast<nn::StateOp>(builder.clone(*state));
      copy.setSymNameAttr(prefix(stage, state.getSymName()));
      if (llvm::StringRef parameter = state.getInitialParameter(); !parameter.empty())
        copy.setParameterAttr(prefix(stage, parameter));
    }
}

/// The value of a state before a step: what the step before it wrote, or what it was before the
/// call.
Value Composer::readState(ComposedStage &stage, nn::ReadOp read) {
  Value &value = stage.states[read.getStateAttr().getAttr()];
  if (!value) {
    auto copy = llvm::cast<nn::ReadOp>(builder.clone(*read));
    copy.setState(prefix(stage, read.getState()).getValue());
    copy->removeAttr(NnDialect::kIdAttr);
    copy->setAttr(NnDialect::kStageAttr, builder.getStringAttr(stage.name));
    value = copy.getResult();
  }
  return value;
}

/// Writes the states that the last step leaves.
void Composer::writeStates(ComposedStage &stage) {
  for (auto &[name, value] : stage.states)
    if (stage.written.contains(name)) {
      auto write = nn::WriteOp::create(
          builder, value.getLoc(), prefix(stage, llvm::cast<mlir::StringAttr>(name)).getValue(),
          value);
      write->setAttr(NnDialect::kStageAttr, builder.getStringAttr(stage.name));
    }
}

void Composer::runStage(ComposedStage &stage, bool isFirstStep) {
  int64_t index = &stage - stages.data();
  mlir::IRMapping mapping;
  for (unsigned i = 0; i < stage.main.getNumArguments(); ++i) {
    auto [source, result] = stage.sources[i];
    bool fromOutside = source < 0 || (isFirstStep && startsOutside(stage, index, source));
    mapping.map(stage.main.getArgument(i),
                fromOutside ? stage.arguments[i] : stages[source].results[result]);
  }
  mlir::Block &body = stage.main.getBody().front();
  llvm::SmallVector<std::pair<mlir::Attribute, Value>> writes;
  for (mlir::Operation &op : body.without_terminator()) {
    if (auto read = llvm::dyn_cast<nn::ReadOp>(op)) {
      mapping.map(read.getResult(), readState(stage, read));
      continue;
    }
    if (auto write = llvm::dyn_cast<nn::WriteOp>(op)) {
      writes.push_back({write.getStateAttr().getAttr(), mapping.lookup(write.getValue())});
      continue;
    }
    mlir::Operation *copy = builder.clone(op, mapping);
    // A pass that needs numbers numbers the composed program.
    copy->removeAttr(NnDialect::kIdAttr);
    copy->setAttr(nn::NnDialect::kStageAttr, builder.getStringAttr(stage.name));
  }
  // All reads of the step see the values before it.
  for (auto [name, value] : writes) {
    stage.states[name] = value;
    stage.written.insert(name);
  }
  stage.results.clear();
  for (Value result : body.getTerminator()->getOperands())
    stage.results.push_back(mapping.lookup(result));
}

LogicalResult Composer::copyMeshes(mlir::ModuleOp module) {
  for (ComposedStage &stage : stages)
    for (auto mesh : stage.module->getOps<dist::MeshOp>()) {
      auto known = module.lookupSymbol<dist::MeshOp>(mesh.getSymName());
      if (known && known->getAttrDictionary() != mesh->getAttrDictionary())
        return emitError() << "stage '" << stage.name << "' has another mesh @" << mesh.getSymName()
                           << " than a stage before it";
      if (!known)
        builder.clone(*mesh);
    }
  return success();
}

FailureOr<mlir::OwningOpRef<mlir::ModuleOp>> Composer::build() {
  mlir::Location loc = stages.front().main.getLoc();
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(loc);
  builder.setInsertionPointToEnd(module->getBody());
  if (failed(copyMeshes(*module)))
    return failure();
  copyStates();
  auto main = mlir::func::FuncOp::create(builder, loc, "main", builder.getFunctionType({}, {}));
  builder.setInsertionPointToEnd(main.addEntryBlock());
  addArguments(main);
  for (size_t i = 0; i < stages.size();) {
    if (!stages[i].inLoop) {
      runStage(stages[i++], /*isFirstStep=*/true);
      continue;
    }
    size_t end = i;
    while (end < stages.size() && stages[end].inLoop)
      ++end;
    for (int64_t step = 0; step < steps; ++step)
      for (size_t stage = i; stage < end; ++stage)
        runStage(stages[stage], step == 0);
    i = end;
  }
  for (ComposedStage &stage : stages)
    writeStates(stage);
  mlir::func::ReturnOp::create(builder, loc, stages.back().results);
  return module;
}

FailureOr<mlir::OwningOpRef<mlir::ModuleOp>>
meshwright::composeStages(mlir::MLIRContext *context, std::vector<StageModule> stages,
                          llvm::ArrayRef<StageConnection> connections,
                          llvm::ArrayRef<std::string> loop, int64_t steps) {
  Composer composer(context);
  if (failed(composer.addStages(std::move(stages))) || failed(composer.setLoop(loop, steps)) ||
      failed(composer.connect(connections)))
    return failure();
  return composer.build();
}
