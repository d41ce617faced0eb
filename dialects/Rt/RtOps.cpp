//===- RtOps.cpp - launches, streams and buffers --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "mlir/IR/Builders.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::rt;


int64_t rt::getBufferBytes(Type type) {
  return dist::getStoredBytes(cast<RankedTensorType>(type));
}

int64_t rt::getBufferBytes(Value value) {
  PrepareOp prepare = getPrepare(value);
  return prepare && prepare.getPacking()
             ? prepare.getPacking()->getBytes(getElementTypeOrSelf(value.getType()))
             : getBufferBytes(value.getType());
}

PrepareOp rt::getPrepare(Value buffer) { return getSource(buffer).getDefiningOp<PrepareOp>(); }

Value rt::getOuterValue(Value value) {
  while (auto argument = dyn_cast<BlockArgument>(value)) {
    Operation *parent = argument.getOwner()->getParentOp();
    if (!isa_and_nonnull<KernelOp, StartOp>(parent))
      break;
    value = parent->getOperand(argument.getArgNumber());
  }
  return value;
}

Value rt::getSource(Value value) {
  for (;;) {
    value = getOuterValue(value);
    auto result = dyn_cast<OpResult>(value);
    if (!result)
      return value;
    if (auto kernel = dyn_cast<KernelOp>(result.getOwner()))
      value = kernel.getYielded()[result.getResultNumber()];
    else if (auto wait = dyn_cast<WaitOp>(result.getOwner()))
      value = wait.getStart().getYielded()[result.getResultNumber()];
    else
      return value;
  }
}

/// Returns true if the elements of the slice are contiguous: it takes one index of each
/// dimension before the last one that it cuts, and all of each dimension behind.
static bool isInOnePiece(nn::SliceOp slice) {
  bool isCut = false;
  ArrayRef<int64_t> shape = slice.getInput().getType().getShape();
  for (int64_t d = shape.size(); d-- > 0;) {
    int64_t size = slice.getLimits()[d] - slice.getStarts()[d];
    if (isCut ? size != 1 : slice.getStrides()[d] != 1 && size != 1)
      return false;
    isCut |= size != shape[d];
  }
  return true;
}

Operation *rt::getOnlyOp(Operation *launch) {
  auto kernel = dyn_cast_or_null<KernelOp>(launch);
  return kernel && llvm::hasSingleElement(kernel.getOps()) ? &*kernel.getOps().begin() : nullptr;
}

bool rt::isView(Operation *op) {
  if (op->hasTrait<dist::View>())
    return true;
  auto slice = dyn_cast<nn::SliceOp>(op);
  if (!slice || !isInOnePiece(slice))
    return false;
  auto argument = dyn_cast<BlockArgument>(getBuffer(slice.getInput()));
  return argument && isa<FunctionOpInterface>(argument.getOwner()->getParentOp());
}

Value rt::getBuffer(Value value, int64_t *offset) {
  if (offset)
    *offset = 0;
  while (Operation *op = value.getDefiningOp()) {
    if (!isView(op))
      break;
    if (auto slice = dyn_cast<nn::SliceOp>(op); slice && offset) {
      int64_t first = 0;
      for (auto [size, start] :
           llvm::zip_equal(slice.getInput().getType().getShape(), slice.getStarts()))
        first = first * size + start;
      *offset += dist::getStoredBytes(slice.getInput().getType().clone(ArrayRef(first)));
    }
    value = op->getOperand(0);
  }
  return value;
}

bool rt::isReadUnpacked(Value value) {
  return llvm::any_of(value.getUsers(), [](Operation *user) {
    return isView(user) ? isReadUnpacked(user->getResult(0)) : !isa<PrepareOp>(user);
  });
}

//===----------------------------------------------------------------------===//
// Invariants
//===----------------------------------------------------------------------===//

/// The region of a launch:
/// - its arguments have the operands' types;
/// - it ends with a yield of the results' types;
/// - each result is made in the region, and yielded once.
static LogicalResult verifyLaunch(Operation *op, Block &block, TypeRange results) {
  if (block.getArgumentTypes() != op->getOperandTypes())
    return op->emitOpError() << "expected a region with arguments of the operands' types, ("
                             << op->getOperandTypes() << "), got (" << block.getArgumentTypes()
                             << ")";
  auto yield = dyn_cast<YieldOp>(block.getTerminator());
  if (!yield)
    return op->emitOpError() << "expected a region that ends with rt.yield";
  if (yield.getOperandTypes() != results)
    return yield.emitOpError() << "expected operands of types (" << results << "), got ("
                               << yield.getOperandTypes() << ")";
  llvm::SmallPtrSet<void *, 4> seen;
  for (auto [i, value] : llvm::enumerate(yield.getValues())) {
    if (isa<BlockArgument>(value))
      return yield.emitOpError() << "operand " << i
                                 << ": expected a value made in the launch, got an operand of it";
    if (!seen.insert(value.getAsOpaquePointer()).second)
      return yield.emitOpError() << "operand " << i << " is yielded twice";
  }
  return success();
}

/// - one offset for each result;
/// - each is a multiple of kAlignment.
static LogicalResult verifyOffsets(Operation *op, std::optional<ArrayRef<int64_t>> offsets,
                                   size_t count) {
  if (!offsets)
    return success();
  if (offsets->size() != count)
    return op->emitOpError() << "expected " << count << " offsets, one for each result, got "
                             << offsets->size();
  for (int64_t offset : *offsets)
    if (offset < 0 || offset % kBufferAlignment != 0)
      return op->emitOpError() << "expected offsets that are multiples of " << kBufferAlignment
                               << ", got " << offset;
  return success();
}

StringAttr rt::getState(Value buffer) {
  auto argument = dyn_cast<BlockArgument>(buffer);
  auto function = argument
                      ? dyn_cast_or_null<FunctionOpInterface>(argument.getOwner()->getParentOp())
                      : nullptr;
  return function ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                          nn::NnDialect::kStateAttr)
                  : StringAttr();
}

/// - the operand that counts rows exists, and is a vector of i64;
/// - all results have as many rows.
static LogicalResult verifyCount(KernelOp op) {
  std::optional<uint64_t> counter = op.getCountedBy();
  if (!counter)
    return success();
  if (*counter >= op->getNumOperands())
    return op.emitOpError() << "expected the number of an operand that counts rows, below "
                            << op->getNumOperands() << ", got " << *counter;
  auto counts = cast<RankedTensorType>(op->getOperand(*counter).getType());
  if (counts.getRank() != 1 || counts.getNumElements() == 0 || !counts.getElementType().isInteger(64))
    return op.emitOpError() << "expected rows to be counted by a vector of i64, got " << counts;
  auto rowsOf = [](Type type) {
    auto tensor = cast<RankedTensorType>(type);
    return tensor.getRank() ? tensor.getDimSize(0) : 1;
  };
  for (Type type : op->getResultTypes())
    if (rowsOf(type) != rowsOf(op->getResultTypes().front()))
      return op.emitOpError() << "expected results with as many rows, which are counted, got "
                              << op->getResultTypes().front() << " and " << type;
  return success();
}

LogicalResult KernelOp::verify() {
  if (getNumResults() == 0)
    return emitOpError() << "has no results";
  if (getOver() && getOver()->size() != getNumResults())
    return emitOpError() << "expected the names of " << getNumResults()
                         << " states, one for each result, got " << getOver()->size();
  if (failed(verifyCount(*this)))
    return failure();
  return verifyOffsets(*this, getOffsets(), getNumResults());
}

LogicalResult KernelOp::verifyRegions() {
  bool isAlone = llvm::hasSingleElement(getOps());
  for (Operation &op : getOps())
    if (dist::communicates(&op) ||
        (isa<RtDialect>(op.getDialect()) && !(isa<PrepareOp>(op) && isAlone))) {
      InFlightDiagnostic diagnostic = op.emitOpError()
                                      << "is in a kernel: expected it "
                                      << (dist::communicates(&op) ? "in an rt.start" : "outside");
      diagnostic.attachNote(getLoc()) << "the kernel";
      return diagnostic;
    }
  return verifyLaunch(*this, getBlock(), getResultTypes());
}

LogicalResult StartOp::verify() {
  if (getStream() < 1)
    return emitOpError() << "expected stream 1 or more, got " << getStream()
                         << ": 0 is the compute stream";
  return verifyOffsets(*this, getOffsets(), getFuture().getType().getTypes().size());
}

/// - the region holds one collective, which moves data between ranks;
/// - its operands are those of the start, and the start yields its results, in order.
LogicalResult StartOp::verifyRegions() {
  if (failed(verifyLaunch(*this, getBlock(), TypeRange(getFuture().getType().getTypes()))))
    return failure();
  auto ops = getBlock().without_terminator();
  if (std::distance(ops.begin(), ops.end()) != 1 || !dist::communicates(getCollective()))
    return emitOpError() << "expected a region of one collective";
  Operation *collective = getCollective();
  if (!llvm::equal(collective->getOperands(), getBlock().getArguments()) ||
      !llvm::equal(collective->getResults(), getYielded()))
    return emitOpError()
           << "expected a collective of the start's operands whose results it yields, "
              "in order";
  return success();
}

LogicalResult WaitOp::inferReturnTypes(MLIRContext *, std::optional<Location>,
                                       WaitOp::Adaptor adaptor, SmallVectorImpl<Type> &types) {
  auto future = dyn_cast<FutureType>(adaptor.getFuture().getType());
  if (!future)
    return failure();
  types.append(future.getTypes().begin(), future.getTypes().end());
  return success();
}

LogicalResult WaitOp::verify() {
  if (!getStart())
    return emitOpError() << "waits for a value that is not the result of an rt.start";
  if (!llvm::equal(getResultTypes(), getFuture().getType().getTypes()))
    return emitOpError() << "expected results of the types of " << getFuture().getType()
                         << ", got (" << getResultTypes() << ")";
  return success();
}

static ParseResult parseForm(OpAsmParser &parser, PackingAttr &packing, PrepareTimeAttr &time) {
  if (failed(parser.parseOptionalKeyword("at")) &&
      (parser.parseCustomAttributeWithFallback(packing) || parser.parseKeyword("at")))
    return failure();
  SMLoc location = parser.getCurrentLocation();
  StringRef word;
  if (parser.parseKeyword(&word))
    return failure();
  std::optional<PrepareTime> known = symbolizePrepareTime(word);
  if (!known)
    return parser.emitError(location)
           << "expected load, update or use as the time, got '" << word << "'";
  time = PrepareTimeAttr::get(parser.getContext(), *known);
  return success();
}

static void printForm(OpAsmPrinter &printer, Operation *, PackingAttr packing,
                      PrepareTimeAttr time) {
  if (packing) {
    printer.printStrippedAttrOrType(packing);
    printer << ' ';
  }
  printer << "at " << stringifyPrepareTime(time.getValue());
}

static ParseResult parseFormTypes(OpAsmParser &parser, Type &stored, Type &used) {
  if (parser.parseType(stored))
    return failure();
  used = stored;
  return succeeded(parser.parseOptionalArrow()) ? parser.parseType(used) : success();
}

static void printFormTypes(OpAsmPrinter &printer, Operation *, Type stored, Type used) {
  printer << stored;
  if (used != stored)
    printer << " -> " << used;
}

/// The first reader of a packed weight that is no kernel, seen through what kernels wait for.
static Operation *findOtherReader(Value packed) {
  for (Operation *user : packed.getUsers()) {
    Operation *other = user;
    if (isa<KernelOp>(user))
      other = nullptr;
    else if (auto yield = dyn_cast<YieldOp>(user); yield && isa<KernelOp>(yield->getParentOp()))
      other = findOtherReader(yield->getParentOp()->getResult(0));
    else if (isa<dist::AfterOp>(user))
      other = user->getOperand(0) == packed ? findOtherReader(user->getResult(0)) : nullptr;
    if (other)
      return other;
  }
  return nullptr;
}

/// - before a call: an argument of the function or a part of one, a parameter at load, a state at
///   an update;
/// - in a call: in a kernel.
static LogicalResult verifyTime(PrepareOp op) {
  bool isInKernel = isa<KernelOp>(op->getParentOp());
  if (op.getTime() == PrepareTime::Use) {
    if (!isInKernel)
      return op.emitOpError() << "prepares a value at use outside of a kernel: expected it in one";
    if (!op.getPacking())
      return op.emitOpError() << "expected a packing, got none: a kernel casts by nn.cast";
    return success();
  }
  if (isInKernel)
    return op.emitOpError() << "expected to prepare a value in a kernel at use, got at "
                            << stringifyPrepareTime(op.getTime());
  auto argument = dyn_cast<BlockArgument>(getBuffer(op.getWeight()));
  auto function = argument
                      ? dyn_cast_or_null<FunctionOpInterface>(argument.getOwner()->getParentOp())
                      : nullptr;
  auto has = [&](StringRef name) {
    return function && bool(function.getArgAttr(argument.getArgNumber(), name));
  };
  bool isState = has(nn::NnDialect::kStateAttr);
  if (!isState && !has(nn::NnDialect::kParameterAttr))
    return op.emitOpError()
           << "prepares a value that is neither a parameter nor a state of the function";
  if (isState != (op.getTime() == PrepareTime::Update))
    return op.emitOpError() << "expected to prepare a " << (isState ? "state" : "parameter")
                            << " at "
                            << stringifyPrepareTime(isState ? PrepareTime::Update
                                                            : PrepareTime::Load)
                            << ", got at " << stringifyPrepareTime(op.getTime());
  return success();
}

bool PrepareOp::isCastable(Type element) {
  return isa<Float32Type, BFloat16Type, Float16Type>(element);
}

/// - the time fits the operand;
/// - the result has the operand's shape, another element type only by a cast, and either that or a
///   packing, whose shape it has, or it is a parameter in a form;
/// - a packed weight is read by kernels only, which may wait by `dist.after`.
LogicalResult PrepareOp::verify() {
  if (failed(verifyTime(*this)))
    return failure();
  auto type = cast<RankedTensorType>(getWeight().getType());
  auto result = cast<RankedTensorType>(getResult().getType());
  Type stored = type.getElementType(), used = result.getElementType();
  if (dist::FormAttr form = dist::getForm(type)) {
    if (getTime() != PrepareTime::Use || !getPacking() || type != form.getType(result))
      return emitOpError() << "expected a weight in a form to be decoded and packed at use, got " << result
                           << " of " << type;
    stored = used;
    type = result;
  }
  if (dist::FormAttr form = dist::getForm(result)) {
    if (getTime() == PrepareTime::Load && !getPacking() && result == form.getType(type))
      return success();
    return emitOpError() << "expected a form of the weight at load, without a packing, got " << result
                         << " of " << type;
  }
  if (type.getShape() != result.getShape() ||
      (stored != used && !(isCastable(stored) && isCastable(used))))
    return emitOpError() << "expected the same shape, and the same elements or a cast between "
                            "f32, bf16 and f16, got "
                         << result << " of " << type;
  std::optional<PackingAttr> packing = getPacking();
  if (!packing) {
    if (stored == used)
      return emitOpError() << "expected a packing or another element type, got neither";
    return success();
  }
  int64_t rows = packing->getTransposed() ? packing->getN() : packing->getK();
  int64_t columns = packing->getTransposed() ? packing->getK() : packing->getN();
  int64_t batch = packing->getBatch();
  ArrayRef<int64_t> shape = type.getShape();
  bool isBatch = shape.size() == 3 && shape.front() == batch;
  if (!(isBatch || (shape.size() == 2 && batch == 1)) ||
      shape.take_back(2) != ArrayRef<int64_t>{rows, columns}) {
    InFlightDiagnostic diagnostic = emitOpError()
                                    << "expected a packing of the weight's shape, " << type << ", got ";
    if (batch != 1)
      diagnostic << batch << "x";
    return diagnostic << rows << "x" << columns;
  }
  if (Operation *user = findOtherReader(getResult())) {
    InFlightDiagnostic diagnostic = emitOpError() << "expected to be read by rt.kernel only, got '"
                                                  << user->getName() << "'";
    diagnostic.attachNote(user->getLoc()) << "the reader";
    return diagnostic;
  }
  return success();
}

#define GET_OP_CLASSES
#include "meshwright/dialects/Rt/RtOps.cpp.inc"
