//===- Progress.h - a line of progress on a terminal ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_PROGRESS_H
#define MESHWRIGHT_RUNTIME_INCLUDE_PROGRESS_H

#include <cstdint>
#include <memory>
#include <string>

namespace meshwright::rt {

/// Shows progress on one line of standard error: "compiling kernels: 12 of 40, 3 s".
///
/// - The line appears after half a second and goes with this object.
/// - Of several objects the last one made is shown: "compiling kernels" within "running".
/// - Nothing is shown if standard error is no terminal, or after `hide`.
/// - Any thread may call `step`.
class Progress {
public:
  /// If the total is 0, only the time is shown.
  explicit Progress(std::string what, int64_t total = 0);
  ~Progress();
  Progress(const Progress &) = delete;

  void step(int64_t count = 1);

  /// Erases the line until its next update, so that other text can be written there.
  static void clear();
  /// Shows nothing for the rest of the process.
  static void hide();

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PROGRESS_H
