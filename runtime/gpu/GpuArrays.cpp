//===- GpuArrays.cpp - arrays of callers in the memory of GPUs ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Boxes are copied on the copy stream of the GPU that receives them. Producers of arrays let the copy
// stream of the array's GPU wait for them (`GpuSpace::getStream`). An array of another GPU is copied
// whole first, because two GPUs may have no access to each other's memory.
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Memory.h"

namespace meshwright::rt::gpu {

/// Enqueues a copy of memory of one GPU to new memory of another, behind a stream of the first and the
/// copies of the second.
static DeviceMemory copyAcross(Processor &to, Processor &from, cuda::Stream *stream,
                               const void *data, int64_t bytes) {
  const Cuda &cuda = to.getCuda();
  DeviceMemory memory = to.allocate(bytes);
  if (!memory)
    throw Failure("no memory on GPU " + std::to_string(to.getOrdinal()) + " for the " +
                  formatBytes(bytes) + " of an array of GPU " + std::to_string(from.getOrdinal()));
  from.enter();
  Event ready(from);
  ready.record(stream);
  to.enter();
  ready.await(to.getCopyStream());
  if (bytes > 0)
    check(cuda,
          cuda.cuMemcpyPeerAsync(addressOf(memory.get()), to.getContext(), addressOf(data),
                                 from.getContext(), bytes, to.getCopyStream()),
          "cuMemcpyPeerAsync");
  return memory;
}

bool GpuDevice::takeBoxes(const std::vector<StridedBox> &boxes, void *to, int64_t cleared,
                          const void *array, int64_t bytes, int64_t gpu, std::string &error) {
  try {
    Visit visit(*processor);
    if (gpu != processor->getOrdinal()) {
      std::shared_ptr<Processor> owner = Processor::get(cuda, int(gpu));
      borrowed.push_back(copyAcross(*processor, *owner, owner->getCopyStream(), array, bytes));
      array = borrowed.back().get();
    }
    cuda::Stream *stream = processor->getCopyStream();
    helpers.clear(stream, to, cleared);
    for (const StridedBox &box : boxes)
      helpers.copyBox(stream, to, array, box);
    taken.record(stream);
    return true;
  } catch (const Failure &failure) {
    error = failure.what();
    return false;
  }
}

bool GpuDevice::giveBoxes(const std::vector<StridedBox> &boxes, void *array, int64_t gpu,
                          const void *from, int64_t bytes, std::string &error) {
  try {
    std::shared_ptr<Processor> target = Processor::get(cuda, int(gpu));
    Visit visit(*target);
    if (target != processor) {
      borrowed.push_back(
          copyAcross(*target, *processor, processor->getCopyStream(), from, bytes));
      from = borrowed.back().get();
    }
    HelperKernels onTarget(*target);
    for (const StridedBox &box : boxes)
      onTarget.copyBox(target->getCopyStream(), array, from, box);
    return true;
  } catch (const Failure &failure) {
    error = failure.what();
    return false;
  }
}

bool GpuDevice::giveBoxesOf(int64_t from, void *data, int64_t bytes,
                            const std::vector<StridedBox> &boxes, void *array, int64_t gpu,
                            std::string &error) {
  try {
    cuda::Stream *own = getStream(0), *stream = own;
    if (!collectives->broadcast(from, data, bytes, own))
      return false;
    std::shared_ptr<Processor> target = Processor::get(cuda, int(gpu));
    Visit visit(*target);
    const void *copied = data;
    if (target != processor) {
      borrowed.push_back(copyAcross(*target, *processor, own, data, bytes));
      copied = borrowed.back().get();
      stream = target->getCopyStream();
    }
    HelperKernels onTarget(*target);
    for (const StridedBox &box : boxes)
      onTarget.copyBox(stream, array, copied, box);
    if (stream != own) {
      Event done(*target);
      done.record(stream);
      done.await(own);
      processor->enter();
    }
    mark(-1, own);
    return true;
  } catch (const Failure &failure) {
    error = failure.what();
    return false;
  }
}

bool GpuDevice::finishGiving(int64_t gpu, std::string &error) {
  try {
    std::shared_ptr<Processor> target = Processor::get(cuda, int(gpu));
    Visit visit(*target);
    target->finishCopies();
    return true;
  } catch (const Failure &failure) {
    error = failure.what();
    return false;
  }
}

namespace {

class ProcessorSpace : public GpuSpace {
public:
  explicit ProcessorSpace(std::shared_ptr<Processor> processor)
      : processor(std::move(processor)) {}
  void *getStream() const override { return processor->getCopyStream(); }
  DeviceMemory allocate(int64_t bytes, std::string &error) override {
    try {
      Visit visit(*processor);
      if (DeviceMemory memory = processor->allocateOutside(bytes))
        return memory;
      error = "no memory on GPU " + std::to_string(processor->getOrdinal()) + " for " +
              formatBytes(bytes);
    } catch (const Failure &failure) {
      error = failure.what();
    }
    return nullptr;
  }

private:
  std::shared_ptr<Processor> processor;
};

} // namespace

/// Returns null, with an error, if there is no such GPU.
static std::shared_ptr<GpuSpace> openSpace(int64_t gpu, std::string &error) {
  try {
    const Cuda *cuda = loadCuda(error);
    int count = 0;
    if (!cuda)
      return nullptr;
    check(*cuda, cuda->cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (gpu < count) {
      cuda::Context *before = nullptr;
      check(*cuda, cuda->cuCtxGetCurrent(&before), "cuCtxGetCurrent");
      std::shared_ptr<Processor> processor = Processor::get(*cuda, int(gpu));
      cuda->cuCtxSetCurrent(before);
      return std::make_shared<ProcessorSpace>(std::move(processor));
    }
    error = "there is no GPU " + std::to_string(gpu) + ": expected 0 to " +
            std::to_string(count - 1);
  } catch (const Failure &failure) {
    error = failure.what();
  }
  return nullptr;
}

} // namespace meshwright::rt::gpu

extern "C" __attribute__((visibility("default"))) void
mw_rt_open_gpu_space(int64_t gpu, std::shared_ptr<meshwright::rt::GpuSpace> &space,
                     std::string &error) {
  space = meshwright::rt::gpu::openSpace(gpu, error);
}
