//===- Graphs.cpp - work of an entry that a GPU repeats -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright/runtime/src/ranks/Context.h"

#include <algorithm>

namespace meshwright::rt::gpu {

/// An entry forgets the buffers that it has not seen for longest. Each of n states that entries
/// exchange independently doubles the number of combinations.
static constexpr size_t kMostRecordings = 8;
/// The calls of an entry before one is captured. The first loads kernels, and libraries may still
/// allocate in it.
static constexpr int64_t kPlainCalls = 2;

//===----------------------------------------------------------------------===//
// Recordings
//===----------------------------------------------------------------------===//

Graph::Graph(Processor &processor, cuda::Stream *stream) : cuda(processor.getCuda()) {
  cuda::Graph *captured = nullptr;
  check(cuda, cuda.cuStreamEndCapture(stream, &captured), "cuStreamEndCapture");
  size_t nodes = 0;
  cuda::Result result = cuda.cuGraphGetNodes(captured, nullptr, &nodes);
  if (result == cuda::Success && nodes > 0)
    result = cuda.cuGraphInstantiate(&executable, captured, 0);
  cuda.cuGraphDestroy(captured);
  check(cuda, result, "cuGraphInstantiate");
}

Recording *Recordings::find(const RankBuffers &buffers) {
  std::vector<const void *> addresses{buffers.arena};
  for (const auto *part :
       {&buffers.arguments, &buffers.prepared, &buffers.constants, &buffers.results})
    addresses.insert(addresses.end(), part->begin(), part->end());
  auto found = std::find_if(recordings.begin(), recordings.end(), [&](const Recording &recording) {
    return recording.addresses == addresses;
  });
  bool isKnown = found != recordings.end();
  if (isKnown)
    recordings.splice(recordings.begin(), recordings, found);
  else
    recordings.emplace_front().addresses = std::move(addresses);
  if (recordings.size() > kMostRecordings)
    recordings.pop_back();
  return isKnown ? &recordings.front() : nullptr;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// The recording that this call of the current entry captures or repeats, or null. Called once for
/// each call, before the entry writes the addresses of results.
Recording *GpuDevice::chooseRecording(const RankBuffers &buffers) {
  if (context.graphs == GraphUse::Off || context.trace)
    return nullptr;
  Recording *found = current->recordings.find(buffers);
  return current->calls++ < kPlainCalls ? nullptr : found;
}

/// Begins to capture, or repeats the next graph of the call.
void GpuDevice::openGraph() {
  if (recording && !recording->isWhole) {
    check(cuda, cuda.cuStreamBeginCapture(getStream(0), cuda::CaptureThreadLocal),
          "cuStreamBeginCapture");
  } else if (recording) {
    recording->graphs[nextGraph++].launch(getStream(0));
    helpers.skips = true;
  }
}

/// A graph that was captured has not done its work yet, so it is launched.
void GpuDevice::closeGraph() {
  helpers.skips = false;
  if (recording && !recording->isWhole) {
    recording->graphs.emplace_back(*processor, getStream(0));
    recording->graphs.back().launch(getStream(0));
  }
}

/// Performs work of the current graph that cannot be captured, between two graphs.
bool GpuDevice::performOutside(const std::function<bool()> &body) {
  closeGraph();
  int64_t op = std::exchange(graphOp, -1);
  if (!body())
    return false;
  openGraph();
  graphOp = op;
  return true;
}

/// Forgets a graph that a failure has ended.
void GpuDevice::dropGraph() {
  if (graphOp >= 0 && !helpers.skips) {
    cuda::Graph *captured = nullptr;
    cuda.cuStreamEndCapture(getStream(0), &captured);
    if (captured)
      cuda.cuGraphDestroy(captured);
  }
  helpers.skips = false;
  graphOp = -1;
}

bool GpuDevice::beginGraph(int64_t op, std::string &) {
  if (isPreparing()) {
    ++current->graphs;
    return true;
  }
  if (recording) {
    openGraph();
    graphOp = op;
  }
  return true;
}

bool GpuDevice::endGraph(int64_t, std::string &) {
  if (graphOp < 0)
    return true;
  closeGraph();
  mark(std::exchange(graphOp, -1), getStream(0), /*isGraph=*/true);
  return true;
}

} // namespace meshwright::rt::gpu
