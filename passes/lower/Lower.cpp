//===- Lower.cpp - programs to LLVM ---------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program becomes a list of steps, each a call of a kernel or of the runtime.
// Every value between steps has a place in an arena, chosen here for the whole
// run, or is an argument or a constant. The entry function is the list.
//
//===----------------------------------------------------------------------===//

#include "Lower.h"

#include "KernelBuilder.h"
#include "Step.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace meshwright {
namespace lower {

//===----------------------------------------------------------------------===//
// Grouping
//===----------------------------------------------------------------------===//

/// Elementwise ops in one kernel, at most: code grows with them, and so does
/// the time to compile it.
static constexpr int64_t kMaxClusterOps = 48;

static int64_t countOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

/// Whether computing the op again for each of several points is no loss.
static bool isCheap(Operation *op) {
  return isMovement(op) || isa<nn::NegOp, nn::AbsOp, nn::NotOp, nn::ReluOp, nn::AddOp, nn::SubOp,
                               nn::MulOp, nn::MaximumOp, nn::MinimumOp, nn::AndOp, nn::OrOp,
                               nn::XorOp, nn::CompareOp, nn::SelectOp, nn::CastOp>(op);
}

namespace {

/// Which ops run, and which are computed inside the kernel of a user.
struct Grouping {
  llvm::DenseSet<Operation *> live;
  llvm::DenseSet<Operation *> fused;

  Grouping(func::FuncOp main, bool keepProbed);

  Cluster getCluster(Operation *root) const {
    Cluster cluster;
    cluster.root = root;
    add(cluster, root);
    return cluster;
  }

private:
  void add(Cluster &cluster, Operation *op) const {
    if (!cluster.members.insert(op).second)
      return;
    for (Value operand : op->getOperands())
      if (Operation *producer = operand.getDefiningOp(); producer && fused.contains(producer))
        add(cluster, producer);
  }
};

} // namespace

Grouping::Grouping(func::FuncOp main, bool keepProbed) {
  Block &body = main.getBody().front();
  /// How often a fused op is evaluated, and how many ops are in the kernel it
  /// is part of.
  llvm::DenseMap<Operation *, int64_t> points, sizes;
  llvm::DenseMap<Operation *, Operation *> roots;
  for (Operation &op : llvm::reverse(body)) {
    bool isProbed = keepProbed && op.hasAttr(nn::NnDialect::kIdAttr);
    if (op.hasTrait<OpTrait::IsTerminator>() || isProbed ||
        llvm::any_of(op.getUsers(), [&](Operation *user) { return live.contains(user); }))
      live.insert(&op);
    if (!live.contains(&op) || !isElementwise(&op))
      continue;
    points[&op] = countOf(op.getResult(0));
    roots[&op] = &op;
    sizes[&op] = 1;
    if (isProbed)
      continue;
    // Ops that compute follow a single user; ops that cost nothing follow all.
    llvm::SmallDenseSet<Operation *> users;
    for (Operation *user : op.getUsers())
      if (live.contains(user))
        users.insert(user);
    bool follows = llvm::all_of(users, isElementwise);
    if (!isFree(&op) && !isMovement(&op))
      follows &= users.size() == 1;
    int64_t evaluated = 0;
    for (Operation *user : users)
      evaluated += isElementwise(user) ? points[user] : 0;
    if (!isFree(&op) && !isCheap(&op))
      follows &= evaluated <= points[&op];
    if (!follows)
      continue;
    Operation *root = roots[*users.begin()];
    for (Operation *user : users)
      follows &= sizes[roots[user]] < kMaxClusterOps;
    if (!follows)
      continue;
    for (Operation *user : users)
      ++sizes[roots[user]];
    fused.insert(&op);
    points[&op] = evaluated;
    roots[&op] = root;
  }
}

//===----------------------------------------------------------------------===//
// Places
//===----------------------------------------------------------------------===//

namespace {

/// Where a value lies.
struct Place {
  enum Kind { Arena, Argument, Constant } kind;
  /// Offset in the arena, or index.
  int64_t index;
};

/// Offsets in an arena for buffers that come and go: each takes the first gap
/// that it fits.
class Arena {
public:
  static constexpr int64_t kAlignment = 64;

  int64_t allocate(int64_t bytes) {
    bytes = llvm::alignTo(std::max<int64_t>(bytes, 1), kAlignment);
    int64_t offset = 0;
    auto next = blocks.begin();
    for (; next != blocks.end(); ++next) {
      if (next->first - offset >= bytes)
        break;
      offset = next->first + next->second;
    }
    blocks.emplace(offset, bytes);
    peak = std::max(peak, offset + bytes);
    return offset;
  }
  void release(int64_t offset) { blocks.erase(offset); }
  int64_t getPeak() const { return peak; }

private:
  std::map<int64_t, int64_t> blocks;
  int64_t peak = 0;
};

class ProgramLowering {
public:
  ProgramLowering(func::FuncOp main, const LowerOptions &options)
      : main(main), options(options), context(main.getContext()) {}

  FailureOr<LoweredProgram> run();

private:
  LogicalResult makeSteps();
  LogicalResult addStep(Operation *op, const Grouping &grouping, KernelBuilder &kernels);
  LogicalResult addConstant(nn::ConstantOp op);
  void assignPlaces();
  void emitEntry();

  /// Whether the op's result is its operand's buffer.
  static bool isView(Operation *op) { return isa<nn::ReshapeOp, dist::ConstrainOp>(op); }
  /// The value whose buffer a value is.
  Value resolve(Value value) const {
    while (value && value.getDefiningOp() && isView(value.getDefiningOp()))
      value = value.getDefiningOp()->getOperand(0);
    return value;
  }

  func::FuncOp main;
  LowerOptions options;
  MLIRContext *context;
  LoweredProgram program;
  std::vector<Step> steps;
  llvm::DenseMap<Value, Place> places;
};

} // namespace

static int64_t bytesOf(Value value) {
  Type type = getStorageType(getElementTypeOrSelf(value.getType()));
  return countOf(value) * (type.getIntOrFloatBitWidth() / 8);
}

/// The elements of a constant as they lie in memory.
LogicalResult ProgramLowering::addConstant(nn::ConstantOp op) {
  auto type = cast<RankedTensorType>(op.getResult().getType());
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
    if (elements.isSplat() && size > 0 && size < bytesOf(op.getResult()))
      for (int64_t i = size; i < bytesOf(op.getResult()); ++i)
        data.push_back(data[i - size]);
  } else {
    return op.emitOpError("has a value of a kind that cannot be compiled");
  }
  if (int64_t(data.size()) != bytesOf(op.getResult()))
    return op.emitOpError("has ") << data.size() << " bytes of data, expected "
                                  << bytesOf(op.getResult());
  places[op.getResult()] = {Place::Constant, int64_t(program.constants.size())};
  program.constants.push_back(std::move(data));
  return success();
}

LogicalResult ProgramLowering::addStep(Operation *op, const Grouping &grouping,
                                       KernelBuilder &kernels) {
  if (isView(op))
    return success();
  if (auto constant = dyn_cast<nn::ConstantOp>(op); constant && !isFree(op))
    return addConstant(constant);
  if (isRuntimeCall(op)) {
    FailureOr<Step> step = getRuntimeCall(op, kernels);
    if (failed(step))
      return failure();
    steps.push_back(std::move(*step));
  } else if (isElementwise(op) || KernelBuilder::hasKernel(op)) {
    KernelCall call =
        isElementwise(op) ? kernels.buildCluster(grouping.getCluster(op)) : kernels.build(op);
    Step step(op, call.name, /*isKernel=*/true);
    step.inputs = call.inputs;
    step.outputs = {op->getResult(0)};
    steps.push_back(std::move(step));
  } else {
    return op->emitOpError("cannot be compiled for execution");
  }
  auto id = op->getAttrOfType<IntegerAttr>(nn::NnDialect::kIdAttr);
  if (options.probes && id && op->getNumResults() == 1) {
    auto type = cast<RankedTensorType>(op->getResult(0).getType());
    Step probe(op, "mw_rt_run_probe");
    probe.inputs = {op->getResult(0)};
    probe.probe = program.probes.size();
    program.probes.push_back({id.getInt(), describeOp(op), getTypeCode(type.getElementType()),
                              std::vector<int64_t>(type.getShape())});
    steps.push_back(std::move(probe));
  }
  return success();
}

LogicalResult ProgramLowering::makeSteps() {
  if (!main.getBody().hasOneBlock())
    return emitError(main.getLoc(), "'main' has ")
           << main.getBody().getBlocks().size() << " blocks, expected one";
  for (auto [i, type] : llvm::enumerate(main.getArgumentTypes())) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || !tensor.hasStaticShape() || getTypeCode(tensor.getElementType()) < 0)
      return emitError(main.getLoc(), "argument ")
             << i << " of 'main' is of type " << type << ", expected a tensor of static shape";
    places[main.getArgument(i)] = {Place::Argument, int64_t(i)};
  }
  Grouping grouping(main, options.probes);
  KernelBuilder kernels(context);
  for (Operation &op : main.getBody().front().without_terminator()) {
    if (!grouping.live.contains(&op) || grouping.fused.contains(&op))
      continue;
    for (Type type : op.getResultTypes()) {
      auto tensor = dyn_cast<RankedTensorType>(type);
      if (!tensor || !tensor.hasStaticShape() || getTypeCode(tensor.getElementType()) < 0)
        return op.emitOpError("has a result of type ") << type << ", which cannot be compiled";
    }
    if (failed(addStep(&op, grouping, kernels)))
      return failure();
  }
  program.kernels = kernels.takeSources();
  return success();
}

void ProgramLowering::assignPlaces() {
  llvm::DenseMap<Value, size_t> lastUse;
  for (auto [i, step] : llvm::enumerate(steps)) {
    for (Value &input : step.inputs) {
      input = resolve(input);
      if (input)
        lastUse[input] = i;
    }
  }
  for (Value result : main.getBody().front().getTerminator()->getOperands())
    lastUse[resolve(result)] = steps.size();
  Arena arena;
  std::vector<SmallVector<int64_t>> ends(steps.size() + 1);
  for (auto [i, step] : llvm::enumerate(steps)) {
    for (Value output : step.outputs) {
      int64_t offset = arena.allocate(bytesOf(output));
      places[output] = {Place::Arena, offset};
      // What nobody reads is written all the same.
      size_t end = std::max<size_t>(lastUse.lookup(output), i);
      ends[end].push_back(offset);
    }
    for (int64_t offset : ends[i])
      arena.release(offset);
  }
  program.arenaBytes = arena.getPeak();
}

//===----------------------------------------------------------------------===//
// The entry
//===----------------------------------------------------------------------===//

namespace {

class EntryEmitter {
public:
  EntryEmitter(ModuleOp module, LoweredProgram &program, const llvm::DenseMap<Value, Place> &places)
      : module(module), program(program), places(places), symbols(module),
        builder(UnknownLoc::get(module.getContext()), module.getContext()) {
    pointer = LLVM::LLVMPointerType::get(module.getContext());
    i32 = builder.getI32Type();
    i64 = builder.getI64Type();
    voidType = LLVM::LLVMVoidType::get(module.getContext());
  }

  void emit(ArrayRef<Step> steps, ValueRange results);

private:
  void emitStep(const Step &step);
  Value getConstant(int64_t value) {
    return LLVM::ConstantOp::create(builder, i64, builder.getI64IntegerAttr(value));
  }
  /// The i-th pointer of an array of pointers.
  Value getElement(Value array, int64_t i) {
    return LLVM::GEPOp::create(builder, pointer, pointer, array,
                               ArrayRef<LLVM::GEPArg>{getConstant(i)});
  }
  Value getPointer(Value value);
  Value getDescriptor(ArrayRef<int64_t> fields);
  /// An array of the values' pointers, on the stack.
  Value getArray(ValueRange values, Value array);
  /// One of the runtime's or a kernel.
  LLVM::LLVMFuncOp getFunction(StringRef name, ValueRange arguments, Type result);

  ModuleOp module;
  LoweredProgram &program;
  const llvm::DenseMap<Value, Place> &places;
  SymbolTable symbols;
  ImplicitLocOpBuilder builder;
  LLVM::LLVMPointerType pointer;
  Type i32, i64, voidType;
  LLVM::LLVMFuncOp entry;
  Block *failure = nullptr;
  Value inputArray, outputArray, null;
  std::map<std::vector<int64_t>, LLVM::GlobalOp> descriptors;
  llvm::DenseMap<Operation *, int64_t> opNumbers;
};

} // namespace

Value EntryEmitter::getPointer(Value value) {
  if (!value)
    return null;
  Place place = places.lookup(value);
  if (place.kind == Place::Arena)
    return LLVM::GEPOp::create(builder, pointer, builder.getI8Type(), entry.getArgument(1),
                               ArrayRef<LLVM::GEPArg>{getConstant(place.index)});
  Value table = entry.getArgument(place.kind == Place::Argument ? 2 : 4);
  return LLVM::LoadOp::create(builder, pointer, getElement(table, place.index));
}

Value EntryEmitter::getDescriptor(ArrayRef<int64_t> fields) {
  std::vector<int64_t> key(fields);
  LLVM::GlobalOp &global = descriptors[key];
  if (!global) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToStart(module.getBody());
    auto type = LLVM::LLVMArrayType::get(i64, fields.size());
    auto data = DenseElementsAttr::get(RankedTensorType::get(fields.size(), i64), fields);
    global = LLVM::GlobalOp::create(builder, type, /*isConstant=*/true, LLVM::Linkage::Internal,
                                    "descriptor_" + std::to_string(descriptors.size()), data,
                                    /*alignment=*/8);
  }
  return LLVM::AddressOfOp::create(builder, global);
}

Value EntryEmitter::getArray(ValueRange values, Value array) {
  for (auto [i, value] : llvm::enumerate(values))
    LLVM::StoreOp::create(builder, getPointer(value), getElement(array, i));
  return array;
}

LLVM::LLVMFuncOp EntryEmitter::getFunction(StringRef name, ValueRange arguments, Type result) {
  if (auto known = symbols.lookup<LLVM::LLVMFuncOp>(name))
    return known;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(module.getBody());
  SmallVector<Type> types(arguments.getTypes());
  auto function =
      LLVM::LLVMFuncOp::create(builder, name, LLVM::LLVMFunctionType::get(result, types));
  symbols.insert(function);
  return function;
}

void EntryEmitter::emitStep(const Step &step) {
  if (step.isKernel) {
    SmallVector<Value> arguments;
    for (Value input : step.inputs)
      arguments.push_back(getPointer(input));
    for (Value output : step.outputs)
      arguments.push_back(getPointer(output));
    LLVM::CallOp::create(builder, getFunction(step.callee, arguments, voidType), arguments);
    return;
  }
  auto [number, isNew] = opNumbers.try_emplace(step.op, program.ops.size());
  if (isNew)
    program.ops.push_back(describeOp(step.op));
  SmallVector<Value> arguments{entry.getArgument(0), getConstant(number->second)};
  if (step.probe >= 0)
    arguments.push_back(getConstant(step.probe));
  else
    arguments.push_back(getDescriptor(step.descriptor));
  if (step.asArrays) {
    arguments.push_back(getArray(step.inputs, inputArray));
    arguments.push_back(getArray(step.outputs, outputArray));
  } else {
    for (Value input : step.inputs)
      arguments.push_back(getPointer(input));
    for (Value output : step.outputs)
      arguments.push_back(getPointer(output));
  }
  if (!step.kernelArgument.empty())
    arguments.push_back(
        LLVM::AddressOfOp::create(builder, getFunction(step.kernelArgument, {}, voidType)));
  Value status = LLVM::CallOp::create(builder, getFunction(step.callee, arguments, i32), arguments)
                     .getResult();
  Value zero = LLVM::ConstantOp::create(builder, i32, builder.getI32IntegerAttr(0));
  Value isFine = LLVM::ICmpOp::create(builder, LLVM::ICmpPredicate::eq, status, zero);
  Block *next = new Block();
  entry.getBody().push_back(next);
  LLVM::CondBrOp::create(builder, isFine, next, ValueRange(), failure, ValueRange(status));
  builder.setInsertionPointToEnd(next);
}

void EntryEmitter::emit(ArrayRef<Step> steps, ValueRange results) {
  builder.setInsertionPointToEnd(module.getBody());
  entry = LLVM::LLVMFuncOp::create(
      builder, LoweredProgram::kEntry,
      LLVM::LLVMFunctionType::get(i32, {pointer, pointer, pointer, pointer, pointer, pointer}));
  // A list of calls has nothing to optimise, but is long.
  entry.setPassthroughAttr(builder.getStrArrayAttr({"noinline", "optnone"}));
  Block *block = entry.addEntryBlock(builder);
  failure = new Block();
  entry.getBody().push_back(failure);
  failure->addArgument(i32, builder.getLoc());
  builder.setInsertionPointToEnd(failure);
  LLVM::ReturnOp::create(builder, failure->getArgument(0));

  builder.setInsertionPointToEnd(block);
  size_t mostInputs = 1, mostOutputs = 1;
  for (const Step &step : steps)
    if (step.asArrays) {
      mostInputs = std::max(mostInputs, step.inputs.size());
      mostOutputs = std::max(mostOutputs, step.outputs.size());
    }
  inputArray = LLVM::AllocaOp::create(builder, pointer, pointer, getConstant(mostInputs));
  outputArray = LLVM::AllocaOp::create(builder, pointer, pointer, getConstant(mostOutputs));
  null = LLVM::ZeroOp::create(builder, pointer);
  for (const Step &step : steps)
    emitStep(step);
  for (auto [i, result] : llvm::enumerate(results))
    LLVM::StoreOp::create(builder, getPointer(result), getElement(entry.getArgument(5), i));
  LLVM::ReturnOp::create(
      builder, LLVM::ConstantOp::create(builder, i32, builder.getI32IntegerAttr(0)).getResult());
}

void ProgramLowering::emitEntry() {
  EntryEmitter emitter(*program.module, program, places);
  SmallVector<Value> results;
  for (Value result : main.getBody().front().getTerminator()->getOperands())
    results.push_back(resolve(result));
  emitter.emit(steps, results);
}

FailureOr<LoweredProgram> ProgramLowering::run() {
  program.module = ModuleOp::create(main.getLoc());
  if (failed(makeSteps()))
    return failure();
  assignPlaces();
  emitEntry();
  return std::move(program);
}

} // namespace lower

FailureOr<LoweredProgram> lowerProgram(func::FuncOp main, const LowerOptions &options) {
  if (main.isExternal())
    return emitError(main.getLoc(), "'main' has no body");
  loadKernelDialects(*main.getContext());
  return lower::ProgramLowering(main, options).run();
}

} // namespace meshwright
