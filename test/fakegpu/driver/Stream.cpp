//===- Stream.cpp - Streams and events ---------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <chrono>

using namespace fakegpu;

namespace fakegpu {

void Completion::finish(double at) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    time = at;
  }
  changed.notify_all();
}

double Completion::wait() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done; });
  return time;
}

bool Completion::poll() {
  std::lock_guard<std::mutex> lock(mutex);
  return done;
}

namespace {

/// The null stream and blocking streams wait for each other.
void orderWithNullStream(CUstream s) {
  CUcontext c = s->context;
  if (s->flags & CU_STREAM_NON_BLOCKING)
    return;
  if (s != c->nullStream.get()) {
    s->await(c->nullStream->last());
    return;
  }
  std::lock_guard<std::mutex> lock(c->mutex);
  for (CUstream other : c->streams)
    if (!(other->flags & CU_STREAM_NON_BLOCKING))
      s->await(other->last());
}

} // namespace

CUstream streamOf(CUstream handle) {
  if (handle && handle != CU_STREAM_LEGACY)
    return handle == CU_STREAM_PER_THREAD ? nullptr : handle;
  return currentContext() ? currentContext()->nullStream.get() : nullptr;
}

namespace {

std::atomic<uint64_t> activities{0};

/// The last work of each key that is not in a graph.
struct KeyOrder {
  std::mutex mutex;
  std::map<const void *, std::shared_ptr<Completion>> last;
  static KeyOrder &get() {
    static auto *order = new KeyOrder; // streams may run at exit
    return *order;
  }
};

void capture(CUstream stream, Work work) {
  Capture &c = *stream->capture;
  auto node = std::make_unique<CUgraphNode_st>();
  node->dependencies = stream->captureTail;
  for (const void *key : work.keys) {
    CUgraphNode_st *&last = c.lastOf[key];
    if (last)
      node->dependencies.push_back(last);
    last = node.get();
  }
  node->work = std::move(work);
  stream->captureTail = {node.get()};
  c.graph->nodes.push_back(std::move(node));
}

} // namespace

uint64_t activity() { return activities; }

void forgetKey(const void *key) {
  KeyOrder &order = KeyOrder::get();
  std::lock_guard<std::mutex> lock(order.mutex);
  order.last.erase(key);
}

void awaitKey(const void *key) {
  KeyOrder &order = KeyOrder::get();
  std::shared_ptr<Completion> last;
  {
    std::lock_guard<std::mutex> lock(order.mutex);
    last = order.last[key];
  }
  if (last)
    last->wait();
}

CUresult submit(CUstream stream, Work work) {
  if (stream->capture) {
    capture(stream, std::move(work));
    return CUDA_SUCCESS;
  }
  if (work.kind == Work::Kernel)
    Log::get().launched(work.name);
  orderWithNullStream(stream);
  if (work.keys.empty()) {
    stream->push(std::move(work.run));
    return CUDA_SUCCESS;
  }
  KeyOrder &order = KeyOrder::get();
  std::lock_guard<std::mutex> lock(order.mutex);
  for (const void *key : work.keys)
    stream->await(order.last[key]);
  auto completion = stream->push(std::move(work.run));
  for (const void *key : work.keys)
    order.last[key] = completion;
  return CUDA_SUCCESS;
}

CUresult forbidDuringCapture(CUstream stream) {
  if (!stream->capture)
    return CUDA_SUCCESS;
  stream->capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

} // namespace fakegpu

CUstream_st::CUstream_st(CUcontext context, unsigned flags, int priority, uint64_t id)
    : context(context), flags(flags), priority(priority), id(id),
      random((Settings::get().seed * 0x9e3779b97f4a7c15u) ^ (id * 0xbf58476d1ce4e5b9u + 1)),
      thread([this] { work(); }) {}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    stopping = true;
  }
  added.notify_all();
  thread.join();
}

std::shared_ptr<Completion> CUstream_st::push(std::function<double()> run) {
  auto completion = std::make_shared<Completion>();
  {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back({std::move(run), nullptr, completion});
    tail = completion;
  }
  ++fakegpu::activities;
  added.notify_all();
  return completion;
}

void CUstream_st::await(std::shared_ptr<Completion> other) {
  if (!other)
    return;
  auto completion = std::make_shared<Completion>();
  {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back({nullptr, std::move(other), completion});
    tail = completion;
  }
  added.notify_all();
}

std::shared_ptr<Completion> CUstream_st::last() {
  std::lock_guard<std::mutex> lock(mutex);
  return tail;
}

void CUstream_st::work() {
  for (;;) {
    Operation op;
    {
      std::unique_lock<std::mutex> lock(mutex);
      added.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty())
        return;
      op = std::move(queue.front());
      queue.pop_front();
    }
    if (op.awaited)
      time = std::max(time, op.awaited->wait());
    if (op.run) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      if (Settings::get().seed && random % 16 == 0) // delays between streams
        std::this_thread::sleep_for(std::chrono::microseconds(random >> 32 & 127));
      if (context->device->error == CUDA_SUCCESS)
        time += op.run();
    }
    ++fakegpu::activities;
    op.completion->finish(time);
  }
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
  FAKEGPU_ENTER("cuStreamCreateWithPriority", true);
  if (flags & ~unsigned(CU_STREAM_NON_BLOCKING))
    return CUDA_ERROR_INVALID_VALUE;
  static std::atomic<uint64_t> count{0};
  CUcontext c = currentContext();
  auto *s = new CUstream_st(c, flags, std::min(0, std::max(priority, -5)), ++count);
  std::lock_guard<std::mutex> lock(c->mutex);
  c->streams.insert(s);
  *out = s;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *out, unsigned flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream s) {
  FAKEGPU_ENTER("cuStreamDestroy", false);
  if (!s)
    return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard<std::mutex> lock(s->context->mutex);
    if (!s->context->streams.erase(s))
      return CUDA_ERROR_INVALID_HANDLE;
  }
  delete s; // runs what is queued
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  FAKEGPU_ENTER("cuStreamSynchronize", true);
  CUstream s = streamOf(handle);
  if (!s)
    return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = forbidDuringCapture(s))
    return r;
  Log::get().waited();
  if (auto last = s->last())
    last->wait();
  return CUresult(s->context->device->error.load());
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  FAKEGPU_ENTER("cuStreamQuery", true);
  CUstream s = streamOf(handle);
  if (!s)
    return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = forbidDuringCapture(s))
    return r;
  auto last = s->last();
  if (last && !last->poll())
    return CUDA_ERROR_NOT_READY;
  return CUresult(s->context->device->error.load());
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext *out) {
  FAKEGPU_ENTER("cuStreamGetCtx", true);
  CUstream s = streamOf(handle);
  *out = s ? s->context : nullptr;
  return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int *priority) {
  FAKEGPU_ENTER("cuStreamGetPriority", true);
  CUstream s = streamOf(handle);
  *priority = s ? s->priority : 0;
  return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  FAKEGPU_ENTER("cuStreamWaitEvent", true);
  CUstream s = streamOf(handle);
  if (!s || !event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) {
    if (s->capture && s->capture != event->capture)
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    s->capture = event->capture;
    s->capture->streams.insert(s);
    for (CUgraphNode_st *node : event->captureTail)
      s->captureTail.push_back(node);
    return CUDA_SUCCESS;
  }
  if (s->capture) {
    s->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  s->await(event->completion);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
  FAKEGPU_ENTER("cuLaunchHostFunc", true);
  CUstream s = streamOf(handle);
  if (!s)
    return CUDA_ERROR_INVALID_HANDLE;
  Work work;
  work.kind = Work::Host;
  work.run = [=] {
    function(data);
    return 1000.0;
  };
  return submit(s, std::move(work));
}

FAKEGPU_EXPORT CUresult CUDAAPI cuEventCreate(CUevent *out, unsigned flags) {
  FAKEGPU_ENTER("cuEventCreate", true);
  *out = new CUevent_st;
  (*out)->flags = flags;
  (*out)->context = currentContext();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuEventDestroy(CUevent event) {
  FAKEGPU_ENTER("cuEventDestroy", false);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuEventRecord(CUevent event, CUstream handle) {
  FAKEGPU_ENTER("cuEventRecord", true);
  CUstream s = streamOf(handle);
  if (!s || !event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->context != s->context)
    return CUDA_ERROR_INVALID_CONTEXT;
  event->capture = s->capture;
  event->captureTail = s->captureTail;
  if (!s->capture)
    event->completion = s->push([] { return 0.0; });
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuEventQuery(CUevent event) {
  FAKEGPU_ENTER("cuEventQuery", false);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (event->completion && !event->completion->poll())
    return CUDA_ERROR_NOT_READY;
  return CUresult(event->context->device->error.load());
}

FAKEGPU_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  FAKEGPU_ENTER("cuEventSynchronize", false);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  Log::get().waited();
  if (event->completion)
    event->completion->wait();
  return CUresult(event->context->device->error.load());
}

FAKEGPU_EXPORT CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
  FAKEGPU_ENTER("cuEventElapsedTime", false);
  if (!begin || !end || !begin->completion || !end->completion ||
      ((begin->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
    return CUDA_ERROR_INVALID_HANDLE;
  if (!begin->completion->poll() || !end->completion->poll())
    return CUDA_ERROR_NOT_READY;
  *milliseconds = float((end->completion->time - begin->completion->time) * 1e-6);
  return CUDA_SUCCESS;
}
