//===- TriedPrograms.h - launches and orders that are kept ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_TRIEDPROGRAMS_H
#define MESHWRIGHT_PASSES_SCHEDULE_TRIEDPROGRAMS_H

#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Support/IsolatedModule.h"
#include "meshwright/lib/Support/ProgramDigest.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace meshwright {

/// A context in which passes try programs of another one, and the launches and orders that were found.
///
/// A plan under a ceiling tries a few programs, and most of them several times: to keep values in shards, to
/// gather weights again, to choose chunks, to find the least ceiling. Programs with the same content have the
/// same launches and orders for all passes.
class TriedPrograms {
public:
  /// Those of the programs of a context, made at the first call. Programs that are tried share them.
  static TriedPrograms &of(mlir::MLIRContext *context);
  /// Forgets the launches of tried programs of a context, which take as much memory as the programs. Orders stay.
  static void dropLaunches(mlir::MLIRContext *context);
  explicit TriedPrograms(mlir::MLIRContext *original) : context(original) {}

  IsolatedContext &getContext() { return context; }

  /// The launches of a function, in a module of it alone. Null after an error, which `getContext` has.
  mlir::ModuleOp getLaunches(mlir::func::FuncOp func, ProgramDigest digest);

  /// All that decides the order of launches.
  struct Request {
    ProgramDigest program;
    /// Bytes; no ceiling is 0. `resident` is the part of it that other entries and commits take.
    int64_t ceiling = 0, resident = 0;
    /// Commits copy the states.
    bool copies = false;
    /// Only the order that hides most.
    bool bestOnly = false;

    auto asTuple() const { return std::tuple(program, ceiling, resident, copies, bestOnly); }
    bool operator<(const Request &other) const { return asTuple() < other.asTuple(); }
  };

  struct Order {
    /// Empty if an order keeps to the ceiling.
    std::string refusal;
    bool fits = false;
    /// The ceiling asks for no other order than the one that hides most.
    bool hidesMost = false;
    /// The fewest bytes that an order needs, if none keeps to the ceiling.
    int64_t needed = 0;
    /// Picoseconds; none if only the fit was asked for.
    std::optional<int64_t> time;
  };

  /// Null if none is known.
  const Order *find(const Request &request) const;
  void keep(const Request &request, Order order) { orders[request] = std::move(order); }

  /// The memory with which calls of a program recover, by whether commits copy states.
  std::map<std::pair<ProgramDigest, bool>, RecoveryMemory> recoveries;

  /// Held while a program is tried: passes of several modules may run on threads.
  std::recursive_mutex mutex;

private:
  /// Plans choose between this many programs at once.
  static constexpr size_t kMostLaunches = 3;

  IsolatedContext context;
  std::map<Request, Order> orders;
  /// The last programs that were asked for, the latest one first.
  std::deque<std::pair<ProgramDigest, mlir::OwningOpRef<mlir::ModuleOp>>> launches;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_TRIEDPROGRAMS_H
