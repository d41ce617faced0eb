//===- RtDialect.cpp - the rt dialect -------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace meshwright::rt;

#include "meshwright/dialects/Rt/RtDialect.cpp.inc"
#include "meshwright/dialects/Rt/RtEnums.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "meshwright/dialects/Rt/RtTypes.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "meshwright/dialects/Rt/RtAttrs.cpp.inc"

void RtDialect::registerTypes() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "meshwright/dialects/Rt/RtTypes.cpp.inc"
      >();
}

void RtDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "meshwright/dialects/Rt/RtAttrs.cpp.inc"
      >();
}

void RtDialect::initialize() {
  registerTypes();
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "meshwright/dialects/Rt/RtOps.cpp.inc"
      >();
}

LogicalResult RtDialect::verifyOperationAttribute(Operation *op, NamedAttribute attribute) {
  StringRef name = attribute.getName();
  if (name == kOverlapAttr || name == kChunksAttr) {
    StringRef more = name == kOverlapAttr ? "on" : "all", less = more == "on" ? "off" : "none";
    auto mode = dyn_cast<StringAttr>(attribute.getValue());
    if (!isa<FunctionOpInterface>(op) || !mode || (mode != more && mode != less))
      return op->emitOpError() << "'" << name << "': expected \"" << more << "\" or \"" << less
                               << "\" on a function, got " << attribute.getValue();
    return success();
  }
  if (name == kTargetAttr) {
    auto target = dyn_cast<StringAttr>(attribute.getValue());
    if (!isa<FunctionOpInterface>(op) || !target || target.empty())
      return op->emitOpError() << "'" << name << "': expected the name of a target on a function, "
                               << "got " << attribute.getValue();
    return success();
  }
  if (name == kCopiesAttr) {
    if (!isa<FunctionOpInterface>(op) || !isa<UnitAttr>(attribute.getValue()))
      return op->emitOpError() << "'" << name << "': expected no value, on a function, got "
                               << attribute.getValue();
    return success();
  }
  if (name != kArenaAttr && name != kLiveAttr && name != kCeilingAttr && name != kResidentAttr &&
      name != kPrefetchAttr && name != kExpertChunksAttr)
    return op->emitOpError() << "unknown attribute '" << name << "'";
  auto number = dyn_cast<IntegerAttr>(attribute.getValue());
  if (!isa<FunctionOpInterface>(op) || !number || !number.getType().isInteger(64) ||
      number.getInt() < 0)
    return op->emitOpError() << "'" << name << "': expected a number of "
                             << (name == kPrefetchAttr       ? "weights"
                                 : name == kExpertChunksAttr ? "chunks"
                                                             : "bytes")
                             << " (i64) on a function, got " << attribute.getValue();
  return success();
}

LogicalResult FutureType::verify(function_ref<InFlightDiagnostic()> emitError,
                                 ArrayRef<Type> types) {
  for (Type type : types) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || !tensor.hasStaticShape())
      return emitError() << "expected tensors of static shape, got " << type;
  }
  return success();
}

int64_t PackingAttr::getBytes(Type element) const {
  int64_t rows = llvm::alignTo(getK(), kPackedSteps * getGroup());
  return getBatch() * rows * llvm::alignTo(getN(), getPanel()) * element.getIntOrFloatBitWidth() / 8;
}

LogicalResult PackingAttr::verify(function_ref<InFlightDiagnostic()> emitError, int64_t k,
                                  int64_t n, bool transposed, int64_t panel, int64_t group, int64_t batch) {
  for (auto [name, value] : {std::pair<const char *, int64_t>("k", k),
                             {"n", n},
                             {"panel", panel},
                             {"group", group},
                             {"batch", batch}})
    if (value < 1)
      return emitError() << "expected " << name << " of at least 1, got " << value;
  return success();
}
