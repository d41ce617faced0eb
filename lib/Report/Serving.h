//===- Serving.h - reports on programs that serve ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The section of a report on a program whose entries are steps of serving.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_SERVING_H
#define MESHWRIGHT_LIB_REPORT_SERVING_H

#include "meshwright/Serving.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

#include <optional>
#include <string>
#include <vector>

namespace meshwright {

struct ServingReport {
  /// A step of serving.
  struct Entry {
    std::string name;
    /// Tokens of a group, and of all groups.
    int64_t tokens = 0, rows = 0;
    /// Bytes that a rank sends, and seconds of a call, by the cost model.
    int64_t bytes = 0;
    double seconds = 0;
  };

  ServingSizes sizes;
  /// Bytes that a rank stores for each token of a group's caches.
  int64_t bytesPerToken = 0;
  /// The ranks that share a dense layer, and whether a group of data-parallel attention computes the
  /// logits of its own requests alone.
  int64_t denseTp = 1;
  bool hasOwnHead = false;
  std::vector<Entry> entries;

  /// How ranks of a group share its caches: each has some heads, or some pages.
  const char *getCacheSharding() const { return sizes.deal > 1 ? "sequence" : "heads"; }
};

/// The section on the module of an SPMD function, of which a rank's caches take `cacheBytes`. None if
/// the program does not serve.
std::optional<ServingReport> buildServingReport(mlir::FunctionOpInterface function,
                                                int64_t cacheBytes);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_SERVING_H
