//===- SearchGraph.h - layouts as nodes, moves as edges ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The graph that the resharder searches; known to its two sources only.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_RESHARD_SEARCHGRAPH_H
#define MESHWRIGHT_LIB_RESHARD_SEARCHGRAPH_H

#include "meshwright/lib/Reshard/Search.h"

#include <queue>
#include <unordered_map>

namespace meshwright::detail {

using dist::Axis;
using dist::AxisList;
using llvm::ArrayRef;
using llvm::SmallVector;
using mlir::FailureOr;

constexpr uint16_t kFree = 0xFFFF;
constexpr uint16_t kUnreduced = 0xFFFE;

/// Layouts that redistribute and permute may lead to are listed up front; where
/// there are more than this many, the two lead to the target only.
constexpr size_t kMaxPlacements = 2500;
/// A search that would visit more layouts than this keeps the best path so far.
constexpr size_t kMaxNodes = 50000;
/// A permute spells one pair for each rank of its group.
constexpr int64_t kMaxPermuteRanks = 4096;
/// Between cuts of an axis that do not fit a redistribute is costed rank by rank:
/// with more layouts times ranks than this it leads to the target only.
constexpr int64_t kMaxCrossings = 8192;

/// Who uses which part of an axis is a bit in one of these.
using PartSet = uint64_t;

/// For each axis part its factor (high byte) and its place among the factor's
/// axes (low byte), or one of the two constants.
using Placement = SmallVector<uint16_t, 8>;
/// For each factor the index of its padded size among the candidates.
using PadChoice = SmallVector<uint8_t, 8>;

struct Node {
  Placement placement;
  PadChoice pads;
  bool operator==(const Node &other) const {
    return placement == other.placement && pads == other.pads;
  }
};
struct NodeHash {
  size_t operator()(const Node &node) const {
    return llvm::hash_combine(
        llvm::hash_combine_range(node.placement.begin(), node.placement.end()),
        llvm::hash_combine_range(node.pads.begin(), node.pads.end()));
  }
};

/// Indices of axis parts, major to minor.
using Parts = SmallVector<uint8_t, 8>;

/// A placement seen from its factors.
struct Lists {
  SmallVector<Parts, 8> factors;
  SmallVector<int64_t, 8> shards;
  Parts unreduced, free;
  int64_t totalShards = 1;
  PartSet used = 0;
};

using FactorAxes = SmallVector<SmallVector<Axis, 4>, 8>;

struct Edge {
  /// As in ReshardStep.
  std::optional<dist::CollectiveKind> kind;
  Parts axes;
  int from = -1, to = -1;
  Cost cost;
  /// Nothing happens: the same layout by parts of the other cut.
  bool isRecut = false;
};

struct Visit {
  Node node;
  Cost cost;
  int previous = -1;
  Edge edge;
  bool done = false;
};

class Search {
public:
  Search(const ReshardProblem &problem, const CostModel &model, const ReshardOptions &options)
      : problem(problem), model(model), options(options) {}

  FailureOr<ReshardPlan> run();

private:
  // Layouts.
  Node encode(const ReshardState &state, uint8_t cut);
  ReshardState decode(const Node &node) const;
  Lists getLists(const Placement &placement) const;
  int64_t getPadded(const Node &node, int factor) const {
    return padded[factor][node.pads[factor]];
  }
  bool isNeutral(const Node &node, const Lists &lists, int factor) const {
    return lists.factors[factor].empty() && getPadded(node, factor) == problem.factors[factor].size;
  }
  /// Whether a layout that uses `used` uses a part that does not go with `part`.
  bool conflicts(PartSet used, size_t part) const { return (used & conflicting[part]) != 0; }
  /// Whether two layouts use parts that do not go together.
  bool crosses(PartSet a, PartSet b) const;
  bool mayTouch(const Node &node, const Lists &lists, int factor) const;
  bool isConsistent(const Node &node, const Lists &lists) const;
  int64_t getLocalBytes(const Node &node, const Lists &lists) const;
  bool isOutermost(const Node &node, const Lists &lists, int factor) const;
  AxisList getAxes(ArrayRef<uint8_t> parts) const;
  int64_t getProduct(ArrayRef<uint8_t> parts) const;
  void listPlacements();
  void findRecuts();

  // Edges out of the node being expanded.
  void expand(int index);
  void relax(Node next, const Lists &nextLists, Edge edge);
  void changePads();
  void reduce();
  void gather();
  void exchange();
  void slice();
  void makePartial();
  void recut();
  void permute(const Placement &placement, const Lists &lists, const Cost &rest);
  void redistribute(const Placement &placement, const PadChoice &pads, const Lists &lists,
                    const FactorAxes &axes, const Cost &rest);
  FactorAxes getFactorAxes(const Lists &lists) const;
  /// Whether a path that goes on with this edge, and needs at least `rest`
  /// behind it, cannot be the best.
  bool isTooDear(const Cost &edge, const Cost &rest = {}) const {
    return targetIndex >= 0 && !(cost + edge + rest < visits[targetIndex].cost);
  }
  Cost getLeastRest(const Lists &lists, const FactorAxes &axes) const;
  /// Calls `callback` with each order of each nonempty subset of `parts` (one
  /// order, if `subsetsOnly`).
  template <typename Callback>
  void forEachArrangement(ArrayRef<uint8_t> parts, bool subsetsOnly, Callback callback);
  Node append(const Node &node, const Lists &lists, ArrayRef<uint8_t> parts, int factor) const;

  ReshardPlan buildPlan(int last);

  const ReshardProblem &problem;
  const CostModel &model;
  const ReshardOptions &options;

  /// Candidate padded sizes of each factor: unpadded, the source's, the target's.
  SmallVector<SmallVector<int64_t, 3>, 8> padded;
  int64_t wholeDims = 1; // counted twice by two cuts of a dimension
  bool hasUnreduced = false;
  /// Of each part those that a layout cannot use beside it.
  SmallVector<PartSet, 8> conflicting;
  bool hasConflicts = false;
  /// Runs of parts that are the same axis in either cut.
  SmallVector<std::pair<Parts, Parts>, 2> recuts;

  std::vector<Placement> placements;
  std::vector<Lists> placementLists;
  /// Of each placement the axes of each factor.
  std::vector<FactorAxes> placementAxes;
  /// Of each placement what is left to the target at least.
  std::vector<Cost> placementRest;
  FactorAxes targetAxes;
  bool allPlacements = true;

  std::vector<Visit> visits;
  std::unordered_map<Node, int, NodeHash> known;
  using Entry = std::pair<decltype(Cost().key()), int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
  Node targetNode;
  int targetIndex = -1;

  // The node being expanded. Copies: relaxing grows `visits`.
  int current = -1;
  Node node;
  Lists lists;
  FactorAxes factorAxes;
  Cost cost;
  int64_t localBytes = 0;
};

} // namespace meshwright::detail

#endif // MESHWRIGHT_LIB_RESHARD_SEARCHGRAPH_H
