//===- GpuTimes.cpp - times by the clock of a GPU -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// In a run with a trace, events with times stand before and behind the work of each op on its stream.
// The run begins with an event at a time that the host notes. All times are measured from there.
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright/runtime/src/ranks/Context.h"

namespace meshwright::rt::gpu {

void GpuDevice::beginTimed(int64_t stream, const TraceEvent &event) {
  timed.push_back({stream, event, Event(*processor, cuda::WithTimes),
                   Event(*processor, cuda::WithTimes)});
  timed.back().begin.record(getStream(stream));
}

void GpuDevice::beginOp(const TraceEvent &event) { beginTimed(0, event); }

/// An op that fails to record its end fails the run at the next op, too.
void GpuDevice::endOp() {
  const Timed &last = timed.back();
  cuda.cuEventRecord(last.end.get(), getStream(last.stream));
}

/// Adds the events of a run that has ended to its trace.
void GpuDevice::addTimes() {
  for (Timed &work : timed) {
    work.event.begin = originTime + work.begin.since(*origin);
    work.event.end = originTime + work.end.since(*origin);
    context.trace->getRow(context.rank, work.stream).events.push_back(work.event);
  }
}

/// Operations that a multiprocessor does in a cycle of its clock: in f32, and by tensor cores in bf16.
static std::pair<double, double> getRates(int major, int minor) {
  switch (major) {
  case 8:
    return minor == 0 ? std::pair(128., 2048.) : std::pair(256., 1024.);
  case 9:
    return {256, 4096};
  case 10:
    return {256, 8192};
  default:
    return {256, 1024};
  }
}

bool GpuDevice::getPeaks(Ceilings &peaks) const {
  auto read = [&](cuda::DeviceAttribute attribute) {
    int value = 0;
    cuda.cuDeviceGetAttribute(&value, attribute, processor->getOrdinal());
    return double(value);
  };
  // Clocks are in kHz. Memory moves data at both edges of its clock.
  double cycles = read(cuda::MultiprocessorCount) * read(cuda::ClockRate) * 1e3;
  auto [f32, bf16] =
      getRates(int(read(cuda::CapabilityMajor)), int(read(cuda::CapabilityMinor)));
  peaks.f32 = cycles * f32;
  peaks.bf16 = cycles * bf16;
  peaks.bytes = 2 * read(cuda::MemoryClockRate) * 1e3 * read(cuda::MemoryBusWidth) / 8;
  return peaks.f32 > 0 && peaks.bytes > 0;
}

} // namespace meshwright::rt::gpu
