//===- DistAttrs.cpp - meshes and shardings -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/AxisSyntax.h"
#include "meshwright/dialects/Dist/Layout.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

#include "meshwright/dialects/Dist/DistEnums.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "meshwright/dialects/Dist/DistAttrs.cpp.inc"

void DistDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "meshwright/dialects/Dist/DistAttrs.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Mesh
//===----------------------------------------------------------------------===//

/// axis ::= string `=` integer (`{` (`bandwidth` | `latency`) `=` float ... `}`)?
static FailureOr<MeshAxisAttr> parseMeshAxis(AsmParser &parser) {
  std::string name;
  int64_t size;
  if (parser.parseString(&name) || parser.parseEqual() || parser.parseInteger(size))
    return failure();
  double bandwidth = 0, latency = 0;
  if (succeeded(parser.parseOptionalLBrace())) {
    do {
      StringRef key;
      SMLoc loc = parser.getCurrentLocation();
      if (failed(parser.parseOptionalKeyword(&key)) || (key != "bandwidth" && key != "latency"))
        return parser.emitError(loc, "expected 'bandwidth' or 'latency'");
      if (parser.parseEqual() || parser.parseFloat(key == "bandwidth" ? bandwidth : latency))
        return failure();
    } while (succeeded(parser.parseOptionalComma()));
    if (parser.parseRBrace())
      return failure();
  }
  return MeshAxisAttr::get(parser.getContext(), name, size, bandwidth, latency);
}

static void printMeshAxis(AsmPrinter &printer, MeshAxisAttr axis) {
  printer << '"' << axis.getName() << "\"=" << axis.getSize();
  if (axis.getBandwidth() == 0 && axis.getLatency() == 0)
    return;
  printer << " {";
  bool comma = false;
  auto field = [&](StringRef key, double value) {
    if (value == 0)
      return;
    if (comma)
      printer << ", ";
    comma = true;
    printer << key << " = ";
    printer.printFloat(llvm::APFloat(value));
  };
  field("bandwidth", axis.getBandwidth());
  field("latency", axis.getLatency());
  printer << '}';
}

Attribute MeshAxisAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  auto axis = parseMeshAxis(parser);
  if (failed(axis) || parser.parseGreater())
    return {};
  return *axis;
}

void MeshAxisAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printMeshAxis(printer, *this);
  printer << '>';
}

Attribute MeshAttr::parse(AsmParser &parser, Type) {
  SmallVector<MeshAxisAttr> axes;
  std::string device;
  auto parseAxis = [&]() -> ParseResult {
    auto axis = parseMeshAxis(parser);
    if (failed(axis))
      return failure();
    axes.push_back(*axis);
    return success();
  };
  if (parser.parseLess() || parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseAxis))
    return {};
  if (succeeded(parser.parseOptionalComma()))
    if (parser.parseKeyword("device") || parser.parseEqual() || parser.parseString(&device))
      return {};
  if (parser.parseGreater())
    return {};
  return parser.getChecked<MeshAttr>(parser.getContext(), axes, device);
}

void MeshAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getAxes(), printer,
                        [&](MeshAxisAttr axis) { printMeshAxis(printer, axis); });
  printer << ']';
  if (!getDevice().empty())
    printer << ", device = \"" << getDevice() << '"';
  printer << '>';
}

LogicalResult MeshAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               ArrayRef<MeshAxisAttr> axes, StringRef) {
  llvm::StringSet<> names;
  int64_t ranks = 1;
  for (MeshAxisAttr axis : axes) {
    if (axis.getName().empty())
      return emitError() << "mesh axis without a name";
    if (!names.insert(axis.getName()).second)
      return emitError() << "mesh axis \"" << axis.getName() << "\" occurs twice";
    if (axis.getSize() < 1)
      return emitError() << "mesh axis \"" << axis.getName() << "\" has size " << axis.getSize()
                         << ", expected at least 1";
    if (axis.getBandwidth() < 0 || axis.getLatency() < 0)
      return emitError() << "mesh axis \"" << axis.getName()
                         << "\" has a negative bandwidth or latency";
    if (axis.getSize() > (int64_t(1) << 31) / ranks)
      return emitError() << "mesh has more than 2^31 ranks";
    ranks *= axis.getSize();
  }
  return success();
}

int64_t MeshAttr::getNumRanks() const {
  int64_t product = 1;
  for (MeshAxisAttr axis : getAxes())
    product *= axis.getSize();
  return product;
}

int MeshAttr::getAxisIndex(StringRef name) const {
  for (auto [i, axis] : llvm::enumerate(getAxes()))
    if (axis.getName() == name)
      return i;
  return -1;
}

//===----------------------------------------------------------------------===//
// Sharding
//===----------------------------------------------------------------------===//

FailureOr<AxisRefAttr> dist::parseAxisRef(AsmParser &parser) {
  std::string name;
  int64_t pre = 1, size = 0;
  if (parser.parseString(&name))
    return failure();
  if (succeeded(parser.parseOptionalColon())) {
    SMLoc loc = parser.getCurrentLocation();
    if (parser.parseLParen() || parser.parseInteger(pre) || parser.parseRParen() ||
        parser.parseInteger(size))
      return failure();
    if (pre < 1 || size < 1)
      return parser.emitError(loc, "part of axis \"") << name << "\": expected positive sizes";
  }
  return AxisRefAttr::get(parser.getContext(), name, pre, size);
}

void dist::printAxisRef(AsmPrinter &printer, AxisRefAttr axis) {
  printer << '"' << axis.getName() << '"';
  if (axis.getSubSize() != 0)
    printer << ":(" << axis.getPreSize() << ')' << axis.getSubSize();
}

static ParseResult parseAxisRefs(AsmParser &parser, SmallVectorImpl<AxisRefAttr> &axes,
                                 bool *isOpen = nullptr) {
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Braces, [&]() -> ParseResult {
    if (isOpen && succeeded(parser.parseOptionalQuestion())) {
      *isOpen = true;
      return success();
    }
    if (isOpen && *isOpen)
      return parser.emitError(parser.getCurrentLocation(), "expected '?' to come last");
    auto axis = parseAxisRef(parser);
    if (failed(axis))
      return failure();
    axes.push_back(*axis);
    return success();
  });
}

static void printAxisRefs(AsmPrinter &printer, ArrayRef<AxisRefAttr> axes, bool isOpen = false) {
  printer << '{';
  llvm::interleaveComma(axes, printer, [&](AxisRefAttr axis) { printAxisRef(printer, axis); });
  if (isOpen)
    printer << (axes.empty() ? "?" : ", ?");
  printer << '}';
}

/// factor ::= integer (`pad` integer)? ((`zigzag` | `striped`) integer)? axes?
static FailureOr<FactorShardingAttr> parseFactor(AsmParser &parser) {
  int64_t size, padded = 0;
  SmallVector<AxisRefAttr> axes;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseInteger(size))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("pad")) && parser.parseInteger(padded))
    return failure();
  TokenOrder order = TokenOrder::Natural;
  int64_t orderRanks = 1;
  for (TokenOrder candidate : {TokenOrder::Zigzag, TokenOrder::Striped})
    if (succeeded(parser.parseOptionalKeyword(stringify(candidate)))) {
      order = candidate;
      if (parser.parseInteger(orderRanks))
        return failure();
      if (orderRanks < 1)
        return parser.emitError(loc, "order for ") << orderRanks << " ranks, expected at least 1";
    }
  if (succeeded(parser.parseOptionalLBrace())) {
    if (failed(parser.parseOptionalRBrace())) {
      do {
        auto axis = parseAxisRef(parser);
        if (failed(axis))
          return failure();
        axes.push_back(*axis);
      } while (succeeded(parser.parseOptionalComma()));
      if (parser.parseRBrace())
        return failure();
    }
  }
  if (size < 1 || (padded != 0 && padded < size))
    return parser.emitError(loc, "factor of size ")
           << size << (padded ? " with a smaller padded size" : ", expected at least 1");
  return FactorShardingAttr::get(parser.getContext(), size, padded, order, orderRanks, axes);
}

static void printFactor(AsmPrinter &printer, FactorShardingAttr factor) {
  printer << factor.getSize();
  if (factor.getPadded() != 0 && factor.getPadded() != factor.getSize())
    printer << " pad " << factor.getPadded();
  if (factor.getOrder() != TokenOrder::Natural)
    printer << ' ' << stringify(factor.getOrder()) << ' ' << factor.getOrderRanks();
  if (!factor.getAxes().empty())
    printAxisRefs(printer, factor.getAxes());
}

/// dim ::= `{` axes `}` | `(` factor (`,` factor)* `)`
static FailureOr<DimShardingAttr> parseDim(AsmParser &parser) {
  MLIRContext *context = parser.getContext();
  SmallVector<FactorShardingAttr> factors;
  if (succeeded(parser.parseOptionalLParen())) {
    do {
      auto factor = parseFactor(parser);
      if (failed(factor))
        return failure();
      factors.push_back(*factor);
    } while (succeeded(parser.parseOptionalComma()));
    if (parser.parseRParen())
      return failure();
    return DimShardingAttr::get(context, factors, /*isOpen=*/false);
  }
  SmallVector<AxisRefAttr> axes;
  bool isOpen = false;
  if (parseAxisRefs(parser, axes, &isOpen))
    return failure();
  factors.push_back(FactorShardingAttr::get(context, 0, 0, TokenOrder::Natural, 1, axes));
  return DimShardingAttr::get(context, factors, isOpen);
}

static void printDim(AsmPrinter &printer, DimShardingAttr dim) {
  ArrayRef<FactorShardingAttr> factors = dim.getFactors();
  if (factors.empty() || (factors.size() == 1 && factors[0].getSize() == 0)) {
    printAxisRefs(printer, factors.empty() ? ArrayRef<AxisRefAttr>() : factors[0].getAxes(),
                  dim.getIsOpen());
    return;
  }
  printer << '(';
  llvm::interleaveComma(factors, printer,
                        [&](FactorShardingAttr factor) { printFactor(printer, factor); });
  printer << ')';
}

Attribute AxisRefAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  auto axis = parseAxisRef(parser);
  if (failed(axis) || parser.parseGreater())
    return {};
  return *axis;
}
void AxisRefAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printAxisRef(printer, *this);
  printer << '>';
}

Attribute FactorShardingAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  auto factor = parseFactor(parser);
  if (failed(factor) || parser.parseGreater())
    return {};
  return *factor;
}
void FactorShardingAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printFactor(printer, *this);
  printer << '>';
}

Attribute DimShardingAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  auto dim = parseDim(parser);
  if (failed(dim) || parser.parseGreater())
    return {};
  return *dim;
}
void DimShardingAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printDim(printer, *this);
  printer << '>';
}

/// sharding ::= `<` symbol `,` `[` dims `]` (`,` `unreduced` `=` (`max`)? axes)? `>`
Attribute ShardingAttr::parse(AsmParser &parser, Type) {
  FlatSymbolRefAttr mesh;
  SmallVector<DimShardingAttr> dims;
  SmallVector<AxisRefAttr> unreduced;
  ReductionKind reduction = ReductionKind::Sum;
  auto parseOne = [&]() -> ParseResult {
    auto dim = parseDim(parser);
    if (failed(dim))
      return failure();
    dims.push_back(*dim);
    return success();
  };
  if (parser.parseLess() || parser.parseAttribute(mesh) || parser.parseComma() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseOne))
    return {};
  if (succeeded(parser.parseOptionalComma())) {
    if (parser.parseKeyword("unreduced") || parser.parseEqual())
      return {};
    if (succeeded(parser.parseOptionalKeyword("max")))
      reduction = ReductionKind::Max;
    if (parseAxisRefs(parser, unreduced))
      return {};
  }
  if (parser.parseGreater())
    return {};
  return ShardingAttr::get(parser.getContext(), mesh, dims, unreduced, reduction);
}

void ShardingAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printer.printAttributeWithoutType(getMesh());
  printer << ", [";
  llvm::interleaveComma(getDims(), printer, [&](DimShardingAttr dim) { printDim(printer, dim); });
  printer << ']';
  if (!getUnreduced().empty()) {
    printer << ", unreduced = ";
    if (getReduction() == ReductionKind::Max)
      printer << "max ";
    printAxisRefs(printer, getUnreduced());
  }
  printer << '>';
}

ShardingAttr ShardingAttr::getReplicated(MLIRContext *context, FlatSymbolRefAttr mesh,
                                         int64_t rank) {
  auto factor = FactorShardingAttr::get(context, 0, 0, TokenOrder::Natural, 1, {});
  auto dim = DimShardingAttr::get(context, {factor}, /*isOpen=*/false);
  return get(context, mesh, SmallVector<DimShardingAttr>(rank, dim), {}, ReductionKind::Sum);
}

LogicalResult ShardingAttr::verifyForMesh(MeshAttr mesh,
                                          function_ref<InFlightDiagnostic()> emitError) const {
  AxisList seen;
  auto check = [&](AxisRefAttr ref) -> LogicalResult {
    int index = mesh.getAxisIndex(ref.getName());
    if (index < 0)
      return emitError() << "unknown mesh axis \"" << ref.getName() << "\"";
    int64_t size = mesh.getAxes()[index].getSize();
    if (!ref.divides(size))
      return emitError() << "part (" << ref.getPreSize() << ")" << ref.getSubSize()
                         << " does not divide axis \"" << ref.getName() << "\" of size " << size;
    Axis axis = getAxis(ref, mesh);
    if (axis.size == 1)
      return success();
    for (const Axis &other : seen)
      if (axis.overlaps(other))
        return emitError() << "axis \"" << ref.getName() << "\" is used twice in a sharding";
    seen.push_back(axis);
    return success();
  };
  for (DimShardingAttr dim : getDims())
    for (FactorShardingAttr factor : dim.getFactors())
      for (AxisRefAttr axis : factor.getAxes())
        if (failed(check(axis)))
          return failure();
  for (AxisRefAttr axis : getUnreduced())
    if (failed(check(axis)))
      return failure();
  return success();
}
