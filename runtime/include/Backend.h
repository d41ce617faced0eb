//===- Backend.h - how ranks meet and how they fail -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A backend knows the ranks of a program: which of them are in this process, how they meet and
// how they fail. `local`, whose ranks are threads of one process, is part of the runtime. The
// others are shared objects beside it, `libMeshwrightBackend_<name>.so`, which the runtime opens
// by name.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_BACKEND_H
#define MESHWRIGHT_RUNTIME_INCLUDE_BACKEND_H

#include "meshwright/runtime/include/Device.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshwright::rt {

class World;

/// One backend serves one world. Any thread may call `fail`; all other functions are called
/// between runs, by the thread that creates the world or runs it.
class Backend {
public:
  virtual ~Backend() = default;

  /// The ranks of this process, in order.
  virtual std::vector<int64_t> getLocalRanks() const = 0;

  /// Called before each run: forgets the state of a failed run. Returns false, with an error, if
  /// the ranks cannot meet any more.
  virtual bool reset(std::string &error) = 0;
  /// Called after the first failure of a run: wakes the ranks of this process that wait, and
  /// tells the other processes, whose ranks end with the same error.
  virtual void fail(const std::string &message) = 0;

  /// Makes the device of a rank of this process. Returns null, with an error, if the rank
  /// can have none. Called once for each rank, in order.
  virtual std::unique_ptr<Device> createDevice(mw_rt_context &rank, std::string &error) = 0;

  /// Returns true if a rank of another process has come to the end of the current run. Called
  /// while the run of this process is active.
  virtual bool haveOthersEnded() const { return false; }

  /// Called after a run that succeeded in this process: waits until it has succeeded in all
  /// processes, and sets `least` to the least of their values. Returns false, with an error, if
  /// the run failed in another process.
  virtual bool agree(int64_t &least, std::string &error) = 0;
  /// Called after `agree`, by all processes in the same order: waits for the other processes, and
  /// sets `isFine` to true if it is true in all of them. Returns false, with an error, if the
  /// processes cannot meet any more.
  virtual bool decide(bool &isFine, std::string &error) {
    (void)isFine, (void)error;
    return true;
  }
  /// Called after `agree`: copies the `bytes` bytes at `data` from the process of rank `from`
  /// to all others. All processes call this in the same order.
  virtual bool broadcast(int64_t from, void *data, int64_t bytes, std::string &error) = 0;
};

/// The backend whose ranks are threads of this process.
std::unique_ptr<Backend> createLocalBackend(World &world);

/// The function `mw_rt_create_backend` that a backend's shared object exports. Returns null, with
/// an error, if the backend cannot work here. `version` is MW_RT_ABI_VERSION of the caller.
/// `mode` is the text that the user wrote after the name and a colon ("mpi:fast"), or empty.
using BackendFactory = Backend *(*)(int64_t version, World &world, const std::string &mode,
                                    std::string &error);

/// The function `mw_rt_backend_target` that a shared object exports if its devices run other targets
/// than `cpu`. Returns the target of the devices at hand ("gpu:sm_90a"), or an empty string with an
/// error.
using BackendTarget = std::string (*)(std::string &error);

/// Sets the target that programs for a backend are compiled for: empty if it is the processor.
/// Returns false, with an error, if the backend cannot be opened or has no devices.
bool getBackendTarget(const std::string &backend, std::string &target, std::string &error);

/// The memory of a GPU, for callers whose arrays are there.
class GpuSpace {
public:
  virtual ~GpuSpace() = default;
  /// The stream of the driver in whose order calls read arrays of callers. A producer of an array
  /// makes it wait until the array is there.
  virtual void *getStream() const = 0;
  /// Returns null, with an error, if there is no memory.
  virtual DeviceMemory allocate(int64_t bytes, std::string &error) = 0;
};

/// The function `mw_rt_open_gpu_space` that a shared object exports if its devices are GPUs. Sets an
/// error if there is no GPU of that number.
using GpuSpaceOpener = void (*)(int64_t gpu, std::shared_ptr<GpuSpace> &space, std::string &error);

/// Returns null, with an error, if the backend cannot be opened or computes on processors, or if there
/// is no such GPU.
std::shared_ptr<GpuSpace> openGpuSpace(const std::string &backend, int64_t gpu,
                                       std::string &error);

/// Adds a backend of this process under a name. It takes precedence over a shared object of
/// that name.
void addBackend(const std::string &name, BackendFactory factory);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_BACKEND_H
