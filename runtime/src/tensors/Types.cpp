//===- Types.cpp - element types and their conversions --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Types.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

namespace meshwright::rt {

namespace {
enum class Use { Float, Integer, Boolean, Code };

struct ElementInfo {
  DType type;
  const char *name, *storedName;
  int64_t bits;
  Use use;
  double tolerance;
};
} // namespace

static constexpr ElementInfo kElements[] = {
#define MW_ELEMENT_TYPE(ID, NAME, BITS, USE, MLIR, STORED, DLPACK, NUMPY, TORCH, TOLERANCE)        \
  {DType::ID, NAME, STORED, BITS, Use::USE, TOLERANCE},
#include "meshwright-c/ElementTypes.def"
};

/// Callers of the C API may pass any number.
static const ElementInfo &infoOf(DType type) {
  static constexpr ElementInfo unknown = {DType::F32, "unknown", "", 0, Use::Integer, 0};
  return size_t(type) < std::size(kElements) ? kElements[size_t(type)] : unknown;
}

int64_t sizeOf(DType type) { return (infoOf(type).bits + 7) / 8; }
int64_t elementsPerByte(DType type) { return infoOf(type).bits == 4 ? 2 : 1; }
const char *nameOf(DType type) { return infoOf(type).name; }
const char *storedNameOf(DType type) { return infoOf(type).storedName; }
bool isFloat(DType type) { return infoOf(type).use == Use::Float; }
bool isCode(DType type) { return infoOf(type).use == Use::Code; }
DType getComputeType(DType type) {
  return type == DType::BF16 || type == DType::F16 ? DType::F32 : type;
}
double getTolerance(DType type) { return infoOf(type).tolerance; }

int64_t countOf(const std::vector<int64_t> &shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

static bool find(const char *ElementInfo::*key, const std::string &name, DType &type) {
  for (const ElementInfo &info : kElements)
    if (name == info.*key) {
      type = info.type;
      return true;
    }
  return false;
}

bool findDType(const std::string &name, DType &type) {
  return find(&ElementInfo::name, name, type);
}

bool findStoredDType(const std::string &storedName, DType &type) {
  return find(&ElementInfo::storedName, storedName, type);
}

std::string describe(DType type, const std::vector<int64_t> &shape) {
  std::string text = nameOf(type);
  text += '[';
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ']';
}

float bf16ToFloat(uint16_t bits) {
  uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t floatToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return uint16_t(bits >> 16) | 0x40;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float f16ToFloat(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000) << 16;
  uint32_t exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff;
  if (exponent == 0) {
    float value = std::ldexp(float(mantissa), -24);
    return sign ? -value : value;
  }
  uint32_t wide = exponent == 31 ? sign | 0x7f800000 | (mantissa << 13)
                                 : sign | ((exponent + 112) << 23) | (mantissa << 13);
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t floatToF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return sign | 0x7e00;
  // Values of 65520 and above round to infinity.
  if (magnitude >= 0x477ff000)
    return sign | 0x7c00;
  // Below 2^-14 the result is subnormal. Scale so that its unit is 1, and let the addition
  // round.
  if (magnitude < 0x38800000) {
    float absolute;
    std::memcpy(&absolute, &magnitude, 4);
    return sign | uint16_t(std::nearbyint(std::ldexp(absolute, 24)));
  }
  uint32_t rounded = magnitude - (112u << 23);
  return sign | uint16_t((rounded + 0xfff + ((rounded >> 13) & 1)) >> 13);
}

void widen(DType type, const void *from, float *to, int64_t count) {
  auto *bits = static_cast<const uint16_t *>(from);
  if (type == DType::BF16)
    for (int64_t i = 0; i < count; ++i)
      to[i] = bf16ToFloat(bits[i]);
  else
    for (int64_t i = 0; i < count; ++i)
      to[i] = f16ToFloat(bits[i]);
}

void narrow(DType type, const float *from, void *to, int64_t count) {
  auto *bits = static_cast<uint16_t *>(to);
  if (type == DType::BF16)
    for (int64_t i = 0; i < count; ++i)
      bits[i] = floatToBf16(from[i]);
  else
    for (int64_t i = 0; i < count; ++i)
      bits[i] = floatToF16(from[i]);
}

/// Loads the element at an index. `data` need not be aligned.
template <typename T> static T load(const void *data, int64_t index) {
  T element;
  std::memcpy(&element, static_cast<const char *>(data) + index * int64_t(sizeof(T)), sizeof(T));
  return element;
}

/// E4M3 has the bits of the upper half of an f16, but for one bit of the exponent, whose bias is
/// 7 instead of 15. Its largest magnitude is NaN. It has no infinity.
static double e4m3ToDouble(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f)
    return std::numeric_limits<double>::quiet_NaN();
  uint16_t wide = uint16_t((bits & 0x80) << 8 | (bits & 0x7f) << 7);
  return std::ldexp(f16ToFloat(wide), 8);
}

/// A power of two. All ones are NaN.
static double e8m0ToDouble(uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
}

double loadAsDouble(DType type, const void *data, int64_t index) {
  switch (type) {
  case DType::F32:
    return load<float>(data, index);
  case DType::BF16:
    return bf16ToFloat(load<uint16_t>(data, index));
  case DType::F16:
    return f16ToFloat(load<uint16_t>(data, index));
  case DType::F64:
    return load<double>(data, index);
  case DType::I64:
    return double(load<int64_t>(data, index));
  case DType::I32:
    return load<int32_t>(data, index);
  case DType::I1:
    return load<uint8_t>(data, index);
  case DType::I8:
    return load<int8_t>(data, index);
  case DType::F8E4M3FN:
    return e4m3ToDouble(load<uint8_t>(data, index));
  case DType::F8E5M2:
    return f16ToFloat(uint16_t(load<uint8_t>(data, index) << 8));
  case DType::F8E8M0FNU:
    return e8m0ToDouble(load<uint8_t>(data, index));
  case DType::F4E2M1FN:
    return load<uint8_t>(data, index);
  }
  return 0;
}

} // namespace meshwright::rt
