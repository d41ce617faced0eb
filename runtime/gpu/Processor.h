//===- Processor.h - a GPU of this process ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_PROCESSOR_H
#define MESHWRIGHT_RUNTIME_GPU_PROCESSOR_H

#include "Libraries.h"

#include "meshwright/runtime/include/Device.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshwright::rt::gpu {

/// An address in a GPU's memory.
inline cuda::Address addressOf(const void *data) {
  return reinterpret_cast<cuda::Address>(data);
}

class Processor;

/// The calling thread uses a GPU while this object exists, and then again the one that it used before.
class Visit {
public:
  explicit Visit(const Processor &processor);
  ~Visit() { cuda.cuCtxSetCurrent(before); }

private:
  const Cuda &cuda;
  cuda::Context *before = nullptr;
};

/// A GPU: its context, and memory and copies that belong to no stream of a rank. All ranks of this
/// process that compute on the GPU share it. Functions throw Failure. Any thread may call them.
class Processor : public std::enable_shared_from_this<Processor> {
public:
  /// Returns the GPU of that number, which is in use until its last owner forgets it.
  static std::shared_ptr<Processor> get(const Cuda &cuda, int ordinal);
  ~Processor();

  const Cuda &getCuda() const { return cuda; }
  cuda::Context *getContext() const { return context; }
  int getOrdinal() const { return ordinal; }
  /// "9.0".
  std::string getCapability() const;
  /// The chip that programs are compiled for ("sm_90a").
  std::string getChip() const;
  /// Returns true if code for the chip runs here. Code of chips with an `a` runs on that chip only.
  bool runs(const std::string &chip) const;

  /// Makes the calling thread use this GPU.
  void enter() const { check(cuda, cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent"); }

  /// Memory that goes back to a pool, from which later allocations of as many bytes come. The driver
  /// waits for the GPU to free memory, and takes long to allocate it. The owner frees it when the GPU
  /// does not use it any more. Returns null if there is no memory.
  DeviceMemory allocate(int64_t bytes);
  /// Memory for others, who may free it while the GPU still uses it: none of it comes from the pool
  /// or goes there.
  DeviceMemory allocateOutside(int64_t bytes);
  /// The pool's memory is free.
  int64_t getFreeBytes();
  /// Pinned memory of the host.
  std::shared_ptr<char> allocateHost(int64_t bytes);
  /// Copies that are done when the call returns.
  void copyIn(void *to, const void *from, int64_t bytes);
  void copyOut(void *to, const void *from, int64_t bytes);
  void copy(void *to, const void *from, int64_t bytes);

  /// Loads PTX, or machine code where there is some that the driver takes.
  std::shared_ptr<cuda::Module> load(const char *text, const void *binary = nullptr);
  /// A kernel of this name and text, which is loaded once.
  cuda::Function *getHelper(const std::string &name, const std::string &text);
  /// The stream of copies, for work that a caller waits for.
  cuda::Stream *getCopyStream() const { return copies; }
  void finishCopies();

private:
  Processor(const Cuda &cuda, int ordinal);
  cuda::Address allocateNew(int64_t bytes);
  void release(char *data, int64_t bytes);
  void emptyPool();

  const Cuda &cuda;
  const int ordinal;
  cuda::Device device = 0;
  cuda::Context *context = nullptr;
  int major = 0, minor = 0;
  cuda::Stream *copies = nullptr;
  /// Protects the members below.
  std::mutex mutex;
  /// Two halves, which the host and the GPU fill in turns.
  std::shared_ptr<char> staging;
  cuda::Event *halfDone[2] = {};
  std::map<std::string, std::pair<std::shared_ptr<cuda::Module>, cuda::Function *>> helpers;
  /// Protects the pool: freed memory by its bytes, and the sum of these.
  std::mutex poolMutex;
  std::map<int64_t, std::vector<cuda::Address>> pool;
  int64_t pooledBytes = 0, totalBytes = 0;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_GPU_PROCESSOR_H
