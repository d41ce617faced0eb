//===- NnDialect.cpp - the dialect and its attributes ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Batch.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Nn/MovedRows.h"
#include "meshwright/dialects/Nn/NnDerivatives.h"
#include "meshwright/dialects/Nn/NnRandom.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

#include "meshwright/dialects/Nn/NnDialect.cpp.inc"

#include "meshwright/dialects/Nn/NnEnums.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "meshwright/dialects/Nn/NnAttrs.cpp.inc"

void NnDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "meshwright/dialects/Nn/NnAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "meshwright/dialects/Nn/NnOps.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "meshwright/dialects/Nn/NnDerivativeOps.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "meshwright/dialects/Nn/NnRandomOps.cpp.inc"
      >();
  detail::attachMovedRows(getContext());
}

Operation *NnDialect::materializeConstant(OpBuilder &builder, Attribute value, Type type,
                                          Location loc) {
  auto elements = dyn_cast<DenseElementsAttr>(value);
  if (!elements || elements.getType() != type)
    return nullptr;
  return ConstantOp::create(builder, loc, elements);
}

//===----------------------------------------------------------------------===//
// Discardable attributes
//===----------------------------------------------------------------------===//

/// The attributes of an argument of a function: its role, and facts about it.
static constexpr StringRef kArgumentAttrs[] = {
    NnDialect::kInputAttr,   NnDialect::kDefaultAttr, NnDialect::kSizesAttr,
    NnDialect::kSizeAttr,    NnDialect::kParameterAttr,
    NnDialect::kStateAttr,   NnDialect::kAliasesAttr, kBatchAttr,
    NnDialect::kParameterOffsetsAttr, NnDialect::kMagnitudeAttr};
/// Facts that only a parameter has.
static constexpr StringRef kParameterFacts[] = {
    NnDialect::kAliasesAttr, NnDialect::kParameterOffsetsAttr, NnDialect::kMagnitudeAttr};

/// The name of an input, a parameter or an output: a string that is not empty.
static LogicalResult verifyName(Operation *op, NamedAttribute attribute, const llvm::Twine &where) {
  auto name = dyn_cast<StringAttr>(attribute.getValue());
  if (!name || name.getValue().empty())
    return op->emitOpError() << "expected " << attribute.getName().strref() << " on " << where
                             << " to be a string that is not empty, got " << attribute.getValue();
  return success();
}

/// Attributes of an op. Checks that
///  - nn.id is an i64 integer and nn.stage a string that is not empty, both on an
///    operation inside a function;
///  - nn.table_rows is an i64 integer from 1 on, on an op that takes an offset;
///  - nn.whole_keys is a unit attribute on an nn.attention or nn.attention_grad;
///  - nn.backward is a unit attribute on an operation inside a function;
///  - nn.call is on a function, and its last step is that function (`verifyCallAttr`);
///  - nn.model is on a module (`verifyModelAttr`), and so is nn.serving (`verifyServingAttr`);
///  - attributes of arguments and results stand on none;
///  - no other name begins with "nn.".
LogicalResult NnDialect::verifyOperationAttribute(Operation *op, NamedAttribute attribute) {
  if ((attribute.getName() == kIdAttr || attribute.getName() == kStageAttr ||
       attribute.getName() == kBackwardAttr) &&
      isa<SymbolOpInterface>(op))
    return op->emitOpError() << "expected " << attribute.getName().strref()
                             << " on an operation inside a function";
  if (attribute.getName() == kStageAttr)
    return verifyName(op, attribute, "an operation");
  if (attribute.getName() == kWholeKeysAttr || attribute.getName() == kBackwardAttr) {
    if (attribute.getName() == kWholeKeysAttr && !isa<AttentionOp, AttentionGradOp>(op))
      return op->emitOpError("expected nn.whole_keys on an nn.attention or nn.attention_grad");
    if (!isa<UnitAttr>(attribute.getValue()))
      return op->emitOpError() << "expected " << attribute.getName().strref()
                               << " to be a unit attribute, got " << attribute.getValue();
    return success();
  }
  if (attribute.getName() == kCallAttr)
    return verifyCallAttr(op, attribute.getValue());
  if (attribute.getName() == kModelAttr)
    return verifyModelAttr(op, attribute.getValue());
  if (attribute.getName() == kServingAttr)
    return verifyServingAttr(op, attribute.getValue());
  if (attribute.getName() == kTokenSumAttr)
    return verifyTokenSumAttr(op, attribute.getValue());
  if (attribute.getName() == kIdAttr) {
    auto id = dyn_cast<IntegerAttr>(attribute.getValue());
    if (!id || !id.getType().isInteger(64))
      return op->emitOpError() << "expected nn.id to be an i64 integer, got "
                               << attribute.getValue();
    return success();
  }
  if (attribute.getName() == kTableRowsAttr) {
    auto lookup = dyn_cast<dist::LookupOpInterface>(op);
    if (!lookup || !lookup.takesOffset())
      return op->emitOpError("expected nn.table_rows on an op that takes an offset in a table");
    auto rows = dyn_cast<IntegerAttr>(attribute.getValue());
    if (!rows || !rows.getType().isInteger(64) || rows.getInt() < 1)
      return op->emitOpError() << "expected nn.table_rows to be an i64 integer from 1 on, got "
                               << attribute.getValue();
    return success();
  }
  if (attribute.getName() == kExpectedRowsAttr) {
    auto rows = dyn_cast<IntegerAttr>(attribute.getValue());
    if (!getExpectedRows(op))
      return op->emitOpError("expected nn.expected_rows on an op that moves rows of experts or counts them");
    if (!rows || !rows.getType().isInteger(64) || rows.getInt() < 0)
      return op->emitOpError() << "expected nn.expected_rows to be an i64 integer from 0 on, got "
                               << attribute.getValue();
    return success();
  }
  StringRef name = attribute.getName().strref();
  if (name == kOutputAttr || llvm::is_contained(kArgumentAttrs, name))
    return op->emitOpError() << "expected " << name
                             << " on an argument or a result of a function, got it on an operation";
  return op->emitOpError() << "unknown attribute '" << attribute.getName().strref()
                           << "': expected nn.backward, nn.call, nn.expected_rows, nn.id, nn.model, nn.serving, "
                              "nn.stage, nn.table_rows or nn.whole_keys";
}

double nn::getParameterMagnitude(DictionaryAttr attributes) {
  auto stated = attributes ? attributes.getAs<FloatAttr>(NnDialect::kMagnitudeAttr) : FloatAttr();
  return stated ? stated.getValueAsDouble() : NnDialect::kParameterMagnitude;
}

/// The value of an input that a call leaves out. Checks that it stands on an input, and is one
/// element of it.
static LogicalResult verifyDefault(FunctionOpInterface function, unsigned index, Attribute value) {
  std::string where = "argument " + std::to_string(index);
  if (!function.getArgAttr(index, NnDialect::kInputAttr))
    return function.emitOpError() << "expected " << NnDialect::kDefaultAttr
                                  << " on an input, got it on " << where
                                  << ", which has no " << NnDialect::kInputAttr;
  auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[index]);
  auto number = dyn_cast<TypedAttr>(value);
  if (type && number && isElement(number, type.getElementType()))
    return success();
  InFlightDiagnostic error = function.emitOpError() << "expected " << NnDialect::kDefaultAttr
                                                    << " on " << where << " to be a number";
  if (type)
    error << " of type " << type.getElementType();
  return error << ", got " << value;
}

/// Checks that a statement about the batch stands on an input, and says of one without dimensions
/// that it has none.
static LogicalResult verifyBatch(FunctionOpInterface function, unsigned index, Attribute value) {
  if (!function.getArgAttr(index, NnDialect::kInputAttr))
    return function.emitOpError() << "expected " << kBatchAttr << " on an input, got it on argument "
                                  << index << ", which has no " << NnDialect::kInputAttr;
  auto stated = dyn_cast<BoolAttr>(value);
  if (!stated)
    return function.emitOpError() << "expected " << kBatchAttr << " on argument " << index
                                  << " to be true or false, got " << value;
  auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[index]);
  if (stated.getValue() && type && type.getRank() == 0)
    return function.emitOpError() << "expected " << kBatchAttr << " on argument " << index
                                  << " to be false, since it has no dimensions, got true";
  return success();
}

/// Checks that run-time sizes stand on an input, and that there is a name for each dimension.
static LogicalResult verifySizes(FunctionOpInterface function, unsigned index, Attribute value) {
  std::string where = "argument " + std::to_string(index);
  if (!function.getArgAttr(index, NnDialect::kInputAttr))
    return function.emitOpError() << "expected " << NnDialect::kSizesAttr
                                  << " on an input, got it on " << where << ", which has no "
                                  << NnDialect::kInputAttr;
  auto names = dyn_cast<ArrayAttr>(value);
  auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[index]);
  if (names && type && int64_t(names.size()) == type.getRank() &&
      llvm::all_of(names, llvm::IsaPred<StringAttr>))
    return success();
  return function.emitOpError() << "expected " << NnDialect::kSizesAttr << " on " << where
                                << " to be a string for each dimension of "
                                << function.getArgumentTypes()[index] << ", got " << value;
}

/// Checks that a run-time size is an input that is one number, and the only one of its name.
static LogicalResult verifySize(FunctionOpInterface function, unsigned index, NamedAttribute attr) {
  std::string where = "argument " + std::to_string(index);
  if (failed(verifyName(function, attr, where)))
    return failure();
  auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[index]);
  if (!function.getArgAttr(index, NnDialect::kInputAttr) || !type || type.getRank() != 0 ||
      !type.getElementType().isInteger(64))
    return function.emitOpError() << "expected " << NnDialect::kSizeAttr
                                  << " on an input of type tensor<i64>, got it on " << where
                                  << " of type " << function.getArgumentTypes()[index];
  for (unsigned i = 0; i < index; ++i)
    if (function.getArgAttr(i, NnDialect::kSizeAttr) == attr.getValue())
      return function.emitOpError() << "expected one argument with the run-time size "
                                    << attr.getValue() << ", got arguments " << i << " and " << index;
  return success();
}

LogicalResult NnDialect::verifyRegionArgAttribute(Operation *op, unsigned regionIndex,
                                                  unsigned argIndex, NamedAttribute attribute) {
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function || argIndex >= function.getNumArguments())
    return op->emitOpError() << "expected " << attribute.getName().strref()
                             << " on an argument of a function, got it on argument " << argIndex
                             << " of another operation";
  StringRef name = attribute.getName();
  auto isRole = [](StringRef name) {
    return name == kInputAttr || name == kParameterAttr || name == kStateAttr;
  };
  if (isRole(name)) {
    // Every argument has a role, so the text for errors is not written before there is one.
    for (NamedAttribute other : function.getArgAttrDict(argIndex))
      if (StringRef second = other.getName();
          second != name && isRole(second) &&
          (name == kInputAttr || second == kInputAttr || other.getValue() != attribute.getValue()))
        return op->emitOpError() << "expected argument " << argIndex
                                 << " to be an input, a parameter or a state, got both "
                                 << std::min(name, second) << " and " << std::max(name, second);
    if (failed(verifyName(op, attribute, "argument " + llvm::Twine(argIndex))))
      return failure();
    if (name == kStateAttr)
      return verifyBoundState(function, argIndex, /*isResult=*/false,
                              cast<StringAttr>(attribute.getValue()));
    return success();
  }

  if (name == kDefaultAttr)
    return verifyDefault(function, argIndex, attribute.getValue());
  if (name == kBatchAttr)
    return verifyBatch(function, argIndex, attribute.getValue());
  if (name == kSizesAttr)
    return verifySizes(function, argIndex, attribute.getValue());
  if (name == kSizeAttr)
    return verifySize(function, argIndex, attribute);
  std::string where = "argument " + std::to_string(argIndex);
  bool isParameter = function.getArgAttr(argIndex, kParameterAttr) != nullptr;
  if (!llvm::is_contained(kParameterFacts, name))
    return op->emitOpError() << "expected one of " << llvm::join(ArrayRef(kArgumentAttrs), ", ") << " on "
                             << where << ", got " << name;
  if (!isParameter)
    return op->emitOpError() << "expected " << name << " on a parameter, got it on " << where
                             << ", which has no nn.parameter";
  if (name == kAliasesAttr) {
    auto aliases = dyn_cast<ArrayAttr>(attribute.getValue());
    if (!aliases || !llvm::all_of(aliases, llvm::IsaPred<StringAttr>))
      return op->emitOpError() << "expected nn.aliases on " << where
                               << " to be an array of strings, got " << attribute.getValue();
    return success();
  }
  if (name == kMagnitudeAttr) {
    auto most = dyn_cast<FloatAttr>(attribute.getValue());
    if (!most || !(most.getValueAsDouble() >= 0))
      return op->emitOpError() << "expected nn.magnitude on " << where
                               << " to be a number that is not negative, got "
                               << attribute.getValue();
    return success();
  }
  auto offsets = dyn_cast<DenseI64ArrayAttr>(attribute.getValue());
  auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[argIndex]);
  if (!offsets || !type || offsets.size() != type.getRank() ||
      llvm::any_of(offsets.asArrayRef(), [](int64_t offset) { return offset < 0; }))
    return op->emitOpError() << "expected nn.parameter_offsets on " << where
                             << " to be array<i64> with one index, not negative, for each "
                                "dimension of "
                             << function.getArgumentTypes()[argIndex] << ", got "
                             << attribute.getValue();
  return success();
}

/// The most bytes of a tensor.
static constexpr int64_t kMostBytes = int64_t(1) << 60;

/// Returns true if the bytes of a tensor are few enough for sums over the tensors of a program.
static bool isCounted(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape() || !tensor.getElementType().isIntOrFloat())
    return true;
  int64_t bytes = llvm::divideCeil(tensor.getElementTypeBitWidth(), 8);
  for (int64_t size : tensor.getShape())
    if (size == 0)
      return true;
  for (int64_t size : tensor.getShape())
    if (llvm::MulOverflow(bytes, size, bytes) || bytes > kMostBytes)
      return false;
  return true;
}

/// Verifies the size of a value:
/// - its bytes do not overflow;
/// - its rows fill whole bytes, where elements share them.
static LogicalResult verifySize(Location location, Type type) {
  if (!isCounted(type))
    return emitError(location) << "a value is " << type << ", of more than 2^60 bytes";
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (tensor && tensor.hasStaticShape() && !getPackedType(tensor))
    return emitError(location) << "value: expected an even last dimension, got " << type
                               << ": two elements of " << tensor.getElementType()
                               << " share a byte";
  return success();
}

/// Verifies the sizes of all values of a function.
static LogicalResult verifySizes(FunctionOpInterface function) {
  if (function.getFunctionBody().empty())
    return success();
  for (BlockArgument argument : function.getArguments())
    if (failed(verifySize(argument.getLoc(), argument.getType())))
      return failure();
  WalkResult result = function.getFunctionBody().walk([&](Operation *op) -> WalkResult {
    for (Type type : op->getResultTypes())
      if (failed(verifySize(op->getLoc(), type)))
        return WalkResult::interrupt();
    return WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}

LogicalResult NnDialect::verifyRegionResultAttribute(Operation *op, unsigned regionIndex,
                                                     unsigned resultIndex,
                                                     NamedAttribute attribute) {
  std::string where = "result " + std::to_string(resultIndex);
  auto function = dyn_cast<FunctionOpInterface>(op);
  bool isState = attribute.getName() == kStateAttr;
  if (!function || (attribute.getName() != kOutputAttr && !isState))
    return op->emitOpError() << "expected nn.output or nn.state on " << where << ", got "
                             << attribute.getName().strref();
  if (failed(verifyName(op, attribute, where)))
    return failure();
  // Once for each function.
  if (!isState)
    return resultIndex == 0 ? verifySizes(function) : success();
  if (function.getResultAttr(resultIndex, kOutputAttr))
    return op->emitOpError() << "expected " << where
                             << " to be an output or a state, got both nn.output and nn.state";
  return verifyBoundState(function, resultIndex, /*isResult=*/true,
                          cast<StringAttr>(attribute.getValue()));
}
