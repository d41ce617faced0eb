//===- FormKernels.cpp - ops to launches ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels are groups of ops (Grouping.h). LaunchWriter writes the function's body anew:
// groups, collectives, views and constants, each behind its operands, else in program
// order.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/CountedRows.h"
#include "meshwright/passes/schedule/Grouping.h"
#include "meshwright/passes/schedule/Links.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"

#include <map>

namespace meshwright {
#define GEN_PASS_DEF_FORMKERNELSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

/// A unit that is emitted at once: a group, or an op of its own.
struct Unit {
  KernelGroup group;
  /// Values from outside that the unit reads.
  SmallVector<Value> inputs;
  /// The input that counts the rows of all results.
  std::optional<unsigned> counter;
  bool isKernel = false;
  bool isEmitted = false;
};

class LaunchWriter {
public:
  LaunchWriter(func::FuncOp func, const GroupingOptions &options)
      : func(func), body(func.getBody().front()), options(options), builder(func) {}

  LogicalResult run();

private:
  void collectUnits();
  void assignStreams();
  LogicalResult emit(size_t unit);
  void emitKernel(Unit &unit);
  void emitCollective(Operation *op);
  SmallVector<Value> map(ValueRange values) const {
    SmallVector<Value> mapped;
    for (Value value : values)
      mapped.push_back(mapping.lookupOrDefault(value));
    return mapped;
  }

  func::FuncOp func;
  Block &body;
  GroupingOptions options;
  OpBuilder builder;
  std::vector<Unit> units;
  /// The unit that makes a value.
  ProgramMap<Value, size_t> makers;
  ProgramMap<Operation *, int64_t> streams;
  IRMapping mapping;
};

} // namespace

/// The units, in the program order of their last ops.
void LaunchWriter::collectUnits() {
  std::vector<KernelGroup> groups = groupKernels(func, options);
  CountedRows counted(func);
  ProgramSet<Value> needed;
  for (Value value : body.getTerminator()->getOperands())
    needed.insert(value);
  ProgramMap<Operation *, SmallVector<size_t, 1>> groupsAt;
  for (auto [i, group] : llvm::enumerate(groups))
    groupsAt[group.ops.back()].push_back(i);
  auto add = [&](KernelGroup group, bool isKernel) {
    Unit unit;
    llvm::SmallDenseSet<Operation *> members(group.ops.begin(), group.ops.end());
    llvm::SmallSetVector<Value, 8> inputs;
    for (Operation *op : group.ops)
      for (Value operand : op->getOperands())
        if (Operation *producer = operand.getDefiningOp(); !producer || !members.contains(producer))
          inputs.insert(operand);
    // Integers of rows that do not exist are computed, too: a lookup or a division may read them.
    auto isFloat = [](Value value) { return isa<FloatType>(getElementTypeOrSelf(value.getType())); };
    bool areFloats = llvm::all_of(group.results, isFloat);
    bool isCounted = isKernel && (areFloats || isa<nn::CountedRowsOpInterface>(group.ops.front()));
    Value counts = isCounted ? counted.getOffsets(group.results) : Value();
    if (counts && !(counts.getDefiningOp() && members.contains(counts.getDefiningOp()))) {
      inputs.insert(counts);
      unit.counter = llvm::find(inputs, counts) - inputs.begin();
    }
    unit.inputs = inputs.takeVector();
    needed.insert(unit.inputs.begin(), unit.inputs.end());
    unit.group = std::move(group);
    unit.isKernel = isKernel;
    units.push_back(std::move(unit));
  };
  // Backward, because the other ops are units only if a unit needs them.
  for (Operation &op : llvm::reverse(body.without_terminator())) {
    for (size_t i : llvm::reverse(groupsAt.lookup(&op)))
      add(std::move(groups[i]), /*isKernel=*/true);
    bool isOwn = rt::isView(&op) || dist::communicates(&op) || op.hasTrait<OpTrait::ConstantLike>();
    if (isOwn && !groupsAt.contains(&op) &&
        llvm::any_of(op.getResults(), [&](Value value) { return needed.contains(value); }))
      add({{&op}, llvm::to_vector_of<Value>(op.getResults())}, /*isKernel=*/false);
  }
  std::reverse(units.begin(), units.end());
  for (auto [i, unit] : llvm::enumerate(units))
    for (Value result : unit.group.results)
      makers[result] = i;
}

/// Assigns streams: collectives of one link and one role share a stream.
void LaunchWriter::assignStreams() {
  SmallVector<dist::CollectiveOpInterface> collectives;
  for (Unit &unit : units)
    if (!unit.isKernel && dist::communicates(unit.group.ops.front()))
      collectives.push_back(cast<dist::CollectiveOpInterface>(unit.group.ops.front()));
  std::map<std::pair<int64_t, dist::CollectiveRole>, int64_t> numbers;
  for (auto [collective, link] :
       llvm::zip_equal(collectives, numberLinks(collectives, dist::getSpmdMesh(func))))
    streams[collective] =
        numbers.try_emplace({link, collective.getRole()}, numbers.size() + 1).first->second;
}

void LaunchWriter::emitKernel(Unit &unit) {
  const KernelGroup &group = unit.group;
  SmallVector<Type> types;
  for (Value result : group.results)
    types.push_back(result.getType());
  auto kernel = rt::KernelOp::create(builder, group.results.front().getLoc(), types,
                                     map(unit.inputs), /*offsets=*/nullptr, /*over=*/nullptr,
                                     unit.counter ? builder.getI64IntegerAttr(*unit.counter) : IntegerAttr());
  OpBuilder::InsertionGuard guard(builder);
  Block *block = builder.createBlock(&kernel.getBody());
  IRMapping inside;
  for (Value input : unit.inputs)
    inside.map(input, block->addArgument(input.getType(), input.getLoc()));
  for (Operation *op : group.ops)
    builder.clone(*op, inside);
  SmallVector<Value> yielded;
  for (auto [result, outside] : llvm::zip_equal(group.results, kernel.getResults())) {
    yielded.push_back(inside.lookup(result));
    mapping.map(result, outside);
  }
  rt::YieldOp::create(builder, kernel.getLoc(), yielded);
}

void LaunchWriter::emitCollective(Operation *op) {
  auto future = rt::FutureType::get(op->getContext(), llvm::to_vector(op->getResultTypes()));
  auto start = rt::StartOp::create(builder, op->getLoc(), future, map(op->getOperands()),
                                   builder.getI64IntegerAttr(streams.lookup(op)),
                                   /*offsets=*/nullptr);
  {
    OpBuilder::InsertionGuard guard(builder);
    Block *block = builder.createBlock(&start.getBody());
    Operation *inner = builder.clone(*op);
    for (OpOperand &operand : inner->getOpOperands())
      operand.set(block->addArgument(operand.get().getType(), operand.get().getLoc()));
    rt::YieldOp::create(builder, op->getLoc(), inner->getResults());
  }
  auto wait = rt::WaitOp::create(builder, op->getLoc(), start.getFuture());
  mapping.map(op->getResults(), wait.getResults());
}

LogicalResult LaunchWriter::emit(size_t index) {
  Unit &unit = units[index];
  if (unit.isEmitted)
    return success();
  unit.isEmitted = true;
  for (Value input : unit.inputs) {
    auto maker = makers.find(input);
    if (maker != makers.end()) {
      if (failed(emit(maker->second)))
        return failure();
    } else if (Operation *op = input.getDefiningOp()) {
      return op->emitOpError("cannot be compiled for execution");
    }
    if (input.getDefiningOp() && !mapping.contains(input))
      return unit.group.ops.back()->emitOpError(
          "is grouped into a kernel that needs its own results");
  }
  if (unit.isKernel) {
    emitKernel(unit);
    return success();
  }
  Operation *op = unit.group.ops.front();
  if (dist::communicates(op))
    emitCollective(op);
  else
    builder.clone(*op, mapping);
  return success();
}

/// Returns true for at most 2^45 elements. More elements of eight bytes exceed the address
/// space of processors, and sums of bytes could overflow.
static bool isAddressable(RankedTensorType type) {
  int64_t count = 1;
  for (int64_t size : type.getShape()) {
    if (size > 0 && count > (int64_t(1) << 45) / size)
      return false;
    count *= size;
  }
  return true;
}

LogicalResult LaunchWriter::run() {
  if (!func.getBody().hasOneBlock())
    return emitError(func.getLoc(), "'")
           << func.getName() << "': expected one block, got " << func.getBody().getBlocks().size();
  auto isTensor = [](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return tensor && tensor.hasStaticShape();
  };
  for (auto [i, type] : llvm::enumerate(func.getArgumentTypes()))
    if (!isTensor(type))
      return emitError(func.getLoc(), "argument ")
             << i << " of '" << func.getName() << "': expected a tensor of static shape, got "
             << type;
    else if (!isAddressable(cast<RankedTensorType>(type)))
      return emitError(func.getLoc(), "argument ")
             << i << " of '" << func.getName() << "': expected at most 2^45 elements, got " << type;
  for (Operation &op : body.without_terminator()) {
    if (op.hasTrait<dist::NamesMemory>())
      return op.emitOpError("names a state: expected '--bind-state' to have run");
    for (Type type : op.getResultTypes())
      if (!isTensor(type))
        return op.emitOpError("has a result of type ") << type << ", which cannot be compiled";
      else if (!isAddressable(cast<RankedTensorType>(type)))
        return op.emitOpError("expected a result of at most 2^45 elements, got ") << type;
    if (op.getNumRegions() != 0)
      return op.emitOpError("cannot be compiled for execution");
  }
  collectUnits();
  assignStreams();
  Operation *terminator = body.getTerminator();
  SmallVector<Operation *> old;
  for (Operation &op : body.without_terminator())
    old.push_back(&op);
  builder.setInsertionPoint(terminator);
  for (size_t i = 0; i < units.size(); ++i)
    if (failed(emit(i)))
      return failure();
  for (OpOperand &operand : terminator->getOpOperands()) {
    if (!operand.get().getDefiningOp())
      continue;
    Value mapped = mapping.lookupOrNull(operand.get());
    if (!mapped)
      return operand.get().getDefiningOp()->emitOpError("cannot be compiled for execution");
    operand.set(mapped);
  }
  for (Operation *op : llvm::reverse(old))
    op->erase();
  return success();
}

namespace {

struct FormKernelsPass : meshwright::impl::FormKernelsPassBase<FormKernelsPass> {
  using FormKernelsPassBase::FormKernelsPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    for (Operation &op : func.getBody().front())
      if (isa<rt::RtDialect>(op.getDialect()))
        return;
    std::shared_ptr<const KernelTarget> kernelTarget = getKernelTarget(func, target);
    if (!kernelTarget)
      return signalPassFailure();
    // Later passes and the compiler read it there.
    setTarget(func, kernelTarget->getName());
    if (failed(LaunchWriter(func, {keepProbed, *kernelTarget}).run()))
      signalPassFailure();
  }
};

} // namespace
