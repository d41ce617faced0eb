//===- ParallelizeOptions.h - the options of a plan -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The list of options of `--parallelize` and of Python's `parallelize`. A command line
// spells them `mesh=dp=2,tp=4 sequence-parallel=auto`; Python uses keywords with
// underscores. The structs are plain data: passes that know the mesh check axes and devices.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_PARALLELIZEOPTIONS_H
#define MESHWRIGHT_LIB_SUPPORT_PARALLELIZEOPTIONS_H

#include "meshwright/lib/Support/AxisChoices.h"
#include "meshwright/lib/Support/CacheSharding.h"
#include "meshwright/lib/Support/DpAttentionOptions.h"
#include "meshwright/lib/Support/GatherKind.h"
#include "meshwright/lib/Support/NumberOrAuto.h"
#include "meshwright/lib/Support/OnOffAuto.h"
#include "meshwright/lib/Support/OptionParser.h"
#include "meshwright/lib/Support/RecomputeMode.h"
#include "meshwright/lib/Support/SequenceOrder.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshwright {

/// A named axis of a mesh.
struct MeshAxisOption {
  std::string name;
  int64_t size;
};

/// The mesh of one stage of a composed program.
struct StageMeshOption {
  std::string stage;
  std::vector<MeshAxisOption> axes;
};

/// The mesh that a user asks for. At most one of the two lists has elements.
struct MeshOption {
  /// Major to minor.
  std::vector<MeshAxisOption> axes;
  /// A composed program has a mesh for each stage, over the same ranks.
  std::vector<StageMeshOption> stages;

  bool empty() const { return axes.empty() && stages.empty(); }
};

/// Returns true if a shell pattern matches the name.
bool matchesPattern(llvm::StringRef pattern, llvm::StringRef name);

/// The sharding of every parameter whose name matches a shell pattern.
struct ShardingRule {
  std::string pattern;
  /// The bracketed part of a `#dist.sharding`: `[{"tp"}, {}]`.
  std::string sharding;

  /// Returns true if the pattern matches the name, or alias, of a parameter.
  bool matches(llvm::StringRef name) const;
};

/// Rules in the order given: the first one that matches a name wins.
struct ShardingRules {
  std::vector<ShardingRule> rules;
};

/// The type in which partial sums leave products and travel.
enum class ReduceType {
  /// The program's.
  Own,
  F32
};

template <> struct Spellings<ReduceType> {
  static constexpr Spelling<ReduceType> all[] = {{ReduceType::Own, "own"},
                                                 {ReduceType::F32, "f32"}};
};

/// Values by name, in the order given: the first shell pattern that matches wins. Other names have
/// the first value of the enum.
template <typename E> struct NamedRules {
  struct Rule {
    std::string pattern;
    E value;
  };
  std::vector<Rule> rules;

  /// The number of the rule for a name, if there is one.
  std::optional<size_t> find(llvm::StringRef name) const {
    for (size_t i = 0; i < rules.size(); ++i)
      if (matchesPattern(rules[i].pattern, name))
        return i;
    return std::nullopt;
  }
  E get(llvm::StringRef name) const {
    std::optional<size_t> rule = find(name);
    return rule ? rules[*rule].value : Spellings<E>::all[0].value;
  }
};

/// The types of the sums of ops, by the names of their modules.
using ReduceTypes = NamedRules<ReduceType>;
/// The forms in which weights travel, by their names.
using GatherRules = NamedRules<GatherKind>;
/// Axes of weights, by their names.
using AxisRules = NamedRules<AxisChoice>;

/// The type in which parts of gradients of weights travel to the ranks that store them.
enum class GtpReduce {
  /// As they leave products: f32 for narrower weights.
  Plain,
  /// Parts in f32 are rounded for the way, and summed in f32.
  Narrow
};

template <> struct Spellings<GtpReduce> {
  static constexpr Spelling<GtpReduce> all[] = {{GtpReduce::Plain, "plain"},
                                                {GtpReduce::Narrow, "bf16"}};
};

/// The form in which ranks hold weights of codes and scales.
enum class StoredWeights {
  /// Codes and scales, as they are stored.
  Keep,
  /// Numbers of the model's type, computed at load.
  Widen
};

template <> struct Spellings<StoredWeights> {
  static constexpr Spelling<StoredWeights> all[] = {{StoredWeights::Keep, "keep"},
                                                    {StoredWeights::Widen, "widen"}};
};

/// The axes over which the weights of a stage of a composed program are sharded.
enum class FoldMode {
  /// Both axes of context parallelism.
  Sp,
  Ulysses,
  Ring,
  /// All axes except the data-parallel one.
  Replica,
  /// None: the batch is sharded over both axes of context parallelism.
  Batch,
  /// The cheapest of the other modes.
  Auto,
  /// The tensor-parallel axis, as in other stages.
  None
};

template <> struct Spellings<FoldMode> {
  static constexpr Spelling<FoldMode> all[] = {
      {FoldMode::Sp, "sp"},           {FoldMode::Ulysses, "ulysses"}, {FoldMode::Ring, "ring"},
      {FoldMode::Replica, "replica"}, {FoldMode::Batch, "batch"},     {FoldMode::Auto, "auto"},
      {FoldMode::None, "none"}};
};

/// The aim of a planner that compares finished plans.
enum class Objective {
  /// The least time, under the memory of the device.
  Time,
  /// The least memory of a rank; of equal memory the least time.
  Memory,
  /// The least memory of the plans whose time is near the least.
  TimeThenMemory
};

template <> struct Spellings<Objective> {
  static constexpr Spelling<Objective> all[] = {{Objective::Time, "time"},
                                                {Objective::Memory, "memory"},
                                                {Objective::TimeThenMemory, "time-then-memory"}};
};

struct FoldRule {
  std::string stage;
  FoldMode mode;
};

struct ParallelizeOptions {
  /// If empty, the IR has the mesh.
  MeshOption mesh;
  /// The planner chooses a mesh of so many ranks, which has the axes of `mesh`; 0: `mesh`, or the IR, has
  /// the mesh.
  int64_t ranks = 0;
  /// With `mesh=auto` the planner chooses a mesh of `ranks` ranks, or of as many as the IR's has.
  bool isMeshAuto = false;
  /// If set, the planner compares finished plans for the options that are `auto`.
  std::optional<Objective> objective;
  /// The options that a user spells out as `auto`, of `getPlannedOptions`: the planner compares finished
  /// plans for these. Options that a user leaves out are chosen without plans.
  std::vector<std::string> statedAuto;
  /// The axes of data, tensor and context parallelism.
  AxisChoices axes;
  OnOffAuto sequenceParallel = OnOffAuto::Auto;
  CacheSharding cacheSharding = CacheSharding::Auto;
  DpAttentionOptions dpAttention;
  /// The order of sequences on the ring of context parallelism.
  SequenceOrder sequenceOrder = SequenceOrder::Auto;
  std::vector<FoldRule> fold;
  ShardingRules shardings;
  /// The name of a preset, numbers that override its own, or both:
  /// "h100 memory_size=4e10". If empty, the device of the mesh, or else the default.
  std::string device;
  /// Says if collectives run beside kernels, in chunks where these hide more.
  OnOffAuto overlap = OnOffAuto::Auto;
  /// Says if what an optimizer keeps is sharded over ranks that hold equal parameters.
  OnOffAuto shardOptimizer = OnOffAuto::Auto;
  /// Stored rows of weights come in multiples of it.
  NumberOrAuto<1> gtpAlign;
  /// The most weights that are gathered before the one in use; 0: each gather waits.
  NumberOrAuto<0> gtpPrefetch;
  /// Says if gathered weights are kept from the forward to the backward pass.
  OnOffAuto gtpKeep = OnOffAuto::Auto;
  GtpReduce gtpReduce = GtpReduce::Plain;
  GatherRules gtpGather;
  /// The axes over which weights are stored in shards, where they are not the same for all: those of the
  /// role are the axes of all rules.
  AxisRules gtpAxes;
  /// Says if values that several ranks hold alike are kept in shards for the backward pass.
  OnOffAuto shardSaved = OnOffAuto::Auto;
  /// Says which values of the forward pass the backward pass computes again.
  RecomputeMode recompute = RecomputeMode::Auto;
  /// The most bytes that a rank may hold.
  std::optional<int64_t> memoryCeiling;
  /// The share of its even part of the choices that each expert takes at most; 0: all.
  double expertCapacity = 0;
  /// The load of the fullest rank that costs assume, as a multiple of the even load.
  double expertLoad = 1;
  /// The form in which ranks hold weights of codes and scales.
  StoredWeights storedWeights = StoredWeights::Keep;
  /// The types in which partial sums leave products and travel.
  ReduceTypes reduceTypes;
  /// The target that kernels are written for, as `cpu:x86-64-v3`; empty: `cpu`.
  std::string target;

  /// Returns true with context parallelism: ranks compute attention over a sharded sequence.
  /// Heads move along one axis (Ulysses), and keys and values along the other (ring).
  bool shardsSequences() const {
    return axes.mayHave(AxisRole::Ulysses) || axes.mayHave(AxisRole::Ring);
  }

  /// Returns true if the planner chooses the mesh or each option that is `auto`.
  bool asksForAll() const { return ranks > 0 || isMeshAuto || objective.has_value(); }
  /// Returns true if the planner chooses options.
  bool asksPlanner() const { return asksForAll() || !statedAuto.empty(); }
  /// Returns true if the planner chooses the option of that name, of `getPlannedOptions`.
  bool asksFor(llvm::StringRef option) const {
    return asksForAll() || llvm::is_contained(statedAuto, option);
  }
  /// Removes what asks the planner. Options stay as they are.
  void forgetPlanner() {
    ranks = 0;
    isMeshAuto = false;
    objective = std::nullopt;
    statedAuto.clear();
  }

  /// The groups of requests of a program that serves: ranks of different groups compute different
  /// requests.
  int64_t countGroups() const;

  /// The ranks over which a group's pages are dealt: 1 for a cache by key/value heads.
  int64_t countDealt() const;

  /// How the tokens of all groups meet in a program that serves: padded without data-parallel attention.
  TokenGather getTokenGather() const;

  /// The text from which `parseParallelizeOptions` reads equal options.
  std::string str() const;
};

/// The options that the planner chooses where a user spells them out as `auto`.
llvm::ArrayRef<llvm::StringRef> getPlannedOptions();

/// Reads `key=value` pairs that white space separates. A value may contain white space
/// within brackets, braces or quotes. An underscore in a key counts as a dash.
llvm::FailureOr<ParallelizeOptions> parseParallelizeOptions(llvm::StringRef text,
                                                            OptionErrorHandler error);

/// Readers and printers for options of passes that have types of ParallelizeOptions.
llvm::LogicalResult parseOptionText(llvm::StringRef text, MeshOption &mesh,
                                    OptionErrorHandler error);
llvm::LogicalResult parseOptionText(llvm::StringRef text, ShardingRules &shardings,
                                    OptionErrorHandler error);
llvm::LogicalResult parseOptionText(llvm::StringRef text, ReduceTypes &types,
                                    OptionErrorHandler error);
llvm::LogicalResult parseOptionText(llvm::StringRef text, GatherRules &rules,
                                    OptionErrorHandler error);
llvm::LogicalResult parseOptionText(llvm::StringRef text, AxisRules &rules,
                                    OptionErrorHandler error);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const MeshOption &mesh);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const ShardingRules &shardings);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const ReduceTypes &types);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const GatherRules &rules);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const AxisRules &rules);

/// An option, for help and documents.
struct OptionDescription {
  llvm::StringRef name;
  llvm::StringRef values;
  llvm::StringRef description;
  /// The value of an option that is not given. Empty: there is none.
  llvm::StringRef defaultValue = "auto";
};
llvm::ArrayRef<OptionDescription> getParallelizeOptionDescriptions();

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::MeshOption>
    : public meshwright::TextOptionParser<meshwright::MeshOption> {
public:
  using TextOptionParser::TextOptionParser;
};

template <>
class llvm::cl::parser<meshwright::ShardingRules>
    : public meshwright::TextOptionParser<meshwright::ShardingRules> {
public:
  using TextOptionParser::TextOptionParser;
};

template <>
class llvm::cl::parser<meshwright::ReduceTypes>
    : public meshwright::TextOptionParser<meshwright::ReduceTypes> {
public:
  using TextOptionParser::TextOptionParser;
};

template <>
class llvm::cl::parser<meshwright::GatherRules>
    : public meshwright::TextOptionParser<meshwright::GatherRules> {
public:
  using TextOptionParser::TextOptionParser;
};

template <>
class llvm::cl::parser<meshwright::AxisRules>
    : public meshwright::TextOptionParser<meshwright::AxisRules> {
public:
  using TextOptionParser::TextOptionParser;
};

template <>
class llvm::cl::parser<meshwright::FoldMode>
    : public meshwright::TextOptionParser<meshwright::FoldMode> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_PARALLELIZEOPTIONS_H
