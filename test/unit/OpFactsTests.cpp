//===- OpFactsTests.cpp - every op states the facts about it --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Visits the ops that are registered, so that no list of them has to be kept here.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/MLIRContext.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace meshwright;

namespace {

class OpFacts : public ::testing::Test {
protected:
  OpFacts() : context(getRegistry()) {
    context.loadDialect<dist::DistDialect, nn::NnDialect, arith::ArithDialect, math::MathDialect,
                        func::FuncDialect, vector::VectorDialect>();
    context.getOrLoadDialect("rt");
  }

  static DialectRegistry getRegistry() {
    DialectRegistry registry;
    registerAllDialects(registry);
    registry.insert<arith::ArithDialect, math::MathDialect, func::FuncDialect,
                    vector::VectorDialect>();
    return registry;
  }

  SmallVector<RegisteredOperationName> getOps(StringRef dialect) {
    SmallVector<RegisteredOperationName> ops;
    for (RegisteredOperationName name : context.getRegisteredOperations())
      if (name.getDialectNamespace() == dialect)
        ops.push_back(name);
    return ops;
  }

  MLIRContext context;
};

/// The kinds of OpTraits.h that an op has, by name.
SmallVector<StringRef> getKinds(RegisteredOperationName name) {
  SmallVector<StringRef> kinds;
  if (name.hasTrait<dist::Elementwise>())
    kinds.push_back("Elementwise");
  if (name.hasTrait<dist::MovesOnly>())
    kinds.push_back("MovesOnly");
  if (name.hasTrait<dist::Generates>())
    kinds.push_back("Generates");
  if (name.hasTrait<dist::Combines>())
    kinds.push_back("Combines");
  if (name.hasTrait<dist::Structural>())
    kinds.push_back("Structural");
  return kinds;
}

TEST_F(OpFacts, EveryOpIsOfOneKind) {
  for (StringRef dialect : {"dist", "nn", "rt"}) {
    EXPECT_FALSE(getOps(dialect).empty()) << dialect.str();
    for (RegisteredOperationName name : getOps(dialect)) {
      // Rows of experts move as they are, between ranks.
      bool isCollective = name.hasInterface<dist::CollectiveOpInterface>();
      size_t kinds = getKinds(name).size();
      if (isCollective)
        kinds = kinds == name.hasTrait<dist::MovesOnly>() ? 1 : 2;
      EXPECT_EQ(kinds, 1u) << name.getStringRef().str() << " is of the kinds {"
                           << llvm::join(getKinds(name), ", ")
                           << "}: expected one of those of dialects/Dist/OpTraits.h, or a "
                              "collective";
    }
  }
}

TEST_F(OpFacts, EveryNnOpStatesRulePaddingAndWork) {
  for (RegisteredOperationName name : getOps("nn")) {
    std::string op = name.getStringRef().str();
    EXPECT_TRUE(name.hasInterface<dist::ShardingRuleOpInterface>())
        << op << " does not state how it shards (ShardingRuleOpInterface)";
    EXPECT_TRUE(name.hasInterface<dist::PaddingOpInterface>())
        << op << " does not state what it makes of padding (PaddingOpInterface)";
    EXPECT_TRUE(name.hasInterface<dist::WorkOpInterface>())
        << op << " does not state its arithmetic (WorkOpInterface)";
  }
}

TEST_F(OpFacts, EveryNnOpStatesItsDerivative) {
  for (RegisteredOperationName name : getOps("nn"))
    EXPECT_TRUE(name.hasInterface<nn::DifferentiableOpInterface>())
        << name.getStringRef().str()
        << " does not state how it differentiates, or that it does not (passes/differentiate)";
}

TEST_F(OpFacts, TraitsImplyOthers) {
  for (StringRef dialect : {"dist", "nn", "rt"})
    for (RegisteredOperationName name : getOps(dialect)) {
      std::string op = name.getStringRef().str();
      if (name.hasTrait<dist::View>())
        EXPECT_TRUE(name.hasTrait<dist::Reindexes>()) << op << " is a view that does not reindex";
      if (name.hasTrait<dist::Reindexes>())
        EXPECT_TRUE(name.hasTrait<dist::MovesOnly>()) << op << " reindexes and does not only move";
      if (name.hasTrait<dist::Cheap>())
        EXPECT_TRUE(name.hasTrait<dist::Elementwise>()) << op << " is cheap and not elementwise";
      if (name.hasTrait<dist::Product>())
        EXPECT_TRUE(name.hasTrait<dist::Combines>()) << op << " is a product that sums nothing";
    }
}

/// Creates instances of elementwise ops on tensors of any types that their verifiers
/// allow, and emits the arithmetic of each.
class Emission {
public:
  explicit Emission(MLIRContext &context)
      : builder(UnknownLoc::get(&context), &context), module(ModuleOp::create(builder.getLoc())) {
    builder.setInsertionPointToStart(module->getBody());
    elements = {builder.getF32Type(), builder.getF64Type(), builder.getBF16Type(),
                builder.getI64Type(), builder.getI32Type(), builder.getI1Type(),
                builder.getI8Type(),  Float8E4M3FNType::get(&context)};
  }

  /// Returns the number of combinations of types that are legal; `missing` gets those that
  /// have no emission.
  int run(RegisteredOperationName name, std::vector<std::string> &missing) {
    int legal = 0;
    for (int operands = 1; operands <= 4; ++operands)
      for (Type first : elements)
        for (Type rest : elements)
          for (Type result : elements) {
            if (operands == 1 && rest != elements.front())
              continue;
            SmallVector<Type> types(operands, rest);
            types.front() = first;
            legal += check(name, types, result, missing);
          }
    return legal;
  }

private:
  bool check(RegisteredOperationName name, ArrayRef<Type> types, Type result,
             std::vector<std::string> &missing) {
    auto tensorOf = [](Type type) -> Type { return RankedTensorType::get({}, type); };
    OpBuilder::InsertionGuard guard(builder);
    auto func = func::FuncOp::create(
        builder, "f",
        builder.getFunctionType(llvm::map_to_vector(types, tensorOf), {tensorOf(result)}));
    Block *body = func.addEntryBlock();
    builder.setInsertionPointToStart(body);
    OperationState state(builder.getLoc(), name);
    state.addOperands(body->getArguments());
    state.addTypes(tensorOf(result));
    // The attributes that some elementwise ops need.
    const std::pair<StringRef, Attribute> attributes[] = {
        {"kind", nn::CompareKindAttr::get(builder.getContext(), nn::CompareKind::Lt)},
        {"probability", builder.getF64FloatAttr(0.5)},
        {"stream", builder.getI64IntegerAttr(3)}};
    for (auto [attribute, value] : attributes)
      if (llvm::is_contained(name.getAttributeNames(), attribute))
        state.addAttribute(attribute, value);
    Operation *op = builder.create(state);
    bool isLegal = false;
    {
      // Most combinations are not legal.
      ScopedDiagnosticHandler ignore(builder.getContext(), [](Diagnostic &) { return success(); });
      isLegal = succeeded(name.verifyInvariants(op));
    }
    if (isLegal) {
      SmallVector<Value> values;
      for (Type type : types)
        values.push_back(body->addArgument(isCode(type) ? lower::getStorageType(type) : type, builder.getLoc()));
      Value value = lower::emitElement(builder, op, values);
      if (!value || value.getType() != result) {
        std::string text = name.getStringRef().str() + " on";
        llvm::raw_string_ostream stream(text);
        llvm::interleaveComma(types, stream << " ");
        missing.push_back(text);
      }
    }
    func.erase();
    return isLegal;
  }

  ImplicitLocOpBuilder builder;
  OwningOpRef<ModuleOp> module;
  SmallVector<Type> elements;
};

TEST_F(OpFacts, EveryElementwiseOpHasAnEmission) {
  Emission emission(context);
  for (RegisteredOperationName name : getOps("nn")) {
    if (!name.hasTrait<dist::Elementwise>())
      continue;
    std::vector<std::string> missing;
    EXPECT_GT(emission.run(name, missing), 0)
        << name.getStringRef().str() << ": no types are legal, so nothing was tested";
    EXPECT_TRUE(missing.empty()) << "no arithmetic in lib/Codegen/Elements.cpp for "
                                 << llvm::join(missing, "; ");
  }
}

} // namespace
