//===- Progress.h - a line that says how far things are ---------*- C++ -*-===//
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

/// "compiling kernels: 12 of 40, 3 s" on one line of standard error, from half a
/// second on, and gone when this object goes. While there are several the last one made
/// is shown: "compiling kernels" within "running". Nothing is shown where standard error
/// is no terminal, or after `hide`. Any thread may step.
class Progress {
public:
  /// With a total of 0 only the time is shown.
  explicit Progress(std::string what, int64_t total = 0);
  ~Progress();
  Progress(const Progress &) = delete;

  void step(int64_t count = 1);

  /// Takes the line away, for something else to be written there; it comes again.
  static void clear();
  /// For the rest of the process.
  static void hide();

private:
  struct State;
  std::unique_ptr<State> state;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PROGRESS_H
