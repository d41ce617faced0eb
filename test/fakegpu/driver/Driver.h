//===- Driver.h - Objects behind the handles of the CUDA driver API ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_DRIVER_DRIVER_H
#define FAKEGPU_DRIVER_DRIVER_H

#include "interp/Warp.h"

#include <cuda.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>

#define FAKEGPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace fakegpu {

/// The environment variables, read once.
struct Settings {
  std::string chipName = "sm_90";
  unsigned chip = 90;
  int devices = 8;
  std::vector<int> physical; // number of each device that CUDA_VISIBLE_DEVICES shows
  uint64_t memory = uint64_t(16) << 30;
  int driver = CUDA_VERSION;
  uint64_t seed = 1;
  uint64_t deadline = uint64_t(1) << 26;
  std::string failCall, log;
  uint64_t failAt = 0;

  static const Settings &get();
};

struct ChipLimits {
  unsigned sharedPerBlock = 49152, sharedOptIn, sharedPerMultiprocessor;
  unsigned registersPerBlock = 65536, multiprocessors, maxCluster;
};
const ChipLimits &chipLimits();

/// The end of an operation in a stream, and the time at which it ends by the stand-in's clock.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  double time = 0;

  void finish(double at);
  double wait();
  bool poll();
};

struct Device;

/// Work of a stream or of a node of a graph. Returns its duration in ns by the stand-in's clock.
struct Work {
  enum Kind { Kernel, Copy, Set, Host, Empty, Allocate, Free } kind = Empty;
  std::function<double()> run;
  std::string name; // of a kernel
  /// Work with a key in common runs in the order in which it was queued, on one stream or several.
  std::vector<const void *> keys;
};

} // namespace fakegpu

struct CUgraphNode_st {
  fakegpu::Work work;
  std::vector<CUgraphNode_st *> dependencies;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct CUgraphExec_st {
  CUcontext context = nullptr;
  std::vector<fakegpu::Work> nodes;
  std::vector<std::vector<size_t>> dependencies;
};

namespace fakegpu {
struct Capture {
  std::unique_ptr<CUgraph_st> graph;
  CUstream origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  std::set<CUstream> streams;
  std::map<const void *, CUgraphNode_st *> lastOf; // by key
  bool invalid = false;
};
} // namespace fakegpu

struct CUstream_st {
  CUstream_st(CUcontext context, unsigned flags, int priority, uint64_t id);
  ~CUstream_st();

  /// Queues an operation; it runs on the stream's thread after those before it.
  std::shared_ptr<fakegpu::Completion> push(std::function<double()> run);
  /// Later operations wait for this one.
  void await(std::shared_ptr<fakegpu::Completion> other);
  std::shared_ptr<fakegpu::Completion> last();

  CUcontext context;
  unsigned flags;
  int priority;
  uint64_t id;
  std::shared_ptr<fakegpu::Capture> capture;
  std::vector<CUgraphNode_st *> captureTail; // dependencies of the next node

private:
  struct Operation {
    std::function<double()> run;
    std::shared_ptr<fakegpu::Completion> awaited, completion;
  };
  void work();
  std::mutex mutex;
  std::condition_variable added;
  std::deque<Operation> queue;
  std::shared_ptr<fakegpu::Completion> tail;
  bool stopping = false;
  double time = 0;
  uint64_t random;
  std::thread thread;
};

struct CUevent_st {
  unsigned flags = 0;
  CUcontext context = nullptr;
  std::shared_ptr<fakegpu::Completion> completion; // null before the first record
  std::shared_ptr<fakegpu::Capture> capture;
  std::vector<CUgraphNode_st *> captureTail;
};

struct CUmemPoolHandle_st {
  fakegpu::Device *device = nullptr;
  uint64_t releaseThreshold = 0;
  std::atomic<uint64_t> used{0}, usedHigh{0};
};

struct CUfunc_st {
  CUmodule module = nullptr;
  std::shared_ptr<const fakegpu::Program> program;
  int registers = -1; // unknown until ptxas is asked
  int maxDynamicShared = 49152;
  int carveout = -1;
  int nonPortableCluster = 0;
  int requiredCluster[3] = {0, 0, 0};
};

struct CUmod_st {
  CUcontext context = nullptr;
  std::string text;
  std::shared_ptr<const fakegpu::Module> module;
  std::map<std::string, std::pair<CUdeviceptr, size_t>> globals;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  std::map<std::string, int> registers; // by kernel, when ptxas has been asked
  bool asked = false;
  std::mutex mutex;
};

namespace fakegpu {

/// A device: its memory, its streams and its first fault.
struct Device : DeviceMemory {
  int ordinal = 0;
  CUctx_st *primary = nullptr;
  uint64_t base = 0;      // of device addresses, which no host access may touch
  char *backing = nullptr; // where the bytes are
  std::atomic<int> error{CUDA_SUCCESS};

  struct Allocation {
    size_t size;
    CUmemoryPool pool = nullptr;
  };
  std::shared_mutex mutex;
  std::map<uint64_t, Allocation> allocations;
  std::map<uint64_t, uint64_t> holes; // free address ranges: begin to size
  uint64_t used = 0;
  CUmemPoolHandle_st defaultPool;
  CUmemoryPool currentPool = &defaultPool;

  Range find(uint64_t address) override;
  void open();
  CUresult allocate(size_t bytes, CUdeviceptr *out, CUmemoryPool pool);
  CUresult release(CUdeviceptr at);
  /// Records the first fault and prints it.
  void fail(CUresult code, const std::string &what);

  static std::vector<std::unique_ptr<Device>> &all();
  static Device *at(int ordinal);
  /// The device that holds an address, null for the host.
  static Device *of(uint64_t address);
};

/// Ranges of host memory that the device may touch: pinned and registered.
struct PinnedMemory {
  std::shared_mutex mutex;
  std::map<uint64_t, size_t> ranges;
  std::set<uint64_t> owned;
  static PinnedMemory &get();
  bool contains(const void *at, size_t bytes);
  Range find(uint64_t address);
};

} // namespace fakegpu

struct CUctx_st {
  fakegpu::Device *device = nullptr;
  bool isPrimary = false;
  int references = 0;
  unsigned flags = 0;
  std::mutex mutex;
  std::set<CUstream> streams;
  std::unique_ptr<CUstream_st> nullStream;
  std::set<CUcontext> peers;
};

namespace fakegpu {

/// The context stack of this thread.
std::vector<CUcontext> &contextStack();
inline CUcontext currentContext() { return contextStack().empty() ? nullptr : contextStack().back(); }

/// Counts a call of a function; returns true if FAKEGPU_FAIL says that it fails.
bool failsNow(const std::string &call);
/// The first step of each call: it counts, fails if FAKEGPU_FAIL says so, and reports a fault that a
/// kernel has had.
CUresult enterCall(const char *name, bool needsContext);
#define FAKEGPU_ENTER(name, needsContext)                                                          \
  if (CUresult entered = ::fakegpu::enterCall(name, needsContext))                                 \
  return entered

/// A stream of a handle: the null stream of the current context for 0 and CU_STREAM_LEGACY.
CUstream streamOf(CUstream handle);
/// Queues work, or adds it to the graph that the stream captures. Logs a kernel's launch.
CUresult submit(CUstream stream, Work work);
/// Waits for the work with this key that is queued; forgets its order.
void awaitKey(const void *key);
void forgetKey(const void *key);
/// Rises with each operation that is queued or ends, on any stream.
uint64_t activity();
/// Waits for all streams of a context.
void synchronizeContext(CUcontext context);
/// Fails where a capture forbids a call that waits or allocates.
CUresult forbidDuringCapture(CUstream stream);

/// Counts of FAKEGPU_LOG, which `fakegpuWriteLog` writes to another file at any time.
struct Log {
  std::mutex mutex;
  std::map<std::string, uint64_t> launches, calls; // calls of NCCL and cuBLASLt
  std::map<std::string, Counters> counters;
  uint64_t hostToDevice = 0, deviceToHost = 0, deviceToDevice = 0;
  uint64_t captures = 0, graphLaunches = 0, waits = 0;

  static Log &get();
  void launched(const std::string &kernel);
  void ran(const std::string &kernel, const Counters &c);
  void waited();
  void copied(bool fromDevice, bool toDevice, uint64_t bytes);
  void write(const std::string &path);
};

CUresult resultOf(const Fault &fault);
std::string errorName(CUresult code);

} // namespace fakegpu

#endif
