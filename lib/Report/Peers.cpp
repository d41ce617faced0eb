//===- Peers.cpp - bytes from rank to rank --------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Peers.h"

#include "MovedRows.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/lib/CostModel/CostModel.h"

#include <map>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// How the ranks of a group send.
struct Way {
  /// The axes of the group, as text, by which ways compare.
  std::string axes;
  enum Kind { Ring, Equal, Chunks } kind = Ring;
  /// Of `Chunks`: for each coordinate, the coordinate whose chunk it receives, or -1.
  SmallVector<int64_t> sources;

  bool operator<(const Way &other) const {
    return std::tie(axes, kind, sources) < std::tie(other.axes, other.kind, other.sources);
  }
};

/// Adds up the bytes that each rank sends in a way, and then sends them.
class Peers {
public:
  explicit Peers(MeshAttr mesh) : mesh(mesh), model(mesh) {}
  void add(CollectiveOpInterface op, int64_t runs);
  std::vector<ProgramFacts::Sent> get() const;

private:
  MeshAttr mesh;
  CostModel model;
  std::map<Way, std::pair<AxisList, double>> ways;
};

} // namespace

void Peers::add(CollectiveOpInterface op, int64_t runs) {
  std::optional<Cost> cost = model.getCost(op);
  if (!cost || cost->launches == 0)
    return;
  AxisList axes = op.getGroupAxes(mesh);
  Way way;
  way.axes = toString(axes, mesh);
  double bytes = double(cost->bytes) * getLoadShare(op);
  bool isDirect = op.getKind() == CollectiveKind::AllToAll || op.getKind() == CollectiveKind::Redistribute;
  if (SmallVector<int64_t> sources = op.getAxes() ? op.getChunkSources(getNumShards(axes)) : SmallVector<int64_t>();
      op.movesChunks() && !sources.empty()) {
    way.kind = Way::Chunks;
    way.sources = std::move(sources);
    bytes = 0;
    for (Type type : op->getResultTypes())
      bytes += double(getTensorBytes(type));
  } else if (isDirect) {
    way.kind = Way::Equal;
  }
  auto &sum = ways[way];
  sum.first = std::move(axes);
  sum.second += bytes * double(runs);
}

std::vector<ProgramFacts::Sent> Peers::get() const {
  std::map<std::pair<int64_t, int64_t>, double> sent;
  for (auto &[way, sum] : ways) {
    auto &[axes, bytes] = sum;
    int64_t size = getNumShards(axes);
    for (int64_t rank = 0; rank < mesh.getNumRanks() && size > 1 && bytes > 0; ++rank) {
      SmallVector<int64_t> group = getGroup(rank, axes, mesh);
      int64_t own = getCoordinate(rank, axes, mesh);
      switch (way.kind) {
      case Way::Ring:
        sent[{rank, group[(own + 1) % size]}] += bytes;
        break;
      case Way::Equal:
        for (int64_t other : group)
          if (other != rank)
            sent[{rank, other}] += bytes / double(size - 1);
        break;
      case Way::Chunks:
        for (auto [to, from] : llvm::enumerate(way.sources))
          if (from == own && int64_t(to) != own)
            sent[{rank, group[to]}] += bytes;
        break;
      }
    }
  }
  std::vector<ProgramFacts::Sent> found;
  for (auto &[pair, bytes] : sent)
    found.push_back({pair.first, pair.second, bytes});
  return found;
}

std::vector<ProgramFacts::Sent> meshwright::countPeers(FunctionOpInterface entry) {
  MeshAttr mesh = getSpmdMesh(entry);
  if (!mesh)
    return {};
  Peers peers(mesh);
  for (const nn::CallStep &step : nn::getSteps(entry))
    step.function->walk([&](CollectiveOpInterface op) { peers.add(op, step.getRuns()); });
  return peers.get();
}
