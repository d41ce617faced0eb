//===- Local.cpp - ranks are threads of one process -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ranks read each other's buffers. A collective starts and ends with a barrier of its group: no
// rank reads a buffer before its owner has written it, and no rank overwrites a buffer that
// others still read. Small inputs are copied into memory that stays unchanged until the group's
// next collective but one. The second barrier is not needed then.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/src/cpu/Reduce.h"
#include "meshwright/runtime/src/process/Signal.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

using namespace meshwright::rt;

namespace {

/// Inputs of up to this many bytes are copied.
constexpr int64_t kSmallBytes = 16 << 10;

/// The arguments of a rank's call of a collective.
struct Slot {
  const mw_rt_collective *what = nullptr;
  int64_t op = -1;
  const void *const *inputs = nullptr;
  void *const *outputs = nullptr;
  /// The copies of small inputs, and their addresses.
  std::vector<char> copies;
  std::vector<const void *> copied;
};

/// The ranks that take part in collectives over the same axes, on the same stream.
struct Group {
  struct Seat {
    /// The slots of this collective and the one before it.
    Slot slots[2];
    /// The number of collectives that the rank has entered, and of barriers that it has
    /// reached. `arrivals` only serves error messages, so relaxed order is enough.
    uint32_t entered = 0;
    std::atomic<uint32_t> arrivals{0};
  };
  explicit Group(size_t size) : seats(size) {}

  int64_t getSize() const { return int64_t(ranks.size()); }

  /// By linear coordinate over the axes.
  std::vector<int64_t> ranks;
  /// Coordinates in the order of their ranks, which is the order of reductions.
  std::vector<int64_t> byRank;
  std::vector<Seat> seats;

  std::atomic<int64_t> arrived{0};
  /// Raised when all ranks have reached a barrier, and after a failure.
  Signal opened;
};

/// A rank's role in a collective.
struct Member {
  /// Null if the rank exchanges nothing with others.
  Group *group = nullptr;
  int64_t self = 0;
  /// One for each tensor; empty if whole inputs are combined.
  std::vector<Arrivals> arrivals;
};

/// A collective as one member sees it.
struct Meeting {
  const Member &member;
  const mw_rt_collective &what;
  int64_t parity;
  Group &group = *member.group;
  int64_t self = member.self;

  int64_t getSize() const { return group.getSize(); }
  const Slot &getSlot(int64_t member) const { return group.seats[member].slots[parity]; }
  const char *getInput(int64_t member, int64_t tensor) const {
    return static_cast<const char *>(getSlot(member).inputs[tensor]);
  }
  char *getOutput(int64_t member, int64_t tensor) const {
    return static_cast<char *>(getSlot(member).outputs[tensor]);
  }
};

class LocalBackend : public Backend, public HostCollectives {
public:
  explicit LocalBackend(World &world) : world(world), members(world.getNumRanks()) {}

  std::vector<int64_t> getLocalRanks() const override {
    std::vector<int64_t> ranks(world.getNumRanks());
    for (size_t i = 0; i < ranks.size(); ++i)
      ranks[i] = i;
    return ranks;
  }

  std::unique_ptr<Device> createDevice(mw_rt_context &rank, std::string &) override {
    return createCpuDevice(rank, *this);
  }

  bool agree(int64_t &, std::string &) override { return true; }
  bool reset(std::string &) override {
    for (auto &[key, group] : groups) {
      group->arrived = 0;
      for (Group::Seat &seat : group->seats) {
        seat.entered = 0;
        seat.arrivals = 0;
      }
    }
    return true;
  }

  void fail(const std::string &) override {
    std::lock_guard<std::mutex> lock(groupsMutex);
    for (auto &[key, group] : groups)
      group->opened.raise();
  }

  bool run(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
           void *const *outputs) override;

  bool exchange(const Caller &caller, const mw_rt_collective &what, const void *from,
                const std::vector<int64_t> &sent, void *to,
                const std::vector<int64_t> &received) override;

  bool broadcast(int64_t, void *, int64_t, std::string &) override { return true; }

private:
  struct Known {
    std::mutex mutex;
    std::map<std::pair<int64_t, const mw_rt_collective *>, Member> members;
  };

  const Member &join(const Caller &caller, const mw_rt_collective &what);
  bool meet(const Caller &caller, const Meeting &meeting, const void *const *inputs, void *const *outputs,
            bool &aside);
  bool wait(Group &group, const Caller &caller, int64_t self);

  World &world;
  std::mutex groupsMutex;
  /// By stream and by the ranks in order of their coordinates.
  std::map<std::pair<int64_t, std::vector<int64_t>>, std::unique_ptr<Group>> groups;
  /// For each rank, its role in each collective that it has called, by stream and descriptor.
  std::vector<Known> members;
};

} // namespace

//===----------------------------------------------------------------------===//
// Meeting
//===----------------------------------------------------------------------===//

/// Keeps in `ranks` the ranks that send or receive in a permute, and renumbers the member's
/// peers. Returns false if the member itself does neither.
static bool keepThoseWhoMeet(const mw_rt_collective &what, std::vector<int64_t> &ranks,
                             Member &member) {
  std::vector<int64_t> kept, seats(ranks.size(), -1);
  for (size_t i = 0; i < ranks.size(); ++i)
    if (joinsPermute(what, i)) {
      seats[i] = kept.size();
      kept.push_back(ranks[i]);
    }
  if (seats[member.self] < 0)
    return false;
  for (Arrivals &arrivals : member.arrivals)
    for (Move &move : arrivals.moves)
      move.from = seats[move.from];
  member.self = seats[member.self];
  ranks = std::move(kept);
  return true;
}

const Member &LocalBackend::join(const Caller &caller, const mw_rt_collective &what) {
  Known &known = members[caller.rank];
  std::lock_guard<std::mutex> knownLock(known.mutex);
  auto [found, isNew] = known.members.try_emplace({caller.stream, &what});
  Member &member = found->second;
  if (!isNew)
    return member;
  if (exchangeOf(what) != Exchange::Combine)
    for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor)
      member.arrivals.push_back(arrivalsOf(what, tensor, caller.rank));
  std::vector<int64_t> ranks = groupOf(what.group, caller.rank, member.self);
  if (kindOf(what) == CollectiveKind::Permute && !keepThoseWhoMeet(what, ranks, member))
    return member;
  std::lock_guard<std::mutex> lock(groupsMutex);
  std::unique_ptr<Group> &group = groups[{caller.stream, ranks}];
  if (!group) {
    group = std::make_unique<Group>(ranks.size());
    group->byRank.resize(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i)
      group->byRank[i] = i;
    std::sort(group->byRank.begin(), group->byRank.end(),
              [&](int64_t a, int64_t b) { return ranks[a] < ranks[b]; });
    group->ranks = std::move(ranks);
  }
  member.group = group.get();
  return member;
}

/// Waits until the whole group has come. Returns false after a failure.
/// The last rank to come resets `arrived` with relaxed order: the other ranks read it again
/// only after `opened`, whose raise publishes the reset.
bool LocalBackend::wait(Group &group, const Caller &caller, int64_t self) {
  // Read the signal before the failure is checked: a failure raises the signal, too.
  uint32_t seen = group.opened.get();
  if (world.hasFailed())
    return false;
  group.seats[self].arrivals.fetch_add(1, std::memory_order_relaxed);
  if (group.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == group.getSize()) {
    group.arrived.store(0, std::memory_order_relaxed);
    group.opened.raise();
    return true;
  }
  if (group.opened.wait(seen, world.getSpin(caller.stream), deadlineIn(world.getTimeout())))
    return !world.hasFailed();
  std::string missing;
  int64_t others = 0;
  uint32_t mine = group.seats[self].arrivals.load(std::memory_order_relaxed);
  for (int64_t i = 0; i < group.getSize(); ++i)
    if (group.seats[i].arrivals.load(std::memory_order_relaxed) != mine) {
      missing += (others ? ", " : "") + std::to_string(group.ranks[i]);
      if (int64_t at = world.getPosition(group.ranks[i]); at >= 0)
        missing += " (at " + world.getOpName(at) + ")";
      ++others;
    }
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", world.getTimeout());
  world.fail(caller.rank, caller.op,
             std::string("timed out after ") + seconds + " s waiting for rank" +
                 (others > 1 ? "s " : " ") + missing);
  return false;
}

static int64_t bytesBefore(const mw_rt_moved_tensor &moved) {
  return countBefore(moved) * sizeOf(DType(moved.dtype));
}

/// Copies small inputs, so that the caller may overwrite them. Returns false if they are not
/// small.
static bool copyAside(Slot &slot) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < slot.what->num_tensors; ++i)
    bytes += bytesBefore(slot.what->tensors[i]);
  if (bytes > kSmallBytes || slot.what->num_tensors == 0)
    return false;
  // Each copy is aligned.
  slot.copies.resize(bytes + 64 * (slot.what->num_tensors + 1));
  slot.copied.clear();
  char *to = slot.copies.data();
  for (int64_t i = 0; i < slot.what->num_tensors; ++i) {
    to += (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
    int64_t size = bytesBefore(slot.what->tensors[i]);
    std::memcpy(to, slot.inputs[i], size);
    slot.copied.push_back(to);
    to += size;
  }
  slot.inputs = slot.copied.data();
  return true;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

/// If inputs were copied, each member reduces all elements for itself. Otherwise each member
/// reduces a share of the elements and writes the result to all members. Only one member reads
/// a share, so results may overwrite inputs.
static void allReduce(const Meeting &meeting, int64_t tensor, bool aside) {
  const mw_rt_moved_tensor &moved = meeting.what.tensors[tensor];
  DType type = DType(moved.dtype);
  int64_t count = countBefore(moved), begin = 0, end = count;
  if (!aside) {
    // Shares are whole cache lines.
    constexpr int64_t line = 64;
    int64_t lines = (count + line - 1) / line;
    begin = std::min(count, lines * meeting.self / meeting.getSize() * line);
    end = std::min(count, lines * (meeting.self + 1) / meeting.getSize() * line);
  }
  std::vector<const void *> sources;
  for (int64_t from : meeting.group.byRank)
    sources.push_back(meeting.getInput(from, tensor) + begin * sizeOf(type));
  std::vector<void *> results;
  for (int64_t to = 0; to < meeting.getSize(); ++to)
    if (!aside || to == meeting.self)
      results.push_back(meeting.getOutput(to, tensor) + begin * sizeOf(type));
  reduce(type, meeting.what.reduction, sources, results, end - begin);
}

static void reduceScatter(const Meeting &meeting, int64_t tensor) {
  std::vector<ChunkSource> sources;
  for (int64_t from : meeting.group.byRank)
    sources.push_back({meeting.getInput(from, tensor), /*isBox=*/false});
  reduceChunk(meeting.what, tensor, meeting.member.arrivals[tensor], sources,
              meeting.getOutput(meeting.self, tensor));
}

/// Copies the boxes that the rank receives. `getInput` returns the address of a member's input.
template <typename GetInput>
static void fetch(const Member &member, int64_t tensor, GetInput getInput, void *result) {
  const Arrivals &arrivals = member.arrivals[tensor];
  if (arrivals.clears)
    std::memset(result, 0, countOf(arrivals.outShape) * arrivals.elementSize);
  // Members begin with different peers, so that they do not all read the same memory at once.
  for (size_t i = 0; i < arrivals.moves.size(); ++i) {
    const Move &move = arrivals.moves[(i + member.self) % arrivals.moves.size()];
    copyBox(getInput(move.from), arrivals.inShape, move.source, result, arrivals.outShape,
            move.destination, move.extents, arrivals.elementSize);
  }
}

/// Shows the group what the rank gives, and waits for the others. Sets `aside` if the inputs were
/// copied. Returns false after a failure.
bool LocalBackend::meet(const Caller &caller, const Meeting &meeting, const void *const *inputs,
                        void *const *outputs, bool &aside) {
  Group &group = meeting.group;
  Slot &mine = group.seats[meeting.self].slots[meeting.parity];
  mine.what = &meeting.what;
  mine.op = caller.op;
  mine.inputs = inputs;
  mine.outputs = outputs;
  aside = copyAside(mine);
  if (!wait(group, caller, meeting.self))
    return false;
  for (int64_t i = 0; i < group.getSize(); ++i)
    if (const Slot &slot = meeting.getSlot(i); slot.what != &meeting.what || slot.op != caller.op) {
      world.fail(caller.rank, caller.op,
                 "rank " + std::to_string(group.ranks[i]) +
                     " is at another collective: " + world.getOpName(slot.op));
      return false;
    }
  return true;
}

bool LocalBackend::exchange(const Caller &caller, const mw_rt_collective &what, const void *from,
                            const std::vector<int64_t> &sent, void *to,
                            const std::vector<int64_t> &received) {
  const Member &member = join(caller, what);
  if (!member.group) {
    std::memcpy(to, from, sent.front());
    return true;
  }
  Group &group = *member.group;
  Meeting meeting{member, what, group.seats[member.self].entered++ % 2};
  const void *inputs[] = {from, sent.data()};
  bool aside;
  if (!meet(caller, meeting, inputs, nullptr, aside))
    return false;
  char *next = static_cast<char *>(to);
  for (int64_t i = 0; i < group.getSize(); next += received[i++]) {
    const Slot &slot = meeting.getSlot(i);
    const auto *bytes = static_cast<const int64_t *>(slot.inputs[1]);
    int64_t before = 0;
    for (int64_t other = 0; other < member.self; ++other)
      before += bytes[other];
    if (bytes[member.self] != received[i]) {
      world.fail(caller.rank, caller.op,
                 "expected " + std::to_string(received[i]) + " bytes from rank " +
                     std::to_string(group.ranks[i]) + ", got " + std::to_string(bytes[member.self]));
      return false;
    }
    std::memcpy(next, static_cast<const char *>(slot.inputs[0]) + before, received[i]);
  }
  return wait(group, caller, member.self);
}

bool LocalBackend::run(const Caller &caller, const mw_rt_collective &what,
                       const void *const *inputs, void *const *outputs) {
  const Member &member = join(caller, what);
  if (!member.group) {
    for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor)
      fetch(member, tensor, [&](int64_t) { return inputs[tensor]; }, outputs[tensor]);
    return true;
  }
  Group &group = *member.group;
  Meeting meeting{member, what, group.seats[member.self].entered++ % 2};
  bool aside;
  if (!meet(caller, meeting, inputs, outputs, aside))
    return false;
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor)
    switch (exchangeOf(what)) {
    case Exchange::Combine:
      allReduce(meeting, tensor, aside);
      break;
    case Exchange::CombineBoxes:
      reduceScatter(meeting, tensor);
      break;
    case Exchange::CopyBoxes:
      fetch(
          member, tensor, [&](int64_t from) { return meeting.getInput(from, tensor); },
          outputs[tensor]);
      break;
    case Exchange::None:
      break;
    }
  return aside || wait(group, caller, member.self);
}

std::unique_ptr<Backend> meshwright::rt::createLocalBackend(World &world) {
  return std::make_unique<LocalBackend>(world);
}
