//===- ReshardCostTests.cpp - the resharder against brute force -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Costs are compared with an independent all-pairs shortest path, whose redistribution
// enumerates ranks and rows.
//
//===----------------------------------------------------------------------===//

#include "ReshardTest.h"

#include <map>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;
using namespace meshwright::test;

namespace {

//===----------------------------------------------------------------------===//
// All pairs, by brute force
//===----------------------------------------------------------------------===//

/// A layout of the brute force: per dimension axes, then unreduced ones.
struct Plain {
  std::vector<std::vector<int>> dims;
  std::vector<int> unreduced;
  bool operator<(const Plain &other) const {
    return std::tie(dims, unreduced) < std::tie(other.dims, other.unreduced);
  }
};

struct BruteForce {
  std::vector<int64_t> sizes; // of axes
  /// The axes as parts of the one axis of a mesh, in cuts that need not fit; empty
  /// where they are a mesh's axes.
  std::vector<Axis> parts;
  std::vector<int64_t> bandwidth, latency;
  int64_t extent = 8, elementBytes = 4;
  std::vector<Plain> layouts;
  std::vector<std::vector<int64_t>> distance;
  static constexpr int64_t infinite = int64_t(1) << 60;

  /// Bytes in a microsecond, picoseconds.
  void setLinks(std::vector<int64_t> bandwidths, std::vector<int64_t> latencies) {
    bandwidth = std::move(bandwidths);
    latency = std::move(latencies);
  }

  static bool uses(const Plain &plain, int axis) {
    return llvm::is_contained(plain.unreduced, axis) ||
           llvm::any_of(plain.dims, [&](auto &axes) { return llvm::is_contained(axes, axis); });
  }
  bool conflicts(int a, int b) const {
    return !parts.empty() && a != b && parts[a].overlaps(parts[b]);
  }
  /// Returns true if the two layouts cut the ranks in ways that do not fit.
  bool crosses(const Plain &a, const Plain &b) const {
    for (int x = 0; x < int(parts.size()); ++x)
      for (int y = 0; y < int(parts.size()); ++y)
        if (conflicts(x, y) && uses(a, x) && uses(b, y))
          return true;
    return false;
  }

  void enumerate(int axis, Plain plain) {
    if (axis == int(sizes.size())) {
      layouts.push_back(plain);
      return;
    }
    enumerate(axis + 1, plain);
    for (int other = 0; other < axis; ++other)
      if (conflicts(axis, other) && uses(plain, other))
        return;
    Plain partial = plain;
    partial.unreduced.push_back(axis);
    enumerate(axis + 1, partial);
    for (size_t d = 0; d < plain.dims.size(); ++d)
      for (size_t place = 0; place <= plain.dims[d].size(); ++place) {
        Plain next = plain;
        next.dims[d].insert(next.dims[d].begin() + place, axis);
        enumerate(axis + 1, next);
      }
  }

  int64_t ranks() const {
    int64_t product = 1;
    for (const Axis &part : parts)
      product = std::max(product, part.pre * part.size);
    if (!parts.empty())
      return product;
    for (int64_t size : sizes)
      product *= size;
    return product;
  }
  int coordinate(int64_t rank, int axis) const {
    if (!parts.empty())
      return rank / (ranks() / (parts[axis].pre * parts[axis].size)) % sizes[axis];
    for (int i = sizes.size() - 1; i > axis; --i)
      rank /= sizes[i];
    return rank % sizes[axis];
  }
  int64_t product(const std::vector<int> &axes) const {
    int64_t result = 1;
    for (int axis : axes)
      result *= sizes[axis];
    return result;
  }
  int64_t bytes(const Plain &layout) const {
    int64_t result = elementBytes;
    for (auto &axes : layout.dims)
      result *= extent / product(axes);
    return result;
  }
  int64_t time(const std::vector<int> &axes, int64_t sent, int64_t steps) const {
    int64_t transfer = 0, delay = 0;
    for (int axis : axes) {
      transfer = std::max(transfer, (sent * 1000000 + bandwidth[axis] - 1) / bandwidth[axis]);
      delay = std::max(delay, latency[axis]);
    }
    return steps * delay + transfer;
  }

  /// Box of rows that a rank holds.
  std::vector<std::pair<int64_t, int64_t>> box(const Plain &layout, int64_t rank) const {
    std::vector<std::pair<int64_t, int64_t>> result;
    for (auto &axes : layout.dims) {
      int64_t index = 0;
      for (int axis : axes)
        index = index * sizes[axis] + coordinate(rank, axis);
      int64_t chunk = extent / product(axes);
      result.push_back({index * chunk, (index + 1) * chunk});
    }
    return result;
  }
  static int64_t overlap(const std::vector<std::pair<int64_t, int64_t>> &a,
                         const std::vector<std::pair<int64_t, int64_t>> &b) {
    int64_t result = 1;
    for (size_t d = 0; d < a.size(); ++d)
      result *= std::max<int64_t>(0, std::min(a[d].second, b[d].second) -
                                         std::max(a[d].first, b[d].first));
    return result;
  }

  /// The most that a rank sends or receives, rank by rank, and the axes that
  /// change. A row is fetched in equal parts from all that hold it and agree
  /// with the receiver in what does not change.
  int64_t redistribute(const Plain &from, const Plain &to) const {
    std::vector<int> changing;
    for (int axis = 0; axis < int(sizes.size()); ++axis) {
      bool changes = false;
      for (size_t d = 0; d < from.dims.size(); ++d) {
        auto &a = from.dims[d], &b = to.dims[d];
        size_t common = 0;
        while (common < a.size() && common < b.size() && a[common] == b[common])
          ++common;
        for (auto *list : {&a, &b})
          for (size_t i = common; i < list->size(); ++i)
            changes |= (*list)[i] == axis;
      }
      if (changes)
        changing.push_back(axis);
    }
    bool crossing = crosses(from, to);
    auto sameGroup = [&](int64_t a, int64_t b) {
      if (crossing)
        return true;
      for (int axis = 0; axis < int(sizes.size()); ++axis)
        if (coordinate(a, axis) != coordinate(b, axis) && llvm::none_of(changing, [&](int other) {
              return other == axis || conflicts(other, axis);
            }))
          return false;
      return true;
    };
    std::vector<double> sent(ranks(), 0), received(ranks(), 0);
    std::vector<int64_t> inPeers(ranks(), 0), outPeers(ranks(), 0);
    for (int64_t receiver = 0; receiver < ranks(); ++receiver) {
      auto needed = box(to, receiver), own = box(from, receiver);
      // Holders of the same box are replicas.
      for (int64_t sender = 0; sender < ranks(); ++sender) {
        if (!sameGroup(sender, receiver))
          continue;
        auto held = box(from, sender);
        if (held == own)
          continue;
        int64_t rows = overlap(needed, held);
        if (!rows)
          continue;
        int64_t replicas = 0;
        for (int64_t other = 0; other < ranks(); ++other)
          replicas += sameGroup(other, receiver) && box(from, other) == held;
        sent[sender] += double(rows) / replicas;
        received[receiver] += double(rows) / replicas;
        ++inPeers[receiver];
        ++outPeers[sender];
      }
    }
    double most = 0;
    int64_t peers = 0;
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      most = std::max({most, sent[rank], received[rank]});
      peers = std::max({peers, inPeers[rank], outPeers[rank]});
    }
    return time(changing, std::llround(most * elementBytes), peers);
  }

  int64_t edge(const Plain &from, const Plain &to) const {
    int64_t best = infinite;
    auto offer = [&](int64_t cost) { best = std::min(best, cost); };
    std::vector<int> reduced, created;
    std::set_difference(from.unreduced.begin(), from.unreduced.end(), to.unreduced.begin(),
                        to.unreduced.end(), std::back_inserter(reduced));
    std::set_difference(to.unreduced.begin(), to.unreduced.end(), from.unreduced.begin(),
                        from.unreduced.end(), std::back_inserter(created));
    // Dimensions that lose or gain axes at their minor end; others must agree.
    int loses = -1, gains = -1;
    std::vector<int> lost, gained;
    bool simple = true;
    for (size_t d = 0; d < from.dims.size(); ++d) {
      auto &a = from.dims[d], &b = to.dims[d];
      if (a == b)
        continue;
      if (a.size() > b.size() && std::equal(b.begin(), b.end(), a.begin()) && loses < 0) {
        loses = d;
        lost.assign(a.begin() + b.size(), a.end());
      } else if (b.size() > a.size() && std::equal(a.begin(), a.end(), b.begin()) && gains < 0) {
        gains = d;
        gained.assign(b.begin() + a.size(), b.end());
      } else {
        simple = false;
      }
    }
    auto sorted = [](std::vector<int> axes) {
      std::sort(axes.begin(), axes.end());
      return axes;
    };
    // The same axis by the parts of another cut.
    if (simple && loses < 0 && gains < 0 && product(from.unreduced) == ranks() &&
        product(to.unreduced) == ranks())
      offer(0);
    int64_t n = bytes(from);
    if (simple && created.empty()) {
      int64_t k = product(reduced);
      if (loses < 0 && gains < 0 && !reduced.empty())
        offer(time(reduced, 2 * (k - 1) * n / k, 2 * (k - 1)));
      if (loses < 0 && gains >= 0 && !reduced.empty() && sorted(gained) == reduced)
        offer(time(reduced, (k - 1) * n / k, k - 1));
      if (reduced.empty()) {
        k = product(lost);
        if (loses >= 0 && gains < 0)
          offer(time(lost, (k - 1) * bytes(to) / k, k - 1));
        if (loses >= 0 && gains >= 0 && sorted(lost) == sorted(gained))
          offer(time(lost, (k - 1) * n / k, k - 1));
        if (loses < 0 && gains >= 0)
          offer(0);
      }
    }
    // The same chunks on other ranks.
    bool sameChunks = product(reduced) == product(created);
    for (size_t d = 0; d < from.dims.size(); ++d)
      sameChunks &= product(from.dims[d]) == product(to.dims[d]);
    if (sameChunks && !crosses(from, to)) {
      std::vector<int> moved = sorted(reduced);
      moved.insert(moved.end(), created.begin(), created.end());
      for (size_t d = 0; d < from.dims.size(); ++d)
        for (size_t i = 0; i < from.dims[d].size(); ++i)
          if (from.dims[d][i] != to.dims[d][i])
            moved.insert(moved.end(), {from.dims[d][i], to.dims[d][i]});
      offer(time(moved, n, 1));
    }
    if (from.unreduced.empty() && to.unreduced.empty())
      offer(redistribute(from, to));
    return best;
  }

  void run(int rank) {
    Plain plain;
    plain.dims.resize(rank);
    enumerate(0, plain);
    size_t count = layouts.size();
    distance.assign(count, std::vector<int64_t>(count, infinite));
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < count; ++j)
        distance[i][j] = i == j ? 0 : edge(layouts[i], layouts[j]);
    for (size_t k = 0; k < count; ++k)
      for (size_t i = 0; i < count; ++i) {
        if (distance[i][k] == infinite)
          continue;
        for (size_t j = 0; j < count; ++j)
          distance[i][j] = std::min(distance[i][j], distance[i][k] + distance[k][j]);
      }
  }

  Axis getAxis(int axis) const { return parts.empty() ? Axis{axis, 1, sizes[axis]} : parts[axis]; }
  Layout getLayout(const Plain &plain) const {
    std::vector<AxisList> dims;
    for (auto &axes : plain.dims) {
      dims.emplace_back();
      for (int axis : axes)
        dims.back().push_back(getAxis(axis));
    }
    AxisList unreduced;
    for (int axis : plain.unreduced)
      unreduced.push_back(getAxis(axis));
    return makeLayout(std::vector<int64_t>(plain.dims.size(), extent), dims, unreduced);
  }
};

struct AllPairsTest : ReshardTest {
  /// Compares every `stride`-th of the sources.
  void run(BruteForce &brute, MeshAttr mesh, bool execute, int stride, int rank = 3,
           int64_t sources = 176, int64_t targets = 106) {
    brute.run(rank);
    Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
    Type element = Float32Type::get(&context);
    int64_t wrong = 0, pairs = 0;
    for (size_t i = 0; i < brute.layouts.size(); i += stride)
      for (size_t j = 0; j < brute.layouts.size(); ++j) {
        if (!brute.layouts[j].unreduced.empty())
          continue;
        ++pairs;
        Layout from = brute.getLayout(brute.layouts[i]), to = brute.getLayout(brute.layouts[j]);
        auto plan = resharder.plan(from, to, element);
        ASSERT_TRUE(succeeded(plan));
        if ((*plan)->cost.time != brute.distance[i][j] && ++wrong <= 5)
          ADD_FAILURE() << toString(from, mesh) << " -> " << toString(to, mesh) << ": "
                        << (*plan)->cost.time << ", expected " << brute.distance[i][j];
        // A sample: the whole takes a minute.
        if (execute && (i * 131 + j * 7) % 8 == 0)
          checkMove(resharder, mesh, from, to, i * 1000 + j);
      }
    EXPECT_EQ(wrong, 0) << "of " << pairs;
    EXPECT_EQ(pairs, (sources + stride - 1) / stride * targets);
  }
};

TEST_F(AllPairsTest, EqualLinks) {
  BruteForce brute;
  brute.sizes = {2, 2, 2};
  brute.setLinks({1000000, 1000000, 1000000}, {0, 0, 0});
  run(brute, getMesh({{"x", 2}, {"y", 2}, {"z", 2}}), /*execute=*/true, /*stride=*/1);
}

TEST_F(AllPairsTest, DifferentLinks) {
  BruteForce brute;
  brute.sizes = {2, 2, 2};
  brute.setLinks({1000000, 4000000, 10000000}, {700, 300, 100});
  run(brute, getMesh({{"x", 2}, {"y", 2}, {"z", 2}}, {1e12, 4e12, 1e13}, {7e-10, 3e-10, 1e-10}),
      /*execute=*/false, /*stride=*/4);
}

TEST_F(AllPairsTest, CutsWithoutCommonRefinement) {
  // (dp 2, tp 3) and (dp 3, sp 2) over the same six ranks.
  BruteForce brute;
  brute.parts = {{0, 1, 2}, {0, 2, 3}, {0, 1, 3}, {0, 3, 2}};
  brute.sizes = {2, 3, 3, 2};
  brute.extent = 36;
  brute.setLinks({1000000, 1000000, 1000000, 1000000}, {0, 0, 0, 0});
  run(brute, getMesh({{"r", 6}}), /*execute=*/true, /*stride=*/1, /*rank=*/2, /*sources=*/35,
      /*targets=*/21);
}

} // namespace
