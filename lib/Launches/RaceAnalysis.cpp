//===- RaceAnalysis.cpp - order and memory of launches --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Launches/RaceAnalysis.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Launches/InPlace.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/MapVector.h"

#include <map>

using namespace mlir;
using namespace meshwright;

namespace {

class RaceAnalysis {
public:
  explicit RaceAnalysis(func::FuncOp func)
      : func(func), block(func.getBody().front()), mesh(dist::getSpmdMesh(func)) {}
  LogicalResult run();

private:
  /// Bytes of the arena that hold a value.
  struct Held {
    int64_t end;
    Value value;
  };

  LogicalResult checkWaits(rt::StartOp start);
  LogicalResult checkStreams(rt::StartOp start);
  LogicalResult checkGraphs(Operation *op);
  void findUses();
  void note(InFlightDiagnostic &diagnostic, Value value, int64_t position) const;
  LogicalResult write(Operation *op, unsigned result, Value value, int64_t offset);
  LogicalResult checkOver(Operation *op, unsigned result, int64_t begin, int64_t end,
                          int64_t heldBegin, const Held &held);
  LogicalResult update(rt::KernelOp kernel, unsigned result, int64_t log);
  LogicalResult checkUpdates();
  LogicalResult visitMemory(Operation *op);
  /// The number in the block of the last op that needs a buffer; -1 if there is none.
  int64_t getLastUse(Value value) const {
    auto it = lastUse.find(value);
    return it == lastUse.end() ? -1 : it->second;
  }

  func::FuncOp func;
  Block &block;
  dist::MeshAttr mesh;
  int64_t arena = 0;
  ProgramMap<Operation *, int64_t> positions;
  /// Keys are buffers: values that are no views.
  ProgramMap<Value, int64_t> lastUse;
  /// The collective that uses a buffer last.
  ProgramMap<Value, rt::StartOp> users;
  /// The first collective of each stream.
  DenseMap<int64_t, rt::StartOp> firstOf;
  /// Collectives in flight.
  SmallVector<rt::StartOp, 4> inFlight;
  /// The graph that has begun, or null.
  rt::GraphBeginOp graph;
  /// Byte ranges in use, by offset. No two overlap.
  std::map<int64_t, Held> held;
  /// The memory of a state.
  struct StateMemory {
    /// The value that it holds; null if the function does not read the old one.
    Value value;
    bool isWritten = false;
    /// The end of its logs so far; -1 if all of it was written.
    int64_t logEnd = 0;
  };
  llvm::MapVector<StringAttr, StateMemory> states;
};

} // namespace

//===----------------------------------------------------------------------===//
// Order
//===----------------------------------------------------------------------===//

LogicalResult RaceAnalysis::checkWaits(rt::StartOp start) {
  rt::WaitOp wait;
  for (Operation *user : start.getFuture().getUsers()) {
    auto next = dyn_cast<rt::WaitOp>(user);
    if (!next) {
      InFlightDiagnostic diagnostic = user->emitOpError()
                                      << "uses a collective in flight: expected only rt.wait";
      diagnostic.attachNote(start.getLoc()) << "it starts here";
      return diagnostic;
    }
    if (wait) {
      rt::WaitOp second = wait->isBeforeInBlock(next) ? next : wait;
      InFlightDiagnostic diagnostic = second.emitOpError()
                                      << "waits a second time for a collective";
      diagnostic.attachNote(start.getLoc()) << "it starts here";
      return diagnostic;
    }
    wait = next;
  }
  if (!wait)
    return start.emitOpError() << "is never waited for";
  return success();
}

/// Checks that collectives in flight at once cannot wait for each other across ranks. All ranks
/// run the launches of one block, which has no branches, so they hand their collectives over in
/// one order. A backend keeps this order in each stream, and has a communicator for each stream
/// and group (HostCollectives, gpu::Collectives), so it lets collectives of several streams meet
/// side by side. A stream is the collectives of one role over axes that overlap. So:
/// - the collectives of a stream have one role;
/// - collectives in flight on different streams have groups that share at most one rank, or
///   different roles.
LogicalResult RaceAnalysis::checkStreams(rt::StartOp start) {
  if (!mesh)
    return success();
  dist::CollectiveOpInterface collective = start.getCollective();
  dist::CollectiveRole role = collective.getRole();
  rt::StartOp first = firstOf.try_emplace(start.getStream(), start).first->second;
  if (first.getCollective().getRole() != role) {
    InFlightDiagnostic diagnostic =
        start.emitOpError() << "hands a collective to stream " << start.getStream()
                            << ": expected role "
                            << stringifyCollectiveRole(first.getCollective().getRole())
                            << ", as the stream's first has, got " << stringifyCollectiveRole(role);
    diagnostic.attachNote(first.getLoc()) << "the first starts here";
    return diagnostic;
  }
  dist::AxisList axes = collective.getGroupAxes(mesh);
  for (rt::StartOp other : inFlight) {
    if (other.getStream() == start.getStream() || other.getCollective().getRole() != role)
      continue;
    dist::AxisList otherAxes = other.getCollective().getGroupAxes(mesh);
    if (!dist::anyOverlap(axes, otherAxes))
      continue;
    InFlightDiagnostic diagnostic =
        start.emitOpError() << "hands a collective over " << dist::toString(axes, mesh)
                            << " to stream " << start.getStream() << " while one over "
                            << dist::toString(otherAxes, mesh) << " is in flight on stream "
                            << other.getStream() << ", both of role "
                            << stringifyCollectiveRole(role)
                            << ": expected one stream, which keeps their order";
    diagnostic.attachNote(other.getLoc()) << "the other starts here";
    return diagnostic;
  }
  return success();
}

/// Checks that graphs begin and end by turns, with no collective in flight. A recorded collective
/// could not be waited for outside of its graph, nor one from outside in it.
LogicalResult RaceAnalysis::checkGraphs(Operation *op) {
  auto begin = dyn_cast<rt::GraphBeginOp>(op);
  if (!begin && !isa<rt::GraphEndOp>(op))
    return success();
  if (!inFlight.empty()) {
    InFlightDiagnostic diagnostic = op->emitOpError()
                                    << "has a collective in flight: expected none";
    diagnostic.attachNote(inFlight.front().getLoc()) << "it starts here";
    return diagnostic;
  }
  if (begin && graph) {
    InFlightDiagnostic diagnostic = op->emitOpError() << "is in another graph: expected it outside";
    diagnostic.attachNote(graph.getLoc()) << "the other begins here";
    return diagnostic;
  }
  if (!begin && !graph)
    return op->emitOpError() << "ends no graph: expected an rt.graph_begin before it";
  graph = begin;
  return success();
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

void RaceAnalysis::findUses() {
  for (Operation &op : block) {
    // A weight is packed before the call, from the value that it has then.
    if (rt::isView(&op) || isa<rt::PrepareOp>(op))
      continue;
    int64_t position = positions[&op];
    auto start = dyn_cast<rt::StartOp>(op);
    if (start)
      position = positions[*start.getFuture().getUsers().begin()];
    auto use = [&](Value operand) {
      Value buffer = rt::getBuffer(operand);
      int64_t &last = lastUse.try_emplace(buffer, -1).first->second;
      if (position < last)
        return;
      last = position;
      if (start)
        users[buffer] = start;
      else
        users.erase(buffer);
    };
    llvm::for_each(op.getOperands(), use);
    // Regions of other ops may read what is outside of them.
    visitUsedValuesDefinedAbove(op.getRegions(), [&](OpOperand *operand) { use(operand->get()); });
  }
}

/// Adds notes of the op that makes a value and of the op that needs it.
void RaceAnalysis::note(InFlightDiagnostic &diagnostic, Value value, int64_t position) const {
  diagnostic.attachNote(value.getLoc()) << "the value is from here";
  if (auto start = users.lookup(value)) {
    diagnostic.attachNote(start.getLoc()) << "a collective in flight reads it";
    return;
  }
  auto last = std::next(block.begin(), position);
  diagnostic.attachNote(last->getLoc()) << "and needed here";
}

/// Checks that an op may write `begin` to `end`, which overlaps `held`.
LogicalResult RaceAnalysis::checkOver(Operation *op, unsigned result, int64_t begin, int64_t end,
                                      int64_t heldBegin, const Held &held) {
  auto describe = [&]() -> InFlightDiagnostic {
    return op->emitOpError() << "writes result " << result << " to " << begin << " .. " << end;
  };
  if (held.value.getDefiningOp() == op)
    return describe() << ", which holds another of its results";
  // Until its wait, a future is the buffer that the collective writes.
  if (auto start = held.value.getDefiningOp<rt::StartOp>()) {
    InFlightDiagnostic diagnostic = describe();
    diagnostic << ", where a collective in flight writes";
    diagnostic.attachNote(start.getLoc()) << "it starts here";
    return diagnostic;
  }
  int64_t position = positions.lookup(op), last = getLastUse(held.value);
  if (last > position) {
    InFlightDiagnostic diagnostic = describe();
    diagnostic << ", over a value that is needed later";
    note(diagnostic, held.value, last);
    return diagnostic;
  }
  auto kernel = dyn_cast<rt::KernelOp>(op);
  int operand = -1;
  for (auto [i, value] : llvm::enumerate(op->getOperands()))
    if (rt::getBuffer(value) == held.value) {
      // The op is the last one that needs the value: it is an operand.
      if (operand >= 0)
        return describe() << ", over operands " << operand << " and " << i
                          << ", which it reads both";
      operand = i;
    }
  if (!kernel || heldBegin != begin || !canWriteInPlace(kernel, operand, result))
    return describe() << ", over operand " << operand << ", which it reads at other places";
  return success();
}

LogicalResult RaceAnalysis::write(Operation *op, unsigned result, Value value, int64_t offset) {
  auto future = dyn_cast<rt::FutureType>(value.getType());
  int64_t end = offset + (future ? rt::getBufferBytes(future.getTypes()[result])
                                 : rt::getBufferBytes(value));
  if (end > arena)
    return op->emitOpError() << "writes result " << result << " to " << offset << " .. " << end
                             << ", outside of the arena of " << arena << " bytes";
  if (end == offset)
    return success();
  auto at = held.lower_bound(offset);
  if (at != held.begin() && std::prev(at)->second.end > offset)
    --at;
  int64_t position = positions.lookup(op);
  while (at != held.end() && at->first < end) {
    // A value that neither this op nor a later one needs is not held any more.
    bool isFuture = isa<rt::FutureType>(at->second.value.getType());
    bool isOwn = at->second.value.getDefiningOp() == op;
    if ((isFuture || isOwn || getLastUse(at->second.value) >= position) &&
        failed(checkOver(op, result, offset, end, at->first, at->second)))
      return failure();
    at = held.erase(at);
  }
  held[offset] = {end, value};
  return success();
}

/// Checks a kernel that writes a result over a state.
LogicalResult RaceAnalysis::update(rt::KernelOp kernel, unsigned result, int64_t log) {
  StringAttr state = kernel.getOverState(result);
  auto describe = [&]() -> InFlightDiagnostic {
    return kernel.emitOpError() << "writes result " << result << " over the state " << state;
  };
  auto known = states.find(state);
  if (known == states.end())
    return describe() << ", to which the function gives no value";
  StateMemory &memory = known->second;
  int64_t last = memory.value ? getLastUse(memory.value) : -1;
  if (last > positions.lookup(kernel)) {
    InFlightDiagnostic diagnostic = describe();
    diagnostic << " before the last reader of the value there";
    note(diagnostic, memory.value, last);
    return diagnostic;
  }
  UpdateKind kind = getUpdateKind(kernel, result, memory.value);
  if (kind == UpdateKind::None)
    return describe() << ", which it reads at other places";
  if (memory.isWritten && (kind == UpdateKind::Whole || memory.logEnd < 0))
    return describe() << " a second time";
  if (kind == UpdateKind::Rows && log < memory.logEnd)
    return describe() << ": expected the rows that it replaces at " << memory.logEnd
                      << " of the log or later, got " << log;
  memory = {kernel.getResult(result), true,
            kind == UpdateKind::Rows ? log + getLogBytes(kernel) : -1};
  return success();
}

/// Checks that states whose memory was written have their new values there.
LogicalResult RaceAnalysis::checkUpdates() {
  for (OpOperand &operand : block.getTerminator()->getOpOperands()) {
    unsigned result = operand.getOperandNumber();
    auto state = func.getResultAttrOfType<StringAttr>(result, nn::NnDialect::kStateAttr);
    if (state && states[state].isWritten && rt::getBuffer(operand.get()) != states[state].value)
      return states[state].value.getDefiningOp()->emitOpError()
             << "writes over the state " << state
             << ", which gets another value: expected its new value";
  }
  return success();
}

LogicalResult RaceAnalysis::visitMemory(Operation *op) {
  if (auto wait = dyn_cast<rt::WaitOp>(op)) {
    // From here on the wait's results are stored there.
    rt::StartOp start = wait.getStart();
    for (auto [result, offset] : llvm::zip_equal(wait.getResults(), *start.getOffsets()))
      if (auto at = held.find(offset); at != held.end() && at->second.value == start.getFuture())
        at->second.value = result;
    return success();
  }
  auto kernel = dyn_cast<rt::KernelOp>(op);
  auto start = dyn_cast<rt::StartOp>(op);
  if (!kernel && !start)
    return success();
  std::optional<ArrayRef<int64_t>> offsets = kernel ? kernel.getOffsets() : start.getOffsets();
  if (!offsets)
    return op->emitOpError() << "has no offsets: expected them, as the function has an arena";
  for (auto [i, offset] : llvm::enumerate(*offsets))
    if (failed(kernel && kernel.getOverState(i)
                   ? update(kernel, i, offset)
                   : write(op, i, kernel ? kernel.getResult(i) : start.getFuture(), offset)))
      return failure();
  return success();
}

LogicalResult RaceAnalysis::run() {
  auto bytes = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kArenaAttr);
  arena = bytes ? bytes.getInt() : 0;
  for (Operation &op : block)
    positions.try_emplace(&op, positions.size());
  for (auto start : block.getOps<rt::StartOp>())
    if (failed(checkWaits(start)))
      return failure();
  if (bytes)
    findUses();
  for (unsigned i = 0; i < func.getNumResults(); ++i)
    if (auto state = func.getResultAttrOfType<StringAttr>(i, nn::NnDialect::kStateAttr))
      states[state];
  for (BlockArgument argument : func.getArguments())
    if (StringAttr state = rt::getState(argument); states.contains(state))
      states[state].value = argument;
  for (Operation &op : block) {
    if (auto start = dyn_cast<rt::StartOp>(op)) {
      if (failed(checkStreams(start)))
        return failure();
      inFlight.push_back(start);
    }
    if (failed(checkGraphs(&op)) || (bytes && failed(visitMemory(&op))))
      return failure();
    if (auto wait = dyn_cast<rt::WaitOp>(op))
      llvm::erase(inFlight, wait.getStart());
  }
  if (graph)
    return graph.emitOpError() << "is never ended: expected an rt.graph_end";
  return checkUpdates();
}

LogicalResult meshwright::verifyRaces(func::FuncOp func) {
  if (func.isExternal() || !func.getBody().hasOneBlock())
    return success();
  return RaceAnalysis(func).run();
}
