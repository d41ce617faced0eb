//===- ElementTypesTests.cpp - the table of element types -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ElementTypes.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/runtime/include/Types.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"

#include "gtest/gtest.h"

#include <set>

using namespace mlir;
using namespace meshwright;

namespace {

struct Row {
  rt::DType type;
  std::string name;
  int64_t bits;
  Type inIr;
  std::string stored;
};

class ElementTypes : public testing::Test {
protected:
  ElementTypes() {
    owned.loadDialect<func::FuncDialect, nn::NnDialect>();
    rows = {
#define MW_ELEMENT_TYPE(ID, NAME, BITS, USE, MLIR, STORED, ...)                                    \
  {rt::DType::ID, NAME, BITS, MLIR, STORED},
#include "meshwright-c/ElementTypes.def"
    };
  }

  /// Returns true if an op of one operand takes a tensor of this type.
  bool takes(const std::string &op, Type element) {
    ScopedDiagnosticHandler quiet(context, [](Diagnostic &) {});
    std::string type = toString(RankedTensorType::get({2, 4}, element));
    return bool(parseSourceString<ModuleOp>("func.func @f(%x: " + type + ") { %0 = " + op +
                                                " : (" + type + ") -> " + type + " return }",
                                            context));
  }

  static std::string toString(Type type) {
    std::string text;
    llvm::raw_string_ostream(text) << type;
    return text;
  }

  MLIRContext owned;
  MLIRContext *context = &owned;
  std::vector<Row> rows;
};

} // namespace

TEST_F(ElementTypes, NamesAndNumbers) {
  std::set<std::string> names, stored;
  for (auto [i, row] : llvm::enumerate(rows)) {
    EXPECT_EQ(int64_t(row.type), int64_t(i)) << row.name;
    EXPECT_EQ(getTypeCode(row.inIr), int64_t(i)) << row.name;
    EXPECT_EQ(toString(row.inIr), row.name);
    EXPECT_EQ(rt::nameOf(row.type), row.name);
    EXPECT_EQ(rt::storedNameOf(row.type), row.stored);
    rt::DType found;
    EXPECT_TRUE(rt::findDType(row.name, found) && found == row.type) << row.name;
    EXPECT_TRUE(rt::findStoredDType(row.stored, found) && found == row.type) << row.name;
    // A truth value takes a byte.
    EXPECT_EQ(row.inIr.isInteger(1) ? 8 : row.inIr.getIntOrFloatBitWidth(), row.bits) << row.name;
    EXPECT_EQ(isCode(row.inIr), rt::isCode(row.type)) << row.name;
    EXPECT_TRUE(names.insert(row.name).second && stored.insert(row.stored).second) << row.name;
  }
  EXPECT_EQ(getTypeCode(IntegerType::get(context, 16)), -1);
  EXPECT_STREQ(rt::nameOf(rt::DType(1000)), "unknown");
}

TEST_F(ElementTypes, OpsTakeThoseOfTheTable) {
  Builder builder(context);
  std::vector<Type> all = {builder.getI16Type(), builder.getIntegerType(8, /*isSigned=*/false),
                           builder.getIntegerType(4), Float8E4M3FNUZType::get(context),
                           Float8E5M2FNUZType::get(context), Float8E3M4Type::get(context),
                           Float6E2M3FNType::get(context), Float128Type::get(context)};
  for (const Row &row : rows)
    all.push_back(row.inIr);
  for (Type type : all) {
    bool isKnown = getTypeCode(type) >= 0;
    EXPECT_EQ(takes("nn.transpose %x [0, 1]", type), isKnown) << toString(type);
    EXPECT_EQ(takes("nn.cast %x", type), isKnown && !isCode(type)) << toString(type);
  }
}

TEST_F(ElementTypes, CodesStandForNumbers) {
  for (const Row &row : rows) {
    auto type = dyn_cast<FloatType>(row.inIr);
    // The runtime counts bytes of f4E2M1FN, which have two numbers each.
    if (!type || !isCode(type) || row.bits < 8)
      continue;
    for (int bits = 0; bits < 1 << row.bits; ++bits) {
      APFloat number(type.getFloatSemantics(), APInt(row.bits, bits));
      uint8_t byte = uint8_t(bits);
      double got = rt::loadAsDouble(row.type, &byte, 0);
      EXPECT_EQ(std::isnan(got), number.isNaN()) << row.name << " " << bits;
      bool losesInfo;
      number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &losesInfo);
      EXPECT_TRUE(std::isnan(got) || got == number.convertToDouble()) << row.name << " " << bits;
    }
    for (uint64_t random : {uint64_t(0), ~uint64_t(0), uint64_t(0x1234567890abcdef)}) {
      uint8_t code = rt::toCode(random);
      EXPECT_TRUE(std::isfinite(rt::loadAsDouble(row.type, &code, 0))) << row.name;
    }
  }
}

TEST_F(ElementTypes, ComputeTypes) {
  Builder builder(context);
  EXPECT_EQ(getComputeType(builder.getBF16Type()), builder.getF32Type());
  EXPECT_EQ(getComputeType(builder.getF16Type()), builder.getF32Type());
  EXPECT_EQ(rt::getComputeType(rt::DType::BF16), rt::DType::F32);
  for (Type type : {Type(builder.getF32Type()), Type(builder.getF64Type()),
                    Type(builder.getI32Type()), Type(builder.getI1Type())})
    EXPECT_EQ(getComputeType(type), type);
  for (const Row &row : rows)
    EXPECT_EQ(getTypeCode(getComputeType(row.inIr)), int64_t(rt::getComputeType(row.type)))
        << row.name;
}
