//===- Traffic.h - bytes a collective sends ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_TRAFFIC_H
#define MESHWRIGHT_LIB_REPORT_TRAFFIC_H

#include "meshwright/dialects/Dist/Dist.h"

#include <optional>

namespace meshwright {

/// Bytes of a local tensor; booleans take one each. 0 for other types.
int64_t getBytes(mlir::Type type);

/// Bytes a rank sends in one launch of `op`, the largest over the ranks; none
/// where `op` is no launch.
std::optional<int64_t> getSentBytes(mlir::Operation *op, dist::MeshAttr mesh);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_TRAFFIC_H
