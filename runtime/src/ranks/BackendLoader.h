//===- BackendLoader.h - backends by name -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_BACKENDLOADER_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_BACKENDLOADER_H

#include "meshwright/runtime/include/Backend.h"

namespace meshwright::rt {

/// Opens a backend by its spelling, `name` or `name:mode`. Returns null, with an error, if it
/// cannot be opened; the error of an unknown name lists the available backends.
std::unique_ptr<Backend> openBackend(const std::string &spelling, World &world, std::string &error);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_BACKENDLOADER_H
