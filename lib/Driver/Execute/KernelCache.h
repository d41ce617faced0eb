//===- KernelCache.h - compiled kernels on disk -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A folder with a file for each kernel, or entry of a program, and target.
//
// - The folder is MESHWRIGHT_CACHE, or meshwright/kernels in XDG_CACHE_HOME or ~/.cache. `off`
//   means no cache.
// - Names are hashes of everything that the code depends on.
// - A file appears whole or not at all, and contains the hash of its content. So any number of
//   processes may share the folder.
// - The folder is kept below 1 GiB. The least recently used files are deleted first.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_KERNELCACHE_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_KERNELCACHE_H

#include "meshwright/lib/Codegen/KernelTarget.h"

#include <optional>

namespace meshwright {

class KernelCache {
public:
  /// Reads the environment. If the folder cannot be created or written, or others may write there,
  /// kernels are compiled.
  KernelCache();

  bool isOn() const { return !folder.empty(); }
  /// The name that code is stored under: a hash of its text, and of the key of the target or
  /// processor that it is for.
  static std::string getKey(llvm::StringRef text, llvm::StringRef target);
  std::optional<ObjectCode> find(llvm::StringRef key) const;
  void insert(llvm::StringRef key, const ObjectCode &object) const;
  /// Deletes files above the limits. Does nothing within an hour of the last time.
  void prune() const;

private:
  std::string folder;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_KERNELCACHE_H
