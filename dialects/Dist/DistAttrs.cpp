//===- DistAttrs.cpp - meshes and shardings -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/AxisSyntax.h"
#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Support/SequenceOrder.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/ScopedPrinter.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

#include "meshwright/dialects/Dist/DistEnums.cpp.inc"

template <>
struct mlir::FieldParser<GatherKind> {
  static FailureOr<GatherKind> parse(AsmParser &parser) {
    SMLoc location = parser.getCurrentLocation();
    StringRef word;
    if (parser.parseKeyword(&word))
      return failure();
    std::optional<GatherKind> kind = parseSpelling<GatherKind>(word);
    if (!kind)
      return parser.emitError(location)
             << "expected the form " << listSpellings<GatherKind>() << ", got '" << word << "'";
    return *kind;
  }
};

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

/// roles ::= `[` (role (`,` role)*)? `]`
static FailureOr<AxisRoles> parseRoles(AsmParser &parser, StringRef axis) {
  AxisRoles roles;
  auto parseRole = [&]() -> ParseResult {
    SMLoc loc = parser.getCurrentLocation();
    StringRef text;
    if (parser.parseKeyword(&text))
      return failure();
    std::optional<AxisRole> role = parseSpelling<AxisRole>(text);
    if (!role)
      return parser.emitError(loc, "mesh axis \"")
             << axis << "\": expected the role " << listSpellings<AxisRole>() << ", got '" << text
             << "'";
    if (roles.contains(*role))
      return parser.emitError(loc, "mesh axis \"")
             << axis << "\": expected the role " << text << " once, got it twice";
    roles.insert(*role);
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseRole))
    return failure();
  return roles;
}

static FailureOr<TokenOrder> parseOrder(AsmParser &parser, StringRef axis) {
  SMLoc loc = parser.getCurrentLocation();
  StringRef text;
  if (parser.parseKeyword(&text))
    return failure();
  if (std::optional<SequenceOrder> order = parseSpelling<SequenceOrder>(text))
    if (std::optional<TokenOrder> tokens = getTokenOrder(*order))
      return *tokens;
  return parser.emitError(loc, "mesh axis \"")
         << axis << "\": expected the order contiguous, zigzag or striped, got '" << text << "'";
}

/// axis ::= string `=` integer (`{` field (`,` field)* `}`)?
/// field ::= (`bandwidth` | `latency`) `=` float | `roles` `=` roles | `order` `=` order
static FailureOr<MeshAxisAttr> parseMeshAxis(AsmParser &parser) {
  std::string name;
  int64_t size;
  if (parser.parseString(&name) || parser.parseEqual() || parser.parseInteger(size))
    return failure();
  double bandwidth = 0, latency = 0;
  std::optional<AxisRoles> roles;
  std::optional<TokenOrder> order;
  auto parseField = [&]() -> ParseResult {
    StringRef key;
    SMLoc loc = parser.getCurrentLocation();
    if (failed(parser.parseOptionalKeyword(&key)) ||
        !llvm::is_contained({"bandwidth", "latency", "roles", "order"}, key))
      return parser.emitError(loc, "expected 'bandwidth' or 'latency' of the link, 'roles' or "
                                   "'order'");
    if (parser.parseEqual())
      return failure();
    if (key == "roles") {
      FailureOr<AxisRoles> own = parseRoles(parser, name);
      if (succeeded(own))
        roles = *own;
      return success(succeeded(own));
    }
    if (key == "order") {
      FailureOr<TokenOrder> own = parseOrder(parser, name);
      if (succeeded(own))
        order = *own;
      return success(succeeded(own));
    }
    return parser.parseFloat(key == "bandwidth" ? bandwidth : latency);
  };
  if (succeeded(parser.parseOptionalLBrace())) {
    do {
      if (parseField())
        return failure();
    } while (succeeded(parser.parseOptionalComma()));
    if (parser.parseRBrace())
      return failure();
  }
  return MeshAxisAttr::get(parser.getContext(), name, size, bandwidth, latency)
      .withRoles(roles, order);
}

static void printMeshAxis(AsmPrinter &printer, MeshAxisAttr axis) {
  printer << '"' << axis.getName() << "\"=" << axis.getSize();
  StringRef separator = " {";
  auto field = [&](StringRef key) -> raw_ostream & {
    printer << std::exchange(separator, ", ") << key << " = ";
    return printer.getStream();
  };
  auto number = [&](StringRef key, double value) {
    if (value == 0)
      return;
    field(key);
    printer.printFloat(llvm::APFloat(value));
  };
  number("bandwidth", axis.getBandwidth());
  number("latency", axis.getLatency());
  if (axis.getRoles())
    field("roles") << *axis.getRoles();
  if (axis.getOrder())
    field("order") << getSequenceOrder(*axis.getOrder());
  if (separator != " {")
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
      return emitError() << "mesh axis \"" << axis.getName()
                         << "\": expected a size of at least 1, got " << axis.getSize();
    if (axis.getBandwidth() < 0 || axis.getLatency() < 0)
      return emitError() << "mesh axis \"" << axis.getName()
                         << "\" has a negative bandwidth or latency";
    if (axis.getSize() > (int64_t(1) << 31) / ranks)
      return emitError() << "mesh has more than 2^31 ranks";
    ranks *= axis.getSize();
    if (bool(axis.getRoles()) != bool(axes.front().getRoles()))
      return emitError() << "mesh axis \"" << (axis.getRoles() ? axes.front() : axis).getName()
                         << "\": expected a list of roles as on axis \""
                         << (axis.getRoles() ? axis : axes.front()).getName() << "\", got none";
    if (axis.getOrder() && !axis.hasRole(AxisRole::Ring))
      return emitError() << "mesh axis \"" << axis.getName() << "\" with the order "
                         << stringify(getSequenceOrder(*axis.getOrder()))
                         << ": expected the role ring, got "
                         << llvm::to_string(axis.getRoles().value_or(AxisRoles()));
  }
  for (const AxisRoleDescription &known : kAxisRoles) {
    auto own = llvm::make_filter_range(
        axes, [&](MeshAxisAttr axis) { return known.isSingle && axis.hasRole(known.role); });
    if (auto it = own.begin(); it != own.end() && std::next(it) != own.end())
      return emitError() << "mesh axes \"" << (*it).getName() << "\" and \""
                         << (*std::next(it)).getName() << "\": expected one axis with the role "
                         << stringify(known.role);
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

bool MeshAttr::hasRoles() const {
  return llvm::all_of(getAxes(), [](MeshAxisAttr axis) { return axis.getRoles().has_value(); });
}

SmallVector<StringRef> MeshAttr::getAxesWithRole(AxisRole role) const {
  SmallVector<StringRef> names;
  for (MeshAxisAttr axis : getAxes())
    if (axis.hasRole(role))
      names.push_back(axis.getName());
  return names;
}

/// The mesh with other axes of the same names.
static MeshAttr replaceAxes(MeshAttr mesh, function_ref<MeshAxisAttr(MeshAxisAttr)> replace) {
  return MeshAttr::get(mesh.getContext(), llvm::map_to_vector(mesh.getAxes(), replace),
                       mesh.getDevice());
}

MeshAttr MeshAttr::withRole(AxisRole role, ArrayRef<StringRef> names) const {
  return replaceAxes(*this, [&](MeshAxisAttr axis) {
    AxisRoles roles = axis.getRoles().value_or(AxisRoles());
    roles.erase(role);
    if (llvm::is_contained(names, axis.getName()))
      roles.insert(role);
    return axis.withRoles(roles, roles.contains(AxisRole::Ring) ? axis.getOrder() : std::nullopt);
  });
}

MeshAttr MeshAttr::withOrder(StringRef name, TokenOrder order) const {
  return replaceAxes(*this, [&](MeshAxisAttr axis) {
    return axis.getName() == name ? axis.withRoles(axis.getRoles(), order) : axis;
  });
}

MeshAttr MeshAttr::withoutRoles() const {
  return replaceAxes(
      *this, [](MeshAxisAttr axis) { return axis.withRoles(std::nullopt, std::nullopt); });
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

/// runtime-size ::= `size` symbol
static ParseResult parseRuntimeSize(AsmParser &parser, FlatSymbolRefAttr &name) {
  if (failed(parser.parseOptionalKeyword("size")))
    return success();
  return parser.parseAttribute(name);
}

static void printRuntimeSize(AsmPrinter &printer, FlatSymbolRefAttr name) {
  if (name)
    printer << " size " << name;
}

/// factor ::= integer (`pad` integer)? ((`zigzag` | `striped`) integer)? runtime-size? axes?
static FailureOr<FactorShardingAttr> parseFactor(AsmParser &parser) {
  int64_t size, padded = 0;
  SmallVector<AxisRefAttr> axes;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseInteger(size))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("pad")) && parser.parseInteger(padded))
    return failure();
  TokenOrder order = TokenOrder::Contiguous;
  int64_t orderRanks = 1;
  for (TokenOrder candidate : {TokenOrder::Zigzag, TokenOrder::Striped})
    if (succeeded(parser.parseOptionalKeyword(stringify(candidate)))) {
      order = candidate;
      if (parser.parseInteger(orderRanks))
        return failure();
      if (orderRanks < 1)
        return parser.emitError(loc, "order: expected at least 1 rank, got ") << orderRanks;
    }
  FlatSymbolRefAttr runtimeSize;
  if (parseRuntimeSize(parser, runtimeSize))
    return failure();
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
  if (size < 1)
    return parser.emitError(loc, "factor: expected a size of at least 1, got ") << size;
  if (padded != 0 && padded < size)
    return parser.emitError(loc, "factor: expected a padded size of at least ")
           << size << ", got " << padded;
  return FactorShardingAttr::get(parser.getContext(), size, padded, order, orderRanks, axes,
                                 runtimeSize);
}

static void printFactor(AsmPrinter &printer, FactorShardingAttr factor) {
  printer << factor.getSize();
  if (factor.getPadded() != 0 && factor.getPadded() != factor.getSize())
    printer << " pad " << factor.getPadded();
  if (factor.getOrder() != TokenOrder::Contiguous)
    printer << ' ' << stringify(factor.getOrder()) << ' ' << factor.getOrderRanks();
  printRuntimeSize(printer, factor.getRuntimeSize());
  if (!factor.getAxes().empty())
    printAxisRefs(printer, factor.getAxes());
}

/// dim ::= `{` axes `}` runtime-size? | `(` factor (`,` factor)* `)`
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
  FlatSymbolRefAttr runtimeSize;
  if (parseRuntimeSize(parser, runtimeSize))
    return failure();
  factors.push_back(
      FactorShardingAttr::get(context, 0, 0, TokenOrder::Contiguous, 1, axes, runtimeSize));
  return DimShardingAttr::get(context, factors, isOpen);
}

static void printDim(AsmPrinter &printer, DimShardingAttr dim) {
  ArrayRef<FactorShardingAttr> factors = dim.getFactors();
  if (factors.empty() || (factors.size() == 1 && factors[0].getSize() == 0)) {
    printAxisRefs(printer, factors.empty() ? ArrayRef<AxisRefAttr>() : factors[0].getAxes(),
                  dim.getIsOpen());
    if (!factors.empty())
      printRuntimeSize(printer, factors[0].getRuntimeSize());
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
  auto factor = FactorShardingAttr::get(context, 0, 0, TokenOrder::Contiguous, 1, {});
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
