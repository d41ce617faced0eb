//===- ProgramFacts.h - the launches and buffers of a plan ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The part of a report that pictures show: the expected schedule, the arena, layers, links, and bytes
// from rank to rank. It grows with the program, so it is made on demand.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_PROGRAMFACTS_H
#define MESHWRIGHT_LIB_REPORT_PROGRAMFACTS_H

#include "meshwright/lib/Support/DecisionLog.h"

#include "mlir/IR/Types.h"
#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llvm::json {
class OStream;
} // namespace llvm::json

namespace meshwright {

/// Elements of a dimension: each range ends before its second number.
using ElementRanges = std::vector<std::pair<int64_t, int64_t>>;

/// A parameter, a state or an input with its layout. Types are spelt `24x48xf32`.
struct TensorLayout {
  std::string name;
  /// "parameter", "input", "state", or the role of a state.
  std::string role;
  std::string whole, local;
  /// The part of `#dist.sharding` behind the mesh: `[{"tp"}, {}]`, and `, unreduced = {"dp"}`.
  std::string sharding;
  /// Bytes on a rank.
  int64_t bytes = 0;
  /// The number of the argument.
  unsigned argument = 0;
  /// For each rank and dimension the elements that the rank holds; none of a dimension that is too long to
  /// list. Empty unless `addShards` adds them.
  std::vector<std::vector<std::optional<ElementRanges>>> shards;
};

/// The facts of the entry's own function, once. Times are seconds of the cost model; bytes and
/// operations are those of a rank.
struct ProgramFacts {
  /// A kernel or a collective, in the order of the program.
  struct Launch {
    /// A kernel's class ("rows", "gemm", "attention", "move"), or "collective".
    std::string kind;
    /// The op that names the launch, and all of its ops.
    std::string op;
    std::vector<std::string> ops;
    /// The name is that of the module, also where the launch moves a weight.
    SourceLocation location;
    std::string layer;
    /// Stream 0 computes.
    int64_t stream = 0;
    double begin = 0, seconds = 0;
    /// The part of a collective's time in which no kernel runs.
    double exposed = 0;
    double flops = 0;
    /// Bytes that a kernel reads and writes, or that a collective sends.
    int64_t bytes = 0;
    /// The time of a kernel at the ceilings of the device; none if the device states none.
    std::optional<double> least;
    /// Of a collective.
    std::vector<std::string> axes;
    std::string role;
    /// The launches whose results it reads.
    std::vector<int64_t> makers;
    /// The launch before which the program waits for it; of a kernel its own number.
    int64_t wait = 0;
  };
  /// A result of a launch in the arena, and the launches at which it is alive, first and last.
  struct Buffer {
    int64_t launch = 0;
    std::string type;
    int64_t offset = 0, bytes = 0, first = 0, last = 0;
  };
  struct Peak {
    int64_t launch = 0, bytes = 0;
    /// Numbers of buffers, the largest first.
    std::vector<int64_t> buffers;
  };
  /// All launches of a module's layer.
  struct Layer {
    std::string name;
    int64_t kernels = 0, collectives = 0;
    /// Bytes of its weights on a rank, of its results, and that it sends.
    int64_t weights = 0, written = 0, sent = 0;
    double flops = 0;
    /// Of kernels, and the least that they take at the ceilings.
    double seconds = 0;
    std::optional<double> least;
    /// Of collectives.
    double exposed = 0, hidden = 0;
  };
  struct Link {
    std::string axis;
    /// Bytes per second; 0 is unknown.
    double bandwidth = 0, latency = 0;
  };
  /// Bytes that one rank sends another in a call.
  struct Sent {
    int64_t from = 0, to = 0;
    double bytes = 0;
  };

  std::string entry;
  /// The time of the function, and the functions that a call runs before it.
  double seconds = 0;
  int64_t otherFunctions = 0;
  std::vector<Launch> launches;
  std::vector<Buffer> buffers;
  /// Bytes of the arena, and of the largest set of buffers that are needed at one time.
  int64_t arena = 0, live = 0;
  std::optional<Peak> peak;
  std::vector<Layer> layers;
  std::vector<Link> links;
  std::vector<Sent> sent;
  /// The weight that the queries of the first attention are a product with; empty if there is none.
  std::string queryWeight;
};

/// The shape and the element type of a tensor, as `24x48xf32`.
std::string formatTensor(mlir::Type type);

/// The layer of a module: its path up to the first number; the whole path if it has none.
std::string getLayerName(llvm::StringRef module);

/// Finds the first launch at which most bytes of the arena are needed. Buffers at one place count once.
std::optional<ProgramFacts::Peak> findPeak(const ProgramFacts &facts);

/// Adds up launches and weights by layer, in the order of the first launches.
std::vector<ProgramFacts::Layer> addUpLayers(const ProgramFacts &facts, llvm::ArrayRef<TensorLayout> layouts);

void printProgramFacts(const ProgramFacts &facts, llvm::json::OStream &json);
void printLayouts(llvm::ArrayRef<TensorLayout> layouts, llvm::json::OStream &json);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_PROGRAMFACTS_H
