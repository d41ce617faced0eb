//===- Entry.cpp - a program's entry --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The entry (`mw_rt_entry`) is a list of calls of the runtime. Each call returns a status, and
// the first status that is not 0 ends the entry.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Driver/Program/Step.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/WeightModules.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;

namespace meshwright::lower {

/// The op, its role and its place.
static std::string describe(Operation *op, const SourceLocation &source) {
  std::string text = op->getName().getStringRef().str();
  if (auto collective = dyn_cast<dist::CollectiveOpInterface>(op);
      collective && collective.getRole() != dist::CollectiveRole::Data)
    text += " role " + dist::stringifyCollectiveRole(collective.getRole()).str();
  if (!source.name.empty())
    text += " at " + source.name;
  if (!source.file.empty())
    text += " (" + source.file + ":" + std::to_string(source.line) + ")";
  return text;
}

std::string describeOp(Operation *op) { return describe(op, getSourceLocation(op->getLoc())); }

namespace {

class EntryEmitter {
public:
  EntryEmitter(LoweredProgram &program, llvm::function_ref<Storage(Value)> getStorage)
      : module(*program.module), program(program), getStorage(getStorage), symbols(module),
        builder(UnknownLoc::get(module.getContext()), module.getContext()) {
    pointer = LLVM::LLVMPointerType::get(module.getContext());
    i32 = builder.getI32Type();
    i64 = builder.getI64Type();
  }

  void emit(ArrayRef<Step> steps, ValueRange results);

private:
  void emitStep(const Step &step);
  std::string describeStep(Operation *op);
  Value getConstant(int64_t value) {
    return LLVM::ConstantOp::create(builder, i64, builder.getI64IntegerAttr(value));
  }
  /// The address of the i-th element of an array of pointers.
  Value getElement(Value array, int64_t i) {
    return LLVM::GEPOp::create(builder, pointer, pointer, array,
                               ArrayRef<LLVM::GEPArg>{getConstant(i)});
  }
  Value getPointer(Value value);
  /// The memory that the caller passes for a result.
  Value getResult(int64_t result) {
    return LLVM::LoadOp::create(builder, pointer, getElement(entry.getArgument(5), result));
  }
  Value getDescriptor(ArrayRef<int64_t> fields);
  /// Stores the values' pointers into an array on the stack, from `first` on.
  void fillArray(ValueRange values, Value array, size_t first = 0);
  /// The declaration of a function of the runtime or of a kernel.
  LLVM::LLVMFuncOp getFunction(StringRef name, ValueRange arguments, Type result);
  /// The address of a kernel or of its record.
  Value getKernel(const Step &step);
  LLVM::GlobalOp getRecord(const Step &step);

  ModuleOp module;
  LoweredProgram &program;
  llvm::function_ref<Storage(Value)> getStorage;
  SymbolTable symbols;
  ImplicitLocOpBuilder builder;
  LLVM::LLVMPointerType pointer;
  Type i32, i64;
  LLVM::LLVMFuncOp entry;
  Block *failure = nullptr;
  Value inputArray, outputArray, null;
  std::map<std::vector<int64_t>, LLVM::GlobalOp> descriptors;
  ProgramMap<Operation *, int64_t> opNumbers;
  /// Made for the first collective.
  std::optional<WeightModules> modules;
};

} // namespace

Value EntryEmitter::getPointer(Value value) {
  if (!value)
    return null;
  Storage storage = getStorage(value);
  if (storage.kind == Storage::Arena)
    return LLVM::GEPOp::create(builder, pointer, builder.getI8Type(), entry.getArgument(1),
                               ArrayRef<LLVM::GEPArg>{getConstant(storage.index)});
  unsigned table = storage.kind == Storage::Argument   ? 2
                   : storage.kind == Storage::Prepared ? 3
                   : storage.kind == Storage::Constant ? 4
                                                   : 5;
  Value base =
      LLVM::LoadOp::create(builder, pointer, getElement(entry.getArgument(table), storage.index));
  if (storage.offset == 0)
    return base;
  return LLVM::GEPOp::create(builder, pointer, builder.getI8Type(), base,
                             ArrayRef<LLVM::GEPArg>{getConstant(storage.offset)});
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

void EntryEmitter::fillArray(ValueRange values, Value array, size_t first) {
  for (auto [i, value] : llvm::enumerate(values))
    LLVM::StoreOp::create(builder, getPointer(value), getElement(array, first + i));
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

/// The record of a kernel, as `mw_rt_device_kernel`.
LLVM::GlobalOp EntryEmitter::getRecord(const Step &step) {
  if (auto known = symbols.lookup<LLVM::GlobalOp>(step.kernel))
    return known;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(module.getBody());
  std::string name = step.kernel + '\0';
  auto text = LLVM::GlobalOp::create(
      builder, LLVM::LLVMArrayType::get(builder.getI8Type(), name.size()), /*isConstant=*/true,
      LLVM::Linkage::Internal, step.kernel + "_name", builder.getStringAttr(name));
  auto type =
      LLVM::LLVMStructType::getLiteral(module.getContext(), {pointer, i64, i64, i64, pointer});
  auto record = LLVM::GlobalOp::create(builder, type, /*isConstant=*/true, LLVM::Linkage::Internal,
                                       step.kernel, Attribute(), /*alignment=*/8);
  symbols.insert(record);
  builder.setInsertionPointToEnd(builder.createBlock(&record.getInitializerRegion()));
  Descriptor fields;
  for (const mw_rt_tensor_map &map : step.tensorMaps)
    append(fields, map);
  Value maps = fields.empty() ? LLVM::ZeroOp::create(builder, pointer).getResult()
                              : getDescriptor(fields);
  Value value = LLVM::UndefOp::create(builder, type);
  Value members[] = {LLVM::AddressOfOp::create(builder, text), getConstant(step.checksIndices),
                     getConstant(step.scratchBytes), getConstant(step.tensorMaps.size()), maps};
  for (auto [i, member] : llvm::enumerate(members))
    value = LLVM::InsertValueOp::create(builder, value, member, ArrayRef<int64_t>{int64_t(i)});
  LLVM::ReturnOp::create(builder, value);
  return record;
}

Value EntryEmitter::getKernel(const Step &step) {
  if (program.hasRecords)
    return LLVM::AddressOfOp::create(builder, getRecord(step));
  Type none = LLVM::LLVMVoidType::get(module.getContext());
  return LLVM::AddressOfOp::create(builder, getFunction(step.kernel, {}, none));
}

/// The other ops of the op's kernel that may give a NaN or infinity, in program order. Values
/// between the ops of a kernel are never in memory, so a check names all of them.
static std::string describeFused(Operation *op) {
  std::string text;
  if (!isa<rt::KernelOp>(op->getParentOp()))
    return text;
  for (Operation &other : *op->getBlock()) {
    auto isFloat = [](Type type) { return isa<FloatType>(getElementTypeOrSelf(type)); };
    if (&other != op && llvm::any_of(other.getResultTypes(), isFloat) && !isFree(&other) &&
        !isMovement(&other))
      text += (text.empty() ? "" : ", ") + describeOp(&other);
  }
  return text;
}

/// The op. A collective that moves a weight is one of the weight's module; a slice in a kernel sends nothing.
std::string EntryEmitter::describeStep(Operation *op) {
  if (!isa<dist::CollectiveOpInterface>(op) || isa<rt::KernelOp>(op->getParentOp()))
    return describeOp(op);
  if (!modules)
    modules.emplace(op->getParentOfType<FunctionOpInterface>());
  return describe(op, modules->locate(op->getLoc()));
}

void EntryEmitter::emitStep(const Step &step) {
  auto [number, isNew] = opNumbers.try_emplace(step.op, program.ops.size());
  if (isNew) {
    if (std::string others = describeFused(step.op); !others.empty())
      program.fused[number->second] = std::move(others);
    program.ops.push_back(describeStep(step.op));
  }
  SmallVector<Value> arguments{entry.getArgument(0), getConstant(number->second)};
  if (!step.descriptor.empty())
    arguments.push_back(getDescriptor(step.descriptor));
  for (int64_t value : step.numbers)
    arguments.push_back(getConstant(value));
  switch (step.passing) {
  case Step::Single:
    for (Value input : step.inputs)
      arguments.push_back(getPointer(input));
    for (Value output : step.outputs)
      arguments.push_back(getPointer(output));
    break;
  case Step::OneArray:
    fillArray(step.inputs, inputArray);
    fillArray(step.outputs, inputArray, step.inputs.size());
    if (step.log)
      LLVM::StoreOp::create(builder, getResult(*step.log),
                            getElement(inputArray, step.inputs.size() + step.outputs.size()));
    arguments.push_back(inputArray);
    break;
  case Step::TwoArrays:
    fillArray(step.inputs, inputArray);
    fillArray(step.outputs, outputArray);
    arguments.append({inputArray, outputArray});
    break;
  case Step::Kernel:
    fillArray(step.inputs, inputArray);
    fillArray(step.outputs, inputArray, step.inputs.size());
    arguments.push_back(getKernel(step));
    arguments.push_back(inputArray);
    break;
  }
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
      builder, program.symbol,
      LLVM::LLVMFunctionType::get(i32, {pointer, pointer, pointer, pointer, pointer, pointer}));
  // The entry is long, and optimisation would not make it faster.
  entry.setPassthroughAttr(builder.getStrArrayAttr({"noinline", "optnone"}));
  Block *block = entry.addEntryBlock(builder);
  failure = new Block();
  entry.getBody().push_back(failure);
  failure->addArgument(i32, builder.getLoc());
  builder.setInsertionPointToEnd(failure);
  LLVM::ReturnOp::create(builder, failure->getArgument(0));

  builder.setInsertionPointToEnd(block);
  size_t most = 1;
  for (const Step &step : steps)
    most = std::max(most, step.inputs.size() + step.outputs.size() + step.log.has_value());
  inputArray = LLVM::AllocaOp::create(builder, pointer, pointer, getConstant(most));
  outputArray = LLVM::AllocaOp::create(builder, pointer, pointer, getConstant(most));
  null = LLVM::ZeroOp::create(builder, pointer);
  for (auto [step, bytes] : llvm::zip_equal(steps, countArena(steps, results, getStorage))) {
    emitStep(step);
    program.arenaInUse.resize(program.ops.size());
    int64_t &most = program.arenaInUse[opNumbers.lookup(step.op)];
    most = std::max(most, bytes);
  }
  for (auto [i, result] : llvm::enumerate(results))
    LLVM::StoreOp::create(builder, getPointer(result), getElement(entry.getArgument(5), i));
  LLVM::ReturnOp::create(
      builder, LLVM::ConstantOp::create(builder, i32, builder.getI32IntegerAttr(0)).getResult());
}

void emitEntry(LoweredProgram &program, ArrayRef<Step> steps, ValueRange results,
               llvm::function_ref<Storage(Value)> getStorage) {
  EntryEmitter(program, getStorage).emit(steps, results);
}

} // namespace meshwright::lower
