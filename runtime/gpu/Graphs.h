//===- Graphs.h - work of an entry that a GPU repeats -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_GRAPHS_H
#define MESHWRIGHT_RUNTIME_GPU_GRAPHS_H

#include "Processor.h"

#include "meshwright/runtime/include/World.h"

#include <list>
#include <utility>
#include <vector>

namespace meshwright::rt::gpu {

/// Work that was captured on a stream. It may be none.
class Graph {
public:
  /// Ends the capture that the stream is in.
  Graph(Processor &processor, cuda::Stream *stream);
  Graph(Graph &&other)
      : cuda(other.cuda), executable(std::exchange(other.executable, nullptr)) {}
  ~Graph() {
    if (executable)
      cuda.cuGraphExecDestroy(executable);
  }
  void launch(cuda::Stream *stream) const {
    if (executable)
      check(cuda, cuda.cuGraphLaunch(executable, stream), "cuGraphLaunch");
  }

private:
  const Cuda &cuda;
  cuda::GraphExecutable *executable = nullptr;
};

/// The graphs of an entry whose buffers are at certain addresses, in the order of a call.
struct Recording {
  std::vector<const void *> addresses;
  bool isWhole = false;
  std::vector<Graph> graphs;
};

/// The addresses of an entry's calls, and their graphs. States that a commit exchanges alternate
/// between two buffers, so an entry has several recordings.
class Recordings {
public:
  /// The recording of buffers that an earlier call had, too. Returns null for others, which may
  /// never come again.
  Recording *find(const RankBuffers &buffers);
  /// Destroys the graphs.
  void clear() { recordings.clear(); }

private:
  /// The last one that was asked for is first.
  std::list<Recording> recordings;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_GPU_GRAPHS_H
