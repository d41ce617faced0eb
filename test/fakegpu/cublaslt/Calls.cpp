//===- Calls.cpp - The functions of cuBLASLt's API --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "cublaslt/Problem.h"
#include "driver/Services.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

using namespace fakegpu;
using namespace fakegpu::cublaslt;

namespace {

constexpr uint32_t kSplitWorkspace = 1 << 20;
constexpr uint64_t kSplitDepth = 64;

struct Handle {
  int device;
};

template <typename Object> auto *object(void *handle) { return static_cast<Object *>(handle); }

template <typename Object> cublasStatus_t setAttribute(void *handle, int number, const void *from, size_t size) {
  if (!handle || !from)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a null argument of a call that sets an attribute");
  for (const Attribute &a : object<Object>(handle)->attributes())
    if (a.number == number) {
      if (size != a.size)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "attribute " + std::to_string(number) + " has " + std::to_string(a.size) + " bytes, not " + std::to_string(size));
      memcpy(a.at, from, size);
      return CUBLAS_STATUS_SUCCESS;
    }
  return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the stand-in has no attribute " + std::to_string(number));
}

template <typename Object> cublasStatus_t getAttribute(void *handle, int number, void *to, size_t size, size_t *written) {
  for (const Attribute &a : object<Object>(handle)->attributes())
    if (a.number == number) {
      if (written)
        *written = a.size;
      if (size == 0 && written)
        return CUBLAS_STATUS_SUCCESS;
      if (size != a.size || !to)
        return CUBLAS_STATUS_INVALID_VALUE;
      memcpy(to, a.at, size);
      return CUBLAS_STATUS_SUCCESS;
    }
  return CUBLAS_STATUS_INVALID_VALUE;
}

Problem problemOf(void *description, void *a, void *b, void *c, void *d) {
  return {*object<Description>(description), *object<Layout>(a), *object<Layout>(b), *object<Layout>(c), *object<Layout>(d)};
}

cublasStatus_t check(const Problem &p) {
  if (std::string why = p.invalid(); !why.empty())
    return refuse(CUBLAS_STATUS_INVALID_VALUE, why);
  if (std::string why = p.unsupported(); !why.empty())
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
  return CUBLAS_STATUS_SUCCESS;
}

/// The algorithms for a problem, best first: split sums where the depth, the workspace and the
/// preferences allow, then one without a split. A sum in place adds its parts in any order.
std::vector<Algorithm> algorithms(const Problem &p, const Preference &preference) {
  std::vector<Algorithm> all;
  auto add = [&](uint32_t splits, uint32_t reduction, uint32_t workspace) {
    Algorithm a{p.hash(), splits, reduction, workspace, {}, kMagic};
    std::copy(preference.alignment, preference.alignment + 4, a.alignment);
    all.push_back(a);
  };
  bool splits = p.depth() >= kSplitDepth && p.description.compute != CUBLAS_COMPUTE_32F_PEDANTIC;
  if (splits && (preference.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE))
    add(4, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0);
  if (splits && (preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) && preference.workspace >= kSplitWorkspace)
    add(4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, kSplitWorkspace);
  add(1, CUBLASLT_REDUCTION_SCHEME_NONE, 0);
  return all;
}

struct Range {
  const char *name;
  const void *device;
  size_t bytes;
  uint32_t alignment;
  bool written;
  char *host = nullptr;
};

/// Finds the bytes of each range; ranges that are written overlap no other one.
cublasStatus_t locate(std::vector<Range> &ranges, int device, bool inPlace) {
  for (Range &r : ranges) {
    if (!r.bytes)
      continue;
    if (reinterpret_cast<uint64_t>(r.device) % r.alignment)
      return refuse(CUBLAS_STATUS_INVALID_VALUE, std::string(r.name) + " is not aligned to " + std::to_string(r.alignment) + " bytes, which the algorithm needs");
    r.host = services::bytes(device, r.device, r.bytes);
    if (!r.host)
      return refuse(CUBLAS_STATUS_INVALID_VALUE, std::string(r.name) + ": " + std::to_string(r.bytes) + " bytes are not in one allocation that device " + std::to_string(device) + " may touch");
  }
  for (const Range &w : ranges)
    for (const Range &o : ranges)
      if (&w != &o && w.written && services::overlap(w.device, w.bytes, o.device, o.bytes) && !(inPlace && *w.name == 'D' && *o.name == 'C'))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, std::string(w.name) + " overlaps " + o.name);
  return CUBLAS_STATUS_SUCCESS;
}

/// alpha and beta, if they are on the host.
struct Scalars {
  alignas(8) char alpha[8] = {}, beta[8] = {};
};

/// The order of the parts of a sum. A reduction in place gives another one at each launch.
std::vector<unsigned> orderOf(const Algorithm &a) {
  static std::atomic<uint32_t> launches{0};
  std::vector<unsigned> order(a.splits);
  uint32_t shift = a.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE ? launches++ : 0;
  for (unsigned i = 0; i < a.splits; ++i)
    order[i] = (i + shift) % a.splits;
  return order;
}

/// Runs on the stream's thread. Returns the time at 500 TFLOP/s. The workspace is poison afterwards.
double runMatmul(const Problem &p, const std::vector<Range> &r, const Algorithm &algorithm, const Scalars &scalars) {
  bool onDevice = r[7].host;
  multiply(p, {r[0].host, r[1].host, r[2].host, r[4].host, r[3].host, r[5].host, onDevice ? r[7].host : scalars.alpha, onDevice ? r[8].host : scalars.beta}, orderOf(algorithm));
  if (r[6].host)
    memset(r[6].host, 0xff, r[6].bytes);
  return 3000.0 + 2.0 * double(p.rows()) * double(p.columns()) * double(p.depth()) * p.d.batches / 5e5;
}

cublasStatus_t choose(const Problem &p, const cublasLtMatmulAlgo_t *given, size_t workspace, Algorithm &out) {
  if (!given) {
    Preference preference;
    preference.workspace = workspace;
    std::fill(preference.alignment, preference.alignment + 4, 16u);
    out = algorithms(p, preference).front();
    return CUBLAS_STATUS_SUCCESS;
  }
  memcpy(&out, given, sizeof out);
  if (out.magic != kMagic || out.problem != p.hash())
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was not chosen for this problem");
  if (workspace < out.workspace)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace of " + std::to_string(workspace) + " bytes, the algorithm needs " + std::to_string(out.workspace));
  return CUBLAS_STATUS_SUCCESS;
}

} // namespace

#define FAKECUBLAS_OBJECT(Name, Object)                                                            \
  FAKECUBLAS_EXPORT cublasStatus_t cublasLt##Name##Destroy(cublasLt##Name##_t handle) {            \
    delete object<Object>(handle);                                                                 \
    return CUBLAS_STATUS_SUCCESS;                                                                  \
  }                                                                                                \
  FAKECUBLAS_EXPORT cublasStatus_t cublasLt##Name##SetAttribute(                                   \
      cublasLt##Name##_t handle, FAKECUBLAS_ATTRIBUTE number, const void *from, size_t size) {     \
    return setAttribute<Object>(handle, number, from, size);                                       \
  }                                                                                                \
  FAKECUBLAS_EXPORT cublasStatus_t cublasLt##Name##GetAttribute(                                   \
      cublasLt##Name##_t handle, FAKECUBLAS_ATTRIBUTE number, void *to, size_t size,               \
      size_t *written) {                                                                           \
    return getAttribute<Object>(handle, number, to, size, written);                                \
  }
#define FAKECUBLAS_ATTRIBUTE cublasLtMatrixLayoutAttribute_t
FAKECUBLAS_OBJECT(MatrixLayout, Layout)
#undef FAKECUBLAS_ATTRIBUTE
#define FAKECUBLAS_ATTRIBUTE cublasLtMatmulDescAttributes_t
FAKECUBLAS_OBJECT(MatmulDesc, Description)
#undef FAKECUBLAS_ATTRIBUTE
#define FAKECUBLAS_ATTRIBUTE cublasLtMatmulPreferenceAttributes_t
FAKECUBLAS_OBJECT(MatmulPreference, Preference)

FAKECUBLAS_EXPORT size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

FAKECUBLAS_EXPORT const char *cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
#define FAKECUBLAS_STATUS(name)                                                                    \
  case name: return #name
    FAKECUBLAS_STATUS(CUBLAS_STATUS_SUCCESS);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_NOT_INITIALIZED);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_ALLOC_FAILED);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_INVALID_VALUE);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_ARCH_MISMATCH);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_MAPPING_ERROR);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_EXECUTION_FAILED);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_INTERNAL_ERROR);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_NOT_SUPPORTED);
    FAKECUBLAS_STATUS(CUBLAS_STATUS_LICENSE_ERROR);
  }
  return "unknown status";
}

FAKECUBLAS_EXPORT const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

FAKECUBLAS_EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
  if (services::failsNow("cublasLtCreate"))
    return refuse(CUBLAS_STATUS_ALLOC_FAILED, "cublasLtCreate fails by request of FAKEGPU_FAIL");
  int device = services::currentDevice();
  if (device < 0)
    return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "this thread has no current context");
  *out = reinterpret_cast<cublasLtHandle_t>(new Handle{device});
  return CUBLAS_STATUS_SUCCESS;
}

FAKECUBLAS_EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete object<Handle>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

FAKECUBLAS_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t columns, int64_t stride) {
  auto *l = new Layout;
  l->type = type, l->rows = rows, l->columns = columns, l->stride = stride;
  *out = reinterpret_cast<cublasLtMatrixLayout_t>(l);
  return CUBLAS_STATUS_SUCCESS;
}

FAKECUBLAS_EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
  auto *d = new Description;
  d->compute = compute, d->scale = scale;
  *out = reinterpret_cast<cublasLtMatmulDesc_t>(d);
  return CUBLAS_STATUS_SUCCESS;
}

FAKECUBLAS_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
  *out = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

FAKECUBLAS_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t *results, int *count) {
  if (services::failsNow("cublasLtMatmulAlgoGetHeuristic"))
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic fails by request of FAKEGPU_FAIL");
  if (!handle)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted < 1 || !description || !a || !b || !c || !d || !preference || !results || !count)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a null argument of cublasLtMatmulAlgoGetHeuristic");
  *count = 0;
  Problem p = problemOf(description, a, b, c, d);
  if (cublasStatus_t s = check(p))
    return s;
  for (const Algorithm &algorithm : algorithms(p, *object<Preference>(preference))) {
    if (*count == wanted)
      break;
    cublasLtMatmulHeuristicResult_t &r = results[(*count)++];
    memset(&r, 0, sizeof r);
    memcpy(&r.algo, &algorithm, sizeof algorithm);
    r.workspaceSize = algorithm.workspace;
    r.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

FAKECUBLAS_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *given, cublasLtMatmulAlgoConfigAttributes_t number, void *to, size_t size, size_t *written) {
  Algorithm a;
  memcpy(&a, given, sizeof a);
  uint32_t value = 0;
  if (number == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
    value = a.splits;
  else if (number == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
    value = a.reduction;
  else if (number != CUBLASLT_ALGO_CONFIG_ID)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (written)
    *written = 4;
  if (size != 4)
    return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, &value, 4);
  return CUBLAS_STATUS_SUCCESS;
}

FAKECUBLAS_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha, const void *a, cublasLtMatrixLayout_t aLayout, const void *b, cublasLtMatrixLayout_t bLayout, const void *beta, const void *c, cublasLtMatrixLayout_t cLayout, void *d, cublasLtMatrixLayout_t dLayout, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspaceBytes, cudaStream_t streamHandle) {
  if (services::failsNow("cublasLtMatmul"))
    return refuse(CUBLAS_STATUS_EXECUTION_FAILED, "cublasLtMatmul fails by request of FAKEGPU_FAIL");
  if (!handle)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!description || !alpha || !beta || !aLayout || !bLayout || !cLayout || !dLayout)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a null argument of cublasLtMatmul");
  int device = object<Handle>(handle)->device;
  CUstream stream = services::stream(reinterpret_cast<CUstream>(streamHandle), device);
  if (!stream)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the stream is not one of the handle's device " + std::to_string(device));
  if (services::error(device))
    return refuse(CUBLAS_STATUS_EXECUTION_FAILED, "the device has failed");
  Problem p = problemOf(description, aLayout, bLayout, cLayout, dLayout);
  Algorithm algorithm;
  if (cublasStatus_t s = check(p))
    return s;
  if (cublasStatus_t s = choose(p, algo, workspaceBytes, algorithm))
    return s;
  size_t scale = p.description.scale == CUDA_R_64F ? 8 : 4;
  bool onDevice = p.description.pointerMode == CUBLASLT_POINTER_MODE_DEVICE;
  static const char zeros[8] = {};
  bool readsC = onDevice || memcmp(beta, zeros, scale);
  if (c == d && !(p.c == p.d))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "C and D are one matrix of two layouts");
  const uint32_t *alignment = algorithm.alignment;
  auto element = uint32_t(sizeOf(p.d.type));
  size_t bias = p.hasBias() ? (p.rows() + size_t(p.d.batches - 1) * size_t(p.description.biasStride)) * element : 0;
  std::vector<Range> ranges = {{"A", a, p.a.extent() * sizeOf(p.a.type), alignment[0], false},
                               {"B", b, p.b.extent() * sizeOf(p.b.type), alignment[1], false},
                               {"C", c, readsC ? p.c.extent() * element : 0, alignment[2], false},
                               {"D", d, p.d.extent() * element, alignment[3], true},
                               {"the bias", p.description.bias, bias, element, false},
                               {"the auxiliary output", p.description.aux, p.auxBytes(), 16, true},
                               {"the workspace", workspace, algorithm.workspace, 16, true},
                               {"alpha", alpha, onDevice ? scale : 0, uint32_t(scale), false},
                               {"beta", beta, onDevice ? scale : 0, uint32_t(scale), false}};
  if (cublasStatus_t s = locate(ranges, device, c == d))
    return s;
  Scalars scalars;
  if (!onDevice) {
    memcpy(scalars.alpha, alpha, scale);
    memcpy(scalars.beta, beta, scale);
  }
  if (services::enqueue(stream, "cublasLtMatmul", [p, ranges, algorithm, scalars] { return runMatmul(p, ranges, algorithm, scalars); }))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  return CUBLAS_STATUS_SUCCESS;
}
