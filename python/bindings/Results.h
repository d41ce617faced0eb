//===- Results.h - results of the facade for Python -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PYTHON_BINDINGS_RESULTS_H
#define MESHWRIGHT_PYTHON_BINDINGS_RESULTS_H

#include "meshwright/Compiler.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace meshwright {

/// Message, severity, file and line.
using PyDiagnostic = std::tuple<std::string, std::string, std::string, int64_t>;
/// A value or None, and diagnostics.
template <typename T> using PyResult = std::pair<std::optional<T>, std::vector<PyDiagnostic>>;

inline const char *toString(Severity severity) {
  switch (severity) {
  case Severity::Note:
    return "note";
  case Severity::Remark:
    return "remark";
  case Severity::Warning:
    return "warning";
  case Severity::Error:
    return "error";
  }
  return "error";
}

template <typename T> PyResult<T> toPython(Result<T> result) {
  PyResult<T> converted;
  for (const Diagnostic &diagnostic : result.getDiagnostics())
    converted.second.emplace_back(diagnostic.message, toString(diagnostic.severity),
                                  diagnostic.file, diagnostic.line);
  if (result)
    converted.first = std::move(*result);
  return converted;
}

} // namespace meshwright

#endif // MESHWRIGHT_PYTHON_BINDINGS_RESULTS_H
