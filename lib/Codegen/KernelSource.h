//===- KernelSource.h - a kernel as text, and its launch --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_KERNELSOURCE_H
#define MESHWRIGHT_LIB_CODEGEN_KERNELSOURCE_H

#include "meshwright-c/DeviceKernel.h"
#include "meshwright-c/Runtime.h"

#include "mlir/IR/Value.h"
#include "llvm/ADT/SmallVector.h"

#include <string>
#include <type_traits>

namespace meshwright {

/// A kernel that is compiled by itself. Equal kernels have equal names and texts, in all
/// programs.
struct KernelSource {
  std::string name;
  /// The ops of the first launch that needs it, for readers of listings.
  std::string purpose;
  /// MLIR: the function of that name, before `KernelTarget::lowerKernel`.
  std::string text;
};

namespace lower {

/// The kernel that computes a launch, and the arguments of its launch by the runtime.
struct KernelInfo {
  /// The kernel's function.
  std::string name;
  /// The values of the launch's region whose buffers the kernel reads, in the order of
  /// its arguments. Each is an argument of the region, or the result of a `dist.positions` in
  /// it: the buffer then holds the index of the rank's first element. The buffers of the
  /// results follow, in the order in which the region yields them.
  llvm::SmallVector<mlir::Value> inputs;
  /// The fields below are those of `mw_rt_launch`. One item means one call.
  int64_t kind = MW_RT_ROWS;
  int64_t items = 1, grain = 1;
  /// The bytes of the workspace of each thread.
  int64_t workspaceBytes = 0;
  int64_t flops = 0;
  /// Bytes that the kernel reads and writes. Negative: each input and output once.
  int64_t bytes = -1;
  /// The rows of the outputs, of which as many exist as the last of `numOffsets` numbers of input `counter` says.
  /// 0: all do. With `itemsAreRows` the first items compute the first rows.
  int64_t rows = 0, counter = 0, numOffsets = 0;
  bool itemsAreRows = false;
  /// On a GPU: the address of a fault word follows the buffers. It is all ones before the launch,
  /// and the position of the first index out of range after it, or of the first one without room.
  bool checksIndices = false;
  /// On a GPU: the bytes of scratch memory, whose address follows.
  int64_t scratchBytes = 0;
  /// On a GPU: the tensor maps that follow.
  llvm::SmallVector<mw_rt_tensor_map> tensorMaps = {};
};

/// Structures of the C ABI as a program has them: all their fields are 64-bit integers.
using Descriptor = llvm::SmallVector<int64_t>;

/// Appends a structure, or the first `bytes` bytes of it.
template <typename What>
void append(Descriptor &descriptor, const What &what, size_t bytes = sizeof(What)) {
  static_assert(std::is_trivially_copyable_v<What> && sizeof(What) % sizeof(int64_t) == 0);
  auto *fields = reinterpret_cast<const int64_t *>(&what);
  descriptor.append(fields, fields + bytes / sizeof(int64_t));
}

} // namespace lower
} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_KERNELSOURCE_H
