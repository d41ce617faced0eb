//===- PlannedMemory.h - memory of a rank, as scheduled ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The values in memory are known once kernels are formed and ordered. Values between ops
// of one kernel (masks that attention computes, elements of fused ops) are never there.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PLANNEDMEMORY_H
#define MESHWRIGHT_PASSES_SCHEDULE_PLANNEDMEMORY_H

#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/passes/schedule/TriedPrograms.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>

namespace meshwright {

struct PlannedMemory {
  Memory memory;
  /// The part of `memory.state` with which calls of the function recover.
  RecoveryMemory recovery;
  /// The error if no order keeps to the ceiling, and the least bytes that an order needs.
  /// Empty if an order fits.
  std::string refusal;
  int64_t needed = 0;
  /// Picoseconds of the schedule; 0 for a program that cannot be scheduled.
  int64_t time = 0;
  /// The order is the one that hides most, beside second buffers for states: less memory would hide no more.
  bool hidesMost = false;
};

/// Plans the memory of functions under several ceilings. Programs with one content share launches and orders
/// (`TriedPrograms`). Between the calls a caller changes no function but for the notes of ceilings
/// (`setCeiling`), `rt.copies_states`, and the choice of chunks.
class MemoryPlanner {
public:
  MemoryPlanner();
  ~MemoryPlanner();

  /// How much of a plan is made: whether an order fits; its picoseconds, too; the memory with which calls
  /// recover; all.
  enum class Depth { Fit, Time, Recovery, Memory };

  /// See the functions of the same names.
  PlannedMemory planMemory(mlir::FunctionOpInterface function, int64_t ceiling = 0, Depth depth = Depth::Memory);
  std::optional<int64_t> findLeastCeiling(mlir::ModuleOp module);
  Memory planSessionMemory(mlir::FunctionOpInterface function);
  void setCeiling(mlir::func::FuncOp func, int64_t ceiling, mlir::FunctionOpInterface original);

  /// Returns true if the order of an SPMD function that hides most keeps to the ceiling beside second
  /// buffers for states.
  bool fitsBesideSecondBuffers(mlir::FunctionOpInterface function, int64_t ceiling);

  /// Returns the picoseconds of the order of an SPMD function that hides most, if it keeps to the ceiling. No
  /// other order is tried.
  std::optional<int64_t> findBestTime(mlir::FunctionOpInterface function, int64_t ceiling);

private:
  struct HowToPlan;
  struct Program;
  Program getProgram(mlir::FunctionOpInterface function, TriedPrograms &tried);
  static TriedPrograms::Order schedule(TriedPrograms &tried, Program program,
                                       const TriedPrograms::Request &request, Depth depth,
                                       mlir::OwningOpRef<mlir::ModuleOp> &module);
  bool plan(mlir::FunctionOpInterface function, HowToPlan how, PlannedMemory &planned);
  RecoveryMemory getRecovery(mlir::FunctionOpInterface function, bool copies);
  int64_t countRecovery(llvm::ArrayRef<mlir::FunctionOpInterface> others,
                        const RecoveryMemory &own, bool copies);
  int64_t countBeside(mlir::FunctionOpInterface function, bool copies);

  /// Copies of modules among the programs that are tried.
  llvm::DenseMap<mlir::ModuleOp, mlir::OwningOpRef<mlir::ModuleOp>> copies;
  /// The contents of functions, by their choices of chunks, of collectives and of experts.
  llvm::DenseMap<std::tuple<mlir::Operation *, mlir::Attribute, mlir::Attribute>, ProgramDigest> digests;
};

/// Schedules a copy of the module of an SPMD or a global program, as the attributes of its
/// function request, and measures it. `ceiling` is in bytes; 0 for none. If a program
/// cannot be scheduled (it branches), all values count, from definition to last use. Under a ceiling
/// the entries copy states (`rt.copies_states`) if the order that hides most does not fit otherwise.
PlannedMemory planMemory(mlir::FunctionOpInterface function, int64_t ceiling = 0);

/// The same as `planMemory` without the memory, where the order decides whether the ceiling holds.
PlannedMemory planOrder(mlir::FunctionOpInterface function, int64_t ceiling = 0);

/// Returns true if a function of the module gives a state a new value.
bool writesStates(mlir::ModuleOp module);

/// The bytes that a rank needs in the most frugal order of each SPMD function: the least ceiling
/// that `planMemory` keeps to. Nothing if no function can be scheduled.
std::optional<int64_t> findLeastCeiling(mlir::ModuleOp module);

/// The memory of a rank in a session that calls the function: `planMemory`, and the memory with
/// which calls of the other entries recover.
Memory planSessionMemory(mlir::FunctionOpInterface function);

/// Notes on a function the ceiling that its schedule keeps to, and the part of it that other
/// entries and commits take: `countResident`, and the memory with which calls of the other entries
/// recover beyond what the calls of this one share with them. Notes what `original`, in its
/// module, needs, of which `func` may be a copy. Removes earlier notes if the ceiling is 0.
void setCeiling(mlir::func::FuncOp func, int64_t ceiling, mlir::FunctionOpInterface original);

/// Adds to `counted`, the memory of the program before it was scheduled, the packing, the
/// inputs and the arena of the planned program, and the memory with which calls of the planned
/// functions of its module recover.
Memory withPlan(Memory counted, mlir::func::FuncOp planned);

/// Bytes that weights take beyond their stored forms because they are prepared before a call
/// (`rt.prepare`): padding, and the whole prepared form of a weight that is also read as stored.
int64_t getPackingBytes(mlir::func::FuncOp func);

/// Bytes that parameters take less than their stored forms because ranks keep only the forms in which
/// they travel.
int64_t getSavedBytes(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_PLANNEDMEMORY_H
