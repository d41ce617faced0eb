//===- ValueNumbers.h - which values are equal ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_VALUENUMBERS_H
#define MESHWRIGHT_LIB_PLACEMENT_VALUENUMBERS_H

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"

#include <map>
#include <vector>

namespace meshwright {

/// The value itself: in kernels the one that an argument stands for, and the input of `dist.after`,
/// which says when it is read.
mlir::Value getSource(mlir::Value value);

/// Numbers of values. Two have the same number if equal ops compute them from values with the same
/// numbers: kernels compute a value again instead of reading it. Ops are compared, so no two values
/// have one number by chance. Linear in the ops that it is asked for.
class ValueNumbers {
public:
  using Words = std::vector<int64_t>;

  virtual ~ValueNumbers() = default;

  size_t get(mlir::Value value);
  size_t get(mlir::Operation *op);
  /// The number of a description. Equal descriptions have equal numbers, and no others.
  size_t intern(Words words) {
    return described.try_emplace(std::move(words), described.size()).first->second;
  }

protected:
  /// The value of which another one is a new name or form: both have one number.
  virtual mlir::Value getSource(mlir::Value value) const { return meshwright::getSource(value); }
  /// The type of a result, by which equal ops agree.
  virtual mlir::Type getType(mlir::Value result) const { return result.getType(); }

private:
  bool isKnown(mlir::Value value) const;
  void add(mlir::Operation *op);

  size_t count = 0;
  ProgramMap<mlir::Value, size_t> values;
  ProgramMap<mlir::Operation *, size_t> ops;
  /// Different ops by the hash of their description.
  llvm::DenseMap<size_t, llvm::SmallVector<mlir::Operation *, 1>> different;
  llvm::DenseMap<std::pair<size_t, unsigned>, size_t> results;
  std::map<Words, size_t> described;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_VALUENUMBERS_H
