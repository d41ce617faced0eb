//===- ReshardTest.h - moves that tests write and execute -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The written ops are executed on arrays, one for each rank, and the result compared with
// the layout's definition.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TEST_UNIT_RESHARDTEST_H
#define MESHWRIGHT_TEST_UNIT_RESHARDTEST_H

#include "SpmdInterpreter.h"

#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/lib/Reshard/Reshard.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/Verifier.h"
#include "llvm/ADT/StringExtras.h"
#include "gtest/gtest.h"

namespace meshwright::test {

using namespace mlir;
using namespace meshwright::dist;

class ReshardTest : public testing::Test {
protected:
  ReshardTest() {
    DialectRegistry registry;
    registerAllDialects(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  MeshAttr getMesh(ArrayRef<std::pair<const char *, int64_t>> axes,
                   ArrayRef<double> bandwidths = {}, ArrayRef<double> latencies = {},
                   StringRef device = "") {
    SmallVector<MeshAxisAttr> attrs;
    for (auto [i, axis] : llvm::enumerate(axes))
      attrs.push_back(MeshAxisAttr::get(&context, axis.first, axis.second,
                                        bandwidths.empty() ? 0 : bandwidths[i],
                                        latencies.empty() ? 0 : latencies[i]));
    return MeshAttr::get(&context, attrs, device);
  }

  /// A function with a mesh, to write a move into.
  OwningOpRef<ModuleOp> makeFunction(MeshAttr mesh, Type type, func::FuncOp &function) {
    Location location = UnknownLoc::get(&context);
    OwningOpRef<ModuleOp> module = ModuleOp::create(location);
    OpBuilder builder(&context);
    builder.setInsertionPointToStart(module->getBody());
    MeshOp::create(builder, location, "mesh", mesh);
    function = func::FuncOp::create(builder, location, "main", builder.getFunctionType(type, {}));
    function->setAttr("dist.spmd", FlatSymbolRefAttr::get(&context, "mesh"));
    function.addEntryBlock();
    return module;
  }

  /// Writes the move, verifies it, executes it and compares; returns the ops.
  std::string checkMove(Resharder &resharder, MeshAttr mesh, const Layout &from, const Layout &to,
                        unsigned seed) {
    Type element = Float32Type::get(&context);
    func::FuncOp function;
    OwningOpRef<ModuleOp> module =
        makeFunction(mesh, RankedTensorType::get(from.getLocalShape(), element), function);
    function.setArgAttr(0, "dist.sharding",
                        getSharding(from, FlatSymbolRefAttr::get(&context, "mesh"), mesh));
    function.setArgAttr(0, "dist.global",
                        TypeAttr::get(RankedTensorType::get(from.getGlobalShape(), element)));
    OpBuilder builder(&context);
    Block &block = function.front();
    builder.setInsertionPointToStart(&block);
    auto result = resharder.reshard(builder, function.getLoc(), block.getArgument(0), from, to);
    std::string name = toString(from, mesh) + " -> " + toString(to, mesh);
    if (failed(result)) {
      ADD_FAILURE() << name << ": no plan";
      return "";
    }
    func::ReturnOp::create(builder, function.getLoc());
    EXPECT_TRUE(succeeded(verify(*module))) << name;
    Interpreter interpreter(mesh);
    interpreter.values[block.getArgument(0)] = makeValue(from, mesh, seed);
    std::string ops;
    for (Operation &op : block.without_terminator()) {
      ops += (ops.empty() ? "" : " ") + op.getName().getStringRef().str();
      if (!interpreter.run(&op)) {
        ADD_FAILURE() << name << ": cannot run " << op.getName().getStringRef().str();
        return ops;
      }
    }
    std::string wrong = compare(interpreter.values[*result], to, mesh, seed);
    EXPECT_EQ(wrong, "") << name << " by " << ops;
    return ops;
  }

  MLIRContext context;
};

inline Layout makeLayout(ArrayRef<int64_t> shape, ArrayRef<AxisList> dims, AxisList unreduced = {}) {
  Layout layout = Layout::getReplicated(shape);
  for (auto [dim, axes] : llvm::zip_equal(layout.dims, dims)) {
    LayoutFactor &factor = dim.factors[0];
    factor.axes = axes;
    factor.padded = llvm::alignTo(factor.size, getNumShards(axes));
  }
  layout.setUnreduced(std::move(unreduced));
  return layout;
}

} // namespace meshwright::test

#endif // MESHWRIGHT_TEST_UNIT_RESHARDTEST_H
