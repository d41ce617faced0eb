//===- KernelCache.h - compiled kernels on disk -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A folder with a file for each kernel, or program's list of calls, and target: MESHWRIGHT_CACHE,
// or meshwright/kernels in XDG_CACHE_HOME or ~/.cache; `off` for none. Names are hashes of all that
// the code depends on. A file appears whole or not at all, and says what its content hashes to, so
// that any number of processes may share the folder. It is kept below 1 GiB; what was used longest
// ago goes first.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_KERNELCACHE_H
#define MESHWRIGHT_LIB_EXECUTE_KERNELCACHE_H

#include "meshwright/lib/Codegen/KernelTarget.h"

#include <optional>

namespace meshwright {

class KernelCache {
public:
  /// As the environment says. A folder that cannot be made or written is no error:
  /// kernels are compiled then.
  KernelCache();

  bool isOn() const { return !folder.empty(); }
  /// The name that code is stored under: a hash of its text, and of the key of the target or
  /// processor that it is for.
  static std::string getKey(llvm::StringRef text, llvm::StringRef target);
  std::optional<ObjectCode> find(llvm::StringRef key) const;
  void insert(llvm::StringRef key, const ObjectCode &object) const;
  /// Deletes what is too much; cheap where little time has passed since the last.
  void prune() const;

private:
  std::string folder;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_EXECUTE_KERNELCACHE_H
