//===- GpuAsync.cpp - asynchronous copies and products on GPUs ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The instructions are text, because the dialects and LLVM have no others for most of them. All
// products of a step are one text that also waits for their end: no other instruction can come
// between, and none sees sums that are not there yet.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuAsync.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;

namespace meshwright::lower {

/// Emits text with results of type f32, none or several.
static SmallVector<Value> emitText(Builder &b, const Twine &text, const Twine &constraints,
                                   ValueRange operands, int64_t numResults = 0) {
  Type type;
  if (numResults > 0)
    type = LLVM::LLVMStructType::getLiteral(b.getContext(),
                                            SmallVector<Type>(numResults, b.getF32Type()));
  auto all = LLVM::InlineAsmOp::create(
      b, type ? TypeRange(type) : TypeRange(), operands, text.str(),
      (constraints + (constraints.isTriviallyEmpty() ? "~{memory}" : ",~{memory}")).str(),
      /*has_side_effects=*/true, /*is_align_stack=*/false, LLVM::TailCallKind::None,
      /*asm_dialect=*/LLVM::AsmDialectAttr(), /*operand_attrs=*/ArrayAttr());
  SmallVector<Value> results;
  for (int64_t i = 0; i < numResults; ++i)
    results.push_back(LLVM::ExtractValueOp::create(b, all.getResult(0), i));
  return results;
}

Value emitSharedAddress(Builder &b, Value shared) {
  Value base = memref::ExtractAlignedPointerAsIndexOp::create(b, shared);
  return arith::IndexCastOp::create(b, b.getI32Type(), base);
}

//===----------------------------------------------------------------------===//
// Barriers and copies
//===----------------------------------------------------------------------===//

void emitBarrierInit(Builder &b, Value barrier, int64_t arrivals, Value condition) {
  emitText(b, "@$1 mbarrier.init.shared::cta.b64 [$0], " + Twine(arrivals) + ";", "r,b",
           {barrier, condition});
}

void emitBarrierFence(Builder &b) { emitText(b, "fence.mbarrier_init.release.cluster;", "", {}); }

void emitArrival(Builder &b, Value barrier, Value condition) {
  emitText(b, "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];", "r,b", {barrier, condition});
}

void emitArrivalOfCopies(Builder &b, Value barrier, int64_t bytes) {
  emitText(b, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], " + Twine(bytes) + ";", "r",
           barrier);
}

void emitWait(Builder &b, Value barrier, Value parity) {
  emitText(b,
           "{\n.reg .pred done;\nAGAIN:\n"
           "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;\n"
           "@!done bra.uni AGAIN;\n}",
           "r,r", {barrier, parity});
}

void emitBoxCopy(Builder &b, Value to, Value map, ArrayRef<Value> begin, Value barrier) {
  emitText(b,
           "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
           "[$0], [$1, {$2, $3, $4}], [$5];",
           "r,l,r,r,r,r", {to, map, begin[0], begin[1], begin[2], barrier});
}

void emitAsyncFence(Builder &b) { emitText(b, "fence.proxy.async.shared::cta;", "", {}); }

void emitRegisterCount(Builder &b, int64_t count, bool takes) {
  emitText(b,
           Twine("setmaxnreg.") + (takes ? "inc" : "dec") + ".sync.aligned.u32 " + Twine(count) +
               ";",
           "", {});
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// The descriptor of panels at an address: a row in each 128 bytes, groups of 8 rows one after
/// another, and `panelBytes` from panel to panel. Offsets in descriptors are in units of 16 bytes.
static Value emitDescriptor(Builder &b, Value address, int64_t panelBytes) {
  Value low = arith::ShRUIOp::create(
      b, arith::AndIOp::create(b, address, emitConstant(b, b.getI32Type(), 0x3ffff)),
      emitConstant(b, b.getI32Type(), 4));
  constexpr int64_t swizzle128 = int64_t(1) << 62, groupBytes = 8 * kPanelRowBytes;
  int64_t rest = swizzle128 | groupBytes >> 4 << 32 | panelBytes >> 4 << 16;
  Value wide = arith::ExtUIOp::create(b, b.getI64Type(), low);
  return arith::OrIOp::create(b, wide, arith::ConstantIntOp::create(b, b.getI64Type(), rest));
}

/// "=f,=f,...", or "0,1,...".
static std::string repeat(int64_t count, function_ref<std::string(int64_t)> each) {
  std::string text;
  for (int64_t i = 0; i < count; ++i)
    text += (i ? "," : "") + each(i);
  return text;
}

static std::string getOperands(int64_t first, int64_t count) {
  return "{" + repeat(count, [&](int64_t i) { return "$" + std::to_string(first + i); }) + "}";
}

/// "wgmma.mma_async ... {sums}, ".
static std::string getInstruction(Type element, int64_t columns) {
  const char *type = element.isBF16() ? "bf16" : "f16";
  return llvm::formatv("wgmma.mma_async.sync.aligned.m64n{0}k16.f32.{1}.{1} {2}, ", columns, type,
                       getOperands(0, columns / 2));
}

/// The text before and after the products.
constexpr const char *kBegin = "{\n.reg .pred none, all;\n.reg .b64 left, right;\n"
                               "setp.ne.b32 none, 0, 0;\nsetp.ne.b32 all, 1, 0;\n"
                               "wgmma.fence.sync.aligned;\n";
constexpr const char *kEnd = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}";

SmallVector<Value> emitGroupProduct(Builder &b, Type element, Value left, int64_t leftRows,
                                    Value right, int64_t rightRows, int64_t depth) {
  int64_t numSums = rightRows / 2, leftBytes = leftRows * kPanelRowBytes,
          rightBytes = rightRows * kPanelRowBytes;
  std::string text = kBegin;
  for (int64_t column = 0; column < depth; column += 16) {
    int64_t panel = column / kPanelColumns, offset = column % kPanelColumns * 2;
    text += llvm::formatv("add.s64 left, ${0}, {1};\nadd.s64 right, ${2}, {3};\n", numSums,
                          (panel * leftBytes + offset) >> 4, numSums + 1,
                          (panel * rightBytes + offset) >> 4);
    text += getInstruction(element, rightRows) + "left, right, " + (column ? "all" : "none") +
            ", 1, 1, 0, 0;\n";
  }
  std::string constraints = repeat(numSums, [](int64_t) { return "=&f"; }) + ",l,l";
  return emitText(b, text + kEnd, constraints,
                  {emitDescriptor(b, left, leftBytes), emitDescriptor(b, right, rightBytes)},
                  numSums);
}

SmallVector<Value> emitGroupProduct(Builder &b, Type element, ArrayRef<Value> left, Value right,
                                    ValueRange sums) {
  int64_t numSums = sums.size(), columns = 2 * numSums, words = left.size(),
          rightRows = words / 4 * 16;
  std::string text = kBegin, at = std::to_string(2 * numSums + words);
  for (int64_t word = 0; word < words; word += 4) {
    text += llvm::formatv("add.s64 right, ${0}, {1};\n", at,
                          word / 4 * 16 * kPanelRowBytes >> 4);
    text += getInstruction(element, columns) + getOperands(2 * numSums + word, 4) +
            ", right, all, 1, 1, 1;\n";
  }
  std::string constraints = repeat(numSums, [](int64_t) { return "=f"; }) + "," +
                            repeat(numSums, [](int64_t i) { return std::to_string(i); }) + "," +
                            repeat(words, [](int64_t) { return "r"; }) + ",l";
  SmallVector<Value> operands(sums);
  operands.append(left.begin(), left.end());
  operands.push_back(emitDescriptor(b, right, rightRows * kPanelRowBytes));
  return emitText(b, text + kEnd, constraints, operands, numSums);
}

} // namespace meshwright::lower
