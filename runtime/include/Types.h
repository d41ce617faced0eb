//===- Types.h - element types and their conversions ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_TYPES_H
#define MESHWRIGHT_RUNTIME_INCLUDE_TYPES_H

#include "meshwright-c/Runtime.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshwright::rt {

enum class DType : int64_t {
#define MW_ELEMENT_TYPE(ID, ...) ID = MW_##ID,
#include "meshwright-c/ElementTypes.def"
};

/// The bytes of an element of an array: one for elements of four bits, of which it has two. 0 for a
/// number that is no type.
int64_t sizeOf(DType type);
/// 2 for elements of four bits, else 1. Shapes and layouts in the runtime count bytes of them along
/// the last dimension. Files count elements.
int64_t elementsPerByte(DType type);
/// The name in IR: "f32".
const char *nameOf(DType type);
/// The name in safetensors files: "F32".
const char *storedNameOf(DType type);
/// Returns true if arithmetic on the type is that of floats.
bool isFloat(DType type);
/// Returns true for a code: an element that is stored and moved, and that nothing computes on.
bool isCode(DType type);
/// Returns false if there is no type of that name.
bool findDType(const std::string &name, DType &type);
bool findStoredDType(const std::string &storedName, DType &type);
/// The type in which sums of elements are taken: f32 for bf16 and f16, else their own.
DType getComputeType(DType type);
/// The largest difference, relative to the largest entry, that another order of the same sums may
/// cause.
double getTolerance(DType type);
/// The number of elements of a shape.
int64_t countOf(const std::vector<int64_t> &shape);
/// "f32[2, 3]".
std::string describe(DType type, const std::vector<int64_t> &shape);

float bf16ToFloat(uint16_t bits);
uint16_t floatToBf16(float value);
float f16ToFloat(uint16_t bits);
uint16_t floatToF16(float value);

/// Convert `count` elements of bf16 or f16 to f32, and back with rounding to nearest even.
void widen(DType type, const void *from, float *to, int64_t count);
void narrow(DType type, const float *from, void *to, int64_t count);

/// Returns a code of random bits, which stands for a finite number in each type of codes.
inline uint8_t toCode(uint64_t random) { return random & 0x3f; }

/// Returns the element at an index as a double. That of a code is the number that it stands for
/// without a scale, or the byte of two elements.
double loadAsDouble(DType type, const void *data, int64_t index);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_TYPES_H
