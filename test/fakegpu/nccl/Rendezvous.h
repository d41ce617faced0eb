//===- Rendezvous.h - Memory that the ranks of a communicator share ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_NCCL_RENDEZVOUS_H
#define FAKEGPU_NCCL_RENDEZVOUS_H

#include <nccl.h>

#include <atomic>
#include <memory>
#include <string>

namespace fakegpu::nccl {

constexpr unsigned kMaxRanks = 64;

/// One operation, as the calls state it. Two ranks have to agree on everything but the buffers.
struct Operation {
  enum Kind : uint32_t { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AllToAll, Gather, Scatter, Send, Receive };
  Kind kind = AllReduce;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0; // or root
  size_t count = 0;

  bool agrees(const Operation &o) const {
    return kind == o.kind && type == o.type && reduction == o.reduction && peer == o.peer && count == o.count;
  }
  std::string text() const;
  const char *call() const;
  bool reduces() const { return kind == AllReduce || kind == Reduce || kind == ReduceScatter; }
};

/// A message that a rank has for another in the batch that it runs.
struct Message {
  int to;
  uint64_t number; // of the messages between the two
  Operation operation;
  size_t offset; // into the region for messages
};

/// The state of a rank, which all ranks read. Counts rise and never fall.
struct Slot {
  std::atomic<uint32_t> joined, aborted, left;
  int process, device;
  uint64_t host; // hash of NCCL_HOSTID
  /// Collectives whose operation and data are there, and those that this rank has read to the end.
  std::atomic<uint64_t> posted, done;
  Operation operations[2];
  std::atomic<uint64_t> splits; // calls of ncclCommSplit
  int color[2], key[2];
  std::atomic<uint32_t> messages; // of its batch
};

struct Control {
  std::atomic<uint32_t> ranks, attached;
  std::atomic<uint64_t> progress; // rises while some rank makes progress
  Slot slots[kMaxRanks];
  std::atomic<uint64_t> sent[kMaxRanks][kMaxRanks], received[kMaxRanks][kMaxRanks];
};

/// A file that all ranks of a communicator map. It is sparse: a page takes memory when it is first
/// written. The last rank that attaches removes its name.
class Rendezvous {
public:
  /// Null if the memory cannot be mapped.
  static std::unique_ptr<Rendezvous> open(const std::string &name, unsigned ranks);
  ~Rendezvous();

  Control &control() { return *reinterpret_cast<Control *>(base); }
  /// Where a rank puts the data of collective number n, by n % 2.
  char *collective(unsigned rank, uint64_t n) { return region(rank, unsigned(n % 2)); }
  /// The list of a rank's messages, and behind it their data.
  char *messages(unsigned rank) { return region(rank, 2); }
  /// Makes sure that a region of this rank holds so many bytes.
  bool reserve(const char *region, size_t bytes);
  void removeName();

private:
  char *region(unsigned rank, unsigned which);
  std::string path;
  int file = -1;
  unsigned ranks = 0;
  char *base = nullptr;
};

/// A name for the file of a communicator, unique on this machine.
std::string uniqueName();

size_t sizeOf(ncclDataType_t type);

} // namespace fakegpu::nccl

#endif
