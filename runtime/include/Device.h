//===- Device.h - the processor that a rank computes on ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The entry of a compiled program calls the runtime (meshwright-c/Runtime.h), and the
// runtime calls the device of the rank. Programs do not know which device that is.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_DEVICE_H
#define MESHWRIGHT_RUNTIME_INCLUDE_DEVICE_H

#include "meshwright-c/Runtime.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/RunReport.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshwright::rt {

struct ProgramDescription;
struct RankBuffers;

/// A point in the program of one rank: an op on one of the rank's streams.
struct Caller {
  int64_t rank;
  /// 0 for the compute stream.
  int64_t stream;
  /// The number of the op, for errors.
  int64_t op;
};

/// Memory of a device. The last owner frees it.
using DeviceMemory = std::shared_ptr<char>;

/// How a rank uses threads of the host during a run.
struct HostThreads {
  /// Threads that compute, the rank's own included.
  int64_t count = 1;
  /// How long a thread polls before it sleeps, in nanoseconds: threads that compute, and
  /// threads of communication streams.
  int64_t computeSpin = 0, streamSpin = 0;
};

/// The first of `rows` rows exist, as many as a number says that the compute stream writes. 0: all rows do.
struct ExistingRows {
  int64_t rows = 0;
  const int64_t *number = nullptr;
};

/// The processor of one rank, with its memory and its streams.
///
/// - A device has one compute stream (stream 0) and communication streams (1, 2, ...).
///   Each stream performs its work in the order of the calls.
/// - A call may return before its work is done, except `wait`, `copyIn`, `copyOut`, `copy`,
///   and `synchronize`. The CPU device does the work of stream 0 in
///   the call itself.
/// - Only the rank's thread calls a device during a run.
/// - A call that returns bool returns false after a failure. It sets `error`, or it leaves
///   `error` empty because `World::fail` knows the failure already. A call may also throw
///   a std::exception, which the runtime turns into the rank's failure.
/// - The runtime calls each function once per op, never once per element.
class Device {
public:
  virtual ~Device() = default;

  /// Its name in errors: `cpu` or `gpu`.
  virtual const char *getName() const = 0;

  /// Loads the kernels of a program, once, before its first run. Returns false, with an error, if
  /// the program is for another target. The default takes programs for the processor.
  virtual bool load(const ProgramDescription &program, std::string &error);
  /// Returns true if the device performs all calls of a program. If not, the error names a call.
  bool checkCalls(const ProgramDescription &program, std::string &error) const;

  //===--------------------------------------------------------------------===//
  // Memory
  //===--------------------------------------------------------------------===//

  /// Returns true if the host can read and write the device's memory by its address.
  /// Ranks then share equal values, and `copyIn` and `copyOut` are not needed.
  virtual bool sharesHostMemory() const = 0;
  /// Allocates memory that is aligned to `kAlignment`. Returns null if there is none.
  virtual DeviceMemory allocate(int64_t bytes) = 0;
  /// The bytes that the rank can still allocate, or -1 if the host's memory is the limit.
  virtual int64_t getFreeBytes() { return -1; }
  /// Copy from the host to the device and back. Any thread may call them between runs.
  virtual bool copyIn(void *device, const void *host, int64_t bytes, std::string &error) = 0;
  virtual bool copyOut(void *host, const void *device, int64_t bytes, std::string &error) = 0;
  /// Copies between two buffers of the device, which do not overlap. Any thread may call it between
  /// runs.
  virtual bool copy(void *to, const void *from, int64_t bytes, std::string &error) = 0;
  /// Undoes a call by the log that it wrote. Any thread may call it between runs.
  virtual bool undo(const mw_rt_call &what, void *const *buffers, std::string &error) = 0;

  //===--------------------------------------------------------------------===//
  // Arrays of callers in the memory of GPUs
  //===--------------------------------------------------------------------===//

  /// Returns true if the functions below work. They are called between runs, by the thread of the
  /// caller, unless they say otherwise, and may return before the copies are done.
  virtual bool reachesGpuMemory() const { return false; }
  /// Copies boxes of `array`, which has `bytes` bytes, from the memory of that GPU to the rank's
  /// buffer `to`, and clears `cleared` bytes there first. The next run waits for it.
  virtual bool takeBoxes(const std::vector<StridedBox> &boxes, void *to, int64_t cleared,
                         const void *array, int64_t bytes, int64_t gpu, std::string &error) {
    (void)boxes, (void)to, (void)cleared, (void)array, (void)bytes, (void)gpu, (void)error;
    return false;
  }
  /// Copies boxes of the rank's buffer `from`, which has `bytes` bytes, to `array`.
  virtual bool giveBoxes(const std::vector<StridedBox> &boxes, void *array, int64_t gpu,
                         const void *from, int64_t bytes, std::string &error) {
    (void)boxes, (void)array, (void)gpu, (void)from, (void)bytes, (void)error;
    return false;
  }
  /// The same at the end of a run, for a buffer of rank `from`: the ranks of all processes call it in
  /// the same order, each on its own thread and for an array of its own. `data` is the buffer on that
  /// rank, and memory for a copy of it on the others. The run ends when the copies are done.
  virtual bool giveBoxesOf(int64_t from, void *data, int64_t bytes,
                           const std::vector<StridedBox> &boxes, void *array, int64_t gpu,
                           std::string &error) {
    (void)from, (void)data, (void)bytes, (void)boxes, (void)array, (void)gpu, (void)error;
    return false;
  }
  /// Waits for the copies to that GPU.
  virtual bool finishGiving(int64_t gpu, std::string &error) {
    (void)gpu, (void)error;
    return false;
  }

  //===--------------------------------------------------------------------===//
  // Runs
  //===--------------------------------------------------------------------===//

  /// Threads of the host that serve communication streams: as many as the runs so far needed.
  virtual int64_t getNumStreamThreads() const { return 0; }
  /// Prepares a run. Throws std::system_error if a thread cannot start.
  virtual void prepare(const HostThreads &threads) = 0;
  /// Prepares the rank's thread, which calls this once before its first run.
  virtual void enterThread() {}
  /// Runs an entry. `call` calls its function, which calls this device. A device may call it
  /// several times, to prepare the work first, or not at all, to repeat work that it has recorded.
  virtual int32_t runEntry(mw_rt_entry entry, const RankBuffers &buffers,
                           const std::function<int32_t()> &call) {
    (void)entry, (void)buffers;
    return call();
  }
  /// The calls between the two are the same in each run of the entry, but for the addresses of
  /// its buffers. A device that records them as a graph repeats the graph in later runs, and the
  /// calls do nothing.
  virtual bool beginGraph(int64_t op, std::string &error) {
    (void)op, (void)error;
    return true;
  }
  virtual bool endGraph(int64_t op, std::string &error) {
    (void)op, (void)error;
    return true;
  }
  /// Returns true if the device measures times by its own clock. In a run with a trace it is told of the
  /// ops of the compute stream, and itself adds the events of all streams to the trace. Otherwise the
  /// runtime does, by the clock of the host.
  virtual bool hasClock() const { return false; }
  virtual void beginOp(const TraceEvent &event) { (void)event; }
  virtual void endOp() {}
  /// The peak rates of the device, for reports. Returns false if it is the processor, whose rates are
  /// measured.
  virtual bool getPeaks(Ceilings &peaks) const {
    (void)peaks;
    return false;
  }
  /// Waits until all streams are idle and forgets all tickets. Returns false if the
  /// deadline passes first; the caller may try again.
  virtual bool synchronize(std::chrono::steady_clock::time_point deadline) = 0;

  //===--------------------------------------------------------------------===//
  // Work on the compute stream
  //===--------------------------------------------------------------------===//

  virtual bool launch(const mw_rt_launch &what, mw_rt_kernel kernel, void *const *buffers,
                      std::string &error) = 0;
  /// Reads a number that the compute stream has written, if that takes no wait of the host.
  virtual std::optional<int64_t> read(const int64_t *number) const {
    (void)number;
    return std::nullopt;
  }
  /// Returns true if the device performs calls of this kind (MW_RT_CALL_...).
  virtual bool performs(int64_t kind) const = 0;
  /// Performs a call, on the buffers that meshwright-c/Runtime.h names for its kind. A call with a
  /// log leaves its buffers as they were if it fails. The caller is on the compute stream, but of a call in
  /// which ranks meet that `start` was given: then it is on the stream of the start.
  virtual bool perform(const Caller &caller, const mw_rt_call &what, void *const *buffers,
                       std::string &error) = 0;
  /// Looks for the first element of result `result` of the caller's op that is NaN or infinite,
  /// in the order of the caller's stream. Tells `World::noteNotFinite` before the end of the run. The
  /// `count` elements are those of all rows, of which `existing` counts those to look at.
  virtual bool checkFinite(const Caller &caller, int64_t result, int64_t dtype, const void *data,
                           int64_t count, const ExistingRows &existing, std::string &error) = 0;

  //===--------------------------------------------------------------------===//
  // Collectives
  //===--------------------------------------------------------------------===//

  /// Performs a collective in the order of the caller's stream.
  virtual bool runCollective(const Caller &caller, const mw_rt_collective &what,
                             const void *const *inputs, void *const *outputs,
                             std::string &error) = 0;
  /// Starts a collective on communication stream `caller.stream`, behind the work that
  /// the compute stream has been given so far. Collectives of several streams may be under way at
  /// once, also over the same ranks. Copies the arrays of pointers.
  virtual bool start(const Caller &caller, const mw_rt_collective &what, int64_t ticket,
                     const void *const *inputs, void *const *outputs, std::string &error) = 0;
  /// The same for a call in which ranks meet.
  virtual bool start(const Caller &caller, const mw_rt_call &what, int64_t ticket, void *const *buffers,
                     std::string &error) = 0;
  /// Makes the compute stream wait for the collective that was started as `ticket`.
  virtual bool wait(int64_t ticket, std::string &error) = 0;

protected:
  /// Sets the error of a call of a kind that the device does not perform. Returns false.
  bool refuse(const mw_rt_call &what, std::string &error) const;
};

/// Collectives between buffers in host memory. A backend whose ranks compute on the CPU
/// device implements this interface.
class HostCollectives {
public:
  virtual ~HostCollectives() = default;

  /// Performs a collective that communicates. Returns when the caller's outputs are written
  /// and its inputs may change. Returns false after `World::fail`.
  ///
  /// The calls of one stream come in order, the same on all ranks of a group. Different streams
  /// of a rank call at the same time, each from its own thread, also over the same ranks. So a
  /// group meets once for each stream: a rank that waits in one stream must not keep another
  /// stream of any rank from meeting (docs/rationale/streams-by-role.md).
  virtual bool run(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
                   void *const *outputs) = 0;

  /// Gives each member of a group the bytes that each other one has for it. `sent` and `received` have
  /// the bytes by member, which follow one another in `from` and `to`; members agree on them. `what` names
  /// the group, and has no tensors. Otherwise as `run`.
  virtual bool exchange(const Caller &caller, const mw_rt_collective &what, const void *from,
                        const std::vector<int64_t> &sent, void *to,
                        const std::vector<int64_t> &received) = 0;
};

/// Makes the CPU device of a rank. `collectives` must outlive it.
std::unique_ptr<Device> createCpuDevice(mw_rt_context &rank, HostCollectives &collectives);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_DEVICE_H
