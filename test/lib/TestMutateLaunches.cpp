//===- TestMutateLaunches.cpp - is every race seen? -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Changes planned rt programs at random places: other offsets, other orders,
// other streams, waits dropped or done twice. Whether a change is a fault is found
// by running the program on memory that holds, for each 64 bytes, the value that is
// stored there: a launch must find its operands, and nothing may touch what a collective
// in flight uses. The verifier must see every fault, and nothing else.
//
//===----------------------------------------------------------------------===//

#include "TestMutateLaunches.h"

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Launches/InPlace.h"
#include "meshwright/lib/Launches/RaceAnalysis.h"

#include "mlir/IR/Verifier.h"
#include "mlir/Pass/Pass.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <map>
#include <random>

using namespace mlir;
using namespace meshwright;

namespace {

//===----------------------------------------------------------------------===//
// Running on marked memory
//===----------------------------------------------------------------------===//

class MarkedRun {
public:
  explicit MarkedRun(func::FuncOp func) : func(func) {
    if (auto bytes = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kArenaAttr))
      cells = bytes.getInt() / rt::kBufferAlignment;
  }

  /// Returns true if every launch, and the caller, finds the values that it should.
  bool isRight() {
    for (Operation &op : func.getBody().front())
      if (!step(op))
        return false;
    return flying.empty();
  }

private:
  struct Range {
    int64_t begin, end;
  };
  struct Flight {
    SmallVector<std::pair<Value, Range>> reads;
    SmallVector<Range> writes;
  };

  static Range getRange(int64_t offset, Type type) {
    int64_t begin = offset / rt::kBufferAlignment;
    return {begin, begin + int64_t(llvm::divideCeil(rt::getBufferBytes(type), rt::kBufferAlignment))};
  }
  static bool overlap(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

  bool holds(Value value, Range range) {
    for (int64_t cell = range.begin; cell < range.end; ++cell)
      if (memory.lookup(cell) != value)
        return false;
    for (auto &[start, flight] : flying)
      for (Range write : flight.writes)
        if (overlap(write, range))
          return false;
    return true;
  }

  /// Returns true if a write leaves alone what is in flight, and stays inside.
  bool mayWrite(Range range) {
    for (auto &[start, flight] : flying) {
      for (Range write : flight.writes)
        if (overlap(write, range))
          return false;
      for (auto &[value, read] : flight.reads)
        if (overlap(read, range))
          return false;
    }
    return range.end <= cells;
  }

  bool read(Operation &op) {
    for (Value operand : op.getOperands()) {
      Value buffer = rt::getBuffer(operand);
      if (auto at = places.find(buffer); at != places.end() && !holds(buffer, at->second))
        return false;
    }
    return true;
  }

  bool step(Operation &op) {
    if (rt::isView(&op))
      return true;
    if (auto wait = dyn_cast<rt::WaitOp>(op)) {
      auto flight = flying.find(wait.getStart());
      if (flight == flying.end())
        return false;
      Flight done = flight->second;
      flying.erase(flight);
      // It may have read as late as now.
      for (auto &[value, range] : done.reads)
        if (!holds(value, range))
          return false;
      for (auto [value, range] : llvm::zip_equal(wait.getResults(), done.writes))
        mark(value, range);
      return true;
    }
    if (!read(op))
      return false;
    if (auto start = dyn_cast<rt::StartOp>(op)) {
      Flight flight;
      for (Value operand : op.getOperands())
        if (auto at = places.find(rt::getBuffer(operand)); at != places.end())
          flight.reads.push_back({rt::getBuffer(operand), at->second});
      for (auto [offset, type] :
           llvm::zip_equal(*start.getOffsets(), start.getFuture().getType().getTypes())) {
        Range range = getRange(offset, type);
        if (!mayWrite(range))
          return false;
        for (Range other : flight.writes)
          if (overlap(other, range))
            return false;
        for (auto &[value, other] : flight.reads)
          if (overlap(other, range))
            return false;
        flight.writes.push_back(range);
      }
      dist::MeshAttr mesh = dist::getSpmdMesh(start);
      dist::CollectiveRole role = start.getCollective().getRole();
      if (roles.try_emplace(start.getStream(), role).first->second != role)
        return false;
      for (auto &[other, flown] : flying) {
        auto second = cast<rt::StartOp>(other);
        if (second.getStream() != start.getStream() &&
            second.getCollective().getRole() == role &&
            dist::anyOverlap(start.getCollective().getGroupAxes(mesh),
                             second.getCollective().getGroupAxes(mesh)))
          return false;
      }
      flying[start] = std::move(flight);
      return true;
    }
    auto kernel = dyn_cast<rt::KernelOp>(op);
    if (!kernel)
      return true;
    SmallVector<Range> written;
    for (auto [i, offset] : llvm::enumerate(*kernel.getOffsets())) {
      Range range = getRange(offset, kernel.getResult(i).getType());
      if (!mayWrite(range))
        return false;
      for (Range other : written)
        if (overlap(other, range))
          return false;
      written.push_back(range);
      // While it reads.
      SmallVector<unsigned> over;
      for (auto [o, operand] : llvm::enumerate(kernel.getInputs()))
        if (auto at = places.find(rt::getBuffer(operand));
            at != places.end() && overlap(at->second, range))
          over.push_back(o);
      if (over.empty())
        continue;
      Range operand = places[rt::getBuffer(kernel.getInputs()[over[0]])];
      if (over.size() > 1 || operand.begin != range.begin || !canWriteInPlace(kernel, over[0], i))
        return false;
    }
    for (auto [value, range] : llvm::zip_equal(kernel.getResults(), written))
      mark(value, range);
    return true;
  }

  void mark(Value value, Range range) {
    places[value] = range;
    for (int64_t cell = range.begin; cell < range.end; ++cell)
      memory[cell] = value;
  }

  func::FuncOp func;
  int64_t cells = 0;
  DenseMap<int64_t, Value> memory;
  DenseMap<Value, Range> places;
  std::map<Operation *, Flight> flying;
  /// Of each stream.
  std::map<int64_t, dist::CollectiveRole> roles;
};

//===----------------------------------------------------------------------===//
// Changes
//===----------------------------------------------------------------------===//

using Random = std::mt19937_64;

Operation *pick(func::FuncOp func, Random &random, llvm::function_ref<bool(Operation &)> isWanted) {
  SmallVector<Operation *> candidates;
  for (Operation &op : func.getBody().front())
    if (isWanted(op))
      candidates.push_back(&op);
  return candidates.empty() ? nullptr : candidates[random() % candidates.size()];
}

bool isLaunch(Operation &op) { return isa<rt::KernelOp, rt::StartOp>(op); }

ArrayRef<int64_t> getOffsets(Operation *op) {
  return op->getAttrOfType<DenseI64ArrayAttr>("offsets").asArrayRef();
}

/// Moves a result to the offset of another one, or near it.
bool moveResult(func::FuncOp func, Random &random) {
  Operation *op = pick(func, random, isLaunch), *other = pick(func, random, isLaunch);
  if (!op)
    return false;
  SmallVector<int64_t> offsets(getOffsets(op));
  ArrayRef<int64_t> others = getOffsets(other);
  int64_t &offset = offsets[random() % offsets.size()];
  int64_t before = offset;
  offset = others[random() % others.size()];
  if (random() % 4 == 0)
    offset += rt::kBufferAlignment;
  op->setAttr("offsets", DenseI64ArrayAttr::get(op->getContext(), offsets));
  return offset != before;
}

/// An op moves up or down, as far as it may by its operands and users.
bool moveOp(func::FuncOp func, Random &random) {
  Operation *op =
      pick(func, random, [](Operation &op) { return isLaunch(op) || isa<rt::WaitOp>(op); });
  if (!op)
    return false;
  SmallVector<Operation *> places;
  for (Operation *at = op->getPrevNode(); at; at = at->getPrevNode()) {
    if (llvm::any_of(op->getOperands(),
                     [&](Value operand) { return operand.getDefiningOp() == at; }))
      break;
    places.push_back(at);
  }
  size_t numUp = places.size();
  for (Operation *at = op->getNextNode(); at && !at->hasTrait<OpTrait::IsTerminator>();
       at = at->getNextNode()) {
    if (llvm::is_contained(op->getUsers(), at))
      break;
    places.push_back(at);
  }
  if (places.empty())
    return false;
  size_t choice = random() % places.size();
  if (choice < numUp)
    op->moveBefore(places[choice]);
  else
    op->moveAfter(places[choice]);
  return true;
}

bool changeStream(func::FuncOp func, Random &random) {
  Operation *op = pick(func, random, llvm::IsaPred<rt::StartOp>);
  if (!op)
    return false;
  auto start = cast<rt::StartOp>(op);
  start.setStream(start.getStream() + 1 + random() % 2);
  return true;
}

bool waitTwice(func::FuncOp func, Random &random) {
  Operation *wait = pick(func, random, llvm::IsaPred<rt::WaitOp>);
  if (!wait)
    return false;
  OpBuilder builder(wait);
  builder.setInsertionPointAfter(wait);
  builder.clone(*wait);
  return true;
}

/// Lets the users of a wait read the operand instead, which may be of the same type.
bool dropWait(func::FuncOp func, Random &random) {
  Operation *op = pick(func, random, llvm::IsaPred<rt::WaitOp>);
  if (!op)
    return false;
  auto wait = cast<rt::WaitOp>(op);
  rt::StartOp start = wait.getStart();
  if (start->getOperandTypes() != wait.getResultTypes())
    return false;
  wait->replaceAllUsesWith(start->getOperands());
  wait->erase();
  return true;
}

bool shrinkArena(func::FuncOp func, Random &random) {
  auto bytes = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kArenaAttr).getInt();
  if (bytes < rt::kBufferAlignment)
    return false;
  func->setAttr(rt::RtDialect::kArenaAttr,
                OpBuilder(func).getI64IntegerAttr(bytes - rt::kBufferAlignment));
  return true;
}

struct Change {
  StringRef name;
  bool (*make)(func::FuncOp, Random &);
};

constexpr Change changes[] = {
    {"move-result", moveResult}, {"move-op", moveOp},     {"change-stream", changeStream},
    {"wait-twice", waitTwice},   {"drop-wait", dropWait}, {"shrink-arena", shrinkArena},
};

struct TestMutateLaunchesPass : PassWrapper<TestMutateLaunchesPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(TestMutateLaunchesPass)

  TestMutateLaunchesPass() = default;
  TestMutateLaunchesPass(const TestMutateLaunchesPass &other) : PassWrapper(other) {}

  StringRef getArgument() const override { return "test-mutate-launches"; }
  StringRef getDescription() const override {
    return "changes planned rt programs and compares the verifier with a run";
  }

  Option<unsigned> seed{*this, "seed", llvm::cl::desc("of the random choice"), llvm::cl::init(1)};
  Option<unsigned> count{*this, "count", llvm::cl::desc("changes of each kind"),
                         llvm::cl::init(100)};

  void runOnOperation() override {
    Random random(seed);
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      if (!func->hasAttr(rt::RtDialect::kArenaAttr))
        continue;
      if (!MarkedRun(func).isRight()) {
        func.emitError("runs wrong before any change");
        return signalPassFailure();
      }
      for (const Change &change : changes) {
        unsigned faults = 0, caught = 0, harmless = 0, refused = 0;
        for (unsigned i = 0; i < count; ++i) {
          OwningOpRef<ModuleOp> copy = getOperation().clone();
          auto changed = copy->lookupSymbol<func::FuncOp>(func.getName());
          // Of some only several together are a fault.
          bool isChanged = change.make(changed, random);
          if (isChanged && change.make == changeStream)
            for (unsigned j = 0; j < 4; ++j)
              moveOp(changed, random);
          if (!isChanged)
            continue;
          ScopedDiagnosticHandler silent(&getContext(), [](Diagnostic &) { return success(); });
          if (failed(verify(*copy)))
            continue;
          bool isRight = MarkedRun(changed).isRight();
          bool passes = succeeded(verifyRaces(changed));
          faults += !isRight;
          caught += !isRight && !passes;
          harmless += isRight;
          refused += isRight && !passes;
        }
        llvm::outs() << func.getName() << " " << change.name << ": " << caught << " of " << faults
                     << " faults caught, " << refused << " of " << harmless
                     << " harmless changes refused\n";
      }
    }
  }
};

} // namespace

void meshwright::test::registerMutateLaunchesPass() { PassRegistration<TestMutateLaunchesPass>(); }
