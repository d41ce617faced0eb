//===- Environment.cpp - settings of runs from the environment ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Environment.h"

#include "meshwright/runtime/include/PlainNumbers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace meshwright::rt {

/// Returns the number in an environment variable. Warns if it is not above 0, and returns
/// `otherwise`.
static double readPositive(const char *name, double otherwise, const char *what) {
  const char *text = std::getenv(name);
  if (!text)
    return otherwise;
  PlainNumbers plain;
  char *end = nullptr;
  double value = std::strtod(text, &end);
  if (end != text && *end == '\0' && value > 0)
    return value;
  std::fprintf(stderr, "warning: %s: expected a number of %s, got '%s'; using %g\n", name, what,
               text, otherwise);
  return otherwise;
}

double defaultTimeout() {
  return std::min(readPositive("MESHWRIGHT_TIMEOUT", 30, "seconds"), kLongestTimeout);
}

static int64_t readCount(const char *name, const char *what) {
  return int64_t(std::clamp(readPositive(name, 1, what), 1.0, 1e9));
}

int64_t defaultThreads() { return readCount("MESHWRIGHT_THREADS", "threads"); }

int64_t defaultRuns() { return readCount("MESHWRIGHT_RUNS", "runs"); }

bool readLauncher(Launcher &launcher, std::string &error) {
  static constexpr struct {
    const char *rank, *size;
  } variables[] = {{"RANK", "WORLD_SIZE"},
                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                   {"PMI_RANK", "PMI_SIZE"},
                   {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  launcher = Launcher();
  launcher.isOpenMpi = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  for (const auto &[rank, size] : variables) {
    const char *ranks = std::getenv(size), *own = std::getenv(rank);
    if (!ranks || std::atoll(ranks) <= 1)
      continue;
    launcher.size = std::atoll(ranks);
    launcher.rank = own ? std::atoll(own) : -1;
    launcher.sizeName = size;
    if (launcher.rank >= 0 && launcher.rank < launcher.size)
      return true;
    error = std::string(rank) + ": expected 0 to " + std::to_string(launcher.size - 1) + ", as " +
            size + " is " + ranks + ", got " + (own ? own : "no value");
    return false;
  }
  return true;
}

bool isFirstProcess() {
  for (const char *name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char *text = std::getenv(name))
      return std::strcmp(text, "0") == 0;
  return true;
}

} // namespace meshwright::rt
