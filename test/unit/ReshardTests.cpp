//===- ReshardTests.cpp - the resharder against brute force ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Costs are compared with an independent all-pairs shortest path, whose
// redistribution enumerates ranks and rows. The written ops are executed on
// arrays, one for each rank, and the result compared with the layout's
// definition.
//
//===----------------------------------------------------------------------===//

#include "SpmdInterpreter.h"

#include "meshwright/lib/Register/Register.h"
#include "meshwright/lib/Reshard/Reshard.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/Verifier.h"
#include "llvm/ADT/StringExtras.h"
#include "gtest/gtest.h"

#include <map>
#include <random>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

class ReshardTest : public testing::Test {
protected:
  ReshardTest() {
    DialectRegistry registry;
    registerAllDialects(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  MeshAttr getMesh(ArrayRef<std::pair<const char *, int64_t>> axes,
                   ArrayRef<double> bandwidths = {}, ArrayRef<double> latencies = {},
                   StringRef device = "") {
    SmallVector<MeshAxisAttr> attrs;
    for (auto [i, axis] : llvm::enumerate(axes))
      attrs.push_back(MeshAxisAttr::get(&context, axis.first, axis.second,
                                        bandwidths.empty() ? 0 : bandwidths[i],
                                        latencies.empty() ? 0 : latencies[i]));
    return MeshAttr::get(&context, attrs, device);
  }

  /// A function with a mesh, to write a move into.
  OwningOpRef<ModuleOp> makeFunction(MeshAttr mesh, Type type, func::FuncOp &function) {
    Location location = UnknownLoc::get(&context);
    OwningOpRef<ModuleOp> module = ModuleOp::create(location);
    OpBuilder builder(&context);
    builder.setInsertionPointToStart(module->getBody());
    MeshOp::create(builder, location, "mesh", mesh);
    function = func::FuncOp::create(builder, location, "main", builder.getFunctionType(type, {}));
    function->setAttr("dist.spmd", FlatSymbolRefAttr::get(&context, "mesh"));
    function.addEntryBlock();
    return module;
  }

  /// Writes the move, verifies it, executes it and compares; returns the ops.
  std::string checkMove(Resharder &resharder, MeshAttr mesh, const Layout &from, const Layout &to,
                        unsigned seed) {
    Type element = Float32Type::get(&context);
    func::FuncOp function;
    OwningOpRef<ModuleOp> module =
        makeFunction(mesh, RankedTensorType::get(from.getLocalShape(), element), function);
    function.setArgAttr(0, "dist.sharding",
                        getSharding(from, FlatSymbolRefAttr::get(&context, "mesh"), mesh));
    function.setArgAttr(0, "dist.global",
                        TypeAttr::get(RankedTensorType::get(from.getGlobalShape(), element)));
    OpBuilder builder(&context);
    Block &block = function.front();
    builder.setInsertionPointToStart(&block);
    auto result = resharder.reshard(builder, function.getLoc(), block.getArgument(0), from, to);
    std::string name = toString(from, mesh) + " -> " + toString(to, mesh);
    if (failed(result)) {
      ADD_FAILURE() << name << ": no plan";
      return "";
    }
    func::ReturnOp::create(builder, function.getLoc());
    EXPECT_TRUE(succeeded(verify(*module))) << name;
    test::Interpreter interpreter(mesh);
    interpreter.values[block.getArgument(0)] = test::makeValue(from, mesh, seed);
    std::string ops;
    for (Operation &op : block.without_terminator()) {
      ops += (ops.empty() ? "" : " ") + op.getName().getStringRef().str();
      if (!interpreter.run(&op)) {
        ADD_FAILURE() << name << ": cannot run " << op.getName().getStringRef().str();
        return ops;
      }
    }
    std::string wrong = test::compare(interpreter.values[*result], to, mesh, seed);
    EXPECT_EQ(wrong, "") << name << " by " << ops;
    return ops;
  }

  MLIRContext context;
};

Layout makeLayout(ArrayRef<int64_t> shape, ArrayRef<AxisList> dims, AxisList unreduced = {}) {
  Layout layout = Layout::getReplicated(shape);
  for (auto [dim, axes] : llvm::zip_equal(layout.dims, dims)) {
    LayoutFactor &factor = dim.factors[0];
    factor.axes = axes;
    factor.padded = llvm::alignTo(factor.size, getNumShards(axes));
  }
  layout.unreduced = unreduced;
  return layout;
}

//===----------------------------------------------------------------------===//
// Known answers
//===----------------------------------------------------------------------===//

TEST_F(ReshardTest, OneRedistributeMovesSeveralDimensions) {
  MeshAttr mesh = getMesh({{"x", 4}, {"y", 2}});
  Axis x{0, 1, 4}, y{1, 1, 2};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Layout from = makeLayout({16, 16, 16}, {{y}, {}, {x}});
  Layout to = makeLayout({16, 16, 16}, {{}, {x, y}, {}});
  auto plan = resharder.plan(from, to, Float32Type::get(&context));
  ASSERT_TRUE(succeeded(plan));
  EXPECT_EQ((*plan)->cost.bytes, 1792);
  EXPECT_EQ((*plan)->cost.launches, 1);
  EXPECT_EQ((*plan)->steps.size(), 1u);
  EXPECT_EQ(checkMove(resharder, mesh, from, to, 1), "dist.redistribute");
}

TEST_F(ReshardTest, CommonMovesAreOneCollective) {
  MeshAttr mesh = getMesh({{"tp", 8}}, {}, {}, "h100");
  Axis tp{0, 1, 8};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Layout replicated = makeLayout({64, 128}, {{}, {}});
  Layout partial = makeLayout({64, 128}, {{}, {}}, {tp});
  Layout rows = makeLayout({64, 128}, {{tp}, {}});
  Layout columns = makeLayout({64, 128}, {{}, {tp}});
  EXPECT_EQ(checkMove(resharder, mesh, rows, rows, 1), "");
  EXPECT_EQ(checkMove(resharder, mesh, partial, replicated, 1), "dist.all_reduce");
  EXPECT_EQ(checkMove(resharder, mesh, partial, rows, 1), "dist.reduce_scatter");
  EXPECT_EQ(checkMove(resharder, mesh, partial, columns, 1), "dist.reduce_scatter");
  EXPECT_EQ(checkMove(resharder, mesh, rows, replicated, 1), "dist.all_gather");
  EXPECT_EQ(checkMove(resharder, mesh, rows, columns, 1), "dist.all_to_all");
  EXPECT_EQ(checkMove(resharder, mesh, replicated, columns, 1), "dist.slice");
  EXPECT_EQ(checkMove(resharder, mesh, replicated, partial, 1), "dist.partial");
  auto gather = resharder.plan(rows, replicated, Float32Type::get(&context));
  EXPECT_TRUE((*gather)->steps[0].gathersWhole);
  auto exchange = resharder.plan(rows, columns, Float32Type::get(&context));
  EXPECT_FALSE((*exchange)->steps[0].gathersWhole);
}

TEST_F(ReshardTest, PadsBeforeAndStripsAfter) {
  MeshAttr mesh = getMesh({{"tp", 4}});
  Axis tp{0, 1, 4};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Layout replicated = makeLayout({17, 8}, {{}, {}});
  Layout partial = makeLayout({17, 8}, {{}, {}}, {tp});
  Layout rows = makeLayout({17, 8}, {{tp}, {}});
  EXPECT_EQ(checkMove(resharder, mesh, partial, rows, 1), "dist.pad dist.reduce_scatter");
  EXPECT_EQ(checkMove(resharder, mesh, replicated, rows, 1), "dist.slice");
  EXPECT_EQ(checkMove(resharder, mesh, rows, replicated, 1), "dist.all_gather nn.slice");
}

TEST_F(ReshardTest, DisagreeingSizesFail) {
  MeshAttr mesh = getMesh({{"tp", 4}});
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Type element = Float32Type::get(&context);
  Layout from = makeLayout({16, 8}, {{}, {}});
  EXPECT_TRUE(failed(resharder.plan(from, makeLayout({16, 9}, {{}, {}}), element)));
  EXPECT_TRUE(failed(resharder.plan(from, makeLayout({16}, {{}}), element)));
}

TEST_F(ReshardTest, HierarchicalWhereLinksDiffer) {
  // Between hosts a rank sends only its part of what all ranks of a host have.
  MeshAttr mesh = getMesh({{"host", 4}, {"tp", 8}}, {}, {}, "h100");
  Axis host{0, 1, 4};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Layout partial = makeLayout({4096, 1024}, {{}, {}}, {host});
  Layout replicated = makeLayout({4096, 1024}, {{}, {}});
  EXPECT_EQ(checkMove(resharder, mesh, makeLayout({64, 64}, {{}, {}}, {host}),
                      makeLayout({64, 64}, {{}, {}}), 1),
            "dist.all_reduce");
  auto plan = resharder.plan(partial, replicated, Float32Type::get(&context));
  ASSERT_TRUE(succeeded(plan));
  ASSERT_EQ((*plan)->steps.size(), 3u);
  EXPECT_EQ((*plan)->steps[0].kind, CollectiveKind::Slice);
  EXPECT_EQ((*plan)->steps[1].kind, CollectiveKind::AllReduce);
  EXPECT_EQ((*plan)->steps[2].kind, CollectiveKind::AllGather);
}

TEST_F(ReshardTest, LargeMeshesCostNoMore) {
  MeshAttr mesh = getMesh({{"dp", 256}, {"tp", 256}});
  Axis dp{0, 1, 256}, tp{1, 1, 256};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Layout from = makeLayout({65536, 65536}, {{dp}, {tp}});
  Layout to = makeLayout({65536, 65536}, {{tp}, {dp}});
  auto plan = resharder.plan(from, to, Float32Type::get(&context));
  ASSERT_TRUE(succeeded(plan));
  EXPECT_EQ((*plan)->cost.bytes, int64_t(65536) * 4);
}

TEST_F(ReshardTest, IntermediatesKeepToTheirBound) {
  MeshAttr mesh = getMesh({{"x", 4}});
  Axis lower{0, 1, 2}, upper{0, 2, 2}, x{0, 1, 4};
  ReshardOptions options;
  options.maxIntermediateBytes = 16 * 16;
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"), options);
  Layout from = makeLayout({16, 16}, {{x}, {}});
  for (const Layout &to :
       {makeLayout({16, 16}, {{}, {x}}), makeLayout({16, 16}, {{upper}, {lower}}),
        makeLayout({16, 16}, {{}, {upper, lower}})}) {
    auto plan = resharder.plan(from, to, Float32Type::get(&context));
    ASSERT_TRUE(succeeded(plan));
    for (const ReshardStep &step : (*plan)->steps)
      EXPECT_LE(step.resultBytes, options.maxIntermediateBytes);
    checkMove(resharder, mesh, from, to, 1);
  }
}

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
  /// Whether the two layouts cut the ranks in ways that do not fit.
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
  /// Of the sources every `stride`-th.
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

//===----------------------------------------------------------------------===//
// Factors, padding, parts of axes
//===----------------------------------------------------------------------===//

/// A random layout of a (2 x 3 x 5) by 17 by 8 value on a 2 x 4 mesh. The parts
/// of the second axis are used apart or together.
Layout makeRandomLayout(std::mt19937 &random, bool mayBeUnreduced) {
  auto pick = [&](int count) { return int(random() % count); };
  SmallVector<SmallVector<int64_t>> dims = {{2, 3, 5}, {17}, {8}};
  switch (pick(4)) {
  case 0:
    dims[0] = {30};
    break;
  case 1:
    dims[0] = {6, 5};
    break;
  case 2:
    dims[2] = {2, 4};
    break;
  }
  Layout layout;
  SmallVector<LayoutFactor *> factors;
  for (ArrayRef<int64_t> sizes : dims) {
    DimLayout dim;
    for (int64_t size : sizes) {
      LayoutFactor factor;
      factor.size = factor.padded = size;
      dim.factors.push_back(factor);
    }
    layout.dims.push_back(dim);
  }
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors)
      factors.push_back(&factor);
  SmallVector<Axis> axes{{0, 1, 2}, {1, 1, 2}, {1, 2, 2}};
  if (pick(2))
    axes = {{0, 1, 2}, {1, 1, 4}};
  std::shuffle(axes.begin(), axes.end(), random);
  for (const Axis &axis : axes) {
    int place = pick(factors.size() + 3);
    if (place < int(factors.size()))
      factors[place]->axes.push_back(axis);
    else if (mayBeUnreduced && place == int(factors.size()))
      layout.unreduced.push_back(axis);
  }
  llvm::sort(layout.unreduced);
  for (LayoutFactor *factor : factors)
    factor->padded = llvm::alignTo(factor->size, getNumShards(factor->axes));
  return layout;
}

TEST_F(ReshardTest, RandomFactorsAndPadding) {
  MeshAttr mesh = getMesh({{"dp", 2}, {"tp", 4}}, {}, {}, "h100");
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  std::mt19937 random(7);
  for (unsigned i = 0; i < 400 && !HasFailure(); ++i) {
    Layout from = makeRandomLayout(random, true), to = makeRandomLayout(random, false);
    if (random() % 8 == 0)
      to.unreduced = from.unreduced;
    if (to.uses(to.unreduced) && anyOverlap(to.unreduced, to.getShardedAxes()))
      to.unreduced.clear();
    canonicalize(from, mesh);
    canonicalize(to, mesh);
    checkMove(resharder, mesh, from, to, i);
  }
}

TEST_F(ReshardTest, OneRedistributeBetweenCutsThatDoNotFit) {
  MeshAttr mesh = getMesh({{"r", 6}});
  Axis dp{0, 1, 2}, tp{0, 2, 3}, otherDp{0, 1, 3}, sp{0, 3, 2};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Type element = Float32Type::get(&context);
  // A batch of 12 over 2 and over 3: half of a rank's four rows are there already, at
  // worst. Six chunks are a slice away, and a gather makes three of them.
  Layout from = makeLayout({12, 8, 16}, {{dp}, {}, {}}), to = from;
  to.dims[0].factors[0].axes = {otherDp};
  auto plan = resharder.plan(from, to, element);
  ASSERT_TRUE(succeeded(plan));
  EXPECT_EQ((*plan)->cost.bytes, 2 * 8 * 16 * 4);
  EXPECT_EQ(checkMove(resharder, mesh, from, to, 1), "dist.slice dist.all_gather");
  // Where no other rank has the rows there is nothing to slice.
  from = makeLayout({12, 9, 16}, {{dp}, {tp}, {}});
  to = makeLayout({12, 9, 16}, {{otherDp}, {}, {}});
  EXPECT_EQ(checkMove(resharder, mesh, from, to, 1), "dist.redistribute");
  // Each side has padded sizes of its own.
  for (int64_t batch : {1, 2, 5, 7}) {
    Layout source = makeLayout({batch, 8, 16}, {{dp}, {tp}, {}});
    Layout target = makeLayout({batch, 8, 16}, {{otherDp}, {sp}, {}});
    EXPECT_EQ(checkMove(resharder, mesh, source, target, 2), "dist.redistribute");
    EXPECT_EQ(checkMove(resharder, mesh, target, source, 3), "dist.redistribute");
  }
  // A partial sum is scattered first.
  Layout partial = makeLayout({12, 6, 16}, {{dp}, {}, {}}, {tp});
  Layout scattered = makeLayout({12, 6, 16}, {{otherDp}, {sp}, {}});
  plan = resharder.plan(partial, scattered, element);
  ASSERT_TRUE(succeeded(plan));
  ASSERT_EQ((*plan)->steps.size(), 2u);
  EXPECT_EQ((*plan)->steps[0].kind, CollectiveKind::ReduceScatter);
  EXPECT_EQ(checkMove(resharder, mesh, partial, scattered, 4),
            "dist.reduce_scatter dist.all_to_all");
}

TEST_F(ReshardTest, RandomCuts) {
  // Each side cuts the twelve ranks its own way, and pads as it needs.
  MeshAttr mesh = getMesh({{"r", 12}, {"x", 2}}, {}, {}, "h100");
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  std::mt19937 random(11);
  const SmallVector<SmallVector<int64_t>> cuts = {{2, 6}, {6, 2},    {3, 4},    {4, 3},
                                                  {12},   {2, 3, 2}, {3, 2, 2}, {2, 2, 3}};
  auto make = [&](bool mayBeUnreduced) {
    Layout layout = Layout::getReplicated({13, 6, 10});
    int64_t pre = 1;
    SmallVector<Axis> axes{{1, 1, 2}};
    for (int64_t size : cuts[random() % cuts.size()]) {
      axes.push_back({0, pre, size});
      pre *= size;
    }
    std::shuffle(axes.begin(), axes.end(), random);
    for (const Axis &axis : axes) {
      unsigned place = random() % 5;
      if (place < 3)
        layout.dims[place].factors[0].axes.push_back(axis);
      else if (mayBeUnreduced && place == 3)
        layout.unreduced.push_back(axis);
    }
    for (DimLayout &dim : layout.dims)
      dim.factors[0].padded = llvm::alignTo(dim.factors[0].size, getNumShards(dim.factors[0].axes));
    llvm::sort(layout.unreduced);
    canonicalize(layout, mesh);
    return layout;
  };
  for (unsigned i = 0; i < 60 && !HasFailure(); ++i) {
    Layout from = make(i % 3 == 0), to = make(false);
    checkMove(resharder, mesh, from, to, i);
    // Never more than by way of a whole value.
    Layout whole = Layout::getReplicated({13, 6, 10});
    Type element = Float32Type::get(&context);
    auto direct = resharder.plan(from, to, element), up = resharder.plan(from, whole, element);
    ASSERT_TRUE(succeeded(direct) && succeeded(up));
    Cost around = (*up)->cost + (*resharder.plan(whole, to, element))->cost;
    EXPECT_LE((*direct)->cost.time, around.time)
        << toString(from, mesh) << " -> " << toString(to, mesh);
  }
}

TEST_F(ReshardTest, DimensionsWithoutCommonFactors) {
  // Heads padded to 8 against a dimension cut in 4 equal parts.
  MeshAttr mesh = getMesh({{"tp", 4}});
  Axis tp{0, 1, 4};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Layout heads, columns = makeLayout({72, 8}, {{tp}, {}});
  heads = columns;
  LayoutFactor head, size;
  head.size = 6;
  head.padded = 8;
  head.axes = {tp};
  size.size = size.padded = 12;
  heads.dims[0].factors = {head, size};
  Layout canonical = heads;
  canonicalize(canonical, mesh);
  checkMove(resharder, mesh, canonical, columns, 1);
  checkMove(resharder, mesh, columns, canonical, 2);
}

TEST_F(ReshardTest, UniformValuesMoveNothing) {
  MeshAttr mesh = getMesh({{"tp", 4}});
  Axis tp{0, 1, 4};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  Layout from = makeLayout({16, 8}, {{}, {}}), to = makeLayout({16, 8}, {{tp}, {}});
  from.dims[0].factors[0].uniform = true;
  auto plan = resharder.plan(from, to, Float32Type::get(&context));
  ASSERT_TRUE(succeeded(plan));
  ASSERT_EQ((*plan)->steps.size(), 1u);
  EXPECT_TRUE((*plan)->steps[0].isStrip());
  from.dims[0].factors[0].padded = from.dims[0].factors[0].size = 4;
  plan = resharder.plan(from, to, Float32Type::get(&context));
  ASSERT_TRUE(succeeded(plan));
  EXPECT_EQ((*plan)->steps.size(), 0u);
}

} // namespace
