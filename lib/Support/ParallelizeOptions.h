//===- ParallelizeOptions.h - what a user may ask for -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The one list of options, spelt `mesh=dp=2,tp=4 sequence-parallel=auto` on a
// command line and with underscores as Python keywords. Plain data: what an
// axis or a device means is checked where the mesh is known.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_PARALLELIZEOPTIONS_H
#define MESHWRIGHT_LIB_SUPPORT_PARALLELIZEOPTIONS_H

#include "meshwright/lib/Support/OnOffAuto.h"
#include "meshwright/lib/Support/OptionParser.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshwright {

/// A named axis of the mesh a user asks for.
struct MeshAxisOption {
  std::string name;
  int64_t size;
};

/// The axes that a stage of a composed program sees.
struct StageMeshOption {
  std::string stage;
  std::vector<MeshAxisOption> axes;
};

/// The mesh that a user asks for. At most one of the lists has elements.
struct MeshOption {
  /// Major to minor.
  std::vector<MeshAxisOption> axes;
  /// Of a composed program: a mesh for each stage, over the same ranks.
  std::vector<StageMeshOption> stages;

  bool empty() const { return axes.empty() && stages.empty(); }
};

/// The sharding of every parameter whose name matches a shell pattern.
struct ShardingRule {
  std::string pattern;
  /// The bracketed part of a `#dist.sharding`: `[{"tp"}, {}]`.
  std::string sharding;

  /// Whether the pattern matches a parameter's name (or one of its aliases).
  bool matches(llvm::StringRef name) const;
};

/// In the order given: the first rule that matches a name wins.
struct ShardingRules {
  std::vector<ShardingRule> rules;
};

/// How an axis for a purpose is chosen.
struct AxisChoice {
  enum Kind {
    /// The mesh's axis of the usual name, if it has one.
    Default,
    /// `none`: not at all.
    None,
    /// The axis named, which the mesh must have.
    Named,
  } kind = Default;
  std::string name;

  /// The name to look for: that given, or `usual`; empty for None.
  llvm::StringRef getName(llvm::StringRef usual) const {
    return kind == None ? llvm::StringRef() : kind == Named ? llvm::StringRef(name) : usual;
  }
};

/// How attention over a sharded sequence is computed: heads move along one axis
/// (Ulysses), keys and values travel along the other (ring).
struct ContextParallel {
  /// Axes of the mesh, or auto; both empty where not asked for.
  std::string ulysses, ring;
  /// contiguous, zigzag, striped or auto.
  std::string order = "auto";

  bool isWanted() const { return !ulysses.empty() || !ring.empty(); }
  std::string str() const;
};

/// Over which axes a stage of a composed program is sharded: both axes of context
/// parallelism, one of them, all axes but the data-parallel one; or its batch over both
/// axes of context parallelism; or as other stages.
enum class FoldMode { Sp, Ulysses, Ring, Replica, Batch, Auto, None };

llvm::StringRef stringify(FoldMode mode);

struct FoldRule {
  std::string stage;
  FoldMode mode;
};

struct ParallelizeOptions {
  /// Empty: the IR's own mesh.
  MeshOption mesh;
  /// Usual name "dp".
  AxisChoice dataParallel;
  /// Usual name "tp".
  AxisChoice tensorParallel;
  OnOffAuto sequenceParallel = OnOffAuto::Auto;
  ContextParallel contextParallel;
  std::vector<FoldRule> fold;
  ShardingRules shardings;
  /// A preset's name, numbers that override its own ("h100 memory_size=4e10"), or
  /// both; empty: the mesh's, else the default.
  std::string device;
  /// Whether collectives run beside kernels, in chunks where that hides more.
  OnOffAuto overlap = OnOffAuto::Auto;
  /// Bytes a rank may hold.
  std::optional<int64_t> memoryCeiling;

  /// The spelling that `parseParallelizeOptions` reads back.
  std::string str() const;
};

/// Reads `ulysses=AXIS ring=AXIS order=ORDER`.
llvm::FailureOr<ContextParallel> parseContextParallel(llvm::StringRef text,
                                                      OptionErrorHandler error);

/// Parses `key=value` pairs separated by white space; a value may hold white
/// space within brackets, braces or quotes. Underscores in keys read as dashes.
llvm::FailureOr<ParallelizeOptions> parseParallelizeOptions(llvm::StringRef text,
                                                            OptionErrorHandler error);

/// For options of passes, whose types are those of ParallelizeOptions.
llvm::LogicalResult parseOptionText(llvm::StringRef text, MeshOption &mesh,
                                    OptionErrorHandler error);
llvm::LogicalResult parseOptionText(llvm::StringRef text, ShardingRules &shardings,
                                    OptionErrorHandler error);
llvm::LogicalResult parseOptionText(llvm::StringRef text, FoldMode &mode,
                                    OptionErrorHandler error);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const MeshOption &mesh);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const ShardingRules &shardings);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, FoldMode mode);

/// An option's name, its values, what it does: for help and documentation.
struct OptionDescription {
  llvm::StringRef name;
  llvm::StringRef values;
  llvm::StringRef description;
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
class llvm::cl::parser<meshwright::FoldMode>
    : public meshwright::TextOptionParser<meshwright::FoldMode> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_PARALLELIZEOPTIONS_H
