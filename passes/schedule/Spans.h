//===- Spans.h - stretches of a program that kernels span -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Finds how far kernels lead that begin before a point of the program, in logarithmic time.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_SPANS_H
#define MESHWRIGHT_PASSES_SCHEDULE_SPANS_H

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"

#include <algorithm>
#include <vector>

namespace meshwright {

/// Spans from a first to a last op of a block. A binary indexed tree of the largest last ops.
class Spans {
public:
  explicit Spans(mlir::Block &block) {
    for (mlir::Operation &op : block) {
      numbers[&op] = ops.size();
      ops.push_back(&op);
    }
    lasts.assign(ops.size() + 1, -1);
  }

  void add(mlir::Operation *first, mlir::Operation *last) {
    int64_t end = numbers.lookup(last);
    for (size_t i = numbers.lookup(first) + 1; i < lasts.size(); i += i & -i)
      lasts[i] = std::max(lasts[i], end);
  }

  /// The op at which the last span ends to which spans lead that begin before `op`, one before the end
  /// of another; `op` itself if there is none.
  mlir::Operation *getEnd(mlir::Operation *op) const {
    int64_t end = numbers.lookup(op);
    for (int64_t next = getLast(end); next > end; next = getLast(end))
      end = next;
    return ops[end];
  }

private:
  /// The largest last op of spans that begin before the op of this number; -1 if there is none.
  int64_t getLast(int64_t number) const {
    int64_t last = -1;
    for (size_t i = number; i > 0; i -= i & -i)
      last = std::max(last, lasts[i]);
    return last;
  }

  ProgramMap<mlir::Operation *, int64_t> numbers;
  std::vector<mlir::Operation *> ops;
  std::vector<int64_t> lasts;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_SPANS_H
