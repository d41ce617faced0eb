//===- Finite.cpp - the search for NaN and infinity -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"

#include "meshwright/runtime/src/ranks/Context.h"

#include "meshwright/runtime/include/Types.h"

#include <algorithm>

namespace meshwright::rt {

/// Returns the first element whose exponent is all ones, or -1.
template <typename Bits> static int64_t findFirst(const void *data, int64_t count, Bits exponent) {
  auto *bits = static_cast<const Bits *>(data);
  constexpr int64_t block = 1024;
  for (int64_t begin = 0; begin < count; begin += block) {
    int64_t end = std::min(count, begin + block);
    // This loop has no exit, so that the compiler can vectorise it.
    Bits any = 0;
    for (int64_t i = begin; i < end; ++i)
      any |= Bits((bits[i] & exponent) == exponent);
    for (int64_t i = begin; any && i < end; ++i)
      if ((bits[i] & exponent) == exponent)
        return i;
  }
  return -1;
}

bool CpuDevice::checkFinite(const Caller &caller, int64_t result, int64_t dtype, const void *data,
                            int64_t count, const ExistingRows &existing, std::string &) {
  if (existing.rows)
    count = count / existing.rows * *existing.number;
  int64_t found = -1;
  switch (DType(dtype)) {
  case DType::F32:
    found = findFirst<uint32_t>(data, count, 0x7f800000);
    break;
  case DType::BF16:
    found = findFirst<uint16_t>(data, count, 0x7f80);
    break;
  case DType::F16:
    found = findFirst<uint16_t>(data, count, 0x7c00);
    break;
  case DType::F64:
    found = findFirst<uint64_t>(data, count, 0x7ff0000000000000);
    break;
  case DType::I64:
  case DType::I32:
  case DType::I1:
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
    break;
  }
  if (found >= 0)
    context.world->noteNotFinite(caller.rank, caller.op, result, found,
                                 loadAsDouble(DType(dtype), data, found));
  return true;
}

} // namespace meshwright::rt
