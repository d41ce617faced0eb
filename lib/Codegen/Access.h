//===- Access.h - elements of buffers as functions of loops -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kernel visits points by loops: outer loops over rows, and an inner loop over
// columns. An access is the element of a dense buffer that a point reads. It is a
// linear function of the indices of the loops. Movement ops (transpose, slice,
// broadcast) compose such functions, and reshapes leave them as they are.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ACCESS_H
#define MESHWRIGHT_LIB_CODEGEN_ACCESS_H

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"

#include <optional>

namespace meshwright::lower {

/// The loops around a point: the sizes of the loops over rows, and a range of columns,
/// begin .. end.
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

/// Splits the row-major index of an element of a value into its index in each dimension.
/// Returns none if a loop runs over more than one dimension.
std::optional<llvm::SmallVector<Access>>
delinearize(const Access &access, llvm::ArrayRef<int64_t> shape, const LoopSpace &space);

/// Joins the indices in each dimension into a row-major index.
Access linearize(llvm::ArrayRef<Access> dims, llvm::ArrayRef<int64_t> shape, size_t numRows);

/// The access of an operand of an elementwise or movement op at the points that have this
/// access of its result. Operands broadcast as NumPy's do.
std::optional<Access> getOperandAccess(mlir::Operation *op, mlir::Value operand,
                                       const Access &access, const LoopSpace &space);

/// A map from values and accesses of them.
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
  ProgramMap<mlir::Value, llvm::SmallVector<std::pair<Access, T>, 1>> nodes;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ACCESS_H
