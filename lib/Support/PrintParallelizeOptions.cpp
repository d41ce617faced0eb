//===- PrintParallelizeOptions.cpp - options as text ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

using llvm::StringRef;
using namespace meshwright;

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const MeshOption &mesh) {
  auto print = [&](const std::vector<MeshAxisOption> &axes) {
    llvm::interleave(
        axes, os, [&](const MeshAxisOption &axis) { os << axis.name << "=" << axis.size; }, ",");
  };
  print(mesh.axes);
  llvm::interleave(
      mesh.stages, os,
      [&](const StageMeshOption &stage) {
        os << stage.stage << ":";
        print(stage.axes);
      },
      ";");
  return os;
}

static void printQuoted(llvm::raw_ostream &os, StringRef text) {
  os << '"';
  for (char c : text)
    os << (c == '"' || c == '\\' ? "\\" : "") << c;
  os << '"';
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const ShardingRules &shardings) {
  os << "{";
  llvm::interleaveComma(shardings.rules, os, [&](const ShardingRule &rule) {
    printQuoted(os, rule.pattern);
    os << ": " << rule.sharding;
  });
  return os << "}";
}

template <typename E>
static llvm::raw_ostream &printRules(llvm::raw_ostream &os, const NamedRules<E> &rules) {
  if (rules.rules.empty())
    return os << Spellings<E>::all[0].text;
  os << "{";
  llvm::interleaveComma(rules.rules, os, [&](const auto &rule) {
    printQuoted(os, rule.pattern);
    os << ": " << rule.value;
  });
  return os << "}";
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const ReduceTypes &types) {
  return printRules(os, types);
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const GatherRules &rules) {
  return printRules(os, rules);
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const AxisRules &rules) {
  os << "{";
  llvm::interleaveComma(rules.rules, os, [&](const auto &rule) {
    printQuoted(os, rule.pattern);
    os << ": [" << rule.value.name << "]";
  });
  return os << "}";
}

std::string ParallelizeOptions::str() const {
  std::string result;
  llvm::raw_string_ostream os(result);
  llvm::ListSeparator space(" ");
  if (!mesh.empty())
    os << space << "mesh=" << mesh;
  if (isMeshAuto)
    os << space << "mesh=auto";
  if (ranks)
    os << space << "ranks=" << ranks;
  if (objective)
    os << space << "objective=" << *objective;
  for (const AxisRoleDescription &known : kAxisRoles)
    if (AxisChoice axis = axes.get(known.role);
        !known.option.empty() && axis.kind != AxisChoices().get(known.role).kind) {
      if (known.role == AxisRole::Gtp && !gtpAxes.rules.empty())
        os << space << known.option << "=" << gtpAxes;
      else
        os << space << known.option << "=" << axis;
    }
  if (sequenceParallel != OnOffAuto::Auto)
    os << space << "sequence-parallel=" << sequenceParallel;
  if (cacheSharding != CacheSharding::Auto)
    os << space << "cache-sharding=" << cacheSharding;
  if (dpAttention.groups.number != 1)
    os << space << "data-parallel-attention=" << dpAttention.groups;
  if (dpAttention.denseTp.number)
    os << space << "dense-tp=" << dpAttention.denseTp;
  if (dpAttention.lmHead != OnOffAuto::Auto)
    os << space << "dp-lm-head=" << dpAttention.lmHead;
  if (dpAttention.gather != TokenGather::Auto)
    os << space << "token-gather=" << dpAttention.gather;
  if (shardsSequences()) {
    os << space << "context-parallel={";
    llvm::ListSeparator part(" ");
    for (AxisRole role : {AxisRole::Ulysses, AxisRole::Ring})
      if (axes.mayHave(role))
        os << part << role << "=" << axes.get(role);
    if (sequenceOrder != SequenceOrder::Auto)
      os << part << "order=" << sequenceOrder;
    os << "}";
  }
  if (!fold.empty()) {
    os << space << "fold={";
    llvm::interleaveComma(fold, os,
                          [&](const FoldRule &rule) { os << rule.stage << ": " << rule.mode; });
    os << "}";
  }
  if (!shardings.rules.empty())
    os << space << "shardings=" << shardings;
  if (!device.empty())
    os << space << "device={" << device << "}";
  if (shardOptimizer != OnOffAuto::Auto)
    os << space << "shard-optimizer=" << shardOptimizer;
  if (gtpAlign.number)
    os << space << "gtp-align=" << gtpAlign;
  if (gtpPrefetch.number)
    os << space << "gtp-prefetch=" << gtpPrefetch;
  if (gtpKeep != OnOffAuto::Auto)
    os << space << "gtp-keep=" << gtpKeep;
  if (gtpReduce != GtpReduce::Plain)
    os << space << "gtp-reduce=" << gtpReduce;
  if (!gtpGather.rules.empty())
    os << space << "gtp-gather=" << gtpGather;
  if (shardSaved != OnOffAuto::Auto)
    os << space << "shard-saved=" << shardSaved;
  if (recompute != RecomputeMode::Auto)
    os << space << "recompute=" << recompute;
  if (overlap != OnOffAuto::Auto)
    os << space << "overlap=" << overlap;
  if (memoryCeiling)
    os << space << "memory-ceiling=" << *memoryCeiling;
  if (expertCapacity > 0)
    os << space << "expert-capacity=" << llvm::format("%.17g", expertCapacity);
  if (expertLoad != 1)
    os << space << "expert-load=" << llvm::format("%.17g", expertLoad);
  if (storedWeights != StoredWeights::Keep)
    os << space << "stored-weights=" << storedWeights;
  if (!reduceTypes.rules.empty())
    os << space << "reduce-type=" << reduceTypes;
  if (!target.empty())
    os << space << "target=" << target;
  // These two are there already.
  for (const std::string &name : statedAuto)
    if (name != "context-parallel" && name != "data-parallel-attention")
      os << space << name << "=auto";
  return result;
}
