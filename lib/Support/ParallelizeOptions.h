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

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/LogicalResult.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshwright {

enum class SequenceParallel { On, Off, Auto };

llvm::StringRef stringify(SequenceParallel mode);

/// Whether collectives run beside kernels, in chunks where that hides more.
enum class Overlap { On, Off, Auto };

llvm::StringRef stringify(Overlap mode);

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

/// The sharding of every parameter whose name matches a shell pattern.
struct ShardingRule {
  std::string pattern;
  /// The bracketed part of a `#dist.sharding`: `[{"tp"}, {}]`.
  std::string sharding;

  /// Whether the pattern matches a parameter's name (or one of its aliases).
  bool matches(llvm::StringRef name) const;
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

/// How a stage of a composed program lies on the axes of context parallelism.
struct FoldRule {
  std::string stage;
  /// sp, ulysses, ring, replica, batch, auto or none.
  std::string mode;
};

struct ParallelizeOptions {
  /// Major to minor; empty: the IR's own mesh.
  std::vector<MeshAxisOption> mesh;
  /// Of a composed program, instead: a mesh for each stage, over the same ranks.
  std::vector<StageMeshOption> stageMeshes;
  /// Usual name "dp".
  AxisChoice dataParallel;
  /// Usual name "tp".
  AxisChoice tensorParallel;
  SequenceParallel sequenceParallel = SequenceParallel::Auto;
  ContextParallel contextParallel;
  std::vector<FoldRule> fold;
  /// In the order given: the first match wins.
  std::vector<ShardingRule> shardings;
  /// A preset's name, numbers that override its own ("h100 memory_size=4e10"), or
  /// both; empty: the mesh's, else the default.
  std::string device;
  Overlap overlap = Overlap::Auto;
  /// Bytes a rank may hold.
  std::optional<int64_t> memoryCeiling;

  /// The mesh's part of `str`, or nothing.
  std::string getMeshText() const;
  /// The spelling that `parseParallelizeOptions` reads back.
  std::string str() const;
};

/// Takes an error's text; returns failure.
using OptionErrorHandler = llvm::function_ref<llvm::LogicalResult(const llvm::Twine &)>;

/// Reads `ulysses=AXIS ring=AXIS order=ORDER`.
llvm::FailureOr<ContextParallel> parseContextParallel(llvm::StringRef text,
                                                      OptionErrorHandler error);

/// Parses `key=value` pairs separated by white space; a value may hold white
/// space within brackets, braces or quotes. Underscores in keys read as dashes.
llvm::FailureOr<ParallelizeOptions> parseParallelizeOptions(llvm::StringRef text,
                                                            OptionErrorHandler error);

/// An option's name, its values, what it does: for help and documentation.
struct OptionDescription {
  llvm::StringRef name;
  llvm::StringRef values;
  llvm::StringRef description;
};
llvm::ArrayRef<OptionDescription> getParallelizeOptionDescriptions();

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_PARALLELIZEOPTIONS_H
