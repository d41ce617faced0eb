//===- Gil.h - calls that wait without Python's lock ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PYTHON_BINDINGS_GIL_H
#define MESHWRIGHT_PYTHON_BINDINGS_GIL_H

#include <nanobind/nanobind.h>

namespace meshwright {

/// Gives up the interpreter's lock in a scope. A thread whose interpreter has ended meanwhile stops
/// there for good: the interpreter would end the thread by unwinding it, which C++ takes for an
/// exception and ends the process.
class ReleasedGil {
public:
  ReleasedGil();
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil &) = delete;

private:
  PyThreadState *state;
};

/// Calls `body` without the interpreter's lock. Signals that come meanwhile are handled
/// (`handleSignals`); raises the exception of a handler, such as KeyboardInterrupt.
template <typename Body> auto withoutGil(Body body) {
  auto result = [&] {
    ReleasedGil released;
    return body();
  }();
  if (PyErr_Occurred())
    throw nanobind::python_error();
  return result;
}

/// From this call on, calls that wait let Python handle signals on the main thread, and end if a
/// handler raises an exception. Runs that other threads make end before the process does.
void handleSignals(nanobind::module_ &module);

} // namespace meshwright

#endif // MESHWRIGHT_PYTHON_BINDINGS_GIL_H
