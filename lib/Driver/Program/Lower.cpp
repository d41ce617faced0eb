//===- Lower.cpp - programs to LLVM ---------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Lowers a planned rt program to a list of steps. A step is a call of the runtime that launches a
// kernel, starts a collective, waits for one, or performs an op. The storage of each value is
// known: an offset in the arena, which its launch states, or an argument, a packed weight or a
// constant.
//
// Outline: `ProgramLowering::run` visits the ops of the function in order. `addKernel`, `addStart`
// and `addWait` append steps, and `addConstant` and `addPrepared` record the storage of values.
// `emitEntry` turns the steps to code.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Program/Lower.h"

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Driver/Program/Step.h"

#include "meshwright/lib/Launches/RaceAnalysis.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/RunPasses.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/schedule/LaunchTasks.h"

#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/Pass/PassManager.h"

#include <cstddef>

using namespace mlir;

namespace meshwright {
namespace lower {

namespace {

class ProgramLowering {
public:
  ProgramLowering(func::FuncOp main, const KernelTarget &target, const LowerOptions &options)
      : main(main), target(target), probes(options.probes),
        kernels(target.createBuilder(main.getContext())) {
    program.symbol = options.symbol;
  }

  FailureOr<LoweredProgram> run();

private:
  LogicalResult addArguments();
  LogicalResult addConstant(nn::ConstantOp op);
  LogicalResult addPositions(dist::PositionsOp op);
  LogicalResult addPrepared(rt::PrepareOp op);
  int64_t getResultOf(StringAttr state);
  void placeUpdates(rt::KernelOp launch);
  Step &addCall(Operation *op, RuntimeCall call);
  Step &addCollective(dist::CollectiveOpInterface op, RuntimeCall call);
  LogicalResult addKernel(rt::KernelOp launch);
  LogicalResult addStart(rt::StartOp start);
  void addWait(rt::WaitOp wait);
  void addGraph(Operation *op, StringRef callee);
  LogicalResult addOp(Operation *op);
  /// Adds a step that passes a result to the observer of the run, if the op has an `nn.id`.
  void addProbe(Value result, Value yielded);
  /// Records the storage of a launch's results, and of the values that its region yields.
  LogicalResult placeResults(Operation *launch, std::optional<ArrayRef<int64_t>> offsets,
                             ValueRange results, ValueRange yielded);
  LogicalResult checkPlaced(const Step &step) const;

  /// The value that owns the buffer of a value, which may be a view or a value of a region.
  static Value resolve(Value value, int64_t *offset = nullptr) {
    int64_t bytes = 0, more;
    for (Value last; last != value; bytes += more) {
      last = value;
      value = rt::getBuffer(rt::getOuterValue(value), &more);
    }
    if (offset)
      *offset = bytes;
    return value;
  }
  Storage getStorage(Value value) const {
    int64_t offset;
    Storage storage = storages.lookup(resolve(value, &offset));
    storage.offset = offset;
    return storage;
  }

  func::FuncOp main;
  const KernelTarget &target;
  bool probes;
  std::unique_ptr<KernelBuilder> kernels;
  LoweredProgram program;
  std::vector<Step> steps;
  ProgramMap<Value, Storage> storages;
  /// The tickets of the starts whose waits have not been visited yet.
  ProgramMap<Operation *, int64_t> tickets;
  int64_t numTickets = 0;
};

} // namespace

static int64_t countOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

/// Returns true if the value is a log-sum-exp, where -inf is a number like others: a query that sees no
/// key has it.
static bool isLogSumExp(Value value) {
  auto part = value.getDefiningOp<dist::LogSumExpOpInterface>();
  return part && part.getLogSumExp() == value;
}

static int64_t countFlops(rt::KernelOp launch) {
  double flops = 0;
  for (Operation &op : launch.getOps())
    if (auto work = dyn_cast<dist::WorkOpInterface>(op))
      flops += work.getFlops();
  return int64_t(flops);
}

//===----------------------------------------------------------------------===//
// Arguments, constants and packed weights
//===----------------------------------------------------------------------===//

LogicalResult ProgramLowering::addArguments() {
  for (auto [i, type] : llvm::enumerate(main.getArgumentTypes())) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || !tensor.hasStaticShape() || getTypeCode(tensor.getElementType()) < 0)
      return emitError(main.getLoc(), "argument ")
             << i << " of '" << main.getName() << "': expected a tensor of static shape, got "
             << type;
    storages[main.getArgument(i)] = {Storage::Argument, int64_t(i)};
    program.isRead.push_back(rt::isReadUnpacked(main.getArgument(i)));
  }
  return success();
}

/// Adds the elements of a constant in their form in memory.
LogicalResult ProgramLowering::addConstant(nn::ConstantOp op) {
  auto type = cast<RankedTensorType>(op.getResult().getType());
  int64_t bytes = rt::getBufferBytes(type);
  std::vector<char> data;
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(op.getValue())) {
    AsmResourceBlob *blob = resource.getRawHandle().getBlob();
    if (!blob)
      return op.emitOpError("has a value whose data is not in the module");
    data.assign(blob->getData().begin(), blob->getData().end());
  } else if (auto elements = dyn_cast<DenseElementsAttr>(op.getValue())) {
    if (type.getElementType().isInteger(1))
      for (bool value : elements.getValues<bool>())
        data.push_back(value);
    else
      data.assign(elements.getRawData().begin(), elements.getRawData().end());
    int64_t size = data.size();
    if (elements.isSplat() && size > 0 && size < bytes)
      for (int64_t i = size; i < bytes; ++i)
        data.push_back(data[i - size]);
  } else {
    return op.emitOpError("has a value of a kind that cannot be compiled");
  }
  if (int64_t(data.size()) != bytes)
    return op.emitOpError("expected ") << bytes << " bytes of data, got " << data.size();
  storages[op.getResult()] = {Storage::Constant, int64_t(program.constants.size())};
  program.constants.push_back({std::move(data)});
  return success();
}

/// Adds the numbers that kernels make positions of: the index of each rank's first element.
LogicalResult ProgramLowering::addPositions(dist::PositionsOp op) {
  dist::LayoutFactor factor = dist::getFactor(op, dist::getSpmdMesh(op));
  LoweredConstant constant;
  if (failed(setAxes(op, factor.axes, constant.axes)))
    return failure();
  std::vector<int64_t> firsts;
  for (int64_t i = 0, chunks = dist::getNumShards(factor.axes); i < chunks; ++i)
    firsts.push_back(getFirstIndex(op, i));
  auto *bytes = reinterpret_cast<const char *>(firsts.data());
  constant.data.assign(bytes, bytes + firsts.size() * sizeof(int64_t));
  auto known = llvm::find(program.constants, constant);
  storages[op.getResult()] = {Storage::Constant, int64_t(known - program.constants.begin())};
  if (known == program.constants.end())
    program.constants.push_back(std::move(constant));
  return success();
}

LogicalResult ProgramLowering::addPrepared(rt::PrepareOp op) {
  int64_t offset;
  auto argument = cast<BlockArgument>(rt::getBuffer(op.getWeight(), &offset));
  storages[op.getResult()] = {Storage::Prepared, int64_t(program.prepared.size())};
  program.prepared.push_back({argument.getArgNumber(), offset, getPacking(op)});
  return success();
}

LogicalResult ProgramLowering::placeResults(Operation *launch,
                                            std::optional<ArrayRef<int64_t>> offsets,
                                            ValueRange results, ValueRange yielded) {
  if (!offsets)
    return launch->emitOpError(
        "has no offsets in the arena: expected '--plan-buffers' to have run");
  for (auto [result, inside, offset] : llvm::zip_equal(results, yielded, *offsets)) {
    if (getTypeCode(getElementTypeOrSelf(result.getType())) < 0)
      return inside.getDefiningOp()->emitOpError("has a result of type ")
             << result.getType() << ", which cannot be compiled";
    // A copy, since an insertion moves earlier elements of the map.
    Storage storage{Storage::Arena, offset};
    storages[result] = storage;
    storages[inside] = storage;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

LogicalResult ProgramLowering::checkPlaced(const Step &step) const {
  for (const auto *values : {&step.inputs, &step.outputs})
    for (Value value : *values)
      if (value && !storages.contains(resolve(value)))
        return step.op->emitOpError("cannot be compiled for execution with the ops around it");
  return success();
}

void ProgramLowering::addProbe(Value result, Value yielded) {
  Operation *op = yielded.getDefiningOp();
  auto id = op->getAttrOfType<IntegerAttr>(nn::NnDialect::kIdAttr);
  // The first of several results of an op of nn is its main result.
  if (!probes || !id || cast<OpResult>(yielded).getResultNumber() != 0 ||
      (op->getNumResults() != 1 && !isa<nn::NnDialect>(op->getDialect())))
    return;
  auto type = cast<RankedTensorType>(result.getType());
  Step probe(op, "mw_rt_run_probe");
  probe.inputs = {result};
  probe.numbers = {int64_t(program.probes.size())};
  program.probes.push_back({id.getInt(), describeOp(op), getTypeCode(type.getElementType()),
                            std::vector<int64_t>(type.getShape())});
  steps.push_back(std::move(probe));
}

/// The number of the function's result that is the new value of a state.
int64_t ProgramLowering::getResultOf(StringAttr state) {
  int64_t result = 0;
  while (main.getResultAttr(result, nn::NnDialect::kStateAttr) != state)
    ++result;
  return result;
}

/// Records the storage of results that are written over states. A kernel that replaces rows writes
/// to the argument; the caller passes the memory for other new values.
void ProgramLowering::placeUpdates(rt::KernelOp launch) {
  for (unsigned i = 0; i < launch.getNumResults(); ++i) {
    StringAttr state = launch.getOverState(i);
    if (!state)
      continue;
    Storage storage{Storage::Result, getResultOf(state)};
    if (replacesRowsOfState(launch, i))
      storage = storages.lookup(resolve(launch.getOperand(*getReplacedOperand(launch))));
    storages[launch.getResult(i)] = storage;
    storages[launch.getYielded()[i]] = storage;
  }
}

/// Adds a step that the device performs.
Step &ProgramLowering::addCall(Operation *op, RuntimeCall call) {
  program.calls.insert(call.getHead().kind);
  Step &step = steps.emplace_back(op, "mw_rt_perform", std::move(call));
  step.passing = Step::OneArray;
  return step;
}

/// Adds a collective on the compute stream.
Step &ProgramLowering::addCollective(dist::CollectiveOpInterface op, RuntimeCall call) {
  Step &step = steps.emplace_back(op, "mw_rt_run_collective", std::move(call));
  step.passing = Step::TwoArrays;
  step.outputs.assign(op->result_begin(), op->result_end());
  return step;
}

/// The descriptor of a kernel's launch. The step has its inputs and outputs.
static Descriptor describeLaunch(const KernelInfo &info, const Step &step, ValueRange yielded) {
  mw_rt_launch what = {};
  what.kind = info.kind;
  what.items = info.items;
  what.grain = info.grain;
  what.workspace = info.workspaceBytes;
  what.flops = info.flops;
  what.bytes = info.bytes;
  what.rows = info.rows;
  what.counter = info.counter;
  what.last = info.numOffsets - 1;
  what.items_are_rows = info.itemsAreRows;
  what.num_inputs = step.inputs.size();
  what.num_outputs = step.outputs.size();
  Descriptor descriptor;
  append(descriptor, what, offsetof(mw_rt_launch, outputs));
  for (auto [output, inside] : llvm::zip_equal(step.outputs, yielded)) {
    mw_rt_output fields = {};
    fields.dtype = getTypeCode(getElementTypeOrSelf(output.getType()));
    fields.count = isLogSumExp(inside) ? 0 : countOf(output);
    append(descriptor, fields);
  }
  return descriptor;
}

LogicalResult ProgramLowering::addKernel(rt::KernelOp launch) {
  if (failed(placeResults(launch, launch.getOffsets(), launch.getResults(), launch.getYielded())))
    return failure();
  placeUpdates(launch);
  Operation *op = getNamedOp(launch);
  if (replacesRowsOfState(launch, 0)) {
    FailureOr<RuntimeCall> call = getRowUpdate(op, launch.getOffsets()->front());
    if (failed(call))
      return failure();
    addCall(op, std::move(*call)).log = getResultOf(launch.getOverState(0));
    addProbe(launch.getResult(0), launch.getYielded().front());
    return checkPlaced(steps.back());
  }
  std::optional<KernelInfo> info = kernels->build(launch);
  if (info) {
    for (Value input : info->inputs)
      if (auto positions = input.getDefiningOp<dist::PositionsOp>();
          positions && failed(addPositions(positions)))
        return failure();
    Step step(op, "mw_rt_run_kernel");
    step.passing = Step::Kernel;
    step.kernel = info->name;
    step.checksIndices = info->checksIndices;
    step.scratchBytes = info->scratchBytes;
    step.tensorMaps = info->tensorMaps;
    step.inputs = info->inputs;
    step.outputs.assign(launch->result_begin(), launch->result_end());
    if (info->flops == 0)
      info->flops = countFlops(launch);
    if (info->bytes < 0) {
      info->bytes = 0;
      for (TypeRange types :
           {TypeRange(launch->getOperandTypes()), TypeRange(launch->getResultTypes())})
        for (Type type : types)
          info->bytes += rt::getBufferBytes(type);
    }
    program.workspaceBytes = std::max(program.workspaceBytes, info->workspaceBytes);
    step.descriptor = describeLaunch(*info, step, launch.getYielded());
    steps.push_back(std::move(step));
    if (std::optional<RuntimeCall> note = getNote(op)) {
      if (failed(checkPlaced(steps.back())))
        return failure();
      addCall(op, std::move(*note));
    }
  } else {
    // A call performs one op, and decodes a weight before.
    auto collective = dyn_cast<dist::CollectiveOpInterface>(op);
    auto isOther = [&](Operation &other) {
      return &other != op && !isa<dist::DecodeOp, nn::DequantizeOp>(other);
    };
    if (llvm::any_of(launch.getOps(), isOther) || !(collective || target.isLibraryOp(op))) {
      std::string supported = target.getSupportedKernels();
      if (supported.empty())
        return op->emitOpError("cannot be compiled for execution");
      return op->emitOpError("has no kernel for target '")
             << target.getName() << "': expected " << supported;
    }
    FailureOr<RuntimeCall> call = collective ? getCollectiveCall(collective) : getCall(op);
    if (failed(call))
      return failure();
    for (Value input : call->inputs)
      if (rt::PrepareOp prepare = input ? rt::getPrepare(resolve(input)) : nullptr;
          prepare && prepare.getPacking())
        return op->emitOpError("reads a packed weight, and no kernel for that is known");
    if (collective)
      addCollective(collective, std::move(*call));
    else
      addCall(op, std::move(*call)).outputs.assign(op->result_begin(), op->result_end());
  }
  if (failed(checkPlaced(steps.back())))
    return failure();
  for (auto [result, yielded] : llvm::zip_equal(launch.getResults(), launch.getYielded()))
    addProbe(result, yielded);
  return success();
}

LogicalResult ProgramLowering::addStart(rt::StartOp start) {
  auto wait = dyn_cast<rt::WaitOp>(*start.getFuture().getUsers().begin());
  if (failed(placeResults(start, start.getOffsets(), wait.getResults(), start.getYielded())))
    return failure();
  dist::CollectiveOpInterface collective = start.getCollective();
  bool counts = collective.countsRows();
  FailureOr<RuntimeCall> call = counts ? getCall(collective) : getCollectiveCall(collective);
  if (failed(call))
    return failure();
  // A call exchanges rows whose number it finds.
  Step &step = counts ? addCall(collective, std::move(*call)) : addCollective(collective, std::move(*call));
  step.outputs.assign(collective->result_begin(), collective->result_end());
  // If no kernel overlaps the collective and no other collective is in flight, the compute
  // stream performs it.
  if (!tickets.empty() || start->getNextNode() != wait) {
    step.callee = counts ? "mw_rt_start_call" : "mw_rt_start";
    step.numbers = {int64_t(start.getStream()), numTickets};
    tickets[start] = numTickets++;
  }
  return checkPlaced(step);
}

void ProgramLowering::addWait(rt::WaitOp wait) {
  rt::StartOp start = wait.getStart();
  if (auto ticket = tickets.find(start); ticket != tickets.end()) {
    Step step(start.getCollective(), "mw_rt_wait");
    step.numbers = {ticket->second};
    tickets.erase(ticket);
    steps.push_back(std::move(step));
  }
  for (auto [result, yielded] : llvm::zip_equal(wait.getResults(), start.getYielded()))
    addProbe(result, yielded);
}

/// Adds the begin or the end of a graph. Errors and traces name the launch next to it.
void ProgramLowering::addGraph(Operation *op, StringRef callee) {
  bool begins = isa<rt::GraphBeginOp>(op);
  Operation *launch = op;
  while (launch && !isa<rt::KernelOp, rt::StartOp>(launch))
    launch = begins ? launch->getNextNode() : launch->getPrevNode();
  if (auto kernel = dyn_cast_or_null<rt::KernelOp>(launch))
    op = getNamedOp(kernel);
  else if (auto start = dyn_cast_or_null<rt::StartOp>(launch))
    op = start.getCollective();
  steps.emplace_back(op, callee.str());
}

LogicalResult ProgramLowering::addOp(Operation *op) {
  if (rt::isView(op))
    return success();
  if (isa<rt::GraphBeginOp>(op)) {
    addGraph(op, "mw_rt_graph_begin");
    return success();
  }
  if (isa<rt::GraphEndOp>(op)) {
    addGraph(op, "mw_rt_graph_end");
    return success();
  }
  if (auto constant = dyn_cast<nn::ConstantOp>(op))
    return addConstant(constant);
  if (auto prepare = dyn_cast<rt::PrepareOp>(op))
    return addPrepared(prepare);
  if (auto kernel = dyn_cast<rt::KernelOp>(op))
    return addKernel(kernel);
  if (auto start = dyn_cast<rt::StartOp>(op))
    return addStart(start);
  if (auto wait = dyn_cast<rt::WaitOp>(op)) {
    addWait(wait);
    return success();
  }
  return op->emitOpError("is not in a launch: expected '--form-kernels' to have run");
}

FailureOr<LoweredProgram> ProgramLowering::run() {
  program.module = ModuleOp::create(main.getLoc());
  program.hasRecords = !target.getDeviceChip().empty();
  program.arenaBytes = main->getAttrOfType<IntegerAttr>(rt::RtDialect::kArenaAttr).getInt();
  if (failed(addArguments()))
    return failure();
  Block &body = main.getBody().front();
  for (Operation &op : body.without_terminator())
    if (failed(addOp(&op)))
      return failure();
  program.kernels = kernels->takeSources();
  program.results = getStateResults(main);
  emitEntry(program, steps, body.getTerminator()->getOperands(),
            [&](Value value) { return getStorage(value); });
  return std::move(program);
}

} // namespace lower

LogicalResult checkTarget(func::FuncOp main, const KernelTarget &target) {
  if (!isPlanned(main))
    return success();
  // A planned program has the kernels and packed weights of one target.
  auto noted = main->getAttrOfType<StringAttr>(rt::RtDialect::kTargetAttr);
  StringRef planned = noted ? noted.getValue() : "cpu";
  if (planned != target.getName())
    return emitError(main.getLoc(), "'")
           << main.getName() << "' is planned for target '" << planned
           << "' and cannot be compiled for '" << target.getName()
           << "': expected the SPMD program, which can be planned anew";
  return success();
}

FailureOr<LoweredProgram> lowerProgram(func::FuncOp main, const LowerOptions &options) {
  if (main.isExternal())
    return emitError(main.getLoc(), "'") << main.getName() << "' has no body";
  std::shared_ptr<const KernelTarget> target =
      options.target ? options.target : getKernelTarget(main);
  if (!target)
    return failure();
  target->loadDialects(*main.getContext());
  if (isPlanned(main)) {
    if (failed(checkTarget(main, *target)) || failed(verifyRaces(main)))
      return failure();
    return lower::ProgramLowering(main, *target, options).run();
  }
  // On a copy, since the caller's program must not change.
  OwningOpRef<ModuleOp> module = main->getParentOfType<ModuleOp>().clone();
  for (auto other : llvm::make_early_inc_range(module->getOps<func::FuncOp>()))
    if (other.getName() != main.getName())
      other.erase();
  auto copy = module->lookupSymbol<func::FuncOp>(main.getName());
  setTarget(copy, target->getName());
  ScheduleOptions schedule = options.schedule;
  if (options.probes) {
    schedule.keepProbed = true;
    schedule.splitCollectives = false;
  }
  // Probed values stay in memory, so the program needs more than the ceiling allows.
  if (options.probes)
    copy->removeAttr(rt::RtDialect::kCeilingAttr);
  if (failed(runPasses(*module, [&](OpPassManager &pm) { buildSchedulePhase(pm, schedule); })))
    return failure();
  return lower::ProgramLowering(copy, *target, options).run();
}

} // namespace meshwright
