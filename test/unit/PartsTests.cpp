//===- PartsTests.cpp - parts of a whole ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Layout.h"

#include "mlir/IR/MLIRContext.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

const Axis dp{0, 1, 2}, tp{1, 1, 4};

class PartsTest : public testing::Test {
protected:
  PartsTest() {
    context.loadDialect<DistDialect>();
    mesh = MeshAttr::get(&context,
                         {MeshAxisAttr::get(&context, "dp", 2, 0, 0),
                          MeshAxisAttr::get(&context, "tp", 4, 0, 0)},
                         "");
  }

  /// A block without a source.
  static Part makeBlock() {
    Part part;
    part.axes = {tp};
    part.reduction = ReductionKind::Place;
    part.spread = Part::Spread::Steps;
    return part;
  }
  /// A part of a source that covers some of four steps.
  static Part makePart(ReductionKind reduction, ArrayRef<unsigned> steps, size_t source = 0) {
    Part part = makeBlock();
    part.reduction = reduction;
    part.source = source;
    part.covered.resize(4);
    part.needed.resize(4, /*t=*/true);
    for (unsigned step : steps)
      part.covered.set(step);
    return part;
  }

  MLIRContext context;
  MeshAttr mesh;
};

TEST_F(PartsTest, DisjointStepsUniteToTheWhole) {
  for (ReductionKind reduction :
       {ReductionKind::Sum, ReductionKind::Max, ReductionKind::Merge, ReductionKind::Place}) {
    Part part = makePart(reduction, {0, 2}), rest = makePart(reduction, {1, 3});
    EXPECT_TRUE(part.isOfSameWhole(rest));
    EXPECT_FALSE(part.findCommonStep(rest));
    EXPECT_FALSE(part.isWhole());
    part.unite(rest);
    EXPECT_TRUE(part.isWhole());
    EXPECT_EQ(part.findCommonStep(rest), 1u);
    EXPECT_TRUE(part.getMissing().none());
  }
}

TEST_F(PartsTest, StepsThatAreNotNeededDoNotCount) {
  Part part = makePart(ReductionKind::Merge, {0, 1});
  part.needed.reset(3);
  EXPECT_EQ(toString(part.getMissing()), "{2}");
  part.unite(makePart(ReductionKind::Merge, {2}));
  EXPECT_TRUE(part.isWhole());
}

TEST_F(PartsTest, PartsOfOneWholeAgreeInAllButTheirSteps) {
  Part part = makePart(ReductionKind::Sum, {0});
  EXPECT_FALSE(part.isOfSameWhole(makePart(ReductionKind::Merge, {1})));
  EXPECT_FALSE(part.isOfSameWhole(makePart(ReductionKind::Sum, {1}, /*source=*/1)));
  Part other = makePart(ReductionKind::Sum, {1});
  other.needed.reset(3);
  EXPECT_FALSE(part.isOfSameWhole(other));
  other = makePart(ReductionKind::Sum, {1});
  other.axes = {dp};
  EXPECT_FALSE(part.isOfSameWhole(other));
  EXPECT_NE(part, makePart(ReductionKind::Sum, {1}));
}

TEST_F(PartsTest, LayoutHasOneEntryForAllUnreducedAxes) {
  Layout layout = Layout::getReplicated({8, 8});
  EXPECT_FALSE(layout.isUnreduced());
  EXPECT_TRUE(layout.getUnreduced().empty());
  EXPECT_EQ(layout.getReduction(), ReductionKind::Sum);
  layout.parts.push_back(makePart(ReductionKind::Merge, {0}));
  layout.addUnreduced({tp}, ReductionKind::Max);
  layout.addUnreduced({dp}, ReductionKind::Max);
  canonicalize(layout, mesh);
  ASSERT_EQ(layout.parts.size(), 2u);
  EXPECT_EQ(layout.getUnreduced(), AxisList({dp, tp}));
  EXPECT_EQ(layout.getReduction(), ReductionKind::Max);
  EXPECT_TRUE(layout.uses({dp}));
  EXPECT_EQ(toString(layout, mesh),
            "[{}, {}] unreduced max {\"dp\", \"tp\"} in steps {0} of {\"tp\"}");
  layout.setUnreduced({});
  EXPECT_FALSE(layout.isUnreduced());
  EXPECT_EQ(layout.getPartOfSource(), &layout.parts.front());
}

TEST_F(PartsTest, AnAxisOfTwoDimensionsMakesABlock) {
  Layout layout = Layout::getReplicated({8, 8});
  layout.dims[0].factors[0].axes = layout.dims[1].factors[0].axes = {tp};
  canonicalize(layout, mesh);
  ASSERT_TRUE(layout.isBlock());
  EXPECT_FALSE(layout.getPartOfSource());
  EXPECT_EQ(toString(layout, mesh), "[{\"tp\"}, {\"tp\"}]");
  // A block of a source is no other one.
  layout.parts = {makePart(ReductionKind::Place, {0})};
  canonicalize(layout, mesh);
  EXPECT_EQ(layout.parts.size(), 1u);
  // It is a part until it is placed, and a block that was cut out is none without its axes.
  layout.dims[1].factors[0].axes.clear();
  canonicalize(layout, mesh);
  EXPECT_TRUE(layout.getPartOfSource());
  layout.parts = {makeBlock()};
  canonicalize(layout, mesh);
  EXPECT_TRUE(layout.parts.empty());
}

TEST_F(PartsTest, RanksLackTheirChunks) {
  Layout layout = Layout::getReplicated({8});
  layout.dims[0].factors[0].axes = {tp};
  Part part = makeBlock();
  part.spread = Part::Spread::Ranks;
  part.needed.resize(4, /*t=*/true);
  part.covered.resize(4, /*t=*/true);
  part.covered.reset(2);
  layout.parts.push_back(part);
  canonicalize(layout, mesh);
  ASSERT_TRUE(layout.getIncompletePart());
  EXPECT_FALSE(layout.isUnreduced());
  EXPECT_FALSE(layout.isBlock());
  EXPECT_EQ(toString(layout, mesh), "[{\"tp\"}] missing on ranks {2} of {\"tp\"}");
}

} // namespace
