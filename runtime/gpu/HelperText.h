//===- HelperText.h - the text of kernels of the backend --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each kernel has 64-bit parameters, `%p0`, `%p1`, ... when its body begins. A thread does the item
// `%i` of `%p0` items. Registers: %i, %q, %r, %to, %from, %n, %at and %x0 to %x3 of 64 bits; %w0 to %w5
// of 32, %h0 to %h3 of 16; %f0 to %f3 and %d0 to %d3 for floats; %c0 to %c3 for truth values.
//
// This header is private to runtime/gpu.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_HELPERTEXT_H
#define MESHWRIGHT_RUNTIME_GPU_HELPERTEXT_H

#include <cstdint>
#include <string>

namespace meshwright::rt::gpu {

/// The kernel with this body, which may branch to `done`.
std::string writeKernel(const std::string &name, size_t parameters, const std::string &body);

/// Divides %i by a parameter; the remainder is in %r.
std::string splitItem(size_t parameter);

/// Loads the float at [%from] of a type to the register %f2, as f32, and stores %f2 to [%to].
std::string loadFloat(int64_t dtype);
std::string storeFloat(int64_t dtype);

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_GPU_HELPERTEXT_H
