//===- Settings.cpp - Environment variables, limits of chips, and the log ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <cstdlib>

namespace fakegpu {

namespace {

std::string variable(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value && *value ? value : otherwise;
}

/// "32M", "2G", or bytes.
uint64_t size(const std::string &text) {
  char *end = nullptr;
  uint64_t value = strtoull(text.c_str(), &end, 0);
  switch (toupper(*end)) {
  case 'K': return value << 10;
  case 'M': return value << 20;
  case 'G': return value << 30;
  default: return value;
  }
}

Settings readSettings() {
  Settings s;
  s.chipName = variable("FAKEGPU_CHIP", "sm_90");
  s.chip = unsigned(atoi(s.chipName.c_str() + (s.chipName.compare(0, 3, "sm_") == 0 ? 3 : 0)));
  if (s.chip != 80 && s.chip != 90 && s.chip != 100 && s.chip != 120) {
    fprintf(stderr, "fakegpu: FAKEGPU_CHIP=%s: expected sm_80, sm_90, sm_100 or sm_120\n", s.chipName.c_str());
    s.chip = 90;
  }
  s.devices = atoi(variable("FAKEGPU_DEVICES", "8").c_str());
  s.memory = size(variable("FAKEGPU_MEMORY", "16G"));
  s.driver = atoi(variable("FAKEGPU_DRIVER", std::to_string(CUDA_VERSION).c_str()).c_str());
  s.seed = strtoull(variable("FAKEGPU_SEED", "1").c_str(), nullptr, 0);
  s.deadline = strtoull(variable("FAKEGPU_DEADLINE", "67108864").c_str(), nullptr, 0);
  std::string fail = variable("FAKEGPU_FAIL", "");
  size_t colon = fail.find(':');
  s.failCall = fail.substr(0, colon);
  s.failAt = colon == std::string::npos ? 1 : strtoull(fail.c_str() + colon + 1, nullptr, 0);
  s.log = variable("FAKEGPU_LOG", "");
  // An empty CUDA_VISIBLE_DEVICES hides all devices; a list shows its entries up to the first bad one.
  if (const char *visible = getenv("CUDA_VISIBLE_DEVICES")) {
    int shown = 0;
    for (const char *at = visible; *at;) {
      char *end = nullptr;
      long index = strtol(at, &end, 10);
      if (end == at || index < 0 || index >= s.devices)
        break;
      ++shown;
      s.physical.push_back(int(index));
      at = *end == ',' ? end + 1 : end;
      if (*end && *end != ',')
        break;
    }
    s.devices = shown;
  } else {
    for (int i = 0; i < s.devices; ++i)
      s.physical.push_back(i);
  }
  return s;
}

} // namespace

const Settings &Settings::get() {
  static const Settings settings = readSettings();
  return settings;
}

const ChipLimits &chipLimits() {
  static const ChipLimits limits = [] {
    ChipLimits l;
    switch (Settings::get().chip) {
    case 80: l.sharedOptIn = 166912, l.sharedPerMultiprocessor = 167936, l.multiprocessors = 108, l.maxCluster = 1; break;
    case 120: l.sharedOptIn = 101376, l.sharedPerMultiprocessor = 102400, l.multiprocessors = 188, l.maxCluster = 8; break;
    case 100: l.sharedOptIn = 232448, l.sharedPerMultiprocessor = 233472, l.multiprocessors = 148, l.maxCluster = 8; break;
    default: l.sharedOptIn = 232448, l.sharedPerMultiprocessor = 233472, l.multiprocessors = 132, l.maxCluster = 8; break;
    }
    return l;
  }();
  return limits;
}

Log &Log::get() {
  static Log *log = [] {
    auto *l = new Log; // streams may still run at exit
    if (!Settings::get().log.empty())
      atexit([] { Log::get().write(Settings::get().log); });
    return l;
  }();
  return *log;
}

namespace {
// Waits of this thread behind its first launch, which count if another launch follows.
thread_local bool hasLaunched = false;
thread_local uint64_t waitsSinceLaunch = 0;
} // namespace

void Log::launched(const std::string &kernel) {
  std::lock_guard<std::mutex> lock(mutex);
  ++launches[kernel];
  waits += waitsSinceLaunch;
  waitsSinceLaunch = 0;
  hasLaunched = true;
}

void Log::ran(const std::string &kernel, const Counters &c) {
  std::lock_guard<std::mutex> lock(mutex);
  counters[kernel].add(c);
}

void Log::waited() { waitsSinceLaunch += hasLaunched; }

void Log::copied(bool fromDevice, bool toDevice, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  (fromDevice ? toDevice ? deviceToDevice : deviceToHost : hostToDevice) += bytes;
}

void Log::write(const std::string &path) {
  std::lock_guard<std::mutex> lock(mutex);
  FILE *out = fopen(path.c_str(), "w");
  if (!out) {
    fprintf(stderr, "fakegpu: cannot write the log %s\n", path.c_str());
    return;
  }
  auto number = [](uint64_t v) { return (unsigned long long)v; };
  const char *comma = "";
  auto counts = [&](const std::map<std::string, uint64_t> &of) {
    comma = "";
    for (auto &[name, count] : of) {
      fprintf(out, "%s\"%s\": %llu", comma, name.c_str(), number(count));
      comma = ", ";
    }
  };
  fprintf(out, "{\"launches\": {");
  counts(launches);
  fprintf(out, "}, \"calls\": {");
  counts(calls);
  fprintf(out, "}, \"copies\": {\"h2d\": %llu, \"d2h\": %llu, \"d2d\": %llu}, ", number(hostToDevice),
          number(deviceToHost), number(deviceToDevice));
  fprintf(out, "\"graph_captures\": %llu, \"graph_launches\": %llu, \"waits\": %llu, \"kernels\": {",
          number(captures), number(graphLaunches), number(waits));
  comma = "";
  for (auto &[name, c] : counters) {
    fprintf(out,
            "%s\"%s\": {\"warp_instructions\": %llu, \"lane_instructions\": %llu, \"global_requests\": "
            "%llu, \"global_sectors\": %llu, \"global_bytes\": %llu, \"shared_requests\": %llu, "
            "\"shared_wavefronts\": %llu, \"shared_conflicts\": %llu}",
            comma, name.c_str(), number(c.warpInstructions), number(c.laneInstructions),
            number(c.globalRequests), number(c.globalSectors), number(c.globalBytes),
            number(c.sharedRequests), number(c.sharedWavefronts), number(c.sharedConflicts));
    comma = ", ";
  }
  fprintf(out, "}}\n");
  fclose(out);
}

CUresult resultOf(const Fault &fault) {
  switch (fault.code) {
  case Fault::IllegalAddress: return CUDA_ERROR_ILLEGAL_ADDRESS;
  case Fault::Misaligned: return CUDA_ERROR_MISALIGNED_ADDRESS;
  case Fault::IllegalInstruction: return CUDA_ERROR_ILLEGAL_INSTRUCTION;
  case Fault::Timeout: return CUDA_ERROR_LAUNCH_TIMEOUT;
  case Fault::BadSpace: return CUDA_ERROR_INVALID_ADDRESS_SPACE;
  case Fault::LaunchFailed: break;
  }
  return CUDA_ERROR_LAUNCH_FAILED;
}

bool failsNow(const std::string &call) {
  const Settings &s = Settings::get();
  static std::atomic<uint64_t> count{0};
  return !s.failCall.empty() &&
         (call == s.failCall || (s.failCall == "cuLaunchKernel" && call == "cuLaunchKernelEx")) &&
         ++count == s.failAt;
}

CUresult enterCall(const char *name, bool needsContext) {
  if (failsNow(name)) {
    std::string called = name;
    bool launch = called.find("Launch") != std::string::npos, memory = called.find("Alloc") != std::string::npos;
    return launch ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
  }
  if (Device::all().empty() && Settings::get().devices > 0)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!needsContext)
    return CUDA_SUCCESS;
  if (!currentContext())
    return CUDA_ERROR_INVALID_CONTEXT;
  return CUresult(currentContext()->device->error.load());
}

} // namespace fakegpu

FAKEGPU_EXPORT void fakegpuWriteLog(const char *path) { fakegpu::Log::get().write(path); }
