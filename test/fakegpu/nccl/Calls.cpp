//===- Calls.cpp - The functions of NCCL's API ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Services.h"
#include "nccl/Group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

using namespace fakegpu;
using namespace fakegpu::nccl;

namespace {

constexpr unsigned kMakingPolls = 600000; // of 200 us: two minutes

/// Attaches to the file of a communicator, which is complete when all ranks are there.
Making making(ncclComm_t comm, const std::string &name, int rank, int ranks, int device) {
  Making m;
  auto state = std::make_shared<std::shared_ptr<Communicator>>();
  auto error = std::make_shared<std::string>();
  auto polls = std::make_shared<unsigned>(0);
  m.poll = [=] {
    if (!*state && error->empty()) {
      auto shared = Rendezvous::open(name, unsigned(ranks));
      if (!shared) {
        *error = "no memory that ranks share";
        return true;
      }
      *state = std::make_shared<Communicator>(std::move(shared), name, unsigned(rank), unsigned(ranks), device);
      *error = (*state)->join();
    }
    if (!error->empty() || (*state)->complete())
      return true;
    if (++*polls == kMakingPolls)
      *error = "deadlock: not all of " + std::to_string(ranks) + " ranks have joined the communicator";
    return !error->empty();
  };
  m.finish = [=]() -> ncclResult_t {
    if (!error->empty())
      return refuse(ncclInvalidUsage, *error);
    if (ncclResult_t r = (*state)->asyncError())
      return refuse(r, (*state)->lastError());
    comm->communicator = *state;
    return ncclSuccess;
  };
  return m;
}

ncclResult_t initialise(ncclComm_t *out, int ranks, const ncclUniqueId &id, int rank, int device, const ncclConfig_t *config) {
  if (!out || ranks < 1 || ranks > int(kMaxRanks) || rank < 0 || rank >= ranks)
    return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " (the stand-in has at most " + std::to_string(kMaxRanks) + ")");
  if (strncmp(id.internal, "fakegpu-nccl-", 13))
    return refuse(ncclInvalidArgument, "the id does not come from ncclGetUniqueId");
  if (config && (config->magic != 0xcafebeef || config->size < sizeof(size_t) + 2 * sizeof(int)))
    return refuse(ncclInvalidArgument, "the configuration was not made by NCCL_CONFIG_INITIALIZER");
  if (device < 0)
    return refuse(ncclUnhandledCudaError, "this thread has no current context");
  *out = new ncclComm;
  Making m = making(*out, id.internal, rank, ranks, device);
  if (!config || config->blocking != 0)
    return add(std::move(m));
  // ncclCommGetAsyncError says ncclInProgress until the thread is done.
  (*out)->making = true;
  std::thread([m, comm = *out] {
    while (!m.poll())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    comm->failed = m.finish();
    comm->making = false;
  }).detach();
  return ncclInProgress;
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *out) {
  auto parent = comm->communicator;
  *out = nullptr;
  auto number = std::make_shared<uint64_t>(0);
  auto inner = std::make_shared<Making>();
  auto *made = color == NCCL_SPLIT_NOCOLOR ? nullptr : new ncclComm;
  Making m;
  m.poll = [=] {
    std::vector<unsigned> members;
    if (!*number)
      *number = parent->startSplit(color, key);
    if (!inner->poll) {
      if (!parent->endSplit(*number, color, members))
        return false;
      if (!made)
        return true;
      auto own = std::find(members.begin(), members.end(), parent->rank) - members.begin();
      *inner = making(made, parent->name + "-" + std::to_string(*number) + "." + std::to_string(color), int(own), int(members.size()), parent->device);
    }
    return inner->poll();
  };
  m.finish = [=]() -> ncclResult_t {
    return made ? inner->finish() : ncclSuccess;
  };
  *out = made;
  return add(std::move(m));
}

Operation operation(Operation::Kind kind, size_t count, ncclDataType_t type, ncclRedOp_t reduction = ncclSum, int peer = 0) {
  Operation op;
  op.kind = kind, op.count = count, op.type = type, op.reduction = reduction, op.peer = peer;
  return op;
}

} // namespace

#define FAKENCCL_ENTER(call)                                                                       \
  if (ncclResult_t entered = enter(call))                                                          \
  return entered
#define FAKENCCL_COMM(comm)                                                                        \
  if (!(comm) || !(comm)->communicator)                                                            \
  return refuse(ncclInvalidArgument, "the communicator is null")

FAKENCCL_EXPORT ncclResult_t ncclGetVersion(int *version) {
  const char *text = getenv("FAKEGPU_NCCL");
  *version = text && *text ? atoi(text) : NCCL_VERSION_CODE;
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  FAKENCCL_ENTER("ncclGetUniqueId");
  memset(id, 0, sizeof *id);
  strncpy(id->internal, uniqueName().c_str(), sizeof id->internal - 1);
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  FAKENCCL_ENTER("ncclCommInitRankConfig");
  return initialise(comm, ranks, id, rank, services::currentDevice(), config);
}

FAKENCCL_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
  FAKENCCL_ENTER("ncclCommInitRank");
  return initialise(comm, ranks, id, rank, services::currentDevice(), nullptr);
}

FAKENCCL_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int devices, const int *list) {
  FAKENCCL_ENTER("ncclCommInitAll");
  ncclUniqueId id;
  if (ncclResult_t r = ncclGetUniqueId(&id))
    return r;
  groupStart();
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < devices && !result; ++i)
    result = initialise(&comms[i], devices, id, i, list ? list[i] : i, nullptr);
  ncclResult_t ended = groupEnd();
  return result ? result : ended;
}

FAKENCCL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *) {
  FAKENCCL_ENTER("ncclCommSplit");
  FAKENCCL_COMM(comm);
  return split(comm, color, key, out);
}

FAKENCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  FAKENCCL_ENTER("ncclCommFinalize");
  FAKENCCL_COMM(comm);
  services::awaitKey(comm->communicator.get());
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  FAKENCCL_ENTER("ncclCommDestroy");
  if (!comm)
    return ncclSuccess;
  if (comm->making)
    return refuse(ncclInvalidUsage, "the communicator is not ready");
  if (comm->communicator) {
    services::awaitKey(comm->communicator.get());
    comm->communicator->leave();
  }
  delete comm;
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  FAKENCCL_ENTER("ncclCommAbort");
  if (!comm)
    return ncclSuccess;
  if (comm->making)
    return refuse(ncclInvalidUsage, "the communicator is not ready");
  if (comm->communicator)
    comm->communicator->abort(); // its requests end; the last of them frees it
  delete comm;
  return ncclSuccess;
}

FAKENCCL_EXPORT const char *ncclGetErrorString(ncclResult_t code) {
  switch (code) {
  case ncclSuccess: return "no error";
  case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
  case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
  case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
  case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
  case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  case ncclRemoteError: return "remote process exited or there was a network error";
  case ncclInProgress: return "NCCL operation in progress";
  case ncclTimeout: return "operation timed out";
  default: return "unknown result code";
  }
}

FAKENCCL_EXPORT const char *ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string text;
  text = comm && comm->communicator ? comm->communicator->lastError() : "";
  if (text.empty())
    text = lastRefusal();
  return text.c_str();
}

FAKENCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  FAKENCCL_ENTER("ncclCommGetAsyncError");
  if (!comm || !error)
    return refuse(ncclInvalidArgument, "the communicator is null");
  if (comm->making || comm->failed) {
    *error = comm->making ? ncclInProgress : ncclResult_t(comm->failed.load());
    return ncclSuccess;
  }
  comm->communicator->noteLost(false);
  *error = comm->communicator->asyncError();
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  FAKENCCL_COMM(comm);
  *count = int(comm->communicator->ranks);
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  FAKENCCL_COMM(comm);
  *device = comm->communicator->device;
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  FAKENCCL_COMM(comm);
  *rank = int(comm->communicator->rank);
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclMemAlloc(void **out, size_t size) {
  FAKENCCL_ENTER("ncclMemAlloc");
  CUdeviceptr at = 0;
  if (cuMemAlloc(&at, size))
    return refuse(ncclUnhandledCudaError, "ncclMemAlloc of " + std::to_string(size) + " bytes");
  *out = reinterpret_cast<void *>(at);
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclMemFree(void *at) {
  FAKENCCL_ENTER("ncclMemFree");
  return cuMemFree(reinterpret_cast<CUdeviceptr>(at)) ? ncclUnhandledCudaError : ncclSuccess;
}

/// Registration makes transfers faster and has no other effect.
FAKENCCL_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t size, void **handle) {
  FAKENCCL_ENTER("ncclCommRegister");
  FAKENCCL_COMM(comm);
  if (!services::bytes(comm->communicator->device, buffer, size))
    return refuse(ncclInvalidArgument, "ncclCommRegister of memory that is not allocated");
  *handle = buffer;
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *) {
  FAKENCCL_ENTER("ncclCommDeregister");
  FAKENCCL_COMM(comm);
  return ncclSuccess;
}

FAKENCCL_EXPORT ncclResult_t ncclGroupStart() {
  FAKENCCL_ENTER("ncclGroupStart");
  return groupStart();
}

FAKENCCL_EXPORT ncclResult_t ncclGroupEnd() {
  FAKENCCL_ENTER("ncclGroupEnd");
  return groupEnd();
}

FAKENCCL_EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::AllReduce, count, type, op), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::Reduce, count, type, op, root), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::Broadcast, count, type, ncclSum, root), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::ReduceScatter, count, type, op), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::AllGather, count, type), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::AllToAll, count, type), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclGather(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::Gather, count, type, ncclSum, root), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclScatter(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::Scatter, count, type, ncclSum, root), send, receive, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::Send, count, type, ncclSum, peer), send, nullptr, comm, stream);
}

FAKENCCL_EXPORT ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(operation(Operation::Receive, count, type, ncclSum, peer), nullptr, receive, comm, stream);
}
