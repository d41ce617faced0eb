//===- NcclBackend.cpp - ranks on GPUs -------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ranks are processes of a launcher, one each, or threads of this process. `nccl` gives each rank a GPU
// of its own, and collectives are those of NCCL with a fixed algorithm and protocol. `nccl:fast` lets
// NCCL choose. `nccl:peer` copies between the GPUs of one process instead, and several ranks may share
// one.
//
//===----------------------------------------------------------------------===//

#include "Meeting.h"
#include "NcclCollectives.h"
#include "meshwright/runtime/gpu/GpuDevice.h"

#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/ranks/Purpose.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/World.h"

#include <cstdlib>
#include <numeric>

namespace meshwright::rt::gpu {

namespace {

class NcclBackend : public Backend {
public:
  NcclBackend(World &world, const Cuda &cuda, const CublasLt &cublasLt, const Nccl *nccl,
              int64_t devices, Processes *processes)
      : world(world), cuda(cuda), cublasLt(cublasLt), devices(devices), processes(processes),
        meetings(world) {
    if (nccl)
      ncclWorld = std::make_unique<NcclWorld>(world, *nccl, meetings, processes);
    if (processes)
      world.setRanksOnMachine(processes->getRanksOnMachine());
  }
  ~NcclBackend() override {
    if (processes)
      processes->leave(world);
  }

  std::vector<int64_t> getLocalRanks() const override;
  bool reset(std::string &error) override;
  void fail(const std::string &message) override {
    meetings.wake();
    if (processes)
      processes->publish(message);
  }
  std::unique_ptr<Device> createDevice(mw_rt_context &rank, std::string &error) override;
  bool haveOthersEnded() const override { return processes && processes->haveOthersEnded(); }
  bool agree(int64_t &least, std::string &error) override;
  bool decide(bool &isFine, std::string &error) override;
  bool broadcast(int64_t from, void *data, int64_t bytes, std::string &error) override;

private:
  void connectPeers(Processor &processor);

  World &world;
  const Cuda &cuda;
  const CublasLt &cublasLt;
  const int64_t devices;
  /// Null where ranks are threads of this process.
  Processes *const processes;
  Meetings meetings;
  /// Null where ranks copy between GPUs.
  std::unique_ptr<NcclWorld> ncclWorld;
  std::vector<std::shared_ptr<Processor>> processors;
};

} // namespace

//===----------------------------------------------------------------------===//
// Processes
//===----------------------------------------------------------------------===//

std::vector<int64_t> NcclBackend::getLocalRanks() const {
  if (processes)
    return {processes->getRank()};
  std::vector<int64_t> ranks(world.getNumRanks());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Waits until all processes have come to this run, and compares their bundles and purposes. If
/// they differ, all processes report the same error and can still meet again.
bool NcclBackend::reset(std::string &error) {
  meetings.reset();
  if (!processes)
    return true;
  // Only now, because the world has no backend while the backend is being made.
  processes->enter(world);
  if (processes->hasFailed()) {
    error = "a run failed before, after which processes cannot meet again (" +
            processes->getError() + "): start them again";
    return false;
  }
  processes->beginRun(world);
  std::string mine(kPurposeBytes, 0);
  writePurpose(world, mine.data());
  std::vector<std::string> all;
  if (!processes->exchange(mine, /*timeout=*/0, all, error))
    return false;
  std::string joined;
  for (const std::string &purpose : all)
    joined += purpose;
  error = comparePurposes(joined.data(), world.getNumRanks());
  if (error.empty())
    return true;
  processes->noteEnd();
  processes->endRun(world);
  return false;
}

bool NcclBackend::agree(int64_t &least, std::string &error) {
  if (!processes)
    return true;
  processes->noteEnd();
  std::vector<std::string> all;
  if (!processes->exchange(Writer().add(least).text, /*timeout=*/0, all, error))
    return false;
  for (const std::string &text : all)
    least = std::min(least, Reader(text).readNumber());
  processes->endRun(world);
  return true;
}

bool NcclBackend::decide(bool &isFine, std::string &error) {
  std::vector<std::string> all;
  if (processes && !processes->exchange(isFine ? "fine" : "", /*timeout=*/0, all, error))
    return false;
  for (const std::string &text : all)
    isFine = isFine && !text.empty();
  return true;
}

bool NcclBackend::broadcast(int64_t from, void *data, int64_t bytes, std::string &error) {
  if (!processes)
    return true;
  std::vector<std::string> all;
  std::string mine;
  if (from == processes->getRank())
    mine.assign(static_cast<const char *>(data), bytes);
  if (!processes->exchange(mine, /*timeout=*/0, all, error))
    return false;
  all[from].copy(static_cast<char *>(data), bytes);
  return true;
}

//===----------------------------------------------------------------------===//
// Devices
//===----------------------------------------------------------------------===//

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
    int64_t ordinal = processes ? processes->getIndex() : rank.rank % devices;
    std::shared_ptr<Processor> processor = Processor::get(cuda, int(ordinal));
    int64_t ranksOnProcessor =
        processes ? 1 : (world.getNumRanks() - ordinal + devices - 1) / devices;
    if (!ncclWorld)
      connectPeers(*processor);
    processors.push_back(processor);
    auto device = std::make_unique<GpuDevice>(rank, processor, cublasLt, ranksOnProcessor);
    device->setCollectives(
        ncclWorld ? createNcclCollectives(rank.rank, processor, *ncclWorld)
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

/// Returns the processes of the launcher, or null: with an error, or because ranks are threads of this
/// process.
static Processes *findProcesses(int64_t ranks, const std::string &mode, int64_t devices,
                                std::string &error) {
  Launcher launcher;
  if (!readLauncher(launcher, error) || launcher.size == 1)
    return nullptr;
  if (mode == "peer") {
    error = launcher.sizeName + " is " + std::to_string(launcher.size) +
            ", and ranks of 'nccl:peer' are threads of one process: expected no launcher";
    return nullptr;
  }
  Processes *processes = Processes::get(launcher, ranks, error);
  if (processes && processes->getIndex() >= devices) {
    error = "process " + std::to_string(processes->getIndex() + 1) + " of this machine has rank " +
            std::to_string(processes->getRank()) + ", and there are " + std::to_string(devices) +
            " devices: expected a device for each process";
    processes->publish("rank " + std::to_string(processes->getRank()) + ": " + error);
    return nullptr;
  }
  return processes;
}

static Backend *create(int64_t version, World &world, const std::string &mode,
                       std::string &error) {
  if (version != MW_RT_ABI_VERSION) {
    error = "it is of another version of the runtime";
    return nullptr;
  }
  if (!mode.empty() && mode != "fast" && mode != "peer") {
    error = "unknown mode '" + mode + "': expected fast or peer";
    return nullptr;
  }
  const Cuda *cuda = loadCuda(error);
  int devices = cuda ? countDevices(*cuda, error) : 0;
  if (devices == 0)
    return nullptr;
  Processes *processes = findProcesses(world.getNumRanks(), mode, devices, error);
  if (!error.empty())
    return nullptr;
  if (!processes && mode != "peer" && world.getNumRanks() > devices) {
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
  return new NcclBackend(world, *cuda, *cublasLt, nccl, devices, processes);
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
      error = "the compute capability of GPU 0: expected 8.0 or later, got " +
              processor->getCapability();
    return chip.empty() ? "" : "gpu:" + chip;
  } catch (const gpu::Failure &failure) {
    error = failure.what();
    return "";
  }
}
