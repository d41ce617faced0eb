//===- Group.cpp - Calls that are queued together ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "nccl/Group.h"
#include "driver/Services.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

namespace fakegpu::nccl {
namespace {

struct Pending {
  std::shared_ptr<Communicator> communicator;
  CUstream stream;
  Request request;
};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Pending> pending;
  std::vector<Making> makings;
};
thread_local Group group;
thread_local std::string refusal;

/// With NCCL_LAUNCH_ORDER_IMPLICIT=1 all communicators of a device launch in the order of the calls.
bool implicitOrder() {
  const char *text = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return text && *text == '1';
}

/// A device, for whose processors the kernels of its communicators compete.
struct Device {
  std::mutex busy;
};
Device &deviceOf(const Communicator &c) {
  static Device devices[256];
  return devices[c.device];
}

/// A kernel holds the device while it waits for other ranks. Without an order the kernel that is
/// ready first gets it.
ncclResult_t launch(const std::shared_ptr<Communicator> &c, CUstream stream, const char *name, std::function<void()> run, size_t bytes) {
  std::vector<const void *> keys{c.get()};
  if (implicitOrder())
    keys.push_back(&deviceOf(*c));
  auto work = [c, run = std::move(run), bytes] {
    std::lock_guard<std::mutex> lock(deviceOf(*c).busy);
    run();
    return 5000.0 + double(bytes) / 400; // ns at 400 GB/s
  };
  CUresult r = services::enqueue(stream, name, work, keys);
  return r ? ncclUnhandledCudaError : ncclSuccess;
}

/// FAKEGPU_FAIL=ncclAsyncError:n: the n-th operation finds its network broken, and never ends.
void runCollective(Communicator &c, const Request &request, bool broken) {
  if (broken) {
    c.fail(ncclRemoteError, "the network fails by request of FAKEGPU_FAIL", false);
    while (!c.aborted())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  c.collective(request);
}

bool breaksNow() {
  static const bool asked = [] {
    const char *text = getenv("FAKEGPU_FAIL");
    return text && !strncmp(text, "ncclAsyncError", 14);
  }();
  return asked && services::failsNow("ncclAsyncError");
}

/// Queues the requests of one communicator: each collective on its own, then all messages as one.
ncclResult_t launchAll(const std::vector<Pending> &all) {
  std::vector<Request> messages;
  size_t bytes = 0;
  const Pending &first = all.front();
  for (const Pending &p : all) {
    const Operation &op = p.request.operation;
    if (op.kind == Operation::Send || op.kind == Operation::Receive) {
      messages.push_back(p.request);
      bytes += op.count * sizeOf(op.type);
      continue;
    }
    Communicator &c = *p.communicator;
    size_t moved = (sentElements(op, c.rank, c.ranks) + receivedElements(op, c.rank, c.ranks)) * sizeOf(op.type);
    bool broken = breaksNow();
    if (ncclResult_t r = launch(p.communicator, p.stream, op.call(), [&c, request = p.request, broken] { runCollective(c, request, broken); }, moved))
      return r;
  }
  if (messages.empty())
    return ncclSuccess;
  Communicator &c = *first.communicator;
  const char *name = messages.size() > 1 ? "ncclSendRecv" : messages[0].operation.call();
  return launch(first.communicator, first.stream, name, [&c, messages] { c.messages(messages); }, bytes);
}

ncclResult_t makeAll(std::vector<Making> makings) {
  for (;;) {
    bool all = true;
    for (Making &m : makings)
      all &= m.poll();
    if (all)
      break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ncclResult_t result = ncclSuccess;
  for (Making &m : makings)
    if (ncclResult_t r = m.finish())
      result = r;
  return result;
}

/// Buffers may be the same only where NCCL works in place.
bool inPlace(const Operation &op, unsigned rank, const void *send, const void *receive) {
  auto *s = static_cast<const char *>(send), *r = static_cast<const char *>(receive);
  size_t bytes = op.count * sizeOf(op.type);
  switch (op.kind) {
  case Operation::AllGather:
  case Operation::Gather: return s == r + rank * bytes;
  case Operation::ReduceScatter:
  case Operation::Scatter: return r == s + rank * bytes;
  case Operation::AllToAll: return false;
  default: return s == r;
  }
}

ncclResult_t checkOperation(const Operation &op, const Communicator &c) {
  if (!sizeOf(op.type))
    return refuse(ncclInvalidArgument, std::string(op.call()) + ": unknown or unsupported data type " + std::to_string(op.type));
  if (op.reduces() && unsigned(op.reduction) >= unsigned(ncclNumOps))
    return refuse(ncclInvalidArgument, std::string(op.call()) + ": unknown reduction " + std::to_string(op.reduction));
  if (op.peer < 0 || unsigned(op.peer) >= c.ranks)
    return refuse(ncclInvalidArgument, op.text() + ": there are " + std::to_string(c.ranks) + " ranks");
  if (c.aborted() || !c.ready)
    return refuse(ncclInvalidUsage, op.text() + ": the communicator is " + (c.aborted() ? "aborted" : "not ready"));
  if (services::error(c.device))
    return refuse(ncclUnhandledCudaError, op.text() + ": the device has failed");
  return ncclSuccess;
}

ncclResult_t checkBuffers(const Operation &op, const Communicator &c, const void *send, void *receive, Request &request) {
  size_t size = sizeOf(op.type);
  size_t sent = sentElements(op, c.rank, c.ranks) * size, received = receivedElements(op, c.rank, c.ranks) * size;
  if (sent)
    request.send = services::bytes(c.device, send, sent);
  if (received)
    request.receive = services::bytes(c.device, receive, received);
  if ((sent && !request.send) || (received && !request.receive))
    return refuse(ncclInvalidArgument, op.text() + ": " + (sent && !request.send ? "the send" : "the receive") + " buffer is not in one allocation that device " + std::to_string(c.device) + " may touch");
  if ((sent && reinterpret_cast<uint64_t>(send) % size) || (received && reinterpret_cast<uint64_t>(receive) % size))
    return refuse(ncclInvalidArgument, op.text() + ": a buffer is not aligned to its elements");
  if (services::overlap(send, sent, receive, received) && !inPlace(op, c.rank, send, receive))
    return refuse(ncclInvalidArgument, op.text() + ": the buffers overlap, but not as an operation in place");
  return ncclSuccess;
}

ncclResult_t noteError(ncclResult_t r) {
  if (r && group.depth && !group.error)
    group.error = r;
  return r;
}

} // namespace

ncclResult_t refuse(ncclResult_t code, const std::string &why) {
  fprintf(stderr, "fakegpu: nccl: %s\n", why.c_str());
  refusal = why;
  return code;
}

const std::string &lastRefusal() { return refusal; }

ncclResult_t enter(const char *call) {
  return services::failsNow(call) ? refuse(ncclSystemError, std::string(call) + " fails by request of FAKEGPU_FAIL") : ncclSuccess;
}

ncclResult_t groupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t groupEnd() {
  if (!group.depth)
    return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth)
    return ncclSuccess;
  Group ended;
  std::swap(ended, group);
  if (ended.error)
    return ended.error; // nothing of the group runs
  if (ncclResult_t r = makeAll(std::move(ended.makings)))
    return r;
  while (!ended.pending.empty()) {
    auto c = ended.pending.front().communicator;
    std::vector<Pending> mine, others;
    for (Pending &p : ended.pending)
      (p.communicator == c ? mine : others).push_back(std::move(p));
    ended.pending = std::move(others);
    for (const Pending &p : mine)
      if (p.stream != mine.front().stream)
        return refuse(ncclInvalidUsage, "the calls of a group for one communicator are on several streams");
    if (ncclResult_t r = launchAll(mine))
      return r;
  }
  return ncclSuccess;
}

ncclResult_t add(const Operation &op, const void *send, void *receive, ncclComm_t comm, cudaStream_t stream) {
  if (ncclResult_t r = enter(op.call()))
    return noteError(r);
  if (!comm || !comm->communicator)
    return noteError(refuse(ncclInvalidArgument, std::string(op.call()) + ": the communicator is null"));
  auto c = comm->communicator;
  if (ncclResult_t r = checkOperation(op, *c))
    return noteError(r);
  if (!op.count)
    return ncclSuccess; // as NCCL does, without a look at the other ranks
  Pending p{c, services::stream(reinterpret_cast<CUstream>(stream), c->device), {op, nullptr, nullptr}};
  if (!p.stream)
    return noteError(refuse(ncclInvalidUsage, op.text() + ": the stream is not one of device " + std::to_string(c->device)));
  if (ncclResult_t r = checkBuffers(op, *c, send, receive, p.request))
    return noteError(r);
  groupStart();
  group.pending.push_back(std::move(p));
  return groupEnd();
}

ncclResult_t add(Making making) {
  groupStart();
  group.makings.push_back(std::move(making));
  return groupEnd();
}

} // namespace fakegpu::nccl
