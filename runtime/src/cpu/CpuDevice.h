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

  bool sharesHostMemory() const override { return true; }
  DeviceMemory allocate(int64_t bytes) override;
  bool copyIn(void *device, const void *host, int64_t bytes, std::string &error) override;
  bool copyOut(void *host, const void *device, int64_t bytes, std::string &error) override;
  bool copy(void *to, const void *from, int64_t bytes, std::string &error) override;
  bool restoreRows(const mw_rt_index_copy &what, const char *log, void *data,
                   std::string &error) override;

  int64_t getNumStreamThreads() const override { return streams.getCount(); }
  void prepare(const HostThreads &threads) override;
  void enterThread() override;
  bool synchronize(Time deadline) override { return streams.drain(deadline); }

  bool launch(const mw_rt_launch &what, mw_rt_kernel kernel, void *const *buffers,
              std::string &error) override;
  bool multiply(const mw_rt_gemm &what, const void *a, const void *b, const void *bias, void *c,
                std::string &error) override;
  bool weightGrad(const mw_rt_weight_grad &what, const void *a, const void *b, void *c,
                  std::string &error) override;
  bool gather(const mw_rt_gather &what, const void *data, const void *indices, const void *offset,
              void *result, std::string &error) override;
  bool takeAlong(const mw_rt_take_along &what, const void *data, const void *indices, void *result,
                 std::string &error) override;
  bool indexCopy(const mw_rt_index_copy &what, const void *data, const void *indices,
                 const void *source, void *result, std::string &error) override;
  bool saveRows(const mw_rt_index_copy &what, const void *data, const void *indices, char *log,
                std::string &error) override;
  bool scatterAdd(const mw_rt_scatter_add &what, const void *updates, const void *indices,
                  const void *offset, void *result, std::string &error) override;
  bool mask(const mw_rt_mask &what, const void *input, void *result, std::string &error) override;
  bool writeAxisIndex(const mw_rt_axis_index &what, void *result, std::string &error) override;
  bool reorder(const mw_rt_reorder &what, const void *input, void *result,
               std::string &error) override;
  bool place(const mw_rt_place &what, const void *const *chunks, void *result,
             std::string &error) override;
  bool pack(const mw_rt_packing &what, const void *weight, void *result,
            std::string &error) override;
  bool writePositions(const mw_rt_positions &what, void *result, std::string &error) override;
  bool checkFinite(const Caller &caller, int64_t result, int64_t dtype, const void *data,
                   int64_t count, std::string &error) override;

  bool runCollective(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
                     void *const *outputs, std::string &error) override;
  bool start(const Caller &caller, const mw_rt_collective &what, int64_t ticket,
             const void *const *inputs, void *const *outputs, std::string &error) override;
  bool wait(int64_t ticket, std::string &error) override;

private:
  /// Performs MW_RT_SLICE and MW_RT_PARTIAL, which do not communicate.
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
