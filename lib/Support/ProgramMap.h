//===- ProgramMap.h - maps from ops and values ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_PROGRAMMAP_H
#define MESHWRIGHT_LIB_SUPPORT_PROGRAMMAP_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

namespace meshwright {

/// Hashes ops and values by their addresses. Programs are allocated about in their order, and analyses look ops up in
/// this order. So the keys of 2 KiB of memory share 16 buckets beside each other, which takes fewer cache lines than a
/// bucket anywhere for each: tables of large programs do not fit in caches.
template <typename Key> struct ProgramKeyInfo : llvm::DenseMapInfo<Key> {
  template <typename Other> static unsigned getHashValue(const Other &key) {
    uint64_t address = reinterpret_cast<uintptr_t>(getAddress(key));
    uint64_t block = (address >> 11) * 0x9E3779B97F4A7C15ull;
    return unsigned(block >> 32) << 4 | (address >> 7 & 15);
  }

private:
  static const void *getAddress(mlir::Value value) { return value.getAsOpaquePointer(); }
  static const void *getAddress(const mlir::Operation *op) { return op; }
};

/// A map from the ops or the values of a program.
template <typename Key, typename T> using ProgramMap = llvm::DenseMap<Key, T, ProgramKeyInfo<Key>>;

/// A set of ops or values of a program.
template <typename Key> using ProgramSet = llvm::DenseSet<Key, ProgramKeyInfo<Key>>;

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_PROGRAMMAP_H
