//===- GpuKernelBuilder.cpp - kernels of a program, for a GPU -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"

#include "meshwright/lib/Codegen/RowEmitter.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <numeric>

using namespace mlir;

namespace meshwright::lower {

std::optional<KernelInfo> GpuKernelBuilder::build(rt::KernelOp launch) {
  // Each family inspects the ops of the launch, and returns nothing before it begins a kernel for
  // launches of other families.
  using Family = std::optional<KernelInfo> (GpuKernelBuilder::*)(rt::KernelOp);
  constexpr Family families[] = {
      &GpuKernelBuilder::buildAttention,  &GpuKernelBuilder::buildPagedAttention,
      &GpuKernelBuilder::buildMerge,
      &GpuKernelBuilder::buildProduct,    &GpuKernelBuilder::buildRows,
      &GpuKernelBuilder::buildColumns,    &GpuKernelBuilder::buildIndices,
      &GpuKernelBuilder::buildScatterAdd, &GpuKernelBuilder::buildTopK,
      &GpuKernelBuilder::buildLimit,      &GpuKernelBuilder::buildRoute,
      &GpuKernelBuilder::buildExpertRows};
  size_t known = writer.getNumSources();
  for (Family family : families)
    if (std::optional<KernelInfo> info = (this->*family)(launch)) {
      writer.setPurpose(known, launch);
      return info;
    }
  return std::nullopt;
}

bool addCounter(KernelInfo &info, rt::KernelOp launch) {
  auto isFloat = [](Value value) { return isa<FloatType>(getElementTypeOrSelf(value.getType())); };
  std::optional<uint64_t> counter = launch.getCountedBy();
  if (!counter || !llvm::all_of(launch.getYielded(), isFloat))
    return false;
  Value offsets = launch.getBlock().getArgument(*counter);
  auto type = cast<RankedTensorType>(launch->getResult(0).getType());
  info.rows = type.getRank() ? type.getDimSize(0) : 1;
  info.counter = info.inputs.size();
  info.numOffsets = cast<RankedTensorType>(offsets.getType()).getNumElements();
  info.inputs.push_back(offsets);
  return true;
}

Operation *getSingleOp(rt::KernelOp launch) {
  auto ops = launch.getOps();
  return std::distance(ops.begin(), ops.end()) == 1 ? &*ops.begin() : nullptr;
}

int64_t getAlignment(Value value) {
  int64_t offset = 0, more;
  for (Value last; last != value; offset += more) {
    last = value;
    value = rt::getBuffer(rt::getOuterValue(value), &more);
  }
  return std::gcd(offset, rt::kBufferAlignment);
}

func::FuncOp GpuKernelBuilder::begin(rt::KernelOp launch, ArrayRef<Value> inputs,
                                     int64_t sharedBytes, int64_t threads,
                                     bool hasFault,
                                     ArrayRef<mw_rt_tensor_map> tensorMaps,
                                     int64_t scratchBytes) {
  OpBuilder b(launch.getContext());
  SmallVector<Type> types;
  SmallVector<int64_t> alignments;
  // Wider accesses do not exist.
  constexpr int64_t widest = 16;
  auto add = [&](Value value, Value placed) {
    auto type = cast<RankedTensorType>(value.getType());
    types.push_back(
        MemRefType::get({type.getNumElements()}, getRowStorageType(type.getElementType())));
    alignments.push_back(std::min(widest, getAlignment(placed)));
  };
  for (Value input : inputs) {
    if (input.getDefiningOp<dist::PositionsOp>()) {
      types.push_back(getFirstBufferType(input));
      alignments.push_back(sizeof(int64_t));
      continue;
    }
    add(input, input);
  }
  for (Value result : launch.getResults())
    add(result, result);
  if (hasFault)
    types.push_back(MemRefType::get({1}, b.getI64Type()));
  if (scratchBytes > 0) {
    alignments.resize(types.size(), int64_t(sizeof(int64_t)));
    types.push_back(MemRefType::get({scratchBytes}, b.getI8Type()));
    alignments.push_back(widest);
  }
  types.append(tensorMaps.size(), MemRefType::get({128}, b.getI8Type()));
  if (sharedBytes > 0)
    types.push_back(MemRefType::get({sharedBytes}, b.getI8Type(), MemRefLayoutAttrInterface(),
                                    b.getI64IntegerAttr(kSharedSpace)));
  func::FuncOp kernel = writer.begin(types);
  for (auto [i, alignment] : llvm::enumerate(alignments))
    kernel.setArgAttr(i, "llvm.align", b.getI64IntegerAttr(alignment));
  kernel->setAttr(kThreadsAttr, b.getI64IntegerAttr(threads));
  Descriptor maps;
  for (const mw_rt_tensor_map &map : tensorMaps)
    append(maps, map);
  if (!maps.empty())
    kernel->setAttr(kTensorMapsAttr, b.getDenseI64ArrayAttr(maps));
  return kernel;
}

} // namespace meshwright::lower
