//===- Lower.h - programs to LLVM -------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PROGRAM_LOWER_H
#define MESHWRIGHT_LIB_PROGRAM_LOWER_H

#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright-c/Runtime.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/passes/schedule/Pipeline.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <map>
#include <string>
#include <vector>

namespace meshwright {

/// A value that a program hands to its observer.
struct ProbedOp {
  /// `nn.id` of the op.
  int64_t id;
  /// The op and where it comes from.
  std::string name;
  /// An `mw_rt` type code, and a rank's shape.
  int64_t type;
  std::vector<int64_t> shape;
};

/// A parameter that kernels read in another form.
struct PreparedParameter {
  /// Which argument of the entry it is of, and the bytes before it there.
  int64_t argument, offset;
  mw_rt_packing packing;
};

/// A program as LLVM IR for one rank, the same for all ranks: a function
/// `mw_main` of type `mw_rt_entry`, which calls kernels and the runtime.
struct LoweredProgram {
  static constexpr llvm::StringLiteral kEntry = "mw_main";

  mlir::OwningOpRef<mlir::ModuleOp> module;
  /// What it calls beside the runtime, each once.
  std::vector<KernelSource> kernels;
  /// Size of the temporaries' arena; buffers in it are aligned to 64 bytes.
  int64_t arenaBytes = 0;
  /// The most that a kernel needs for each thread, in bytes.
  int64_t workspaceBytes = 0;
  /// For each argument whether the program reads it as it lies.
  std::vector<bool> isRead;
  /// What the program reads as `prepared`.
  std::vector<PreparedParameter> prepared;
  /// The arrays that the program reads as `constants`.
  std::vector<std::vector<char>> constants;
  /// Names of the ops that call the runtime.
  std::vector<std::string> ops;
  /// Of those that others are in one kernel with, what these are (describeFused).
  std::map<int64_t, std::string> fused;
  std::vector<ProbedOp> probes;
};

struct LowerOptions {
  /// For programs that are not scheduled yet.
  ScheduleOptions schedule;
  /// Hand every value that has an `nn.id` to the runtime.
  bool probes = false;
  /// The target to schedule for and to write kernels for; null: the function's own.
  std::shared_ptr<const KernelTarget> target;
};

/// Lowers a planned rt program, or an SPMD function or a global one without
/// collectives, which is scheduled first. Each launch becomes a call of the
/// runtime, equal kernels are one. Fails after an error diagnostic that names the
/// op.
mlir::FailureOr<LoweredProgram> lowerProgram(mlir::func::FuncOp main,
                                             const LowerOptions &options = {});

/// Fails, after an error, if the function is planned for another target.
mlir::LogicalResult checkTarget(mlir::func::FuncOp main, const KernelTarget &target);

/// The type code (`mw_rt`) of an element type, or -1.
int64_t getTypeCode(mlir::Type type);

/// Ranks are numbered row-major, so the coordinate along an axis, or a part of
/// one, is (rank / stride) % size: this is the stride.
int64_t getRankStride(const dist::Axis &axis, dist::MeshAttr mesh);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PROGRAM_LOWER_H
