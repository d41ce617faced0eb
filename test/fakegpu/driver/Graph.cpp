//===- Graph.cpp - Graphs that streams capture -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <algorithm>

using namespace fakegpu;

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  FAKEGPU_ENTER("cuStreamBeginCapture", true);
  CUstream s = handle;
  if (!s || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; // the null stream cannot be captured
  if (s->capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  s->capture = std::make_shared<Capture>();
  s->capture->graph = std::make_unique<CUgraph_st>();
  s->capture->origin = s;
  s->capture->mode = mode;
  s->capture->thread = std::this_thread::get_id();
  s->capture->streams.insert(s);
  s->captureTail.clear();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream s, CUgraph *out) {
  FAKEGPU_ENTER("cuStreamEndCapture", true);
  *out = nullptr;
  if (!s || !s->capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = s->capture;
  if (capture->origin != s)
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  // All that other streams captured has to be joined by the origin.
  std::set<CUgraphNode_st *> reached(s->captureTail.begin(), s->captureTail.end());
  auto &nodes = capture->graph->nodes;
  for (size_t i = nodes.size(); i-- > 0;)
    if (reached.count(nodes[i].get()))
      reached.insert(nodes[i]->dependencies.begin(), nodes[i]->dependencies.end());
  bool joined = reached.size() == nodes.size();
  for (CUstream other : capture->streams) {
    other->capture = nullptr;
    other->captureTail.clear();
  }
  if (capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined)
    return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *out = capture->graph.release();
  std::lock_guard<std::mutex> lock(Log::get().mutex);
  ++Log::get().captures;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
  FAKEGPU_ENTER("cuStreamIsCapturing", true);
  s = streamOf(s);
  *status = !s || !s->capture      ? CU_STREAM_CAPTURE_STATUS_NONE
            : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  FAKEGPU_ENTER("cuThreadExchangeStreamCaptureMode", false);
  static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(current, *mode);
  return CUDA_SUCCESS;
}

namespace fakegpu {
namespace {

void fill(CUgraphExec_st &exec, const CUgraph_st &graph) {
  std::map<const CUgraphNode_st *, size_t> index;
  exec.nodes.clear();
  exec.dependencies.clear();
  for (auto &node : graph.nodes) {
    index[node.get()] = exec.nodes.size();
    exec.nodes.push_back(node->work);
    std::vector<size_t> dependencies;
    for (const CUgraphNode_st *d : node->dependencies)
      dependencies.push_back(index.at(d));
    exec.dependencies.push_back(std::move(dependencies));
  }
}

/// Runs the nodes in a random order that the dependencies allow. Returns the length of the longest
/// path by the stand-in's clock.
double runGraph(const std::vector<Work> &nodes, const std::vector<std::vector<size_t>> &dependencies, uint64_t seed) {
  std::vector<double> end(nodes.size(), -1);
  std::vector<size_t> ready;
  double longest = 0;
  for (size_t left = nodes.size(); left; --left) {
    ready.clear();
    for (size_t i = 0; i < nodes.size(); ++i)
      if (end[i] < 0 && std::all_of(dependencies[i].begin(), dependencies[i].end(), [&](size_t d) { return end[d] >= 0; }))
        ready.push_back(i);
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    size_t i = ready[(seed >> 33) % ready.size()];
    double begin = 0;
    for (size_t d : dependencies[i])
      begin = std::max(begin, end[d]);
    end[i] = begin + (nodes[i].run ? nodes[i].run() : 0);
    longest = std::max(longest, end[i]);
  }
  return longest;
}

} // namespace
} // namespace fakegpu

FAKEGPU_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *out, CUgraph graph, unsigned long long) {
  FAKEGPU_ENTER("cuGraphInstantiateWithFlags", true);
  if (!graph || !out)
    return CUDA_ERROR_INVALID_VALUE;
  auto *exec = new CUgraphExec_st;
  exec->context = currentContext();
  fill(*exec, *graph);
  *out = exec;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  FAKEGPU_ENTER("cuGraphExecUpdate", true);
  if (!exec || !graph)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraphExec_st updated;
  fill(updated, *graph);
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  if (updated.dependencies != exec->dependencies)
    result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (size_t i = 0; result == CU_GRAPH_EXEC_UPDATE_SUCCESS && i < exec->nodes.size(); ++i)
    if (updated.nodes[i].kind != exec->nodes[i].kind)
      result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  if (info)
    *info = {result, nullptr, nullptr};
  if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  exec->nodes = updated.nodes;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  FAKEGPU_ENTER("cuGraphLaunch", true);
  CUstream s = streamOf(handle);
  if (!s || !exec)
    return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard<std::mutex> lock(Log::get().mutex);
    ++Log::get().graphLaunches;
  }
  Work work;
  for (const Work &node : exec->nodes) {
    if (node.kind == Work::Kernel)
      Log::get().launched(node.name);
    for (const void *key : node.keys)
      if (std::find(work.keys.begin(), work.keys.end(), key) == work.keys.end())
        work.keys.push_back(key);
  }
  static std::atomic<uint64_t> count{0};
  uint64_t seed = Settings::get().seed + ++count;
  work.run = [nodes = exec->nodes, dependencies = exec->dependencies, seed] { return runGraph(nodes, dependencies, seed); };
  return submit(s, std::move(work));
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream) {
  FAKEGPU_ENTER("cuGraphUpload", true);
  return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  FAKEGPU_ENTER("cuGraphGetNodes", false);
  size_t room = nodes ? *count : 0;
  *count = graph->nodes.size();
  for (size_t i = 0; i < std::min(room, *count); ++i)
    nodes[i] = graph->nodes[i].get();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  FAKEGPU_ENTER("cuGraphExecDestroy", false);
  if (!exec)
    return CUDA_ERROR_INVALID_VALUE;
  delete exec;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  FAKEGPU_ENTER("cuGraphDestroy", false);
  if (!graph)
    return CUDA_ERROR_INVALID_VALUE;
  delete graph;
  return CUDA_SUCCESS;
}
