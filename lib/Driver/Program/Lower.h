//===- Lower.h - programs to LLVM -------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_PROGRAM_LOWER_H
#define MESHWRIGHT_LIB_DRIVER_PROGRAM_LOWER_H

#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Codegen/RuntimeCalls.h"
#include "meshwright-c/Runtime.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/passes/schedule/Pipeline.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace meshwright {

/// A value that a program passes to its observer.
struct ProbedOp {
  /// `nn.id` of the op.
  int64_t id;
  /// The op and its place in the source.
  std::string name;
  /// The type code (`mw_rt`), and the shape on a rank.
  int64_t type;
  std::vector<int64_t> shape;
};

/// A weight that kernels read in another form, which it has before the call.
struct PreparedWeight {
  /// The argument of the entry that is prepared, and the bytes before the prepared part of it.
  int64_t argument, offset;
  mw_rt_packing packing;
};

/// An array of the entry's `constants`. A constant that differs between ranks has a part for each
/// coordinate over axes.
struct LoweredConstant {
  std::vector<char> data;
  mw_rt_axes axes = {};

  bool operator==(const LoweredConstant &other) const {
    return data == other.data && std::memcmp(&axes, &other.axes, sizeof(axes)) == 0;
  }
};

/// An entry in the LLVM dialect: a function of type `mw_rt_entry`, which calls the runtime. All
/// ranks execute it.
struct LoweredProgram {
  /// The name of that function.
  std::string symbol;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  /// The kernels that the entry launches, each once.
  std::vector<KernelSource> kernels;
  /// True if the entry refers to kernels by records (`mw_rt_device_kernel`).
  bool hasRecords = false;
  /// Size of the temporaries' arena; buffers in it are aligned to 64 bytes.
  int64_t arenaBytes = 0;
  /// The most that a kernel needs for each thread, in bytes.
  int64_t workspaceBytes = 0;
  /// For each argument, true if the program reads it unpacked.
  std::vector<bool> isRead;
  /// The packed weights, the `prepared` buffers of the entry.
  std::vector<PreparedWeight> prepared;
  std::vector<LoweredConstant> constants;
  /// The kinds of the calls that the entry makes (MW_RT_CALL_...).
  std::set<int64_t> calls;
  /// Names of the ops that call the runtime.
  std::vector<std::string> ops;
  /// The most bytes of the arena that values take while an op runs, by index in `ops`.
  std::vector<int64_t> arenaInUse;
  /// The names of the other ops of the same kernel, by index in `ops`.
  std::map<int64_t, std::string> fused;
  std::vector<ProbedOp> probes;
  /// How each result of the entry that is a state gets its value.
  std::vector<StateResult> results;
};

struct LowerOptions {
  /// How programs are scheduled that are not scheduled yet.
  ScheduleOptions schedule;
  /// Pass every value with an `nn.id` to the runtime.
  bool probes = false;
  /// The target to schedule for and to write kernels for; null: the function's own.
  std::shared_ptr<const KernelTarget> target;
  /// The name of the entry in compiled code.
  std::string symbol = "mw_main";
};

/// Lowers a planned rt program: one entry of a module. Schedules a copy of an SPMD function, or of a global one without
/// collectives, before it lowers the copy. Each launch becomes a call of the runtime, and equal
/// kernels are one. Fails after an error that names the op.
mlir::FailureOr<LoweredProgram> lowerProgram(mlir::func::FuncOp main,
                                             const LowerOptions &options = {});

/// Fails, after an error, if the function is planned for another target.
mlir::LogicalResult checkTarget(mlir::func::FuncOp main, const KernelTarget &target);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_PROGRAM_LOWER_H
