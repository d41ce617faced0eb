//===- JointLaunches.h - small collectives in one launch --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_COSTMODEL_JOINTLAUNCHES_H
#define MESHWRIGHT_LIB_COSTMODEL_JOINTLAUNCHES_H

#include "meshwright/lib/CostModel/CostModel.h"

#include "llvm/ADT/MapVector.h"

namespace meshwright {

/// Decides by bytes and times which gathers of weights and scatters of gradients may share a launch.
/// - A collective is small if its bytes take little time beside a launch without bytes.
/// - A joint launch takes so long that the time without bytes hardly counts, and no longer.
/// - Its whole weights, or gradients, are no larger than the largest one of the program.
class JointLaunches {
public:
  explicit JointLaunches(const CostModel &model) : model(model) {}

  /// Returns true for a collective that moves one weight or one gradient.
  static bool isCandidate(dist::CollectiveOpInterface op);
  /// The bytes of the whole weight or gradient of a collective.
  static int64_t getWholeBytes(mlir::Operation *op);

  /// Picoseconds of a launch that moves no bytes.
  int64_t getFixedTime(dist::CollectiveOpInterface op) const;
  /// Picoseconds in which the link moves the bytes.
  int64_t getTransferTime(dist::CollectiveOpInterface op) const;

  /// Notes a candidate of the program, for the largest weight and gradient.
  void note(dist::CollectiveOpInterface op);
  bool isSmall(dist::CollectiveOpInterface op) const;

  /// The collectives of a joint launch.
  struct Group {
    int64_t members = 0, bytes = 0, transfer = 0;
  };
  void add(Group &group, dist::CollectiveOpInterface op) const;
  /// Returns true if the launch may take the collective along. At most `ahead` weights travel together.
  bool hasRoom(const Group &group, dist::CollectiveOpInterface op, std::optional<int64_t> ahead) const;

private:
  /// A collective is small if its bytes take at most so many times the time that a launch without bytes does.
  /// The bytes of a joint launch take at most so many.
  static constexpr int64_t kSmall = 4, kJoint = 8;

  const CostModel &model;
  llvm::MapVector<dist::CollectiveRole, int64_t> largest;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_COSTMODEL_JOINTLAUNCHES_H
