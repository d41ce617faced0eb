//===- Candidates.h - the meshes that a planner compares -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLAN_CANDIDATES_H
#define MESHWRIGHT_PASSES_PLAN_CANDIDATES_H

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/IR/BuiltinOps.h"

#include <vector>

namespace meshwright {

/// The sizes of a global program that axes may divide.
struct ProgramExtents {
  explicit ProgramExtents(mlir::ModuleOp module, const Device &device);

  /// The largest dimension 0 of an input, and the most tokens of a sequence.
  int64_t batch = 1, tokens = 1;
  /// The fewest heads and key/value heads of an attention op, and the fewest experts; 0 if there are none.
  int64_t heads = 0, keyValueHeads = 0, experts = 0;
  /// True if the program has gradients, if it updates states by them, and if it serves.
  bool hasGradients = false, trains = false, serves = false;
  /// Bytes of parameters and trained states, and seconds of the products of one call on one rank.
  int64_t weights = 0;
  double seconds = 0;
  /// Bytes of one call that cross axes on some mesh: the smaller of the input and the output of each product with
  /// a weight, the keys and values of attention, and these with its queries and results.
  double products = 0, keysAndValues = 0, attention = 0;
  /// Bytes a second between two ranks; 0 is unlimited.
  double linkBandwidth = 0;
  int64_t numOps = 0;
  /// The stages of a composed program.
  std::vector<std::string> stages;

private:
  /// Adds the bytes of a product, or of an attention op.
  void addBytes(mlir::Operation *op);
};

/// The ops that the phases plan. Those of a forward pass count for its derivative, too.
int64_t countOps(mlir::ModuleOp module);

/// Options with a mesh, all else as the user asks.
struct Candidate {
  ParallelizeOptions options;
  /// The least seconds that such a plan takes, and the least bytes of weights on a rank.
  double leastSeconds = 0;
  int64_t leastWeights = 0;
  /// `leastSeconds`, and the time of the bytes that such a plan sends by rule of thumb. It orders candidates and
  /// rules none out.
  double roughSeconds = 0;
};

/// Returns true if no rank of the mesh is without rows of the batch, tokens or heads.
bool givesEachRankWork(const ParallelizeOptions &options, const ProgramExtents &extents);

/// The size of the axis of a role; 1 if the options have none of the role's name.
int64_t getAxisSize(const ParallelizeOptions &options, AxisRole role);

/// Returns each way to divide ranks among the axes of the roles that the program has a use for and that
/// the request leaves open, and for experts and for heads that an axis does not divide the options that
/// go with a mesh. The simplest are first. Axes of the request's mesh stay, outermost. One that has no
/// role gets each role that may have an axis of any name.
std::vector<Candidate> listCandidates(const ParallelizeOptions &request, int64_t ranks,
                                      const ProgramExtents &extents, int64_t memoryLimit);

/// Returns the options as they are, and with each way to give free axes of the mesh to the roles of context
/// parallelism that the options leave open.
std::vector<Candidate> listContexts(mlir::ModuleOp module, const ParallelizeOptions &options);

/// Returns the options with each other value of one option of axes or groups of attention that the request spells
/// out as `auto`.
std::vector<ParallelizeOptions> listChoices(mlir::ModuleOp module, const ParallelizeOptions &request,
                                            const ParallelizeOptions &options, const ProgramExtents &extents);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLAN_CANDIDATES_H
