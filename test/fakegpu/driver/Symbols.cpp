//===- Symbols.cpp - Error names and cuGetProcAddress ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <dlfcn.h>

using namespace fakegpu;

namespace {

struct ErrorText {
  CUresult code;
  const char *name, *text;
};

#define FAKEGPU_ERROR(code, text) {code, #code, text}
const ErrorText kErrors[] = {
    FAKEGPU_ERROR(CUDA_SUCCESS, "no error"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    FAKEGPU_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    FAKEGPU_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    FAKEGPU_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    FAKEGPU_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    FAKEGPU_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    FAKEGPU_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    FAKEGPU_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    FAKEGPU_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    FAKEGPU_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    FAKEGPU_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    FAKEGPU_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    FAKEGPU_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    FAKEGPU_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    FAKEGPU_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    FAKEGPU_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    FAKEGPU_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    FAKEGPU_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    FAKEGPU_ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    FAKEGPU_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    FAKEGPU_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    FAKEGPU_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    FAKEGPU_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    FAKEGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    FAKEGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    FAKEGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    FAKEGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    FAKEGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    FAKEGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    FAKEGPU_ERROR(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    FAKEGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
    FAKEGPU_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"),
    FAKEGPU_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "cluster misconfiguration"),
    FAKEGPU_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const ErrorText *find(CUresult code) {
  for (const ErrorText &e : kErrors)
    if (e.code == code)
      return &e;
  return nullptr;
}

/// The CUDA version that brought a function, where it is newer than 11.0.
int introduced(const std::string &name) {
  static const std::map<std::string, int> versions = {
      {"cuMemAllocAsync", 11020}, {"cuMemFreeAsync", 11020}, {"cuMemAllocFromPoolAsync", 11020},
      {"cuMemPoolCreate", 11020}, {"cuMemPoolDestroy", 11020}, {"cuMemPoolTrimTo", 11020},
      {"cuMemPoolSetAttribute", 11020}, {"cuMemPoolGetAttribute", 11020},
      {"cuDeviceGetDefaultMemPool", 11020}, {"cuGetProcAddress", 11030},
      {"cuGraphInstantiate", 11040}, {"cuGraphInstantiateWithFlags", 11040},
      {"cuLaunchKernelEx", 11080}, {"cuTensorMapEncodeTiled", 12000}, {"cuFuncGetName", 12030},
      {"cuFuncGetParamInfo", 12040}};
  auto found = versions.find(name);
  return found == versions.end() ? 0 : found->second;
}

} // namespace

std::string fakegpu::errorName(CUresult code) {
  const ErrorText *e = find(code);
  return e ? e->name : std::to_string(int(code));
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGetErrorName(CUresult code, const char **out) {
  const ErrorText *e = find(code);
  *out = e ? e->name : nullptr;
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGetErrorString(CUresult code, const char **out) {
  const ErrorText *e = find(code);
  *out = e ? e->text : nullptr;
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t, CUdriverProcAddressQueryResult *status) {
  *out = nullptr;
  std::string name = symbol ? symbol : "";
  int driver = Settings::get().driver;
  if (introduced(name) > driver || version > driver) {
    if (status)
      *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_ERROR_NOT_FOUND;
  }
  Dl_info self;
  dladdr(reinterpret_cast<void *>(&cuDriverGetVersion), &self);
  void *handle = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (name == "cuGraphInstantiate")
    name = "cuGraphInstantiateWithFlags";
  for (const char *suffix : {"_v4", "_v3", "_v2", ""})
    if (!*out && handle)
      *out = dlsym(handle, (name + suffix).c_str());
  if (handle)
    dlclose(handle);
  if (status)
    *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
