//===- SearchGraph.h - layouts as nodes, moves as edges ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The graph that the resharder searches. Only Search.cpp and Edges.cpp include this header.
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

/// Redistribute and permute lead to each of the listed placements. With more placements
/// than this they lead to the target only.
constexpr size_t kMaxPlacements = 2500;
/// A search that has found this many layouts adds no others, except the target.
constexpr size_t kMaxNodes = 50000;
/// A permute lists one pair for each rank of its group, which is no larger than this.
constexpr int64_t kMaxPermuteRanks = 4096;
/// The cost of a redistribute between cuts that do not fit is counted rank by rank. With
/// more placements times ranks than this it leads to the target only.
constexpr int64_t kMaxCrossings = 8192;

/// A set of axis parts, one bit each.
using AxisPartSet = uint64_t;

/// For each axis part the factor that it shards (high byte) and its index among the axes
/// of that factor (low byte), or kFree, or kUnreduced.
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
using AxisParts = SmallVector<uint8_t, 8>;

/// A placement by factors.
struct Lists {
  SmallVector<AxisParts, 8> factors;
  SmallVector<int64_t, 8> shards;
  AxisParts unreduced, free;
  int64_t totalShards = 1;
  AxisPartSet used = 0;
};

using FactorAxes = SmallVector<SmallVector<Axis, 4>, 8>;

struct Edge {
  /// The kind and the axes are as in ReshardStep.
  std::optional<dist::CollectiveKind> kind;
  AxisParts axes;
  int from = -1, to = -1;
  Cost cost;
  /// True if nothing moves: the same layout, by parts of the other cut.
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
  Node encode(const ReshardLayout &layout, uint8_t cut);
  ReshardLayout decode(const Node &node) const;
  Lists getLists(const Placement &placement) const;
  int64_t getPadded(const Node &node, int factor) const {
    return padded[factor][node.pads[factor]];
  }
  bool isNeutral(const Node &node, const Lists &lists, int factor) const {
    return lists.factors[factor].empty() && getPadded(node, factor) == problem.factors[factor].size;
  }
  /// Returns true if `used` has a part that no layout can use beside `part`.
  bool conflicts(AxisPartSet used, size_t part) const { return (used & conflicting[part]) != 0; }
  /// Returns true if the two sets have parts that no layout can use together.
  bool crosses(AxisPartSet a, AxisPartSet b) const;
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
  bool keepsRows(const Node &next) const;
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
  /// Returns true if no path with this edge, followed by at least `rest`, is cheaper than
  /// the best one to the target so far.
  bool isTooDear(const Cost &edge, const Cost &rest = {}) const {
    return targetIndex >= 0 && !(cost + edge + rest < visits[targetIndex].cost);
  }
  Cost getLeastRest(const Lists &lists, const FactorAxes &axes) const;
  /// Calls `callback` with each nonempty subset of `parts`, in each order or, with
  /// `subsetsOnly`, in one.
  template <typename Callback>
  void forEachArrangement(ArrayRef<uint8_t> parts, bool subsetsOnly, Callback callback);
  Node append(const Node &node, const Lists &lists, ArrayRef<uint8_t> parts, int factor) const;

  ReshardPlan buildPlan(int last);

  const ReshardProblem &problem;
  const CostModel &model;
  const ReshardOptions &options;

  /// Candidate padded sizes of each factor: unpadded, the source's, the target's.
  SmallVector<SmallVector<int64_t, 3>, 8> padded;
  /// Elements of the dimensions that have two cuts, which sizes count twice.
  int64_t wholeDims = 1;
  bool hasUnreduced = false;
  /// For each part the parts that no layout can use beside it.
  SmallVector<AxisPartSet, 8> conflicting;
  bool hasConflicts = false;
  /// Pairs of runs of parts: one axis, by the parts of either cut.
  SmallVector<std::pair<AxisParts, AxisParts>, 2> recuts;

  std::vector<Placement> placements;
  std::vector<Lists> placementLists;
  /// For each placement the axes of each factor.
  std::vector<FactorAxes> placementAxes;
  /// For each placement a lower bound of the cost from it to the target.
  std::vector<Cost> placementRest;
  FactorAxes targetAxes;
  bool allPlacements = true;

  std::vector<Visit> visits;
  std::unordered_map<Node, int, NodeHash> known;
  using Entry = std::pair<decltype(Cost().key()), int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
  Node targetNode;
  int targetIndex = -1;

  // The node that is expanded. These are copies, because `relax` grows `visits`.
  int current = -1;
  Node node;
  Lists lists;
  FactorAxes factorAxes;
  Cost cost;
  int64_t localBytes = 0;
};

} // namespace meshwright::detail

#endif // MESHWRIGHT_LIB_RESHARD_SEARCHGRAPH_H
