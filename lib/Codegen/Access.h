//===- Access.h - which element of a buffer a point reads -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kernel's points are numbered by loops: some over rows, and the innermost
// over columns. Which element of a dense buffer a point reads is a linear
// function of these: movement ops (transpose, slice, broadcast) only compose such
// functions, and reshapes leave them as they are.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ACCESS_H
#define MESHWRIGHT_LIB_CODEGEN_ACCESS_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"

#include <optional>

namespace meshwright::lower {

/// The loops around a point: the sizes of those over rows, and the columns that
/// are looked at, begin .. end.
struct LoopSpace {
  llvm::SmallVector<int64_t, 6> rows;
  int64_t begin = 0, end = 1;

  /// The same rows with other columns.
  LoopSpace withColumns(int64_t from, int64_t to) const { return {rows, from, to}; }
};

/// offset + sum of rows[i] * (index of loop i) + column * (index of the column).
struct Access {
  llvm::SmallVector<int64_t, 6> rows;
  int64_t column = 0;
  int64_t offset = 0;

  bool operator==(const Access &other) const {
    return rows == other.rows && column == other.column && offset == other.offset;
  }
  bool operator!=(const Access &other) const { return !(*this == other); }
  bool isConstantInRows() const {
    return llvm::all_of(rows, [](int64_t c) { return c == 0; });
  }
};

/// The index in each dimension of a value, given the index of the element in
/// row-major order; none if some loop runs over more than one dimension.
std::optional<llvm::SmallVector<Access>>
delinearize(const Access &access, llvm::ArrayRef<int64_t> shape, const LoopSpace &space);

/// The opposite.
Access linearize(llvm::ArrayRef<Access> dims, llvm::ArrayRef<int64_t> shape, size_t numRows);

/// Where a point reads an operand of an elementwise or movement op, given where
/// it reads the op's result; operands broadcast as NumPy's do.
std::optional<Access> getOperandAccess(mlir::Operation *op, mlir::Value operand,
                                       const Access &access, const LoopSpace &space);

/// Something for each element that was read.
template <typename T> class NodeMap {
public:
  T *find(mlir::Value value, const Access &access) {
    auto found = nodes.find(value);
    if (found == nodes.end())
      return nullptr;
    for (auto &[known, node] : found->second)
      if (known == access)
        return &node;
    return nullptr;
  }
  const T *find(mlir::Value value, const Access &access) const {
    return const_cast<NodeMap *>(this)->find(value, access);
  }
  void set(mlir::Value value, const Access &access, T node) {
    if (T *known = find(value, access))
      *known = node;
    else
      nodes[value].push_back({access, node});
  }
  void clear() { nodes.clear(); }

private:
  llvm::DenseMap<mlir::Value, llvm::SmallVector<std::pair<Access, T>, 1>> nodes;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ACCESS_H
