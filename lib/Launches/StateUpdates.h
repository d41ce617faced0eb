//===- StateUpdates.h - new values over old ones ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kernel may write the new value of a state over the state (`over` of rt.kernel), instead of to
// the arena, from where a commit copies it. docs/rationale/state-commit.md says how a call that
// fails restores the state.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_LAUNCHES_STATEUPDATES_H
#define MESHWRIGHT_LIB_LAUNCHES_STATEUPDATES_H

#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "llvm/ADT/StringMap.h"

namespace meshwright {

/// How a kernel writes over a state.
enum class UpdateKind {
  /// It may not.
  None,
  /// It writes all elements. It may write them to another buffer of the state's size, too.
  Whole,
  /// It replaces rows, and the others stay. It saves the old rows in a log before.
  Rows
};

/// The operand whose rows the only op of a kernel replaces; none for other kernels.
std::optional<unsigned> getReplacedOperand(rt::KernelOp kernel);

/// How a kernel may write `result` to the memory of a state if no later launch needs the value
/// `old` that the memory holds. Null stands for a value that the function does not read.
UpdateKind getUpdateKind(rt::KernelOp kernel, unsigned result, mlir::Value old);

/// Returns true if a kernel that writes a result over a state replaces rows.
bool replacesRowsOfState(rt::KernelOp kernel, unsigned result);

/// The bytes of the log of a kernel that replaces rows: the indices as i64, then the old rows, each
/// aligned to `kBufferAlignment`.
int64_t getLogBytes(rt::KernelOp kernel);

/// The kernels that may write the new value of a state over the state, if the order of launches
/// allows that.
struct StateUpdate {
  mlir::StringAttr state;
  /// The old value; null if the function does not read it.
  mlir::Value old;
  /// The values, in program order. Several replace rows, each of the value of the one before.
  mlir::SmallVector<mlir::OpResult, 1> values;
  /// How each of them is written over the one before.
  mlir::SmallVector<UpdateKind, 1> kinds = {};

  rt::KernelOp getKernel(size_t i) const {
    return mlir::cast<rt::KernelOp>(values[i].getOwner());
  }
  /// The value that the memory holds before update `i`.
  mlir::Value getOld(size_t i) const { return i == 0 ? old : mlir::Value(values[i - 1]); }
};

/// The updates of all states whose new values kernels of the function compute; those of rows alone
/// if it copies states (`rt.copies_states`).
std::vector<StateUpdate> findStateUpdates(mlir::func::FuncOp func);

/// How an entry gives a state its new value.
struct StateResult {
  UpdateKind kind = UpdateKind::None;
  /// The bytes of the logs of all its updates.
  int64_t logBytes = 0;
};

/// How each result of a planned function updates its state.
std::vector<StateResult> getStateResults(mlir::func::FuncOp func);

/// The memory that a session needs to leave the states as they are when a call fails. Entries
/// share it: each state has at most one second buffer, and one log, which fits the largest entry.
class RecoveryMemory {
public:
  /// Adds what a planned function needs.
  void add(mlir::func::FuncOp planned);
  /// Adds what other functions of the same program need.
  void add(const RecoveryMemory &others);
  int64_t getBytes() const;

private:
  struct OfState {
    int64_t second = 0, log = 0;
  };
  void add(llvm::StringRef state, OfState needed);

  llvm::StringMap<OfState> states;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_STATEUPDATES_H
