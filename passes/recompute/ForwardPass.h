//===- ForwardPass.h - segments of a forward pass ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_RECOMPUTE_FORWARDPASS_H
#define MESHWRIGHT_PASSES_RECOMPUTE_FORWARDPASS_H

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

#include <functional>
#include <vector>

namespace meshwright {

/// The ops from number `begin` to before `end` of a function.
struct Segment {
  int64_t begin, end;
};

/// The forward and the backward pass of an SPMD function.
///
/// - Ops are numbered in program order. The forward pass are those before the first op with
///   operands that is marked `nn.backward`.
/// - An op behind that is backward if it is marked, reads a backward value, or has backward
///   readers only. The other ops behind, and the return, read values that they need to the end.
/// - Views are values of the buffer that they show. Results are for the program before it changes.
class ForwardPass {
public:
  /// The bytes of a value in the form in which it is kept for the backward pass.
  using KeptBytes = std::function<int64_t(mlir::Value value)>;

  /// Values are kept as they are if there is no `keptBytes`.
  explicit ForwardPass(mlir::func::FuncOp func, KeptBytes keptBytes = nullptr);

  /// Returns false if there is no backward pass.
  bool isTrained() const { return boundary > 0; }
  mlir::Operation *getFirstBackward() const { return ops[boundary]; }
  mlir::ArrayRef<mlir::Operation *> getOps() const { return ops; }
  mlir::ArrayRef<mlir::Operation *> getOps(Segment segment) const {
    return mlir::ArrayRef(ops).slice(segment.begin, segment.end - segment.begin);
  }
  int64_t getNumber(mlir::Operation *op) const { return numbers.lookup(op); }
  bool isIn(mlir::Operation *op, Segment segment) const {
    int64_t number = getNumber(op);
    return segment.begin <= number && number < segment.end;
  }
  bool isBackward(mlir::Operation *op) const { return backward.contains(op); }
  /// The number of the last op of the forward pass on which an op depends; -1 for none.
  int64_t getReach(mlir::Operation *op) const { return reach.lookup_or(op, -1); }
  /// Returns true if an op behind `end`, other than backward ones, reads the value's buffer.
  bool isReadFrom(mlir::Value value, int64_t end) const;
  /// Returns true if the value is in memory because of this program: not for arguments, and values
  /// that depend on no tensor, which their readers compute, and weights that are gathered, which the
  /// backward pass gathers again.
  bool takesMemory(mlir::Value value) const;
  bool hasBackwardReader(mlir::Value value) const;
  /// Returns true for a weight that is gathered, in any form.
  bool isFetched(mlir::Value value) const { return fetched.contains(value.getDefiningOp()); }

  /// Cuts the forward pass so that the values that cross cuts, and those that the backward pass
  /// needs of the largest segment, are fewest bytes together. The segments are in order.
  /// Cuts are at points where fewer bytes are alive than next to them, at most `kMostCuts`, spread
  /// over the program.
  /// Complexity: quadratic in the number of such points, times `kMostSizes`.
  mlir::SmallVector<Segment> cut() const;

private:
  /// A buffer that a forward op makes.
  struct Buffer {
    int64_t made, lastRead, bytes;
    /// The bytes of the form in which it is kept.
    int64_t kept;
    bool isNeeded;
  };
  static constexpr size_t kMostCuts = 256;
  static constexpr int64_t kMostSizes = 64;

  void findBackward();
  void findReads();
  mlir::SmallVector<Buffer> getBuffers() const;
  std::vector<int64_t> findCuts(mlir::ArrayRef<Buffer> buffers) const;

  KeptBytes keptBytes;
  std::vector<mlir::Operation *> ops;
  ProgramMap<mlir::Operation *, int64_t> numbers;
  int64_t boundary = 0;
  ProgramSet<mlir::Operation *> backward, generated, fetched;
  ProgramMap<mlir::Operation *, int64_t> reach;
  /// The last op, backward ones aside, that reads a buffer.
  ProgramMap<mlir::Value, int64_t> lastRead;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_RECOMPUTE_FORWARDPASS_H
