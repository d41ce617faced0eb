//===- Group.h - Calls that are queued together -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_NCCL_GROUP_H
#define FAKEGPU_NCCL_GROUP_H

#include "nccl/Communicator.h"

#define FAKENCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace fakegpu::nccl {

/// Prints and keeps the reason for ncclGetLastError of this thread; returns the code.
ncclResult_t refuse(ncclResult_t code, const std::string &why);
const std::string &lastRefusal();
/// Counts a call, and fails if FAKEGPU_FAIL says so.
ncclResult_t enter(const char *call);

/// The making of a communicator, which needs all ranks: `poll` is called until it returns true.
struct Making {
  std::function<bool()> poll;
  std::function<ncclResult_t()> finish;
};

/// The calls between ncclGroupStart and ncclGroupEnd of this thread. A call outside of a group is a
/// group of its own.
ncclResult_t groupStart();
ncclResult_t groupEnd();
/// Checks a call and adds it to the group.
ncclResult_t add(const Operation &op, const void *send, void *receive, ncclComm_t comm, cudaStream_t stream);
ncclResult_t add(Making making);

} // namespace fakegpu::nccl

#endif
