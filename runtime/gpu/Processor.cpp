//===- Processor.cpp - a GPU of this process ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Processor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace meshwright::rt::gpu {

/// Bytes of each half of the staging memory.
static constexpr int64_t kHalf = 4 << 20;
/// The pool of freed memory has at most this part of the GPU's memory.
static constexpr int64_t kPoolPart = 4;
/// CUDA_ERROR_NO_BINARY_FOR_GPU: machine code of another chip.
static constexpr int kNoBinary = 209;

Visit::Visit(const Processor &processor) : cuda(processor.getCuda()) {
  check(cuda, cuda.cuCtxGetCurrent(&before), "cuCtxGetCurrent");
  processor.enter();
}

//===----------------------------------------------------------------------===//
// Beginning and end
//===----------------------------------------------------------------------===//

std::shared_ptr<Processor> Processor::get(const Cuda &cuda, int ordinal) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Processor>> known;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Processor> processor = known[ordinal].lock();
  if (!processor)
    known[ordinal] = processor = std::shared_ptr<Processor>(new Processor(cuda, ordinal));
  return processor;
}

Processor::Processor(const Cuda &cuda, int ordinal) : cuda(cuda), ordinal(ordinal) {
  check(cuda, cuda.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  check(cuda, cuda.cuDeviceGetAttribute(&major, cuda::CapabilityMajor, device),
        "cuDeviceGetAttribute");
  check(cuda, cuda.cuDeviceGetAttribute(&minor, cuda::CapabilityMinor, device),
        "cuDeviceGetAttribute");
  check(cuda, cuda.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  enter();
  size_t available = 0, total = 0;
  check(cuda, cuda.cuMemGetInfo(&available, &total), "cuMemGetInfo");
  totalBytes = int64_t(total);
  check(cuda, cuda.cuStreamCreateWithPriority(&copies, cuda::NonBlocking, 0), "cuStreamCreate");
  for (cuda::Event *&event : halfDone)
    check(cuda, cuda.cuEventCreate(&event, cuda::WithoutTimes), "cuEventCreate");
}

Processor::~Processor() {
  if (cuda.cuCtxSetCurrent(context) == cuda::Success) {
    emptyPool();
    helpers.clear();
    staging.reset();
    for (cuda::Event *event : halfDone)
      cuda.cuEventDestroy(event);
    cuda.cuStreamDestroy(copies);
    cuda.cuCtxSetCurrent(nullptr);
  }
  cuda.cuDevicePrimaryCtxRelease(device);
}

//===----------------------------------------------------------------------===//
// Chips
//===----------------------------------------------------------------------===//

std::string Processor::getCapability() const {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string Processor::getChip() const {
  switch (major) {
  case 8:
    return "sm_80";
  case 9:
    return "sm_90a";
  case 10:
    return "sm_100";
  default:
    return major < 8 ? "" : "sm_120";
  }
}

bool Processor::runs(const std::string &chip) const {
  int number = std::atoi(chip.c_str() + std::strlen("sm_"));
  bool isExact = !chip.empty() && chip.back() == 'a';
  return isExact ? number == major * 10 + minor : number <= major * 10 + minor;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// Frees the memory of the pool. The calling thread uses the GPU and has locked `poolMutex`, except at the end.
void Processor::emptyPool() {
  for (const auto &[bytes, addresses] : pool)
    for (cuda::Address address : addresses)
      cuda.cuMemFree(address);
  pool.clear();
  pooledBytes = 0;
}

/// Returns 0 if there is no memory, even without the pool.
cuda::Address Processor::allocateNew(int64_t bytes) {
  cuda::Address address = 0;
  cuda::Result result = cuda.cuMemAlloc(&address, bytes);
  if (result == cuda::OutOfMemory && !pool.empty()) {
    emptyPool();
    result = cuda.cuMemAlloc(&address, bytes);
  }
  if (result == cuda::OutOfMemory)
    return 0;
  check(cuda, result, "cuMemAlloc");
  return address;
}

void Processor::release(char *data, int64_t bytes) {
  std::lock_guard<std::mutex> lock(poolMutex);
  if (pooledBytes + bytes <= totalBytes / kPoolPart) {
    pool[bytes].push_back(addressOf(data));
    pooledBytes += bytes;
  } else if (cuda.cuCtxSetCurrent(context) == cuda::Success) {
    cuda.cuMemFree(addressOf(data));
  }
}

DeviceMemory Processor::allocate(int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 1);
  enter();
  std::lock_guard<std::mutex> lock(poolMutex);
  cuda::Address address = 0;
  if (auto found = pool.find(bytes); found != pool.end()) {
    address = found->second.back();
    found->second.pop_back();
    if (found->second.empty())
      pool.erase(found);
    pooledBytes -= bytes;
  } else if (!(address = allocateNew(bytes))) {
    return nullptr;
  }
  // The memory keeps the context.
  return DeviceMemory(
      reinterpret_cast<char *>(address),
      [self = shared_from_this(), bytes](char *data) { self->release(data, bytes); });
}

DeviceMemory Processor::allocateOutside(int64_t bytes) {
  enter();
  std::lock_guard<std::mutex> lock(poolMutex);
  cuda::Address address = allocateNew(std::max<int64_t>(bytes, 1));
  if (!address)
    return nullptr;
  return DeviceMemory(reinterpret_cast<char *>(address), [self = shared_from_this()](char *data) {
    if (self->cuda.cuCtxSetCurrent(self->context) == cuda::Success)
      self->cuda.cuMemFree(addressOf(data));
  });
}

int64_t Processor::getFreeBytes() {
  enter();
  size_t available = 0, total = 0;
  check(cuda, cuda.cuMemGetInfo(&available, &total), "cuMemGetInfo");
  std::lock_guard<std::mutex> lock(poolMutex);
  return int64_t(available) + pooledBytes;
}

std::shared_ptr<char> Processor::allocateHost(int64_t bytes) {
  enter();
  void *data = nullptr;
  check(cuda, cuda.cuMemHostAlloc(&data, std::max<int64_t>(bytes, 1), 0), "cuMemHostAlloc");
  const Cuda *driver = &cuda;
  cuda::Context *owner = context;
  return std::shared_ptr<char>(static_cast<char *>(data), [driver, owner](char *memory) {
    if (driver->cuCtxSetCurrent(owner) == cuda::Success)
      driver->cuMemFreeHost(memory);
  });
}

void Processor::copyIn(void *to, const void *from, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  enter();
  if (!staging)
    staging = allocateHost(2 * kHalf);
  int64_t half = 0;
  for (int64_t done = 0; done < bytes; done += kHalf, half ^= 1) {
    int64_t size = std::min(kHalf, bytes - done);
    char *pinned = staging.get() + half * kHalf;
    if (done >= 2 * kHalf)
      check(cuda, cuda.cuEventSynchronize(halfDone[half]), "cuEventSynchronize");
    std::memcpy(pinned, static_cast<const char *>(from) + done, size);
    check(cuda, cuda.cuMemcpyHtoDAsync(addressOf(to) + done, pinned, size, copies),
          "cuMemcpyHtoDAsync");
    check(cuda, cuda.cuEventRecord(halfDone[half], copies), "cuEventRecord");
  }
  finishCopies();
}

void Processor::copyOut(void *to, const void *from, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  enter();
  if (!staging)
    staging = allocateHost(2 * kHalf);
  auto getHalf = [&](int64_t part) { return staging.get() + part % 2 * kHalf; };
  auto sizeOfPart = [&](int64_t part) { return std::min(kHalf, bytes - part * kHalf); };
  int64_t parts = (bytes + kHalf - 1) / kHalf;
  for (int64_t part = 0; part <= parts; ++part) {
    if (part < parts) {
      check(cuda,
            cuda.cuMemcpyDtoHAsync(getHalf(part), addressOf(from) + part * kHalf, sizeOfPart(part),
                                   copies),
            "cuMemcpyDtoHAsync");
      check(cuda, cuda.cuEventRecord(halfDone[part % 2], copies), "cuEventRecord");
    }
    if (part == 0)
      continue;
    check(cuda, cuda.cuEventSynchronize(halfDone[(part - 1) % 2]), "cuEventSynchronize");
    std::memcpy(static_cast<char *>(to) + (part - 1) * kHalf, getHalf(part - 1),
                sizeOfPart(part - 1));
  }
}

void Processor::copy(void *to, const void *from, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  enter();
  if (bytes > 0)
    check(cuda, cuda.cuMemcpyDtoDAsync(addressOf(to), addressOf(from), bytes, copies),
          "cuMemcpyDtoDAsync");
  finishCopies();
}

void Processor::finishCopies() {
  check(cuda, cuda.cuStreamSynchronize(copies), "cuStreamSynchronize");
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

std::shared_ptr<cuda::Module> Processor::load(const char *text, const void *binary) {
  enter();
  cuda::Module *module = nullptr;
  if (binary) {
    cuda::Result result = cuda.cuModuleLoadDataEx(&module, binary, 0, nullptr, nullptr);
    if (result != cuda::Success && int(result) != kNoBinary)
      check(cuda, result, "cuModuleLoadDataEx");
  }
  if (!module) {
    std::vector<char> log(4096, 0);
    cuda::JitOption options[] = {cuda::ErrorLogBuffer, cuda::ErrorLogBytes};
    void *values[] = {log.data(), reinterpret_cast<void *>(log.size())};
    try {
      check(cuda, cuda.cuModuleLoadDataEx(&module, text, 2, options, values),
            "cuModuleLoadDataEx");
    } catch (const Failure &failure) {
      throw Failure(std::string(failure.what()) + (log[0] ? std::string(": ") + log.data() : ""));
    }
  }
  const Cuda *driver = &cuda;
  cuda::Context *owner = context;
  return std::shared_ptr<cuda::Module>(module, [driver, owner](cuda::Module *loaded) {
    if (driver->cuCtxSetCurrent(owner) == cuda::Success)
      driver->cuModuleUnload(loaded);
  });
}

cuda::Function *Processor::getHelper(const std::string &name, const std::string &text) {
  std::lock_guard<std::mutex> lock(mutex);
  auto &[module, function] = helpers[name];
  if (!function) {
    module = load(text.c_str());
    check(cuda, cuda.cuModuleGetFunction(&function, module.get(), name.c_str()),
          "cuModuleGetFunction");
  }
  return function;
}

} // namespace meshwright::rt::gpu
