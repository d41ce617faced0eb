//===- Mpi.cpp - ranks are processes of mpirun ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each group has a communicator for each stream on which it meets. By default results equal
// those of `local` bit for bit: ranks send each other the boxes of a collective, all at once
// (Messages.h), and a rank that needs a sum adds in the order of the ranks. In fast mode MPI's
// own collectives are used for the kinds that they support.
//
//===----------------------------------------------------------------------===//

#include "Messages.h"
#include "Process.h"
#include "meshwright/runtime/src/cpu/Reduce.h"
#include "meshwright/runtime/src/ranks/Purpose.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

using namespace meshwright::rt;
using namespace meshwright::rt::mpi;

namespace {

class MpiBackend : public Backend, public HostCollectives {
public:
  MpiBackend(Process &process, World &world, bool deterministic)
      : process(process), world(world), deterministic(deterministic) {
    world.setRanksOnMachine(process.getRanksOnMachine());
  }
  ~MpiBackend() override {
    process.leave(world);
    if (process.hasFailed())
      process.awaitReports();
  }

  std::vector<int64_t> getLocalRanks() const override { return {process.getRank()}; }
  std::unique_ptr<Device> createDevice(mw_rt_context &rank, std::string &) override {
    return createCpuDevice(rank, *this);
  }
  bool reset(std::string &error) override;
  void fail(const std::string &message) override { process.publish(message); }
  bool run(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
           void *const *outputs) override;
  bool haveOthersEnded() const override { return process.haveOthersEnded(); }
  bool agree(int64_t &least, std::string &error) override;
  bool decide(bool &isFine, std::string &error) override;
  bool broadcast(int64_t from, void *data, int64_t bytes, std::string &error) override;

  bool exchange(const Caller &caller, const mw_rt_collective &what, const void *from,
                const std::vector<int64_t> &sent, void *to,
                const std::vector<int64_t> &received) override;

private:
  MessagePlan *getPlan(const Caller &caller, const mw_rt_collective &what);
  bool post(const Caller &caller, const MessagePlan &plan, int64_t member, char *data, int64_t bytes,
            bool isSend, Requests &requests);
  bool exchange(const Caller &caller, const MessagePlan &plan, const mw_rt_collective &what,
                const std::vector<Message> &sends, const std::vector<Message> &receives,
                const void *const *inputs, void *const *outputs, char *staging);
  bool runFast(const Caller &caller, const MessagePlan &plan, const mw_rt_collective &what,
               const void *const *inputs, void *const *outputs);
  void reduceShares(const MessagePlan &plan, const mw_rt_collective &what,
                    const void *const *inputs, void *const *outputs, const char *staging) const;
  void land(const MessagePlan &plan, const mw_rt_collective &what, const void *const *inputs,
            void *const *outputs, const char *staging) const;
  char *getStaging(int64_t stream, int64_t bytes);
  bool finishAll(Requests &requests, double timeout, std::string &error);
  bool runsTheSame(std::string &error);

  Process &process;
  World &world;
  bool deterministic;
  std::mutex mutex;
  /// Plans by stream and descriptor.
  std::map<std::pair<int64_t, const mw_rt_collective *>, MessagePlan> plans;
  struct Staging {
    Memory memory;
    int64_t bytes = 0;
  };
  std::map<int64_t, Staging> stagings;
};

std::string describeEnd(const std::string &error) {
  return "a run failed before, after which processes cannot meet again (" + error +
         "): start them again";
}

} // namespace

//===----------------------------------------------------------------------===//
// Before and after runs
//===----------------------------------------------------------------------===//

/// Waits for requests that belong to no op of the program.
bool MpiBackend::finishAll(Requests &requests, double timeout, std::string &error) {
  if (process.await(world, {process.getRank(), 0, -1}, requests, timeout))
    return true;
  error = process.getError();
  return false;
}

bool MpiBackend::reset(std::string &error) {
  // Only now, because the world has no backend while the backend is being made.
  process.enter(world);
  if (process.hasFailed()) {
    error = describeEnd(process.getError());
    return false;
  }
  process.beginRun(world);
  return runsTheSame(error);
}

/// Waits until all processes have come to this run, and compares their bundles and purposes. If
/// they differ, all processes report the same error and can still meet again.
bool MpiBackend::runsTheSame(std::string &error) {
  // Never freed: MPI may write there after a failure. All worlds have as many ranks.
  static auto &sent = *new std::vector<char>(kPurposeBytes);
  static auto &all = *new std::vector<char>(kPurposeBytes * world.getNumRanks());
  writePurpose(world, sent.data());
  Requests requests;
  MPI_Iallgather(sent.data(), kPurposeBytes, MPI_CHAR, all.data(), kPurposeBytes, MPI_CHAR,
                 process.getAll(), requests.addFor(-1));
  // No timeout: the other processes may still be loading.
  if (!finishAll(requests, /*timeout=*/0, error))
    return false;
  error = comparePurposes(all.data(), world.getNumRanks());
  if (error.empty())
    return true;
  process.noteEnd();
  process.endRun(world);
  return false;
}

bool MpiBackend::agree(int64_t &least, std::string &error) {
  if (process.hasFailed()) {
    error = process.getError();
    return false;
  }
  process.noteEnd();
  int64_t mine = least;
  Requests requests;
  MPI_Iallreduce(&mine, &least, 1, MPI_INT64_T, MPI_MIN, process.getAll(), requests.addFor(-1));
  if (!finishAll(requests, /*timeout=*/0, error))
    return false;
  process.endRun(world);
  return true;
}

bool MpiBackend::decide(bool &isFine, std::string &error) {
  if (process.hasFailed()) {
    error = process.getError();
    return false;
  }
  static int *vote = new int;
  *vote = isFine;
  Requests requests;
  MPI_Iallreduce(MPI_IN_PLACE, vote, 1, MPI_INT, MPI_MIN, process.getAll(), requests.addFor(-1));
  if (!finishAll(requests, /*timeout=*/0, error))
    return false;
  isFine = *vote != 0;
  return true;
}

bool MpiBackend::broadcast(int64_t from, void *data, int64_t bytes, std::string &error) {
  if (process.hasFailed()) {
    error = process.getError();
    return false;
  }
  Requests requests;
  for (int64_t begin = 0; begin < bytes; begin += kLargestPart)
    MPI_Ibcast(static_cast<char *>(data) + begin, int(std::min(kLargestPart, bytes - begin)),
               MPI_BYTE, int(from), process.getAll(), requests.addFor(-1));
  return finishAll(requests, /*timeout=*/0, error);
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

/// Makes the plan and its communicator at the first call. Returns null if there is no communicator.
MessagePlan *MpiBackend::getPlan(const Caller &caller, const mw_rt_collective &what) {
  std::unique_lock<std::mutex> lock(mutex);
  auto [found, isNew] = plans.try_emplace({caller.stream, &what});
  MessagePlan &plan = found->second;
  if (isNew)
    plan = planMessages(what, process.getRank(), deterministic);
  lock.unlock();
  if (plan.communicator == MPI_COMM_NULL)
    plan.communicator = process.getCommunicator(world, caller, plan.ranks);
  return plan.communicator == MPI_COMM_NULL ? nullptr : &plan;
}

/// Returns memory that belongs to the stream during one collective. Returns null if there is
/// none.
char *MpiBackend::getStaging(int64_t stream, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  Staging &staging = stagings[stream];
  if (staging.bytes < bytes) {
    staging.memory.reset();
    staging.memory = allocate(bytes);
    staging.bytes = staging.memory ? bytes : 0;
  }
  return staging.memory.get();
}

static int64_t tagOf(int64_t op) {
  // The tag is the op, so that ranks at different ops do not accept each other's data. Every
  // MPI has at least 32767 tags.
  return std::max<int64_t>(op, 0) % 32767;
}

/// Begins to send or receive bytes. MPI counts with int, so they travel in parts.
bool MpiBackend::post(const Caller &caller, const MessagePlan &plan, int64_t member, char *data,
                      int64_t bytes, bool isSend, Requests &requests) {
  int tag = int(tagOf(caller.op));
  for (int64_t begin = 0; begin < bytes; begin += kLargestPart) {
    int count = int(std::min(kLargestPart, bytes - begin));
    MPI_Request *request = requests.addFor(plan.ranks[member]);
    int status = isSend ? MPI_Isend(data + begin, count, MPI_BYTE, int(member), tag,
                                    plan.communicator, request)
                        : MPI_Irecv(data + begin, count, MPI_BYTE, int(member), tag,
                                    plan.communicator, request);
    if (!process.check(world, caller, status))
      return false;
  }
  return true;
}

/// Sends boxes of `inputs` and receives boxes of `outputs`, through the staging memory if a box
/// is not contiguous.
bool MpiBackend::exchange(const Caller &caller, const MessagePlan &plan,
                          const mw_rt_collective &what, const std::vector<Message> &sends,
                          const std::vector<Message> &receives, const void *const *inputs,
                          void *const *outputs, char *staging) {
  Requests requests;
  for (const Message &message : receives) {
    char *data = message.isDirect ? static_cast<char *>(outputs[message.tensor]) : staging;
    if (!post(caller, plan, message.member, data + message.offset, message.bytes, /*isSend=*/false,
              requests))
      return false;
  }
  for (const Message &message : sends) {
    auto *data = static_cast<char *>(const_cast<void *>(inputs[message.tensor]));
    if (!message.isDirect) {
      const Arrivals &arrivals = plan.arrivals[message.tensor];
      std::vector<int64_t> origin(message.extents.size(), 0);
      copyBox(data, arrivals.inShape, message.place, staging + message.offset, message.extents,
              origin, message.extents, arrivals.elementSize);
      data = staging;
    }
    if (!post(caller, plan, message.member, data + message.offset, message.bytes, /*isSend=*/true,
              requests))
      return false;
  }
  return process.await(world, caller, requests, world.getTimeout());
}

/// Copies boxes to the outputs: those from the staging memory, and the rank's own.
void MpiBackend::land(const MessagePlan &plan, const mw_rt_collective &what,
                      const void *const *inputs, void *const *outputs,
                      const char *staging) const {
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor) {
    const Arrivals &arrivals = plan.arrivals[tensor];
    for (const Move &move : arrivals.moves)
      if (move.from == plan.self)
        copyBox(inputs[tensor], arrivals.inShape, move.source, outputs[tensor], arrivals.outShape,
                move.destination, move.extents, arrivals.elementSize);
  }
  for (const Message &message : plan.receives) {
    if (message.isDirect)
      continue;
    const Arrivals &arrivals = plan.arrivals[message.tensor];
    std::vector<int64_t> origin(message.extents.size(), 0);
    copyBox(staging + message.offset, message.extents, origin, outputs[message.tensor],
            arrivals.outShape, message.place, message.extents, arrivals.elementSize);
  }
}

/// Combines this rank's share of an all-reduce, or its chunk of a reduce-scatter.
void MpiBackend::reduceShares(const MessagePlan &plan, const mw_rt_collective &what,
                              const void *const *inputs, void *const *outputs,
                              const char *staging) const {
  int64_t members = int64_t(plan.ranks.size());
  std::map<std::pair<int64_t, int64_t>, const char *> arrived;
  for (const Message &message : plan.receives)
    arrived[{message.tensor, message.member}] = staging + message.offset;
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor) {
    if (exchangeOf(what) == Exchange::CombineBoxes) {
      std::vector<ChunkSource> sources;
      for (int64_t member : plan.byRank) {
        if (member == plan.self)
          sources.push_back({inputs[tensor], /*isBox=*/false});
        else
          sources.push_back({arrived[{tensor, member}], /*isBox=*/true});
      }
      reduceChunk(what, tensor, plan.arrivals[tensor], sources, outputs[tensor]);
      continue;
    }
    const mw_rt_moved_tensor &moved = what.tensors[tensor];
    int64_t size = sizeOf(DType(moved.dtype));
    auto [begin, end] = shareOf(countBefore(moved), plan.self, members);
    if (begin == end)
      continue;
    std::vector<const void *> sources;
    for (int64_t member : plan.byRank)
      sources.push_back(member == plan.self
                            ? static_cast<const char *>(inputs[tensor]) + begin * size
                            : arrived[{tensor, member}]);
    reduce(DType(moved.dtype), what.reduction, sources,
           {static_cast<char *>(outputs[tensor]) + begin * size}, end - begin);
  }
}

/// Runs one non-blocking collective of MPI for each tensor. Of the kinds that copy boxes, only an
/// all-gather comes here.
bool MpiBackend::runFast(const Caller &caller, const MessagePlan &plan,
                         const mw_rt_collective &what, const void *const *inputs,
                         void *const *outputs) {
  auto typeOf = [](DType type) {
    switch (type) {
    case DType::F64:
      return MPI_DOUBLE;
    case DType::I64:
      return MPI_INT64_T;
    case DType::I32:
      return MPI_INT32_T;
    default:
      return MPI_FLOAT;
    }
  };
  Requests requests;
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor) {
    const mw_rt_moved_tensor &moved = what.tensors[tensor];
    int64_t bytes = countBefore(moved) * sizeOf(DType(moved.dtype));
    const void *input = inputs[tensor];
    void *output = outputs[tensor];
    if (input == output && exchangeOf(what) != Exchange::CopyBoxes)
      input = MPI_IN_PLACE;
    MPI_Request *request = requests.addFor(-1);
    int status = MPI_SUCCESS;
    switch (exchangeOf(what)) {
    case Exchange::Combine:
      status = MPI_Iallreduce(input, output, int(countBefore(moved)), typeOf(DType(moved.dtype)),
                              MPI_SUM, plan.communicator, request);
      break;
    case Exchange::CombineBoxes:
      status = MPI_Ireduce_scatter_block(input, output, int(countAfter(moved)),
                                         typeOf(DType(moved.dtype)), MPI_SUM, plan.communicator,
                                         request);
      break;
    case Exchange::CopyBoxes:
      status = MPI_Iallgather(input, int(bytes), MPI_BYTE, output, int(bytes), MPI_BYTE,
                              plan.communicator, request);
      break;
    case Exchange::None:
      break;
    }
    if (!process.check(world, caller, status))
      return false;
  }
  return process.await(world, caller, requests, world.getTimeout());
}

bool MpiBackend::run(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
                     void *const *outputs) {
  process.notePosition(world);
  MessagePlan *found = getPlan(caller, what);
  if (!found)
    return false;
  MessagePlan &plan = *found;
  if (plan.isFast)
    return runFast(caller, plan, what, inputs, outputs);
  char *staging = getStaging(caller.stream, plan.stagingBytes);
  if (!staging && plan.stagingBytes > 0) {
    world.fail(caller.rank, caller.op,
               "out of memory for messages: " + formatBytes(plan.stagingBytes));
    return false;
  }
  Exchange kind = exchangeOf(what);
  if (kind == Exchange::CopyBoxes)
    for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor)
      if (const Arrivals &arrivals = plan.arrivals[tensor]; arrivals.clears)
        std::memset(outputs[tensor], 0, countOf(arrivals.outShape) * arrivals.elementSize);
  if (!exchange(caller, plan, what, plan.sends, plan.receives, inputs, outputs, staging))
    return false;
  if (kind == Exchange::CopyBoxes) {
    land(plan, what, inputs, outputs, staging);
    return true;
  }
  reduceShares(plan, what, inputs, outputs, staging);
  return kind == Exchange::CombineBoxes ||
         exchange(caller, plan, what, plan.resultSends, plan.resultReceives, outputs, outputs,
                  staging);
}

bool MpiBackend::exchange(const Caller &caller, const mw_rt_collective &what, const void *from,
                          const std::vector<int64_t> &sent, void *to,
                          const std::vector<int64_t> &received) {
  process.notePosition(world);
  MessagePlan *plan = getPlan(caller, what);
  if (!plan)
    return false;
  Requests requests;
  char *next = static_cast<char *>(to), *own = nullptr;
  for (int64_t member = 0; member < int64_t(received.size()); next += received[member++]) {
    if (member == plan->self)
      own = next;
    else if (!post(caller, *plan, member, next, received[member], /*isSend=*/false, requests))
      return false;
  }
  next = static_cast<char *>(const_cast<void *>(from));
  for (int64_t member = 0; member < int64_t(sent.size()); next += sent[member++]) {
    if (member == plan->self)
      std::memcpy(own, next, sent[member]);
    else if (!post(caller, *plan, member, next, sent[member], /*isSend=*/true, requests))
      return false;
  }
  return process.await(world, caller, requests, world.getTimeout());
}

//===----------------------------------------------------------------------===//
// Factory
//===----------------------------------------------------------------------===//

/// Returns true if results must equal those of `local`. Sets the error if the mode is unknown.
static bool isDeterministic(const std::string &mode, std::string &error) {
  const char *text = std::getenv("MESHWRIGHT_MPI_DETERMINISTIC");
  if (mode == "fast")
    return false;
  if (!mode.empty())
    error = "there is no mode '" + mode + "': expected 'mpi' or 'mpi:fast'";
  else if (text && std::strcmp(text, "0") != 0 && std::strcmp(text, "1") != 0)
    error = std::string("MESHWRIGHT_MPI_DETERMINISTIC: expected 0 or 1, got '") + text + "'";
  return !text || std::strcmp(text, "0") != 0;
}

extern "C" Backend *mw_rt_create_backend(int64_t version, World &world, const std::string &mode,
                                         std::string &error) {
  if (version != MW_RT_ABI_VERSION) {
    error = "expected one built for version " + std::to_string(version) + " of the runtime, got " +
            std::to_string(MW_RT_ABI_VERSION);
    return nullptr;
  }
  bool deterministic = isDeterministic(mode, error);
  if (!error.empty())
    return nullptr;
  Process *process = Process::get(world.getNumRanks(), error);
  if (!process)
    return nullptr;
  if (process->hasFailed()) {
    error = describeEnd(process->getError());
    return nullptr;
  }
  return new MpiBackend(*process, world, deterministic);
}
