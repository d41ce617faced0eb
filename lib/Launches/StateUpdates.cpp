//===- StateUpdates.cpp - new values over old ones ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Launches/StateUpdates.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Launches/InPlace.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;

static int64_t countReaders(rt::KernelOp kernel, Value buffer) {
  return llvm::count_if(kernel.getInputs(),
                        [&](Value input) { return rt::getBuffer(input) == buffer; });
}

std::optional<unsigned> meshwright::getReplacedOperand(rt::KernelOp kernel) {
  auto ops = kernel.getOps();
  if (!llvm::hasSingleElement(ops))
    return std::nullopt;
  Operation &op = *ops.begin();
  auto lookup = dyn_cast<dist::LookupOpInterface>(op);
  auto table = lookup && op.hasTrait<dist::ReplacesRows>()
                   ? dyn_cast<BlockArgument>(lookup.getTable())
                   : BlockArgument();
  return table ? std::optional<unsigned>(table.getArgNumber()) : std::nullopt;
}

/// Returns true if an operand is all of a buffer.
static bool isWhole(Value operand, Value buffer) {
  return rt::getBuffer(operand) == buffer &&
         rt::getBufferBytes(operand.getType()) == rt::getBufferBytes(buffer.getType());
}

UpdateKind meshwright::getUpdateKind(rt::KernelOp kernel, unsigned result, Value old) {
  if (!old)
    return UpdateKind::Whole;
  if (rt::getBufferBytes(kernel.getResult(result).getType()) !=
      rt::getBufferBytes(old.getType()))
    return UpdateKind::None;
  int64_t readers = countReaders(kernel, old);
  if (readers == 0)
    return UpdateKind::Whole;
  if (readers > 1)
    return UpdateKind::None;
  if (auto replaced = getReplacedOperand(kernel))
    return isWhole(kernel.getOperand(*replaced), old) ? UpdateKind::Rows : UpdateKind::None;
  for (unsigned i = 0; i < kernel.getNumOperands(); ++i)
    if (isWhole(kernel.getOperand(i), old) && canWriteInPlace(kernel, i, result))
      return UpdateKind::Whole;
  return UpdateKind::None;
}

bool meshwright::replacesRowsOfState(rt::KernelOp kernel, unsigned result) {
  StringAttr state = kernel.getOverState(result);
  std::optional<unsigned> replaced = getReplacedOperand(kernel);
  if (!state || !replaced)
    return false;
  Value table = rt::getBuffer(kernel.getOperand(*replaced));
  auto before = table.getDefiningOp<rt::KernelOp>();
  return before ? before.getOverState(cast<OpResult>(table).getResultNumber()) == state
                : rt::getState(table) == state;
}

int64_t meshwright::getLogBytes(rt::KernelOp kernel) {
  auto lookup = cast<dist::LookupOpInterface>(*kernel.getOps().begin());
  auto table = cast<RankedTensorType>(lookup.getTable().getType());
  auto indices = cast<RankedTensorType>(lookup->getOperand(lookup.getIndexOperand()).getType());
  int64_t count = indices.getNumElements(), rows = table.getDimSize(lookup.getTableDim());
  int64_t rowBytes = rows ? rt::getBufferBytes(table) / rows : 0;
  return llvm::alignTo(count * int64_t(sizeof(int64_t)), rt::kBufferAlignment) +
         llvm::alignTo(count * rowBytes, rt::kBufferAlignment);
}

/// The result of a kernel that is all of a value, seen through views; null for other values.
static OpResult getKernelResult(Value value) {
  Value buffer = rt::getBuffer(value);
  return buffer.getDefiningOp<rt::KernelOp>() && isWhole(value, buffer) ? cast<OpResult>(buffer)
                                                                         : OpResult();
}

std::vector<StateUpdate> meshwright::findStateUpdates(func::FuncOp func) {
  std::vector<StateUpdate> updates;
  bool copies = func->hasAttr(rt::RtDialect::kCopiesAttr);
  llvm::DenseMap<StringAttr, Value> old;
  for (BlockArgument argument : func.getArguments())
    if (StringAttr state = rt::getState(argument))
      old[state] = argument;
  llvm::SmallDenseSet<Value> taken;
  for (OpOperand &operand : func.front().getTerminator()->getOpOperands()) {
    auto state = func.getResultAttrOfType<StringAttr>(operand.getOperandNumber(),
                                                      nn::NnDialect::kStateAttr);
    OpResult value = state ? getKernelResult(operand.get()) : OpResult();
    // The second of two states that get one value is copied.
    if (!value || !taken.insert(value).second)
      continue;
    StateUpdate update{state, old.lookup(state), {value}};
    // Kernels that replace rows one after the other, back to the old value.
    SmallVector<OpResult, 1> chain;
    Value at = value;
    while (auto kernel = at.getDefiningOp<rt::KernelOp>()) {
      std::optional<unsigned> replaced = getReplacedOperand(kernel);
      if (!replaced || !isWhole(kernel.getOperand(*replaced),
                                rt::getBuffer(kernel.getOperand(*replaced))))
        break;
      chain.push_back(cast<OpResult>(at));
      at = rt::getBuffer(kernel.getOperand(*replaced));
    }
    if (update.old && at == update.old)
      update.values.assign(chain.rbegin(), chain.rend());
    bool isPossible = true;
    for (size_t i = 0; i < update.values.size(); ++i) {
      // Only rows are written over a state that is copied. Other proofs take time.
      if (copies && !getReplacedOperand(update.getKernel(i))) {
        isPossible = false;
        break;
      }
      UpdateKind kind = getUpdateKind(update.getKernel(i), update.values[i].getResultNumber(),
                                      update.getOld(i));
      update.kinds.push_back(kind);
      isPossible &= kind == UpdateKind::Rows || (kind == UpdateKind::Whole && !copies);
    }
    if (isPossible)
      updates.push_back(std::move(update));
  }
  return updates;
}

std::vector<StateResult> meshwright::getStateResults(func::FuncOp func) {
  std::vector<StateResult> results(func.getNumResults());
  llvm::DenseMap<StringAttr, StateResult> written;
  for (auto kernel : func.getOps<rt::KernelOp>())
    for (unsigned i = 0; i < kernel.getNumResults(); ++i)
      if (StringAttr state = kernel.getOverState(i)) {
        StateResult &result = written[state];
        result.kind = replacesRowsOfState(kernel, i) ? UpdateKind::Rows : UpdateKind::Whole;
        if (result.kind == UpdateKind::Rows)
          result.logBytes += getLogBytes(kernel);
      }
  for (unsigned i = 0; i < func.getNumResults(); ++i)
    if (auto state = func.getResultAttrOfType<StringAttr>(i, nn::NnDialect::kStateAttr))
      results[i] = written.lookup(state);
  return results;
}

void RecoveryMemory::add(StringRef state, OfState needed) {
  OfState &held = states[state];
  held.second = std::max(held.second, needed.second);
  held.log = std::max(held.log, needed.log);
}

void RecoveryMemory::add(func::FuncOp planned) {
  llvm::DenseMap<StringAttr, nn::StateOp> declared = nn::getStates(planned);
  for (auto [i, result] : llvm::enumerate(getStateResults(planned)))
    if (auto state = planned.getResultAttrOfType<StringAttr>(i, nn::NnDialect::kStateAttr)) {
      // A failed call clears a transient state.
      nn::StateOp op = declared.lookup(state);
      if (op && op.getTransient())
        continue;
      bool isWhole = result.kind == UpdateKind::Whole;
      int64_t bytes = rt::getBufferBytes(planned.getResultTypes()[i]);
      add(state, OfState{isWhole ? bytes : 0, result.logBytes});
    }
}

void RecoveryMemory::add(const RecoveryMemory &others) {
  for (const auto &state : others.states)
    add(state.getKey(), state.getValue());
}

int64_t RecoveryMemory::getBytes() const {
  int64_t bytes = 0;
  for (const auto &state : states)
    bytes += state.getValue().second + state.getValue().log;
  return bytes;
}
