//===- Join.cpp - several programs as entries of one ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/compose/Join.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using meshwright::nn::NnDialect;

namespace meshwright {

namespace {

class Joiner {
public:
  explicit Joiner(MLIRContext *context)
      : module(ModuleOp::create(UnknownLoc::get(context))), table(*module) {}

  LogicalResult add(StageModule &program);
  /// Called after the last program: reads parameters that are states of others as states.
  LogicalResult finish();
  OwningOpRef<ModuleOp> take() { return std::move(module); }

private:
  LogicalResult addSymbol(Operation &op, StringRef program);
  LogicalResult addEntry(Operation *op, StringRef name, ModuleOp program);
  void renameParameters(func::FuncOp entry);
  LogicalResult readStates(func::FuncOp entry, const llvm::StringSet<> &own);

  OwningOpRef<ModuleOp> module;
  SymbolTable table;
  /// Each with the states of its own program, which its parameters of these names may be bound to.
  std::vector<std::pair<func::FuncOp, llvm::StringSet<>>> entries;
  /// The names of parameters, by these names and their aliases.
  llvm::StringMap<StringAttr> names;
};

} // namespace

static StringAttr getParameter(func::FuncOp entry, unsigned index) {
  return entry.getArgAttrOfType<StringAttr>(index, NnDialect::kParameterAttr);
}

/// Adds a state or a mesh, which another program may have, too.
LogicalResult Joiner::addSymbol(Operation &op, StringRef program) {
  StringAttr name = SymbolTable::getSymbolName(&op);
  Operation *known = table.lookup(name);
  if (known && known->getName() == op.getName() &&
      known->getAttrDictionary() == op.getAttrDictionary())
    return success();
  if (!known) {
    table.insert(op.clone());
    return success();
  }
  InFlightDiagnostic error = op.emitError() << "join: '" << name.getValue() << "' of '" << program
                                            << "' differs from that of another program: expected "
                                               "one type and one initial value";
  error.attachNote(known->getLoc()) << "the other one";
  return error;
}

/// Gives parameters the names that entries before this one use.
void Joiner::renameParameters(func::FuncOp entry) {
  for (unsigned i = 0; i < entry.getNumArguments(); ++i) {
    StringAttr name = getParameter(entry, i);
    if (!name)
      continue;
    StringAttr known = names.try_emplace(name.getValue(), name).first->second;
    entry.setArgAttr(i, NnDialect::kParameterAttr, known);
    if (auto aliases = entry.getArgAttrOfType<ArrayAttr>(i, NnDialect::kAliasesAttr))
      for (auto alias : aliases.getAsRange<StringAttr>())
        names.try_emplace(alias.getValue(), known);
  }
}

LogicalResult Joiner::add(StageModule &program) {
  SmallVector<FunctionOpInterface> given = nn::getEntries(*program.module);
  if (given.empty())
    return program.module->emitError("join: '") << program.name << "': expected an entry, got none";
  for (NamedAttribute attr : program.module->getOperation()->getDiscardableAttrs())
    if (!module->getOperation()->hasAttr(attr.getName()))
      module->getOperation()->setAttr(attr.getName(), attr.getValue());
  auto isEntry = [&](Operation &op) {
    return llvm::any_of(given, [&](FunctionOpInterface entry) { return entry == &op; });
  };
  for (Operation &op : *program.module->getBody())
    if (!isEntry(op) && failed(addSymbol(op, program.name)))
      return failure();
  for (FunctionOpInterface entry : given) {
    std::string own = entry.getName().str() + "," + program.name;
    if (failed(addEntry(entry, given.size() == 1 ? program.name : own, *program.module)))
      return failure();
  }
  return success();
}

LogicalResult Joiner::addEntry(Operation *op, StringRef name, ModuleOp program) {
  auto entry = dyn_cast<func::FuncOp>(op);
  if (!entry)
    return op->emitError("join: '") << name << "': expected a function, got " << op->getName();
  if (name.empty() || table.lookup(name))
    return entry.emitError("join: '")
           << name << "' is empty or names something else: expected a name of its own";
  if (entry->hasAttr(dist::DistDialect::kSpmdAttr))
    return entry.emitError("join: '")
           << name << "' is an SPMD program already: expected one for one device";
  func::FuncOp copy = entry.clone();
  copy.setName(name);
  renameParameters(copy);
  table.insert(copy);
  llvm::StringSet<> own;
  for (auto state : program.getOps<nn::StateOp>())
    own.insert(state.getSymName());
  entries.emplace_back(copy, std::move(own));
  return success();
}

/// Replaces parameters that are states of other programs by reads.
LogicalResult Joiner::readStates(func::FuncOp entry, const llvm::StringSet<> &own) {
  for (unsigned i = entry.getNumArguments(); i-- > 0;) {
    StringAttr name = getParameter(entry, i);
    nn::StateOp state;
    SmallVector<StringAttr> all{name};
    if (auto aliases = entry.getArgAttrOfType<ArrayAttr>(i, NnDialect::kAliasesAttr))
      llvm::append_range(all, aliases.getAsRange<StringAttr>());
    for (StringAttr candidate : all)
      if (!state && candidate && !own.contains(candidate.getValue()))
        state = dyn_cast_or_null<nn::StateOp>(table.lookup(candidate));
    if (!state)
      continue;
    BlockArgument argument = entry.getArgument(i);
    if (argument.getType() != state.getMemoryType() ||
        entry.getArgAttr(i, NnDialect::kParameterOffsetsAttr)) {
      InFlightDiagnostic error = emitError(argument.getLoc())
                                 << "join: parameter '" << name.getValue() << "' of '"
                                 << entry.getName() << "', a state of another program: expected "
                                 << state.getMemoryType() << ", got " << argument.getType();
      error.attachNote(state.getLoc()) << "the state";
      return error;
    }
    OpBuilder builder(&entry.front(), entry.front().begin());
    Value read = nn::ReadOp::create(builder, argument.getLoc(), argument.getType(),
                                    FlatSymbolRefAttr::get(state.getSymNameAttr()));
    argument.replaceAllUsesWith(read);
    if (failed(entry.eraseArgument(i)))
      return failure();
  }
  return success();
}

LogicalResult Joiner::finish() {
  for (auto &[entry, own] : entries)
    if (failed(readStates(entry, own)))
      return failure();
  return success();
}

FailureOr<OwningOpRef<ModuleOp>> joinEntries(MLIRContext *context,
                                             std::vector<StageModule> programs) {
  Joiner joiner(context);
  if (programs.empty())
    return emitError(UnknownLoc::get(context), "join: there are no models: expected one at least");
  for (StageModule &program : programs)
    if (failed(joiner.add(program)))
      return failure();
  if (failed(joiner.finish()))
    return failure();
  return joiner.take();
}

} // namespace meshwright
