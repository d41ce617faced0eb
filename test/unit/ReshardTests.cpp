//===- ReshardTests.cpp - the ops that the resharder writes ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ReshardTest.h"

#include <random>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;
using namespace meshwright::test;

namespace {

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

/// With many placements the search leaves out axes that stay where they are, and some that no layout uses.
TEST_F(ReshardTest, MovesAmongManyAxes) {
  MeshAttr mesh = getMesh({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}}, {}, {}, "h100");
  Axis a{0, 1, 2}, b{1, 1, 2}, c{2, 1, 2}, d{3, 1, 2}, e{4, 1, 2};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  auto move = [&](const Layout &from, const Layout &to) { return checkMove(resharder, mesh, from, to, 1); };
  // Two axes stay.
  EXPECT_EQ(move(makeLayout({32, 32, 8}, {{a, c, d}, {b}, {}}), makeLayout({32, 32, 8}, {{a}, {b}, {}})),
            "dist.all_gather");
  EXPECT_EQ(move(makeLayout({32, 32, 8}, {{a, b, c}, {}, {}}), makeLayout({32, 32, 8}, {{a, b}, {c}, {}})),
            "dist.all_to_all");
  EXPECT_EQ(move(makeLayout({32, 32, 8}, {{a}, {b}, {}}, {c, d}), makeLayout({32, 32, 8}, {{a, c, d}, {b}, {}})),
            "dist.reduce_scatter");
  // Nothing is used in the target but what stays: ranks do not have the whole value.
  Layout sharded = makeLayout({32, 32, 8}, {{a, e}, {b, d}, {}}), less = makeLayout({32, 32, 8}, {{a}, {b, d}, {}});
  EXPECT_EQ(move(sharded, less), "dist.all_gather");
  EXPECT_FALSE((*resharder.plan(sharded, less, Float32Type::get(&context)))->steps.back().gathersWhole);
  // No axis stays, and all are in use.
  EXPECT_NE(move(makeLayout({32, 32, 8}, {{a, b}, {c, d}, {e}}), makeLayout({32, 32, 8}, {{e, d}, {b, a}, {c}})), "");
  // A padded factor keeps its axes in the search.
  EXPECT_NE(move(makeLayout({30, 32, 8}, {{a, b}, {c, d}, {}}), makeLayout({30, 32, 8}, {{a}, {c}, {e}})), "");
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

/// Other values than rows take paths that cost less.
TEST_F(ReshardTest, RowsMoveInOneLaunch) {
  MeshAttr mesh = getMesh({{"dp", 2}, {"idle", 2}, {"tp", 2}}, {}, {}, "cpu");
  Axis dp{0, 1, 2}, tp{2, 1, 2};
  Resharder resharder(mesh, FlatSymbolRefAttr::get(&context, "mesh"));
  // Experts, two dimensions of tokens, and features.
  auto makeRows = [](ArrayRef<AxisList> axes) { return makeLayout({4, 4, 256, 512}, axes); };
  // The kinds of the steps that move experts or tokens.
  auto getMoves = [&](const Layout &from, const Layout &to, int64_t rowDims) {
    auto plan = resharder.plan(from, to, BFloat16Type::get(&context), rowDims);
    EXPECT_TRUE(succeeded(plan));
    SmallVector<CollectiveKind> kinds;
    for (const ReshardStep &step : (*plan)->steps)
      for (auto [f, factor] : llvm::enumerate((*plan)->factors))
        if (factor.dim < 3 && step.before.axes[f] != step.after.axes[f]) {
          kinds.push_back(*step.kind);
          break;
        }
    return kinds;
  };
  using Kinds = SmallVector<CollectiveKind>;
  Layout atTokens = makeRows({{}, {}, {tp}, {}}), atExperts = makeRows({{tp}, {}, {}, {}});
  for (auto [from, to] : {std::pair(&atTokens, &atExperts), std::pair(&atExperts, &atTokens)}) {
    EXPECT_GT(getMoves(*from, *to, 0).size(), 1u);
    EXPECT_EQ(getMoves(*from, *to, 3), Kinds{CollectiveKind::AllToAll});
  }
  // Tokens of two dimensions move together.
  EXPECT_EQ(getMoves(makeRows({{}, {dp}, {tp}, {}}), makeRows({{dp, tp}, {}, {}, {}}), 3),
            Kinds{CollectiveKind::Redistribute});
  // Features move before or behind.
  EXPECT_EQ(getMoves(makeRows({{}, {}, {tp}, {dp}}), atExperts, 3), Kinds{CollectiveKind::AllToAll});
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
  AxisList unreduced;
  for (const Axis &axis : axes) {
    int place = pick(factors.size() + 3);
    if (place < int(factors.size()))
      factors[place]->axes.push_back(axis);
    else if (mayBeUnreduced && place == int(factors.size()))
      unreduced.push_back(axis);
  }
  layout.setUnreduced(std::move(unreduced));
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
      to.setUnreduced(from.getUnreduced());
    if (anyOverlap(to.getUnreduced(), to.getShardedAxes()))
      to.setUnreduced({});
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
    AxisList unreduced;
    for (const Axis &axis : axes) {
      unsigned place = random() % 5;
      if (place < 3)
        layout.dims[place].factors[0].axes.push_back(axis);
      else if (mayBeUnreduced && place == 3)
        unreduced.push_back(axis);
    }
    for (DimLayout &dim : layout.dims)
      dim.factors[0].padded = llvm::alignTo(dim.factors[0].size, getNumShards(dim.factors[0].axes));
    layout.setUnreduced(std::move(unreduced));
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
