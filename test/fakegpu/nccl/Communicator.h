//===- Communicator.h - A rank of a communicator ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_NCCL_COMMUNICATOR_H
#define FAKEGPU_NCCL_COMMUNICATOR_H

#include "nccl/Rendezvous.h"

#include <cuda.h>

#include <functional>
#include <mutex>
#include <vector>

namespace fakegpu::nccl {

/// A call that waits to be queued: an operation and its buffers.
struct Request {
  Operation operation;
  const char *send = nullptr; // in the host's memory
  char *receive = nullptr;
};

/// A rank of a communicator. The thread of a stream runs its requests, one after the other.
class Communicator {
public:
  Communicator(std::unique_ptr<Rendezvous> shared, std::string name, unsigned rank, unsigned ranks, int device);
  ~Communicator();

  const std::string name; // of the file
  const unsigned rank, ranks;
  const int device;

  /// Enters the communicator; an empty text if all is well.
  std::string join();
  bool complete();
  /// Work that a stream runs.
  void collective(const Request &request);
  void messages(const std::vector<Request> &batch);

  /// A call of ncclCommSplit, which all ranks make: the first part gives colour and key; the
  /// second is true when those of all ranks are there, and yields the ranks of this colour by key.
  uint64_t startSplit(int color, int key);
  bool endSplit(uint64_t number, int color, std::vector<unsigned> &members);

  void abort();
  void leave();
  bool aborted() const { return isAborted; }
  ncclResult_t asyncError() const { return ncclResult_t(firstError.load()); }
  /// Makes the abort of a peer, or with `processes` its end, an error of the communicator. Operations
  /// wait on, as on hardware.
  void noteLost(bool processes);
  void fail(ncclResult_t code, const std::string &text, bool deviceToo);
  std::string lastError();

  std::atomic<bool> ready{false};

private:
  bool await(const std::function<bool()> &condition, const Operation &op, uint64_t number,
             const std::function<bool(unsigned)> &isLate);
  std::string late(const std::function<bool(unsigned)> &isLate);
  bool agree(const Operation &op, uint64_t number);
  bool writeMessages(const std::vector<Request> &batch);
  bool receive(const Request &request);
  Slot &slot(unsigned r) { return shared->control().slots[r]; }

  std::unique_ptr<Rendezvous> shared;
  uint64_t collectives = 0;
  std::atomic<bool> isAborted{false};
  std::atomic<int> firstError{ncclSuccess};
  std::mutex mutex;
  std::string errorText;
};

/// receive = the result of an operation for this rank. `data(r)` has the bytes that rank r sent.
void compute(const Request &request, unsigned rank, unsigned ranks, const std::function<const char *(unsigned)> &data);
/// Elements that a rank reads, and elements that it writes.
size_t sentElements(const Operation &op, unsigned rank, unsigned ranks);
size_t receivedElements(const Operation &op, unsigned rank, unsigned ranks);

} // namespace fakegpu::nccl

struct ncclComm {
  std::shared_ptr<fakegpu::nccl::Communicator> communicator; // null until all ranks are there
  std::atomic<bool> making{false};                           // without blocking
  std::atomic<int> failed{ncclSuccess};
};

#endif
