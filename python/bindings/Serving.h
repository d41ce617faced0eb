//===- Serving.h - the part of the module that serves -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PYTHON_BINDINGS_SERVING_H
#define MESHWRIGHT_PYTHON_BINDINGS_SERVING_H

#include <nanobind/nanobind.h>

namespace meshwright {

/// Adds options of serving, requests and servers to the module.
void bindServing(nanobind::module_ &module);

} // namespace meshwright

#endif // MESHWRIGHT_PYTHON_BINDINGS_SERVING_H
