//===- TensorMap.cpp - cuTensorMapEncodeTiled and its rules ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"
#include "ops/TensorCopy.h"

using namespace fakegpu;

namespace {

unsigned elementBytes(CUtensorMapDataType type) {
  switch (type) {
  case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
  case CU_TENSOR_MAP_DATA_TYPE_UINT16:
  case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
  case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
  case CU_TENSOR_MAP_DATA_TYPE_UINT32:
  case CU_TENSOR_MAP_DATA_TYPE_INT32:
  case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
  case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
  case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
  case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ: return 4;
  case CU_TENSOR_MAP_DATA_TYPE_UINT64:
  case CU_TENSOR_MAP_DATA_TYPE_INT64:
  case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
  default: return 0;
  }
}

bool isFloat(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ||
         (type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT32 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ);
}

CUresult refuse(const char *why) {
  fprintf(stderr, "fakegpu: cuTensorMapEncodeTiled: %s\n", why);
  return CUDA_ERROR_INVALID_VALUE;
}

} // namespace

FAKEGPU_EXPORT CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
    CUtensorMapFloatOOBfill fill) {
  FAKEGPU_ENTER("cuTensorMapEncodeTiled", false);
  if (Settings::get().chip < 90)
    return CUDA_ERROR_NOT_SUPPORTED;
  unsigned bytes = elementBytes(type);
  if (!out || reinterpret_cast<uint64_t>(out) % 64)
    return refuse("the map has to be aligned to 64 bytes");
  if (!bytes || rank < 1 || rank > 5)
    return refuse("an unknown type, or not 1 to 5 dimensions");
  if (reinterpret_cast<uint64_t>(address) % 16)
    return refuse("the address has to be a multiple of 16");
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return refuse("only CU_TENSOR_MAP_INTERLEAVE_NONE is supported");
  static const std::pair<CUtensorMapSwizzle, unsigned> spans[] = {{CU_TENSOR_MAP_SWIZZLE_NONE, 0},
                                                                  {CU_TENSOR_MAP_SWIZZLE_32B, 32},
                                                                  {CU_TENSOR_MAP_SWIZZLE_64B, 64},
                                                                  {CU_TENSOR_MAP_SWIZZLE_128B, 128}};
  TensorMap map;
  bool known = false;
  for (auto [name, span] : spans)
    if (name == swizzle)
      map.swizzle = uint8_t(span), known = true;
  if (!known)
    return refuse("an unknown swizzle");
  map.magic = TensorMap::kMagic;
  map.address = reinterpret_cast<uint64_t>(address);
  map.rank = uint8_t(rank);
  map.elementBytes = uint8_t(bytes);
  map.isFloat = isFloat(type);
  map.fillNan = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  if (map.fillNan && !map.isFloat)
    return refuse("a fill with NaN needs a float type");
  for (unsigned d = 0; d < rank; ++d) {
    if (sizes[d] < 1 || sizes[d] > uint64_t(1) << 32)
      return refuse("a size is not 1 to 2^32");
    if (box[d] < 1 || box[d] > 256)
      return refuse("a box size is not 1 to 256");
    if (steps[d] < 1 || steps[d] > 8)
      return refuse("an element stride is not 1 to 8");
    map.sizes[d] = uint32_t(sizes[d] - 1);
    map.box[d] = uint16_t(box[d]);
    map.steps[d] = uint8_t(steps[d]);
    if (d + 1 < rank) {
      if (strides[d] % 16 || strides[d] >= uint64_t(1) << 40)
        return refuse("a stride has to be a multiple of 16 below 2^40");
      map.strides[d] = strides[d];
    }
  }
  uint64_t inner = uint64_t(box[0]) * bytes;
  if (inner % 16)
    return refuse("the inner box size has to be a multiple of 16 bytes");
  if (map.swizzle && inner > map.swizzle)
    return refuse("the inner box size passes the span of the swizzle");
  memset(out, 0, sizeof *out);
  memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}
