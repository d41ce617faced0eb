//===- ParallelizeOptionsTests.cpp - the list of options ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include <gtest/gtest.h>

using namespace meshwright;

namespace {

llvm::FailureOr<ParallelizeOptions> parse(llvm::StringRef text, std::string &message) {
  return parseParallelizeOptions(text, [&](const llvm::Twine &error) -> llvm::LogicalResult {
    message = error.str();
    return llvm::failure();
  });
}

ParallelizeOptions parseValid(llvm::StringRef text) {
  std::string message;
  auto options = parse(text, message);
  EXPECT_TRUE(succeeded(options)) << message;
  return succeeded(options) ? *options : ParallelizeOptions();
}

std::string getError(llvm::StringRef text) {
  std::string message;
  EXPECT_TRUE(failed(parse(text, message))) << text.str();
  return message;
}

TEST(ParallelizeOptions, Defaults) {
  ParallelizeOptions options = parseValid("");
  EXPECT_TRUE(options.mesh.axes.empty());
  EXPECT_EQ(options.axes.get(AxisRole::Tensor).kind, AxisChoice::Auto);
  EXPECT_EQ(options.axes.get(AxisRole::Ring).kind, AxisChoice::None);
  EXPECT_EQ(options.sequenceParallel, OnOffAuto::Auto);
  EXPECT_EQ(options.overlap, OnOffAuto::Auto);
  EXPECT_FALSE(options.memoryCeiling);
}

TEST(ParallelizeOptions, AMeshForEachStage) {
  ParallelizeOptions options = parseValid("mesh=target:dp=2,tp=3;draft:dp=3,sp=2");
  EXPECT_TRUE(options.mesh.axes.empty());
  ASSERT_EQ(options.mesh.stages.size(), 2u);
  EXPECT_EQ(options.mesh.stages[0].stage, "target");
  EXPECT_EQ(options.mesh.stages[1].axes[1].name, "sp");
  EXPECT_EQ(options.mesh.stages[1].axes[1].size, 2);
  EXPECT_EQ(parseValid(options.str()).str(), options.str());
  EXPECT_NE(options.str().find("mesh=target:dp=2,tp=3;draft:dp=3,sp=2"), std::string::npos);
  EXPECT_EQ(getError("mesh=a:dp=2;a:dp=2"), "mesh: stage 'a' is given twice");
  EXPECT_EQ(getError("mesh=:dp=2"),
            "mesh: cannot read ':dp=2': expected stage:name=size[,name=size...]");
  EXPECT_EQ(getError("mesh=a:dp"), "mesh: cannot read 'dp': expected name=size, as in tp=4");
}

TEST(ParallelizeOptions, AllOfThem) {
  ParallelizeOptions options =
      parseValid("mesh=dp=2,tp=4 data_parallel=dp tensor-parallel=none sequence-parallel=on "
                 "shardings={\"*.q_proj.weight\": [{\"tp\"}, {}], '*.w': '[{}, {\"tp\":(1)2}]'} "
                 "device={a100 memory_size=4e10} overlap=off memory-ceiling=80G");
  ASSERT_EQ(options.mesh.axes.size(), 2u);
  EXPECT_EQ(options.mesh.axes[1].name, "tp");
  EXPECT_EQ(options.mesh.axes[1].size, 4);
  EXPECT_EQ(options.axes.get(AxisRole::Data).name, "dp");
  EXPECT_EQ(options.axes.get(AxisRole::Tensor).kind, AxisChoice::None);
  EXPECT_EQ(options.sequenceParallel, OnOffAuto::On);
  ASSERT_EQ(options.shardings.rules.size(), 2u);
  EXPECT_EQ(options.shardings.rules[0].sharding, "[{\"tp\"}, {}]");
  EXPECT_TRUE(options.shardings.rules[0].matches("model.layers.0.q_proj.weight"));
  EXPECT_FALSE(options.shardings.rules[0].matches("model.layers.0.k_proj.weight"));
  EXPECT_EQ(options.shardings.rules[1].sharding, "[{}, {\"tp\":(1)2}]");
  EXPECT_EQ(options.device, "a100 memory_size=4e10");
  EXPECT_EQ(options.overlap, OnOffAuto::Off);
  EXPECT_EQ(options.memoryCeiling, int64_t(80) << 30);
  // The spelling reads back.
  EXPECT_EQ(parseValid(options.str()).str(), options.str());
}

TEST(ParallelizeOptions, AxesOfRoles) {
  ParallelizeOptions options =
      parseValid("data-parallel=auto context-parallel={ulysses=sp ring=auto order=zigzag}");
  EXPECT_EQ(options.axes.get(AxisRole::Ulysses).name, "sp");
  EXPECT_EQ(options.axes.get(AxisRole::Ring).kind, AxisChoice::Auto);
  EXPECT_EQ(options.sequenceOrder, SequenceOrder::Zigzag);
  EXPECT_TRUE(options.shardsSequences());
  EXPECT_FALSE(options.axes.isSet(AxisRole::Tensor));
  EXPECT_TRUE(options.axes.complete().isSet(AxisRole::Tensor));
  EXPECT_EQ(parseValid(options.str()).str(), options.str());
  EXPECT_FALSE(parseValid("").shardsSequences());

  // As declare-mesh reads and prints them.
  std::string text, message;
  llvm::raw_string_ostream os(text);
  os << options.axes.complete();
  EXPECT_EQ(text, "data=auto,tensor=auto,ring=auto,ulysses=sp,gtp=auto,expert=auto");
  auto read = [&](llvm::StringRef list) {
    AxisChoices choices;
    return parseOptionText(list, choices, [&](const llvm::Twine &error) -> llvm::LogicalResult {
      message = error.str();
      return llvm::failure();
    });
  };
  EXPECT_TRUE(succeeded(read(text)));
  EXPECT_TRUE(failed(read("model=tp")));
  EXPECT_EQ(message.find("unknown role 'model' in 'model=tp': expected role=axis with data, "), 0u);
  EXPECT_TRUE(failed(read("data=a,data=b")));
  EXPECT_EQ(message, "role 'data' is given twice");
  EXPECT_TRUE(failed(read("data=")));
  EXPECT_EQ(message, "role 'data': expected the name of an axis, none or auto, got nothing");
}

TEST(ParallelizeOptions, TypesOfSums) {
  EXPECT_TRUE(parseValid("").reduceTypes.rules.empty());
  EXPECT_TRUE(parseValid("reduce-type=own").reduceTypes.rules.empty());
  EXPECT_TRUE(parseValid("reduce-type=f32").reduceTypes.get("any") == ReduceType::F32);
  ParallelizeOptions options =
      parseValid("reduce-type={\"*.0.down_proj\": own, \"*.down_proj\": \"f32\"}");
  EXPECT_FALSE(options.reduceTypes.get("layers.0.down_proj") == ReduceType::F32);
  EXPECT_TRUE(options.reduceTypes.get("layers.1.down_proj") == ReduceType::F32);
  EXPECT_FALSE(options.reduceTypes.get("layers.1.up_proj") == ReduceType::F32);
  EXPECT_EQ(parseValid(options.str()).str(), options.str());
  EXPECT_NE(getError("reduce-type=bf16").find("reduce-type: no braces around the rules: expected "
                                              "own or f32, or {\"pattern\": \"f32\", ...}, got 'bf16'"),
            std::string::npos);
  EXPECT_NE(getError("reduce-type={\"a\": bf16}").find("the value of 'a' is 'bf16'"),
            std::string::npos);
}

TEST(ParallelizeOptions, Errors) {
  EXPECT_EQ(getError("mesh=tp"), "mesh: cannot read 'tp': expected name=size, as in tp=4");
  EXPECT_EQ(getError("mesh=tp=0"), "mesh: axis 'tp': expected a size of at least 1, got 0");
  EXPECT_EQ(getError("mesh=tp=2,tp=2"), "mesh: axis 'tp' is given twice");
  EXPECT_EQ(getError("mesh=a=1000000,b=1000000,c=2"), "mesh: more than 2^40 ranks");
  EXPECT_EQ(getError("sequence-parallel=yes"),
            "sequence-parallel: expected on, off or auto, got 'yes'");
  EXPECT_EQ(getError("overlap=maybe"), "overlap: expected on, off or auto, got 'maybe'");
  EXPECT_EQ(getError("device=h100 device=a100"), "option 'device' is given twice");
  EXPECT_EQ(getError("memory-ceiling=-1"), "memory-ceiling: expected a positive number of "
                                           "bytes, with K, M or G behind it or not, got '-1'");
  EXPECT_EQ(getError("memory-ceiling=0.4"), "memory-ceiling: expected a positive number of "
                                            "bytes, with K, M or G behind it or not, got '0.4'");
  std::string message;
  EXPECT_EQ(parse("memory-ceiling=8.5K", message)->memoryCeiling, 8704);
  EXPECT_NE(getError("target-cpu=x").find("option 'target-cpu' is now 'target'"), std::string::npos);
  EXPECT_NE(getError("target=").find("target is empty: expected cpu or cpu:NAME"),
            std::string::npos);
  EXPECT_NE(getError("data-parallel-attention=0")
                .find("data-parallel-attention: expected auto or a number from 1"),
            std::string::npos);
  EXPECT_NE(getError("token-gather=least").find("token-gather: expected "), std::string::npos);
  EXPECT_NE(getError("dp-lm-head=half").find("dp-lm-head: expected "), std::string::npos);
  EXPECT_NE(getError("fsdp=x").find("unknown option 'fsdp'; supported are mesh, "),
            std::string::npos);
  EXPECT_NE(getError("nonsense").find("expected key=value pairs"), std::string::npos);
  EXPECT_NE(getError("shardings={\"a\": [{}").find("a bracket or quote stays open"),
            std::string::npos);
  EXPECT_NE(getError("shardings={\"a\": {\"tp\"}}").find("the sharding of 'a' is '{\"tp\"}'"),
            std::string::npos);
  EXPECT_NE(getError("shardings={\"[\": [{}]}").find("pattern '['"), std::string::npos);
}

} // namespace
