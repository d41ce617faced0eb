//===- Communicator.cpp - A rank of a communicator --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "nccl/Communicator.h"
#include "driver/Services.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <thread>
#include <unistd.h>

namespace fakegpu::nccl {
namespace {

/// Polls without progress of any rank before a wait is a deadlock; a poll is a millisecond of the
/// stand-in's clock. The polls of a process that waits for a processor wait with it.
uint64_t deadline() {
  static const uint64_t polls = [] {
    const char *text = getenv("FAKEGPU_NCCL_DEADLINE");
    return text && *text ? strtoull(text, nullptr, 0) : 60000;
  }();
  return polls;
}

uint64_t hostHash() {
  const char *id = getenv("NCCL_HOSTID");
  return id ? std::hash<std::string>()(id) : 0;
}

constexpr size_t kListBytes = 1 << 16; // of messages, in front of their data

} // namespace

Communicator::Communicator(std::unique_ptr<Rendezvous> memory, std::string fileName, unsigned rank, unsigned ranks, int device)
    : name(std::move(fileName)), rank(rank), ranks(ranks), device(device), shared(std::move(memory)) {}

Communicator::~Communicator() { services::forgetKey(this); }

std::string Communicator::join() {
  Control &c = shared->control();
  uint32_t none = 0;
  if (!c.ranks.compare_exchange_strong(none, ranks) && none != ranks)
    return "rank " + std::to_string(rank) + " says " + std::to_string(ranks) + " ranks, another " + std::to_string(none);
  Slot &own = slot(rank);
  own.process = getpid();
  own.device = services::physicalDevice(device);
  own.host = hostHash();
  if (own.joined.exchange(1))
    return "rank " + std::to_string(rank) + " joins twice";
  c.progress += 1;
  return "";
}

bool Communicator::complete() {
  for (unsigned r = 0; r < ranks; ++r)
    if (!slot(r).joined)
      return false;
  if (ready.exchange(true))
    return true;
  if (++shared->control().attached == ranks)
    shared->removeName();
  for (unsigned r = 0; r < ranks; ++r)
    if (r != rank && slot(r).device == slot(rank).device && slot(r).host == slot(rank).host)
      fail(ncclInvalidUsage, "duplicate GPU detected: rank " + std::to_string(rank) + " and rank " + std::to_string(r) + " both on device " + std::to_string(slot(r).device), false);
  return true;
}

void Communicator::abort() {
  isAborted = true;
  slot(rank).aborted = 1;
}

void Communicator::leave() { slot(rank).left = 1; }

void Communicator::fail(ncclResult_t code, const std::string &text, bool deviceToo) {
  int none = ncclSuccess;
  if (!firstError.compare_exchange_strong(none, code))
    return;
  {
    std::lock_guard<std::mutex> lock(mutex);
    errorText = text;
  }
  if (deviceToo)
    services::fail(device, code == ncclTimeout ? CUDA_ERROR_LAUNCH_TIMEOUT : CUDA_ERROR_LAUNCH_FAILED, text);
}

std::string Communicator::lastError() {
  std::lock_guard<std::mutex> lock(mutex);
  return errorText;
}

std::string Communicator::late(const std::function<bool(unsigned)> &isLate) {
  std::string text;
  for (unsigned r = 0; r < ranks; ++r)
    if (isLate(r))
      text += (text.empty() ? "" : ", ") + std::to_string(r) + " (" + std::to_string(slot(r).posted) + " collectives begun)";
  return text;
}

void Communicator::noteLost(bool processes) {
  for (unsigned r = 0; r < ranks; ++r)
    if (slot(r).aborted || (processes && slot(r).process != getpid() && !slot(r).left && kill(slot(r).process, 0)))
      fail(ncclRemoteError, "rank " + std::to_string(r) + (slot(r).aborted ? " has aborted" : "'s process has ended"), false);
}

bool Communicator::await(const std::function<bool()> &condition, const Operation &op, uint64_t number, const std::function<bool(unsigned)> &isLate) {
  std::atomic<uint64_t> &progress = shared->control().progress;
  uint64_t idle = 0, seen = progress, seenHere = services::activity();
  for (unsigned poll = 0; !condition(); ++poll) {
    if (isAborted)
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(poll < 20 ? 50 : 1000));
    if (poll < 20)
      continue;
    if (poll % 64 == 20)
      noteLost(true);
    if (progress != seen || services::activity() != seenHere) {
      idle = 0, seen = progress, seenHere = services::activity();
    } else if (++idle > deadline()) {
      fail(ncclTimeout, "deadlock: rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " waits in " + op.text() + ", number " + std::to_string(number) + ", for rank " + late(isLate), true);
      return false;
    }
  }
  progress += 1;
  return !isAborted;
}

bool Communicator::agree(const Operation &op, uint64_t number) {
  for (unsigned r = 0; r < ranks; ++r) {
    const Operation &other = slot(r).operations[number % 2];
    if (op.agrees(other))
      continue;
    fail(ncclInvalidUsage, "operation " + std::to_string(number) + " of a communicator differs: rank " + std::to_string(rank) + " calls " + op.text() + ", rank " + std::to_string(r) + " calls " + other.text(), true);
    return false;
  }
  return true;
}

void Communicator::collective(const Request &request) {
  const Operation &op = request.operation;
  if (isAborted || asyncError() == ncclInvalidUsage)
    return;
  uint64_t n = ++collectives;
  char *own = shared->collective(rank, n);
  size_t sent = sentElements(op, rank, ranks) * sizeOf(op.type), received = receivedElements(op, rank, ranks) * sizeOf(op.type);
  auto unread = [&](unsigned r) { return slot(r).done + 2 < n; };
  auto missing = [&](unsigned r) { return slot(r).posted < n; };
  auto none = [&](auto late) {
    for (unsigned r = 0; r < ranks; ++r)
      if (late(r))
        return false;
    return true;
  };
  // The region still has the data of the collective before the last.
  if (!await([&] { return none(unread); }, op, n, unread))
    return;
  if (!shared->reserve(own, sent))
    return fail(ncclSystemError, "no memory for " + std::to_string(sent) + " bytes that ranks share", true);
  slot(rank).operations[n % 2] = op;
  if (sent)
    memcpy(own, request.send, sent);
  if (received)
    memset(request.receive, 0xff, received); // the result comes late
  slot(rank).posted = n;
  if (!await([&] { return none(missing); }, op, n, missing))
    return;
  if (agree(op, n) && received)
    compute(request, rank, ranks, [&](unsigned r) { return shared->collective(r, n); });
  slot(rank).done = n;
}

/// Publishes all messages of a batch, so that each peer can take its own in its own order.
bool Communicator::writeMessages(const std::vector<Request> &batch) {
  auto *list = reinterpret_cast<Message *>(shared->messages(rank));
  char *data = shared->messages(rank);
  size_t at = kListBytes, count = 0, bytes = kListBytes;
  for (const Request &r : batch)
    if (r.operation.kind == Operation::Send)
      bytes += r.operation.count * sizeOf(r.operation.type), ++count;
  if (count * sizeof(Message) > kListBytes || !shared->reserve(data, bytes)) {
    fail(ncclSystemError, "no memory for " + std::to_string(count) + " messages of " + std::to_string(bytes) + " bytes", true);
    return false;
  }
  std::vector<uint64_t> numbers(ranks);
  for (unsigned r = 0; r < ranks; ++r)
    numbers[r] = shared->control().sent[rank][r];
  Message *next = list;
  for (const Request &r : batch) {
    if (r.operation.kind != Operation::Send)
      continue;
    size_t size = r.operation.count * sizeOf(r.operation.type);
    *next++ = {r.operation.peer, ++numbers[unsigned(r.operation.peer)], r.operation, at};
    memcpy(data + at, r.send, size);
    at += size;
  }
  slot(rank).messages = uint32_t(count);
  for (unsigned r = 0; r < ranks; ++r)
    shared->control().sent[rank][r] = numbers[r];
  return true;
}

bool Communicator::receive(const Request &request) {
  const Operation &op = request.operation;
  auto from = unsigned(op.peer);
  Control &c = shared->control();
  uint64_t number = c.received[from][rank] + 1;
  auto isLate = [&](unsigned r) { return r == from && c.sent[from][rank] < number; };
  if (!await([&] { return !isLate(from); }, op, number, isLate))
    return false;
  auto *list = reinterpret_cast<const Message *>(shared->messages(from));
  const Message *found = std::find_if(list, list + slot(from).messages, [&](const Message &m) { return m.to == int(rank) && m.number == number; });
  const Operation &sent = found->operation;
  bool same = sent.count == op.count && sent.type == op.type;
  if (same)
    memcpy(request.receive, shared->messages(from) + found->offset, op.count * sizeOf(op.type));
  else
    fail(ncclInvalidUsage, "rank " + std::to_string(rank) + " calls " + op.text() + ", which calls " + sent.text(), true);
  c.received[from][rank] = number;
  return same;
}

void Communicator::messages(const std::vector<Request> &batch) {
  if (isAborted || asyncError() == ncclInvalidUsage || !writeMessages(batch))
    return;
  for (const Request &r : batch)
    if (r.operation.kind == Operation::Receive)
      memset(r.receive, 0xff, r.operation.count * sizeOf(r.operation.type));
  for (const Request &r : batch)
    if (r.operation.kind == Operation::Receive && !receive(r))
      return;
  // A message is under way until its receiver has it: hardware promises no buffer.
  Control &c = shared->control();
  for (const Request &r : batch) {
    auto to = unsigned(r.operation.peer);
    if (r.operation.kind != Operation::Send)
      continue;
    auto isLate = [&](unsigned other) { return other == to && c.received[rank][to] < c.sent[rank][to]; };
    if (!await([&] { return !isLate(to); }, r.operation, c.sent[rank][to], isLate))
      return;
  }
}

uint64_t Communicator::startSplit(int color, int key) {
  Slot &own = slot(rank);
  uint64_t number = own.splits + 1;
  own.color[number % 2] = color;
  own.key[number % 2] = key;
  own.splits = number;
  return number;
}

bool Communicator::endSplit(uint64_t number, int color, std::vector<unsigned> &members) {
  for (unsigned r = 0; r < ranks; ++r)
    if (slot(r).splits < number)
      return false;
  members.clear();
  for (unsigned r = 0; r < ranks; ++r)
    if (slot(r).color[number % 2] == color)
      members.push_back(r);
  std::sort(members.begin(), members.end(), [&](unsigned a, unsigned b) {
    return std::pair(slot(a).key[number % 2], a) < std::pair(slot(b).key[number % 2], b);
  });
  return true;
}

} // namespace fakegpu::nccl
