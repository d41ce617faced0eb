//===- WeightsHash.h - a hash of the weights of a model ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_WEIGHTSHASH_H
#define MESHWRIGHT_RUNTIME_INCLUDE_WEIGHTSHASH_H

#include "meshwright/runtime/include/Program.h"

#include <map>
#include <string>

namespace meshwright::rt {

/// A hash of stored tensors before they are sharded, packed or narrowed, so each plan of a model has
/// the same one.
///
/// - Reads all elements of a small tensor, and 64 of a large one, at places that depend on its size alone.
/// - Depends on values, not on types: a tensor of bf16 is equal to one of f32 with its values.
/// - The order of `add` does not matter.
class WeightsHash {
public:
  /// Adds the stored tensor of a name, unless it is a computed table. Its array must be there.
  void add(const std::string &name, const HostTensor &tensor);
  /// 16 hexadecimal digits; empty without tensors.
  std::string get() const;

private:
  std::map<std::string, std::string> tensors;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_WEIGHTSHASH_H
