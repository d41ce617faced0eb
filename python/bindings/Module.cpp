//===- Module.cpp - the Python module meshwright._core --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include <nanobind/nanobind.h>

NB_MODULE(_core, m) { m.doc() = "Meshwright's compiler and runtime"; }
