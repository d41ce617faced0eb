//===- GpuDevice.cpp - the device of a rank that computes on a GPU --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright/runtime/src/ranks/CallFacts.h"
#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright-c/DeviceKernel.h"
#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Program.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt::gpu {

/// Shared memory that a block may have without a request, in bytes.
static constexpr int64_t kPlainShared = 48 << 10;

//===----------------------------------------------------------------------===//
// Beginning and end
//===----------------------------------------------------------------------===//

GpuDevice::GpuDevice(mw_rt_context &rank, std::shared_ptr<Processor> given,
                     const CublasLt &cublasLt, int64_t ranksOnProcessor)
    : context(rank), processor(std::move(given)), cuda(processor->getCuda()),
      ranksOnProcessor(ranksOnProcessor), helpers(*processor), products(processor, cublasLt),
      taken(*processor) {}

GpuDevice::~GpuDevice() {
  if (cuda.cuCtxSetCurrent(processor->getContext()) != cuda::Success)
    return;
  for (cuda::Stream *stream : streams)
    if (stream)
      cuda.cuStreamSynchronize(stream);
  // Graphs hold collectives.
  entries.clear();
  collectives.reset();
  tickets.clear();
  for (cuda::Stream *stream : streams)
    if (stream)
      cuda.cuStreamDestroy(stream);
}

bool GpuDevice::load(const ProgramDescription &program, std::string &error) {
  if (program.targetChip.empty() || !processor->runs(program.targetChip)) {
    error = "the target that the program is compiled for: expected 'gpu:" + processor->getChip() +
            "', as this GPU has compute capability " + processor->getCapability() + ", got '" +
            program.getTarget() + "'";
    return false;
  }
  try {
    for (const DeviceKernel &kernel : program.kernels) {
      modules.push_back(processor->load(static_cast<const char *>(kernel.text.data.get()),
                                        kernel.binary.data.get()));
      check(cuda,
            cuda.cuModuleGetFunction(&functions[kernel.name], modules.back().get(),
                                     kernel.name.c_str()),
            "cuModuleGetFunction");
    }
    return true;
  } catch (const Failure &failure) {
    error = failure.what();
    return false;
  }
}

void GpuDevice::enterThread() { processor->enter(); }

cuda::Stream *GpuDevice::getStream(int64_t number) {
  if (number >= int64_t(streams.size()))
    streams.resize(number + 1);
  if (!streams[number])
    check(cuda, cuda.cuStreamCreateWithPriority(&streams[number], cuda::NonBlocking, 0),
          "cuStreamCreateWithPriority");
  return streams[number];
}

//===----------------------------------------------------------------------===//
// Copies between runs
//===----------------------------------------------------------------------===//

/// Calls `body`. Turns a failure into an error.
template <typename Body> static bool attempt(std::string &error, Body body) {
  try {
    body();
    return true;
  } catch (const Failure &failure) {
    error = failure.what();
    return false;
  }
}

bool GpuDevice::copyIn(void *device, const void *host, int64_t bytes, std::string &error) {
  return attempt(error, [&] { processor->copyIn(device, host, bytes); });
}

bool GpuDevice::copyOut(void *host, const void *device, int64_t bytes, std::string &error) {
  return attempt(error, [&] { processor->copyOut(host, device, bytes); });
}

bool GpuDevice::copy(void *to, const void *from, int64_t bytes, std::string &error) {
  return attempt(error, [&] { processor->copy(to, from, bytes); });
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// The descriptor of a kernel's copies from a buffer.
static cuda::TensorMap encode(const Cuda &cuda, const mw_rt_tensor_map &map, void *buffer) {
  constexpr uint64_t bytes = 2;
  uint64_t sizes[] = {uint64_t(map.columns), uint64_t(map.rows), uint64_t(map.matrices)};
  uint64_t row = map.columns * bytes, strides[] = {row, row * map.matrix_rows};
  uint32_t box[] = {uint32_t(map.box_columns), uint32_t(map.box_rows), 1}, steps[] = {1, 1, 1};
  cuda::TensorMap encoded;
  check(cuda,
        cuda.cuTensorMapEncodeTiled(
            &encoded, map.dtype == MW_BF16 ? cuda::MapBfloat16 : cuda::MapFloat16, 3, buffer, sizes,
            strides, box, steps, /*interleave=*/0, cuda::Swizzle128, cuda::Promote256, /*fill=*/0),
        "cuTensorMapEncodeTiled");
  return encoded;
}

/// Memory for all kernels of the compute stream, one after another. A call's preparation makes it.
void *GpuDevice::getScratch(int64_t bytes) {
  if (bytes == 0)
    return nullptr;
  if (scratches.empty() || scratches.back().first < bytes) {
    DeviceMemory memory = processor->allocate(bytes);
    if (!memory)
      throw Failure("no memory for " + std::to_string(bytes) + " bytes of kernels' scratch memory");
    std::vector<char> zeros(MW_RT_COUNTER_BYTES, 0);
    processor->copyIn(memory.get(), zeros.data(), zeros.size());
    scratches.emplace_back(bytes, std::move(memory));
  }
  return scratches.back().second.get();
}

bool GpuDevice::launch(const mw_rt_launch &what, mw_rt_kernel kernel, void *const *buffers,
                       std::string &error) {
  auto *record = reinterpret_cast<const mw_rt_device_kernel *>(kernel);
  cuda::Function *&function = byRecord[record];
  if (!function) {
    auto found = functions.find(record->name);
    if (found == functions.end()) {
      error = std::string("the program has no kernel '") + record->name + "'";
      return false;
    }
    function = found->second;
  }
  void *word = record->checks_indices ? nextWord(-1, 0) : nullptr;
  void *scratch = getScratch(record->scratch_bytes);
  noteRows(what, buffers);
  if (isPreparing()) {
    if (what.workspace > kPlainShared)
      check(cuda,
            cuda.cuFuncSetAttribute(function, cuda::MaxDynamicSharedMemory, int(what.workspace)),
            "cuFuncSetAttribute");
    return true;
  }
  if (what.items > 0 && enqueues()) {
    std::vector<void *> arguments;
    for (int64_t i = 0; i < what.num_inputs + what.num_outputs; ++i)
      arguments.push_back(const_cast<void **>(&buffers[i]));
    if (word)
      arguments.push_back(&word);
    if (scratch)
      arguments.push_back(&scratch);
    std::vector<cuda::TensorMap> maps;
    for (int64_t i = 0; i < record->num_tensor_maps; ++i)
      maps.push_back(encode(cuda, record->tensor_maps[i], buffers[record->tensor_maps[i].buffer]));
    for (cuda::TensorMap &map : maps)
      arguments.push_back(&map);
    check(cuda,
          cuda.cuLaunchKernel(function, unsigned(what.items), 1, 1, unsigned(what.grain), 1, 1,
                              unsigned(what.workspace), getStream(0), arguments.data(), nullptr),
          "cuLaunchKernel");
  }
  mark(context.position, getStream(0));
  return true;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

bool GpuDevice::performs(int64_t kind) const {
  return std::find(std::begin(kGpuCalls), std::end(kGpuCalls), kind) != std::end(kGpuCalls);
}

bool GpuDevice::perform(const Caller &caller, const mw_rt_call &what, void *const *buffers,
                        std::string &error) {
  switch (what.kind) {
#define MW_RT_KIND(name)                                                                           \
  case kCallKind<mw_rt_##name>:                                                                    \
    return perform(caller, reinterpret_cast<const mw_rt_##name &>(what), buffers, error);
    MW_RT_GPU_CALLS(MW_RT_KIND)
#undef MW_RT_KIND
  }
  return refuse(what, error);
}

bool GpuDevice::perform(const mw_rt_gemm &what, void *const *buffers, std::string &) {
  return multiply(what, DType(what.result), buffers[0], buffers[1], buffers[2], buffers[3]);
}

bool GpuDevice::multiply(const mw_rt_gemm &what, DType result, const void *a, const void *b,
                         const void *bias, void *c) {
  if (isPreparing()) {
    products.prepare(what, result, a, b, bias, c);
    return true;
  }
  if (enqueues())
    products.multiply(what, result, a, b, bias, c, getStream(0));
  mark(context.position, getStream(0));
  return true;
}

bool GpuDevice::perform(const mw_rt_weight_grad &what, void *const *buffers, std::string &) {
  mw_rt_gemm product = {};
  product.dtype = what.dtype;
  product.m = what.m;
  product.n = what.n;
  product.k = what.rows;
  product.transpose_a = true;
  return multiply(product, DType(what.dtype) == DType::F64 ? DType::F64 : DType::F32, buffers[0],
                  buffers[1], nullptr, buffers[2]);
}

bool GpuDevice::checkFinite(const Caller &caller, int64_t result, int64_t dtype, const void *data,
                            int64_t count, const ExistingRows &existing, std::string &) {
  void *word = nextWordOf(caller.op, result, 0);
  helpers.findNotFinite(getStream(caller.stream), dtype, data, count, existing, word);
  return true;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

/// Enqueues a collective of either kind on the caller's stream, or prepares it.
bool GpuDevice::perform(const Caller &caller, const mw_rt_collective &what,
                        const void *const *inputs, void *const *outputs) {
  if (communicates(what) && splitsGraph())
    return performOutside([&] { return perform(caller, what, inputs, outputs); });
  cuda::Stream *stream = getStream(caller.stream);
  bool isFine = true, isTimed = context.trace && enqueues();
  if (isTimed)
    beginTimed(caller.stream, {0, 0, communicates(what) ? TraceKind::Collective : TraceKind::Move,
                               caller.op, 0, trafficOf(what, context.rank).bytes, -1,
                               firstOfGroup(what, context.rank)});
  if (!communicates(what))
    cut(caller, what, stream, inputs, outputs);
  else if (isPreparing())
    collectives->prepare(caller, what);
  else if (enqueues())
    isFine = collectives->run(caller, what, stream, inputs, outputs);
  if (isTimed)
    endOp();
  if (isFine && !isPreparing())
    mark(caller.op, stream);
  return isFine;
}

bool GpuDevice::runCollective(const Caller &caller, const mw_rt_collective &what,
                              const void *const *inputs, void *const *outputs, std::string &) {
  return perform(caller, what, inputs, outputs);
}

/// Lets the stream of a ticket wait for the compute stream. Returns the event at the end of its work.
Event &GpuDevice::beginTicket(int64_t ticket, cuda::Stream *stream) {
  auto found = tickets.find(ticket);
  if (found == tickets.end())
    found = tickets.emplace(ticket, std::pair(Event(*processor), Event(*processor))).first;
  auto &[begin, end] = found->second;
  if (enqueues()) {
    begin.record(getStream(0));
    begin.await(stream);
  }
  return end;
}

bool GpuDevice::start(const Caller &caller, const mw_rt_collective &what, int64_t ticket,
                      const void *const *inputs, void *const *outputs, std::string &error) {
  if (splitsGraph())
    return performOutside([&] { return start(caller, what, ticket, inputs, outputs, error); });
  cuda::Stream *stream = getStream(caller.stream);
  callTickets.erase(ticket);
  Event &end = beginTicket(ticket, stream);
  if (!perform(caller, what, inputs, outputs))
    return false;
  for (int64_t i = 0; context.checkFinite && i < what.num_tensors; ++i)
    if (const mw_rt_moved_tensor &moved = what.tensors[i];
        !moved.counted && !checkFinite(caller, i, moved.dtype, outputs[i], countAfter(moved), {}, error))
      return false;
  if (enqueues())
    end.record(stream);
  return true;
}

/// Messages of sizes that a call finds cannot be in a graph that other calls repeat.
bool GpuDevice::start(const Caller &caller, const mw_rt_call &what, int64_t ticket, void *const *buffers,
                      std::string &error) {
  if (graphOp >= 0)
    return performOutside([&] { return start(caller, what, ticket, buffers, error); });
  callTickets.insert(ticket);
  cuda::Stream *stream = getStream(caller.stream);
  Event &end = beginTicket(ticket, stream);
  CallFacts facts = getFacts(what, buffers);
  bool isTimed = context.trace && enqueues();
  if (isTimed)
    beginTimed(caller.stream, {0, 0, *facts.kind, caller.op, facts.flops, facts.bytes, facts.dtype,
                               firstOfGroup(*facts.group, context.rank)});
  bool isFine = perform(caller, what, buffers, error);
  if (isTimed)
    endOp();
  if (isFine && enqueues())
    end.record(stream);
  return isFine;
}

bool GpuDevice::wait(int64_t ticket, std::string &error) {
  if (splitsGraph() || (graphOp >= 0 && callTickets.count(ticket)))
    return performOutside([&] { return wait(ticket, error); });
  if (enqueues())
    tickets.at(ticket).second.await(getStream(0));
  return true;
}

} // namespace meshwright::rt::gpu
