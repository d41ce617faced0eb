//===- Backend.h - what moves data between ranks ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A backend knows how ranks reach each other. `local`, whose ranks are threads of
// one process, is part of the runtime; others are shared objects beside it,
// `libMeshwrightBackend_<name>.so`, opened when they are asked for.
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

class Backend {
public:
  virtual ~Backend() = default;

  /// The ranks whose threads live in this process, in order.
  virtual std::vector<int64_t> getLocalRanks() const = 0;

  /// Before a run: forgets what a failed run left behind. False, with an error,
  /// where ranks can no longer meet.
  virtual bool reset(std::string &error) = 0;
  /// After a failure on a rank of this process: wakes those who wait, and tells
  /// other processes, whose ranks end with the same error.
  virtual void fail(const std::string &message) = 0;

  /// Makes the device of a rank of this process. Returns null, with an error, if the rank
  /// can have none. Called once for each rank, in order.
  virtual std::unique_ptr<Device> createDevice(mw_rt_context &rank, std::string &error) = 0;

  /// Whether a rank of another process has come to the end of the current run. Asked
  /// where those of this process have not.
  virtual bool haveOthersEnded() const { return false; }

  /// After a run that succeeded in this process: waits until it has in all of them,
  /// and makes `least` the least of their values. False, with an error, where it
  /// has not.
  virtual bool agree(int64_t &least, std::string &error) = 0;
  /// After that: makes `bytes` bytes at `data`, which rank `from` holds, known to
  /// every process. All processes call this in the same order.
  virtual bool broadcast(int64_t from, void *data, int64_t bytes, std::string &error) = 0;
};

/// The backend whose ranks are threads of this process.
std::unique_ptr<Backend> createLocalBackend(World &world);

/// What a backend's shared object exports, as `mw_rt_create_backend`: null, with
/// an error, where the backend cannot work here. `version` is
/// MW_RT_ABI_VERSION of the caller, `mode` what the user wrote behind the name and
/// a colon ("mpi:fast"), or empty.
using BackendFactory = Backend *(*)(int64_t version, World &world, const std::string &mode,
                                    std::string &error);

/// Adds a backend that the process brings itself, under a name that programs then ask for.
/// It goes before a shared object of that name.
void addBackend(const std::string &name, BackendFactory factory);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_BACKEND_H
