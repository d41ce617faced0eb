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

/// Keeps a word of the call for the number of rows that a launch computes, which a trace reads at the end.
void GpuDevice::noteRows(const mw_rt_launch &what, void *const *buffers) {
  if (!what.rows)
    return;
  size_t word = wordsUsed;
  nextWord(kRowsWord, 0);
  if (!context.row || !enqueues())
    return;
  timed.back().existing = {what.rows, static_cast<const int64_t *>(buffers[what.counter]) + what.last};
  timed.back().word = word;
}

/// An op that fails to record its end, or to copy its number of rows, fails the run at the next op, too.
void GpuDevice::endOp() {
  const Timed &last = timed.back();
  cuda.cuEventRecord(last.end.get(), getStream(last.stream));
  if (last.existing.rows)
    cuda.cuMemcpyDtoDAsync(addressOf(current->onDevice.get()) + last.word * sizeof(uint64_t),
                           addressOf(last.existing.number), sizeof(uint64_t), getStream(last.stream));
}

/// Adds the events of a run that has ended to its trace.
void GpuDevice::addTimes() {
  auto *words = reinterpret_cast<const uint64_t *>(current->onHost.get());
  for (Timed &work : timed) {
    if (int64_t rows = work.existing.rows) {
      double part = double(std::min(words[work.word], uint64_t(rows))) / double(rows);
      work.event.flops = int64_t(double(work.event.flops) * part);
      work.event.bytes = int64_t(double(work.event.bytes) * part);
    }
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
