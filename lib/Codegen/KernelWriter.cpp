//===- KernelWriter.cpp - the texts of kernels ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/KernelWriter.h"

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Launches/InPlace.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;

namespace meshwright::lower {

int64_t getBytes(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  return type.getNumElements() *
         (getStorageType(type.getElementType()).getIntOrFloatBitWidth() / 8);
}

KernelWriter::KernelWriter(MLIRContext *context)
    : module(ModuleOp::create(UnknownLoc::get(context))) {}

func::FuncOp KernelWriter::begin(ArrayRef<Type> types) {
  OpBuilder builder = OpBuilder::atBlockEnd(module->getBody());
  auto kernel = func::FuncOp::create(builder, builder.getUnknownLoc(), "kernel",
                                     builder.getFunctionType(types, {}));
  kernel.addEntryBlock();
  // `finish` removes the attribute from buffers that may overlap.
  for (auto [i, type] : llvm::enumerate(types))
    if (isa<MemRefType>(type))
      kernel.setArgAttr(i, "llvm.noalias", builder.getUnitAttr());
  return kernel;
}

static std::string print(func::FuncOp kernel) {
  std::string text;
  llvm::raw_string_ostream os(text);
  kernel->print(os, OpPrintingFlags().useLocalScope());
  return text;
}

/// Buffers of a launch do not overlap, except that a result may be in the place of an operand.
/// The kernel then reads memory through one argument and writes it through another one, which
/// LLVM's `noalias` does not allow for either.
static void allowResultsOverOperands(func::FuncOp kernel, rt::KernelOp launch,
                                     ArrayRef<Value> inputs) {
  for (auto [i, input] : llvm::enumerate(inputs)) {
    auto argument = dyn_cast_if_present<BlockArgument>(input);
    for (unsigned result = 0; argument && result < launch->getNumResults(); ++result)
      if (canWriteInPlace(launch, argument.getArgNumber(), result))
        for (unsigned buffer : {unsigned(i), unsigned(inputs.size() + result)})
          kernel.removeArgAttr(buffer, "llvm.noalias");
  }
}

std::string KernelWriter::finish(func::FuncOp kernel, rt::KernelOp launch,
                                 ArrayRef<Value> inputs) {
  allowResultsOverOperands(kernel, launch, inputs);
  OpBuilder builder = OpBuilder::atBlockEnd(&kernel.getBody().front());
  func::ReturnOp::create(builder, builder.getUnknownLoc());
  std::string text = print(kernel), self = "@" + kernel.getName().str();
  kernel.erase();
  // A hash of the text is the same name in other programs.
  std::string name = "kernel_" + llvm::utohexstr(llvm::xxh3_64bits(text), true, 16);
  if (names.insert(name).second) {
    text.replace(text.find(self), self.size(), "@" + name);
    sources.push_back({name, "", std::move(text)});
  }
  return name;
}

/// "nn.add, nn.rms_norm".
static std::string describeOps(rt::KernelOp launch) {
  std::string text;
  for (Operation &op : launch.getOps())
    text += (text.empty() ? "" : ", ") + op.getName().getStringRef().str();
  return text;
}

void KernelWriter::setPurpose(size_t first, rt::KernelOp launch) {
  for (size_t i = first; i < sources.size(); ++i)
    sources[i].purpose = describeOps(launch);
}

} // namespace meshwright::lower
