//===- GpuDevice.h - the device of a rank that computes on a GPU -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_GPUDEVICE_H
#define MESHWRIGHT_RUNTIME_GPU_GPUDEVICE_H

#include "Collectives.h"
#include "Graphs.h"
#include "HelperKernels.h"
#include "Products.h"

#include "meshwright/runtime/src/ranks/MovedRows.h"

#include <set>
#include <unordered_map>
#include <utility>

namespace meshwright::rt::gpu {

/// An event of the driver.
class Event {
public:
  explicit Event(Processor &processor, cuda::EventFlags flags = cuda::WithoutTimes)
      : cuda(processor.getCuda()) {
    processor.enter();
    check(cuda, cuda.cuEventCreate(&event, flags), "cuEventCreate");
  }
  Event(Event &&other) : cuda(other.cuda), event(std::exchange(other.event, nullptr)) {}
  ~Event() {
    if (event)
      cuda.cuEventDestroy(event);
  }
  cuda::Event *get() const { return event; }
  void record(cuda::Stream *stream) const {
    check(cuda, cuda.cuEventRecord(event, stream), "cuEventRecord");
  }
  /// Nanoseconds since another event. Both have times.
  int64_t since(const Event &other) const {
    float milliseconds = 0;
    check(cuda, cuda.cuEventElapsedTime(&milliseconds, other.event, event), "cuEventElapsedTime");
    return int64_t(double(milliseconds) * 1e6);
  }
  /// Makes the stream wait for the event's last record.
  void await(cuda::Stream *stream) const {
    check(cuda, cuda.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
  }

private:
  const Cuda &cuda;
  cuda::Event *event = nullptr;
};

/// The device of a rank that computes on a GPU.
///
/// - The first call of an entry runs the entry twice. The first time, each op prepares: it loads
///   helper kernels, chooses algorithms and allocates staging memory, and enqueues nothing. The
///   second time, and in later calls, ops are enqueued on streams of the GPU.
/// - Later calls with the same addresses repeat graphs that one call has captured (Graphs.h). Ops
///   in a graph then enqueue nothing.
/// - Between the first and the last op of a call the host waits for the GPU where it must know how many
///   rows of experts or of groups move, once for each routing or list of numbers, and nowhere else.
/// - An op that finds a wrong index or value writes a word. A call copies all words to the host at
///   its end.
class GpuDevice : public Device {
public:
  GpuDevice(mw_rt_context &rank, std::shared_ptr<Processor> processor, const CublasLt &cublasLt,
            int64_t ranksOnProcessor);
  ~GpuDevice() override;

  Processor &getProcessor() { return *processor; }
  /// Must be called before all other functions.
  void setCollectives(std::unique_ptr<Collectives> given) { collectives = std::move(given); }

  const char *getName() const override { return "gpu"; }
  bool load(const ProgramDescription &program, std::string &error) override;
  bool sharesHostMemory() const override { return false; }
  DeviceMemory allocate(int64_t bytes) override { return processor->allocate(bytes); }
  int64_t getFreeBytes() override { return processor->getFreeBytes() / ranksOnProcessor; }
  bool copyIn(void *device, const void *host, int64_t bytes, std::string &error) override;
  bool copyOut(void *host, const void *device, int64_t bytes, std::string &error) override;
  bool copy(void *to, const void *from, int64_t bytes, std::string &error) override;
  bool undo(const mw_rt_call &what, void *const *buffers, std::string &error) override;

  bool reachesGpuMemory() const override { return true; }
  bool takeBoxes(const std::vector<StridedBox> &boxes, void *to, int64_t cleared,
                 const void *array, int64_t bytes, int64_t gpu, std::string &error) override;
  bool giveBoxes(const std::vector<StridedBox> &boxes, void *array, int64_t gpu,
                 const void *from, int64_t bytes, std::string &error) override;
  bool giveBoxesOf(int64_t from, void *data, int64_t bytes, const std::vector<StridedBox> &boxes,
                   void *array, int64_t gpu, std::string &error) override;
  bool finishGiving(int64_t gpu, std::string &error) override;

  void prepare(const HostThreads &) override {}
  void enterThread() override;
  int32_t runEntry(mw_rt_entry entry, const RankBuffers &buffers,
                   const std::function<int32_t()> &call) override;
  bool hasClock() const override { return true; }
  void beginOp(const TraceEvent &event) override;
  void endOp() override;
  bool getPeaks(Ceilings &peaks) const override;
  bool beginGraph(int64_t op, std::string &error) override;
  bool endGraph(int64_t op, std::string &error) override;
  bool synchronize(std::chrono::steady_clock::time_point deadline) override;

  bool launch(const mw_rt_launch &what, mw_rt_kernel kernel, void *const *buffers,
              std::string &error) override;
  bool performs(int64_t kind) const override;
  bool perform(const Caller &caller, const mw_rt_call &what, void *const *buffers,
               std::string &error) override;
  bool checkFinite(const Caller &caller, int64_t result, int64_t dtype, const void *data,
                   int64_t count, const ExistingRows &existing, std::string &error) override;

  bool runCollective(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
                     void *const *outputs, std::string &error) override;
  bool start(const Caller &caller, const mw_rt_collective &what, int64_t ticket,
             const void *const *inputs, void *const *outputs, std::string &error) override;
  bool start(const Caller &caller, const mw_rt_call &what, int64_t ticket, void *const *buffers,
             std::string &error) override;
  bool wait(int64_t ticket, std::string &error) override;

private:
  /// A word that an op writes where it finds something wrong.
  struct Word {
    int64_t op;
    /// The result whose value is not finite, or -1 for a wrong index.
    int64_t result;
    /// The indices are below this; 0 if unknown.
    int64_t size;
  };
  /// A point of a stream that the GPU comes to.
  struct Mark {
    /// -1 behind the last op.
    int64_t op;
    Event event;
    /// True if it is the end of a graph that begins with the op.
    bool isGraph;
  };
  /// Work of a stream between two times.
  struct Timed {
    int64_t stream;
    TraceEvent event;
    Event begin, end;
    /// If the work is that of rows that exist, and `event` counts all: their number, and the call's word for it.
    ExistingRows existing = {};
    size_t word = 0;
  };
  /// An entry, with or without checks of values.
  struct EntryState {
    bool isPrepared = false;
    std::vector<Word> words;
    DeviceMemory onDevice;
    std::shared_ptr<char> onHost;
    std::vector<Mark> marks;
    /// The number of `beginGraph`, and the calls so far.
    int64_t graphs = 0, calls = 0;
    Recordings recordings;
  };
  // The function of each call.
#define MW_RT_KIND(name)                                                                           \
  bool perform(const mw_rt_##name &what, void *const *buffers, std::string &error);
  MW_RT_GPU_CALLS(MW_RT_KIND)
#undef MW_RT_KIND
  /// A call in which no ranks meet is on the compute stream.
  template <typename Call>
  bool perform(const Caller &, const Call &what, void *const *buffers, std::string &error) {
    return perform(what, buffers, error);
  }
  // In the others they do, on the caller's stream.
  bool perform(const Caller &caller, const mw_rt_send_rows &what, void *const *buffers, std::string &error);
  bool perform(const Caller &caller, const mw_rt_return_rows &what, void *const *buffers, std::string &error);
  bool perform(const Caller &caller, const mw_rt_all_gather_v &what, void *const *buffers, std::string &error);
  bool perform(const Caller &caller, const mw_rt_reduce_scatter_v &what, void *const *buffers, std::string &error);

  /// The numbers of rows of a routing that a rank sends to each member of a group, and receives from it.
  struct Traffic {
    /// The call that found the numbers.
    const mw_rt_moved_rows *by = nullptr;
    RowCounts sent, received;
  };
  /// Memory of a call that moves rows: on the host for all numbers, which may be copied still, and on the GPU
  /// for the offsets of other ranks, the order of rows, and rows in another order.
  struct RowMemory {
    explicit RowMemory(Processor &processor) : copied(processor) {}
    std::shared_ptr<char> host;
    DeviceMemory offsets, order, rows;
    Event copied;
  };
  /// Memory of a call that has numbers of true rows: on the host for them, and on the GPU for partial sums.
  struct CountedMemory {
    std::shared_ptr<char> host;
    DeviceMemory partials;
  };
  /// How `watch` sees the GPU go on.
  struct Progress {
    std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now(), firstProblem = last;
    size_t passed = 0;
  };

  /// A constant array that an op copies from.
  using Tables = std::map<const void *, DeviceMemory>;

  cuda::Stream *getStream(int64_t number);
  bool isPreparing() const { return helpers.prepares; }
  /// Returns true if ops are enqueued or captured: they are not prepared, and no graph repeats them.
  bool enqueues() const { return !helpers.prepares && !helpers.skips; }
  Recording *chooseRecording(const RankBuffers &buffers);
  void openGraph();
  void closeGraph();
  bool splitsGraph() const { return graphOp >= 0 && !collectives->canRecord(); }
  bool performOutside(const std::function<bool()> &body);
  void dropGraph();
  bool prepareEntry(EntryState &entry, const std::function<int32_t()> &call);
  /// The word of the current op, or null while it prepares.
  void *getScratch(int64_t bytes);
  bool multiply(const mw_rt_gemm &what, DType result, const void *a, const void *b,
                const void *bias, void *c);
  /// The result of a word that says if a weight is finite; its size is the form.
  static constexpr int64_t kWeightWord = -2;
  /// The results of words with numbers for the report of experts; their size is the layer. Of rows first the
  /// routing's first expert, as i32 or i64, then the offsets.
  static constexpr int64_t kFirst32Word = -3, kFirst64Word = -4, kOffsetWord = -5, kDroppedWord = -6;
  /// The result of a word with a number of rows for the trace.
  static constexpr int64_t kRowsWord = -7;
  void *nextWord(int64_t result, int64_t size);
  void *nextWordOf(int64_t op, int64_t result, int64_t size);
  void mark(int64_t op, cuda::Stream *stream, bool isGraph = false);
  void cut(const Caller &caller, const mw_rt_collective &what, cuda::Stream *stream,
           const void *const *inputs, void *const *outputs);
  bool perform(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
               void *const *outputs);
  const char *getTable(const void *descriptor, const std::function<std::vector<int64_t>()> &make,
                       bool isNarrow = false);
  void readWords();
  bool readNote(const Word &word, uint64_t number);
  void beginTimed(int64_t stream, const TraceEvent &event);
  void noteRows(const mw_rt_launch &what, void *const *buffers);
  void addTimes();
  bool look(Progress &progress);
  bool watch(std::chrono::steady_clock::time_point deadline);
  bool awaitStream(cuda::Stream *stream);
  Event &beginTicket(int64_t ticket, cuda::Stream *stream);
  void prepareRows(const Caller &caller, const mw_rt_moved_rows &what, int64_t moved);
  const Traffic *countRows(const Caller &caller, const mw_rt_moved_rows &what, const void *offsets,
                           RowMemory &memory);
  bool sendRows(const Caller &caller, const mw_rt_moved_rows &what, void *const *buffers, std::string &error);
  bool returnRows(const Caller &caller, const mw_rt_moved_rows &what, void *const *buffers);
  const char *writeOrder(RowMemory &memory, int64_t *order, const RowCounts &counts, bool byExpert,
                         cuda::Stream *stream);
  bool openMemory(RowMemory &memory, cuda::Stream *stream);
  void clearIntegers(const mw_rt_moved_rows &what, char *rows, int64_t first, cuda::Stream *stream);
  bool performAwaited(const std::function<bool()> &body);
  void prepareCounted(const mw_rt_counted_rows &what);
  void prepareExchanged(const Caller &caller, const mw_rt_exchanged_rows &what);
  const int64_t *readCounts(const Caller &caller, const mw_rt_counted_rows &what, const void *counts, std::string &error);
  bool gatherCounted(const Caller &caller, const mw_rt_exchanged_rows &what, void *const *buffers, std::string &error);
  bool scatterCounted(const Caller &caller, const mw_rt_exchanged_rows &what, void *const *buffers, std::string &error);

  mw_rt_context &context;
  std::shared_ptr<Processor> processor;
  const Cuda &cuda;
  const int64_t ranksOnProcessor;
  HelperKernels helpers;
  Products products;
  std::unique_ptr<Collectives> collectives;
  /// The program's kernels, by name, and by the address of their record.
  std::vector<std::shared_ptr<cuda::Module>> modules;
  std::map<std::string, cuda::Function *> functions;
  std::unordered_map<const void *, cuda::Function *> byRecord;
  /// Scratch memory of kernels: all that was ever used, since graphs have the addresses. The last
  /// is the largest.
  std::vector<std::pair<int64_t, DeviceMemory>> scratches;
  /// Stream 0 computes.
  std::vector<cuda::Stream *> streams;
  /// Where the compute stream was, and the end of the collective, by ticket.
  std::map<int64_t, std::pair<Event, Event>> tickets;
  /// The tickets of calls, which no graph has, so that their waits are outside of graphs, too.
  std::set<int64_t> callTickets;
  Tables tables;
  std::map<const mw_rt_moved_rows *, RowMemory> rowMemories;
  std::map<const mw_rt_counted_rows *, CountedMemory> countedMemories;
  /// Numbers of true rows that the host knows in the current call, by their source.
  std::map<int64_t, std::vector<int64_t>> trueRows;
  /// Of the current call, by the routing and the ranks of the group.
  std::map<std::pair<int64_t, std::vector<int64_t>>, Traffic> traffic;
  /// Of the current call: rows that other ranks sent, by the number of the routing.
  std::map<int64_t, ExpertRows> arrived;
  /// Copies of arrays of callers that are on other GPUs, until the next run ends.
  std::vector<DeviceMemory> borrowed;
  /// The end of the copies from arrays of callers.
  Event taken;
  std::map<std::pair<mw_rt_entry, bool>, EntryState> entries;

  // The state of the current call.
  EntryState *current = nullptr;
  size_t wordsUsed = 0, marksUsed = 0;
  bool isEnqueued = false;
  /// The work of a trace, and an event at a known time of the host. Empty without a trace.
  std::vector<Timed> timed;
  std::unique_ptr<Event> origin;
  int64_t originTime = 0;
  /// The graphs that the call captures or repeats, or null.
  Recording *recording = nullptr;
  size_t nextGraph = 0;
  /// The op at which the current graph begins, or -1 outside of graphs.
  int64_t graphOp = -1;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_GPU_GPUDEVICE_H
