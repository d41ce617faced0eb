//===- Environment.h - settings of runs from the environment ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_ENVIRONMENT_H
#define MESHWRIGHT_RUNTIME_INCLUDE_ENVIRONMENT_H

#include <cstdint>
#include <string>

namespace meshwright::rt {

/// About 30 years: as good as no limit, and its nanoseconds fit into 64 bits.
inline constexpr double kLongestTimeout = 1e9;

/// MESHWRIGHT_TIMEOUT, or 30: the seconds that a rank may wait in one collective.
double defaultTimeout();

/// MESHWRIGHT_THREADS, or 1: the threads that a rank computes with.
int64_t defaultThreads();

/// MESHWRIGHT_RUNS, or 1: how often a program does each run.
int64_t defaultRuns();

/// Returns true in the first of the processes that a launcher such as mpirun has started,
/// and in a process without a launcher. That process speaks for all.
bool isFirstProcess();

/// The place of this process among those of a launcher.
struct Launcher {
  int64_t rank = 0, size = 1;
  /// The variable that says how many processes there are, for errors.
  std::string sizeName;
  bool isOpenMpi = false;
};

/// Reads the variables of torchrun (RANK and WORLD_SIZE), of mpirun, or of srun. Without a launcher
/// there is one process. Returns false, with an error, if a rank is missing or too large.
bool readLauncher(Launcher &launcher, std::string &error);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_ENVIRONMENT_H
