//===- PlacementFaults.h - faults to inject into SPMD programs --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TEST_LIB_PLACEMENTFAULTS_H
#define MESHWRIGHT_TEST_LIB_PLACEMENTFAULTS_H

#include "meshwright/lib/Placement/PlacementAnalysis.h"

#include <functional>
#include <string>
#include <vector>

namespace meshwright::test {

/// A fault that can be made at one place of a program.
struct Fault {
  std::string description;
  mlir::Location location;
  std::function<void()> inject;
  /// Why the result may be the placement of another program after all.
  llvm::StringRef excuse = {};
};

/// A class of faults: all that a function offers.
struct FaultKind {
  llvm::StringRef name;
  void (*collect)(mlir::func::FuncOp func, const PlacementAnalysis &analysis,
                  std::vector<Fault> &faults);
};

llvm::ArrayRef<FaultKind> getFaultKinds();

// Kinds of CollectiveFaults.cpp.
using CollectFaults = void(mlir::func::FuncOp, const PlacementAnalysis &, std::vector<Fault> &);
CollectFaults reduceReplicated, gatherReplicated, localCollective, wrongMask, constantInSum,
    swapStates, reduceSharded;

// The kinds of RoutingFaults.cpp and FormFaults.cpp.
CollectFaults wrongRouting, misreadRows, wrongForm;

// The kinds of ServingFaults.cpp.
CollectFaults wrongTables, wrongCache, stalePages, wrongParts, wrongCounts, sumRows, residualInSum;

} // namespace meshwright::test

#endif // MESHWRIGHT_TEST_LIB_PLACEMENTFAULTS_H
