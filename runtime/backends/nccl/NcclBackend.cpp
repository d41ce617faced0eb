//===- NcclBackend.cpp - ranks on the GPUs of this process ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ranks are threads of this process. `nccl` gives each rank a GPU of its own, and collectives are
// those of NCCL with a fixed algorithm and protocol. `nccl:fast` lets NCCL choose. `nccl:peer` copies
// between GPUs instead, and several ranks may share one.
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"
#include "Meeting.h"
#include "NcclCollectives.h"

#include "Context.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/World.h"

#include <cstdlib>
#include <numeric>

namespace meshwright::rt::gpu {

namespace {

class NcclBackend : public Backend {
public:
  NcclBackend(World &world, const Cuda &cuda, const CublasLt &cublasLt, const Nccl *nccl,
              int64_t devices)
      : world(world), cuda(cuda), cublasLt(cublasLt), devices(devices), meetings(world) {
    if (nccl)
      ncclWorld = std::make_unique<NcclWorld>(world, *nccl);
  }

  std::vector<int64_t> getLocalRanks() const override {
    std::vector<int64_t> ranks(world.getNumRanks());
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  bool reset(std::string &) override {
    meetings.reset();
    return true;
  }
  void fail(const std::string &) override { meetings.wake(); }
  std::unique_ptr<Device> createDevice(mw_rt_context &rank, std::string &error) override;
  bool agree(int64_t &, std::string &) override { return true; }
  bool broadcast(int64_t, void *, int64_t, std::string &) override { return true; }

private:
  void connectPeers(Processor &processor);

  World &world;
  const Cuda &cuda;
  const CublasLt &cublasLt;
  const int64_t devices;
  Meetings meetings;
  /// Null where ranks copy between GPUs.
  std::unique_ptr<NcclWorld> ncclWorld;
  std::vector<std::shared_ptr<Processor>> processors;
};

} // namespace

/// Lets the GPU and those before it read each other's memory.
void NcclBackend::connectPeers(Processor &processor) {
  auto allow = [&](const Processor &reader, const Processor &owner) {
    int isPossible = 0;
    check(cuda,
          cuda.cuDeviceCanAccessPeer(&isPossible, reader.getOrdinal(), owner.getOrdinal()),
          "cuDeviceCanAccessPeer");
    if (!isPossible)
      throw Failure("GPU " + std::to_string(reader.getOrdinal()) +
                    " cannot read the memory of GPU " + std::to_string(owner.getOrdinal()));
    reader.enter();
    cuda::Result result = cuda.cuCtxEnablePeerAccess(owner.getContext(), 0);
    if (result != cuda::PeerAccessAlreadyEnabled)
      check(cuda, result, "cuCtxEnablePeerAccess");
  };
  for (const std::shared_ptr<Processor> &other : processors)
    if (other->getOrdinal() != processor.getOrdinal()) {
      allow(processor, *other);
      allow(*other, processor);
    }
}

std::unique_ptr<Device> NcclBackend::createDevice(mw_rt_context &rank, std::string &error) {
  try {
    std::shared_ptr<Processor> processor = Processor::get(cuda, int(rank.rank % devices));
    int64_t ranksOnProcessor = (world.getNumRanks() - rank.rank % devices + devices - 1) / devices;
    if (!ncclWorld)
      connectPeers(*processor);
    processors.push_back(processor);
    auto device = std::make_unique<GpuDevice>(rank, processor, cublasLt, ranksOnProcessor);
    device->setCollectives(
        ncclWorld ? createNcclCollectives(rank.rank, processor, *ncclWorld, meetings)
                  : createPeerCollectives(rank.rank, processor, meetings));
    return device;
  } catch (const Failure &failure) {
    error = "rank " + std::to_string(rank.rank) + ": " + failure.what();
    return nullptr;
  }
}

/// Returns the number of devices, or 0 with an error.
static int countDevices(const Cuda &cuda, std::string &error) {
  int count = 0;
  cuda::Result result = cuda.cuDeviceGetCount(&count);
  if (result == cuda::Success && count > 0)
    return count;
  const char *visible = std::getenv("CUDA_VISIBLE_DEVICES");
  error = "the NVIDIA driver finds no device";
  if (visible)
    error += ": CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "'";
  return 0;
}

/// Returns false, with an error, if a launcher has started this process as one of several.
static bool checkProcesses(std::string &error) {
  for (const char *variable : {"OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char *text = std::getenv(variable);
    if (!text || std::atoi(text) <= 1)
      continue;
    error = std::string(variable) + " is " + text +
            ": ranks are threads of one process, expected no launcher";
    return false;
  }
  return true;
}

static Backend *create(int64_t version, World &world, const std::string &mode,
                       std::string &error) {
  if (version != MW_RT_ABI_VERSION) {
    error = "it is of another version of the runtime";
    return nullptr;
  }
  if (!mode.empty() && mode != "fast" && mode != "peer") {
    error = "unknown mode '" + mode + "', expected fast or peer";
    return nullptr;
  }
  if (!checkProcesses(error))
    return nullptr;
  const Cuda *cuda = loadCuda(error);
  int devices = cuda ? countDevices(*cuda, error) : 0;
  if (devices == 0)
    return nullptr;
  if (mode != "peer" && world.getNumRanks() > devices) {
    error = "the program has " + std::to_string(world.getNumRanks()) + " ranks, and there are " +
            std::to_string(devices) + " devices: expected a device for each rank, or backend " +
            "'nccl:peer', whose ranks may share one";
    return nullptr;
  }
  const CublasLt *cublasLt = loadCublasLt(error);
  if (!cublasLt)
    return nullptr;
  if (mode.empty()) {
    // The order of sums depends on both.
    setenv("NCCL_ALGO", "Ring", /*overwrite=*/0);
    setenv("NCCL_PROTO", "Simple", /*overwrite=*/0);
  }
  const Nccl *nccl = mode == "peer" ? nullptr : loadNccl(error);
  if (mode != "peer" && !nccl)
    return nullptr;
  return new NcclBackend(world, *cuda, *cublasLt, nccl, devices);
}

} // namespace meshwright::rt::gpu

using namespace meshwright::rt;

extern "C" __attribute__((visibility("default"))) Backend *
mw_rt_create_backend(int64_t version, World &world, const std::string &mode, std::string &error) {
  try {
    return gpu::create(version, world, mode, error);
  } catch (const gpu::Failure &failure) {
    error = failure.what();
    return nullptr;
  }
}

extern "C" __attribute__((visibility("default"))) std::string
mw_rt_backend_target(std::string &error) {
  try {
    const gpu::Cuda *cuda = gpu::loadCuda(error);
    if (!cuda || gpu::countDevices(*cuda, error) == 0)
      return "";
    std::shared_ptr<gpu::Processor> processor = gpu::Processor::get(*cuda, 0);
    std::string chip = processor->getChip();
    if (chip.empty())
      error = "GPU 0 has compute capability " + processor->getCapability() +
              ", expected 8.0 or later";
    return chip.empty() ? "" : "gpu:" + chip;
  } catch (const gpu::Failure &failure) {
    error = failure.what();
    return "";
  }
}
