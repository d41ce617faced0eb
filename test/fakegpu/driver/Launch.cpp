//===- Launch.cpp - Launches and their limits --------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <algorithm>

using namespace fakegpu;

namespace fakegpu {

int registersOf(CUfunc_st &f);

namespace {

struct Request {
  CUfunction function;
  unsigned grid[3], block[3], cluster[3] = {1, 1, 1};
  unsigned dynamicBytes;
  CUstream stream;
  bool cooperative = false;
};

CUresult refuse(CUresult code, const Request &r, const std::string &why) {
  fprintf(stderr, "fakegpu: launch of %s: %s\n", r.function->program->name.c_str(), why.c_str());
  return code;
}

CUresult checkShape(const Request &r) {
  const Function &f = *r.function->program->function;
  static const unsigned gridMost[] = {2147483647, 65535, 65535}, blockMost[] = {1024, 1024, 64};
  for (int d = 0; d < 3; ++d) {
    if (!r.grid[d] || r.grid[d] > gridMost[d])
      return refuse(CUDA_ERROR_INVALID_VALUE, r, "grid dimension " + std::to_string(d) + " is " + std::to_string(r.grid[d]));
    if (!r.block[d] || r.block[d] > blockMost[d])
      return refuse(CUDA_ERROR_INVALID_VALUE, r, "block dimension " + std::to_string(d) + " is " + std::to_string(r.block[d]));
    if (!r.cluster[d] || r.grid[d] % r.cluster[d])
      return refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, r, "the cluster does not divide the grid");
    if (f.requiredThreads[0] && r.block[d] != f.requiredThreads[d])
      return refuse(CUDA_ERROR_INVALID_VALUE, r, "the block is not the one of .reqntid");
  }
  unsigned threads = r.block[0] * r.block[1] * r.block[2];
  if (threads > 1024 || (f.maxThreads && threads > f.maxThreads))
    return refuse(CUDA_ERROR_INVALID_VALUE, r, std::to_string(threads) + " threads of a block");
  unsigned blocks = r.cluster[0] * r.cluster[1] * r.cluster[2];
  unsigned most = r.function->nonPortableCluster ? chipLimits().maxCluster * 2 : chipLimits().maxCluster;
  if (blocks > 1 && (Settings::get().chip < 90 || blocks > most))
    return refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, r, "a cluster of " + std::to_string(blocks) + " blocks");
  return CUDA_SUCCESS;
}

CUresult checkResources(const Request &r, unsigned &registers) {
  const Program &p = *r.function->program;
  unsigned threads = r.block[0] * r.block[1] * r.block[2];
  unsigned shared = r.dynamicBytes ? p.dynamicShared + r.dynamicBytes : p.staticShared;
  if (r.dynamicBytes > unsigned(r.function->maxDynamicShared) ||
      (shared > chipLimits().sharedPerBlock && r.function->maxDynamicShared == 49152) ||
      shared > chipLimits().sharedOptIn)
    return refuse(CUDA_ERROR_INVALID_VALUE, r,
                  std::to_string(r.dynamicBytes) + " bytes of dynamic shared memory beside " +
                      std::to_string(p.staticShared) + " static ones; the function's attribute allows " +
                      std::to_string(r.function->maxDynamicShared));
  // 255 registers, the most that a thread has, fit for 256 threads.
  registers = 0;
  if (threads <= 256 && !p.usesRegisterBudget)
    return CUDA_SUCCESS;
  registers = unsigned(registersOf(*r.function));
  unsigned perWarp = (registers + 7) / 8 * 8 * 32; // allocated in units of 256 of a warp
  if (perWarp * ((threads + 31) / 32) > chipLimits().registersPerBlock)
    return refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, r,
                  std::to_string(threads) + " threads of " + std::to_string(registers) + " registers");
  return CUDA_SUCCESS;
}

CUresult packParams(const Program &p, void **params, void **extra, std::vector<char> &out) {
  out.assign(p.paramBytes, 0);
  if (params) {
    for (size_t i = 0; i < p.params.size(); ++i) {
      if (!params[i])
        return CUDA_ERROR_INVALID_VALUE;
      memcpy(&out[p.params[i].offset], params[i], p.params[i].size);
    }
    return CUDA_SUCCESS;
  }
  const void *buffer = nullptr;
  size_t size = 0;
  for (size_t i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size = *static_cast<size_t *>(extra[i + 1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (size < p.paramBytes)
    return p.params.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  memcpy(out.data(), buffer, p.paramBytes);
  return CUDA_SUCCESS;
}

CUresult launch(const Request &r, void **params, void **extra) {
  if (!r.function)
    return CUDA_ERROR_INVALID_HANDLE;
  CUstream s = streamOf(r.stream);
  if (!s)
    return CUDA_ERROR_INVALID_HANDLE;
  if (s->context != r.function->module->context)
    return CUDA_ERROR_INVALID_HANDLE;
  unsigned registers;
  if (CUresult e = checkShape(r))
    return e;
  if (CUresult e = checkResources(r, registers))
    return e;
  auto l = std::make_shared<Launch>();
  l->program = r.function->program.get();
  if (CUresult e = packParams(*l->program, params, extra, l->params))
    return e;
  for (int d = 0; d < 3; ++d)
    l->grid[d] = r.grid[d], l->block[d] = r.block[d], l->cluster[d] = r.cluster[d];
  l->dynamicBytes = r.dynamicBytes;
  l->chip = Settings::get().chip;
  l->registers = registers;
  l->multiprocessors = chipLimits().multiprocessors;
  l->seed = Settings::get().seed;
  l->deadline = Settings::get().deadline;
  static std::atomic<uint64_t> gridId{0};
  l->gridId = ++gridId;
  Device *d = s->context->device;
  l->memory = d;
  Work work;
  work.kind = Work::Kernel;
  work.name = r.function->program->name;
  auto program = r.function->program; // lives as long as the launch
  work.run = [l, d, program] {
    try {
      Counters c = runLaunch(*l);
      Log::get().ran(program->name, c);
      return 2000.0 + double(c.warpInstructions) * 0.25;
    } catch (const Fault &fault) {
      d->fail(resultOf(fault), fault.what());
      return 2000.0;
    }
  };
  return submit(s, std::move(work));
}

} // namespace
} // namespace fakegpu

FAKEGPU_EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
  FAKEGPU_ENTER("cuLaunchKernel", true);
  Request r{f, {gx, gy, gz}, {bx, by, bz}, {1, 1, 1}, shared, stream};
  if (f && f->requiredCluster[0])
    std::copy(f->requiredCluster, f->requiredCluster + 3, r.cluster);
  return launch(r, params, extra);
}

FAKEGPU_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
  FAKEGPU_ENTER("cuLaunchKernelEx", true);
  if (!c || !f)
    return CUDA_ERROR_INVALID_VALUE;
  Request r{f, {c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ}, {1, 1, 1}, c->sharedMemBytes, c->hStream};
  if (f->requiredCluster[0])
    std::copy(f->requiredCluster, f->requiredCluster + 3, r.cluster);
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    const CUlaunchAttribute &a = c->attrs[i];
    switch (a.id) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      r.cluster[0] = a.value.clusterDim.x;
      r.cluster[1] = a.value.clusterDim.y;
      r.cluster[2] = a.value.clusterDim.z;
      break;
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      break;
    default:
      return refuse(CUDA_ERROR_NOT_SUPPORTED, r, "launch attribute " + std::to_string(int(a.id)));
    }
  }
  return launch(r, params, extra);
}

FAKEGPU_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t dynamicBytes) {
  FAKEGPU_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor", true);
  if (!f || threads < 1 || threads > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned warps = unsigned(threads + 31) / 32, perWarp = unsigned(std::max(16, registersOf(*f)) + 7) / 8 * 256;
  uint64_t shared = f->program->dynamicShared + dynamicBytes + 1024;
  uint64_t count = std::min<uint64_t>({32, 64 / warps, 65536 / (uint64_t(perWarp) * warps), chipLimits().sharedPerMultiprocessor / shared});
  *blocks = int(count);
  return CUDA_SUCCESS;
}
