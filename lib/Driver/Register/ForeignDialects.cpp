//===- ForeignDialects.cpp - dialects that other tools read ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Register/ForeignDialects.h"

#include "mlir/IR/Dialect.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;

namespace meshwright::foreign {

/// MLIR puts the name of an op before the message, and nothing before that of an attribute or a type.
static ParseResult refuse(AsmParser &parser, StringRef dialect, StringRef subject) {
  return parser.emitError(parser.getNameLoc())
         << subject << "is of the dialect '" << dialect
         << "', which the compiler does not read: import the module in Python with "
            "meshwright.from_stablehlo, and save it";
}

static ParseResult refuseOperation(OpAsmParser &parser, OperationState &state) {
  return refuse(parser, state.name.getDialectNamespace(), "");
}

/// Parses nothing: each op and attribute is an error.
class ForeignDialect : public Dialect {
public:
  using Dialect::Dialect;

  std::optional<ParseOpHook> getParseOperationHook(StringRef) const override {
    return ParseOpHook(refuseOperation);
  }
  Attribute parseAttribute(DialectAsmParser &parser, Type) const override {
    (void)refuse(parser, getNamespace(), "the attribute ");
    return nullptr;
  }
  Type parseType(DialectAsmParser &parser) const override {
    (void)refuse(parser, getNamespace(), "the type ");
    return nullptr;
  }
};

struct StablehloDialect : ForeignDialect {
  explicit StablehloDialect(MLIRContext *context)
      : ForeignDialect(getDialectNamespace(), context, TypeID::get<StablehloDialect>()) {}
  static constexpr StringLiteral getDialectNamespace() { return "stablehlo"; }
};

struct ChloDialect : ForeignDialect {
  explicit ChloDialect(MLIRContext *context)
      : ForeignDialect(getDialectNamespace(), context, TypeID::get<ChloDialect>()) {}
  static constexpr StringLiteral getDialectNamespace() { return "chlo"; }
};

struct SdyDialect : ForeignDialect {
  explicit SdyDialect(MLIRContext *context)
      : ForeignDialect(getDialectNamespace(), context, TypeID::get<SdyDialect>()) {}
  static constexpr StringLiteral getDialectNamespace() { return "sdy"; }
};

} // namespace meshwright::foreign

void meshwright::registerForeignDialects(DialectRegistry &registry) {
  registry.insert<foreign::StablehloDialect, foreign::ChloDialect, foreign::SdyDialect>();
}
