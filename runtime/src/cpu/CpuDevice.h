//===- CpuDevice.h - the processor of the host as a device ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_CPUDEVICE_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_CPUDEVICE_H

#include "Gemm.h"
#include "Streams.h"
#include "Workers.h"

#include "meshwright/runtime/include/Device.h"

#include <memory>

namespace meshwright::rt {

/// The cores of the host as the device of one rank.
///
/// - The compute stream is the rank's thread. It does its work within the calls, helped by
///   the workers.
/// - Each communication stream is an in-order queue with a thread of its own.
/// - Threads, library primitives and scratch memory are kept from run to run.
class CpuDevice : public Device {
public:
  CpuDevice(mw_rt_context &rank, HostCollectives &collectives);

  const char *getName() const override { return "cpu"; }
  bool sharesHostMemory() const override { return true; }
  DeviceMemory allocate(int64_t bytes) override;
  bool copyIn(void *device, const void *host, int64_t bytes, std::string &error) override;
  bool copyOut(void *host, const void *device, int64_t bytes, std::string &error) override;
  bool copy(void *to, const void *from, int64_t bytes, std::string &error) override;
  bool undo(const mw_rt_call &what, void *const *buffers, std::string &error) override;

  int64_t getNumStreamThreads() const override { return streams.getCount(); }
  void prepare(const HostThreads &threads) override;
  void enterThread() override;
  bool synchronize(Time deadline) override { return streams.drain(deadline); }

  std::optional<int64_t> read(const int64_t *number) const override { return *number; }
  bool launch(const mw_rt_launch &what, mw_rt_kernel kernel, void *const *buffers,
              std::string &error) override;
  bool performs(int64_t kind) const override;
  bool perform(const Caller &caller, const mw_rt_call &what, void *const *buffers,
               std::string &error) override;
  bool checkFinite(const Caller &caller, int64_t result, int64_t dtype, const void *data,
                   int64_t count, const ExistingRows &existing, std::string &error) override;

  bool runCollective(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
                     void *const *outputs, std::string &error) override;
  bool start(const Caller &caller, const mw_rt_collective &what, int64_t ticket,
             const void *const *inputs, void *const *outputs, std::string &error) override;
  bool start(const Caller &caller, const mw_rt_call &what, int64_t ticket, void *const *buffers,
             std::string &error) override;
  bool wait(int64_t ticket, std::string &error) override;

private:
  // The function of each call.
#define MW_RT_KIND(name)                                                                           \
  bool perform(const mw_rt_##name &what, void *const *buffers, std::string &error);
  MW_RT_CPU_CALLS(MW_RT_KIND)
#undef MW_RT_KIND
  /// A call in which no ranks meet is on the compute stream.
  template <typename Call>
  bool perform(const Caller &, const Call &what, void *const *buffers, std::string &error) {
    return perform(what, buffers, error);
  }
  // In the others they do, on the caller's stream.
  bool perform(const Caller &caller, const mw_rt_send_rows &what, void *const *buffers, std::string &error);
  bool perform(const Caller &caller, const mw_rt_return_rows &what, void *const *buffers, std::string &error);
  bool perform(const Caller &caller, const mw_rt_all_gather_v &what, void *const *buffers, std::string &error);
  bool perform(const Caller &caller, const mw_rt_reduce_scatter_v &what, void *const *buffers, std::string &error);
  /// Performs a slice or a partial sum, which do not communicate.
  void cut(const mw_rt_collective &what, const void *const *inputs, void *const *outputs) const;

  mw_rt_context &context;
  /// The backend's collectives, or the throttled ones around them.
  HostCollectives *collectives;
  std::unique_ptr<HostCollectives> throttled;
  Gemm gemm;
  std::unique_ptr<Workers> workers;
  /// Destroyed first: its threads use the other members.
  Streams streams;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_CPUDEVICE_H
