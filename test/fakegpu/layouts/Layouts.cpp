//===- Layouts.cpp - Our declarations against NVIDIA's headers -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// It compiles if sizes, offsets, values and signatures agree. `fakegpu_layouts` prints, as
// "library function", the functions that the backend loads.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/gpu/CublasLtApi.h"
#include "meshwright/runtime/gpu/CudaApi.h"
#include "meshwright/runtime/gpu/NcclApi.h"

#include <cublasLt.h>
#include <cuda.h>
#include <nccl.h>

#include <cstdio>
#include <type_traits>

namespace ours = meshwright::rt;

namespace {

/// Types that a call passes in the same way: two pointers, or two values of one size and kind. A
/// structure has one counterpart.
template <typename A, typename B> struct Same {
  template <typename T> static constexpr bool isInteger = std::is_integral_v<T> || std::is_enum_v<T>;
  static constexpr bool value =
      (std::is_pointer_v<A> && std::is_pointer_v<B>) || std::is_same_v<A, B> ||
      (isInteger<A> && isInteger<B> && sizeof(A) == sizeof(B)) ||
      (std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B) && alignof(A) == alignof(B));
};
template <typename R, typename... P, typename S, typename... Q> struct Same<R(P...), S(Q...)> {
  static constexpr bool count = sizeof...(P) == sizeof...(Q);
  template <bool> struct Each { static constexpr bool value = (Same<P, Q>::value && ...); };
  template <typename T = void> static constexpr bool all() {
    if constexpr (count)
      return Each<true>::value;
    else
      return false;
  }
  static constexpr bool value = Same<R, S>::value && all();
};

#define FAKEGPU_SAME_NCCL(function, result, parameters)                                            \
  static_assert(Same<result parameters, decltype(::function)>::value, #function);
#define FAKEGPU_SAME_CUDA(function, parameters)                                                    \
  static_assert(Same<Result parameters, decltype(::function)>::value, #function);
} // namespace

// Inside our namespaces, so that our types are found first.
namespace meshwright::rt::nccl {
MESHWRIGHT_NCCL_FUNCTIONS(FAKEGPU_SAME_NCCL)
} // namespace meshwright::rt::nccl
namespace meshwright::rt::cublaslt {
MESHWRIGHT_CUBLASLT_FUNCTIONS(FAKEGPU_SAME_NCCL)
} // namespace meshwright::rt::cublaslt
namespace meshwright::rt::cuda {
MESHWRIGHT_CUDA_FUNCTIONS(FAKEGPU_SAME_CUDA)
} // namespace meshwright::rt::cuda

#define FAKEGPU_EQUAL(ours, theirs) static_assert(long(ours) == long(theirs), #theirs);
namespace nccl {
FAKEGPU_EQUAL(ours::nccl::Success, ncclSuccess)
FAKEGPU_EQUAL(ours::nccl::UnhandledCudaError, ncclUnhandledCudaError)
FAKEGPU_EQUAL(ours::nccl::SystemError, ncclSystemError)
FAKEGPU_EQUAL(ours::nccl::InternalError, ncclInternalError)
FAKEGPU_EQUAL(ours::nccl::InvalidArgument, ncclInvalidArgument)
FAKEGPU_EQUAL(ours::nccl::InvalidUsage, ncclInvalidUsage)
FAKEGPU_EQUAL(ours::nccl::RemoteError, ncclRemoteError)
FAKEGPU_EQUAL(ours::nccl::InProgress, ncclInProgress)
FAKEGPU_EQUAL(ours::nccl::Sum, ncclSum)
FAKEGPU_EQUAL(ours::nccl::Product, ncclProd)
FAKEGPU_EQUAL(ours::nccl::Maximum, ncclMax)
FAKEGPU_EQUAL(ours::nccl::Minimum, ncclMin)
FAKEGPU_EQUAL(ours::nccl::Average, ncclAvg)
FAKEGPU_EQUAL(ours::nccl::Int8, ncclInt8)
FAKEGPU_EQUAL(ours::nccl::Uint8, ncclUint8)
FAKEGPU_EQUAL(ours::nccl::Int32, ncclInt32)
FAKEGPU_EQUAL(ours::nccl::Uint32, ncclUint32)
FAKEGPU_EQUAL(ours::nccl::Int64, ncclInt64)
FAKEGPU_EQUAL(ours::nccl::Uint64, ncclUint64)
FAKEGPU_EQUAL(ours::nccl::Float16, ncclFloat16)
FAKEGPU_EQUAL(ours::nccl::Float32, ncclFloat32)
FAKEGPU_EQUAL(ours::nccl::Float64, ncclFloat64)
FAKEGPU_EQUAL(ours::nccl::Bfloat16, ncclBfloat16)
} // namespace nccl

namespace cublaslt {
FAKEGPU_EQUAL(ours::cublaslt::Success, CUBLAS_STATUS_SUCCESS)
FAKEGPU_EQUAL(ours::cublaslt::NotInitialized, CUBLAS_STATUS_NOT_INITIALIZED)
FAKEGPU_EQUAL(ours::cublaslt::AllocFailed, CUBLAS_STATUS_ALLOC_FAILED)
FAKEGPU_EQUAL(ours::cublaslt::InvalidValue, CUBLAS_STATUS_INVALID_VALUE)
FAKEGPU_EQUAL(ours::cublaslt::ArchMismatch, CUBLAS_STATUS_ARCH_MISMATCH)
FAKEGPU_EQUAL(ours::cublaslt::MappingError, CUBLAS_STATUS_MAPPING_ERROR)
FAKEGPU_EQUAL(ours::cublaslt::ExecutionFailed, CUBLAS_STATUS_EXECUTION_FAILED)
FAKEGPU_EQUAL(ours::cublaslt::InternalError, CUBLAS_STATUS_INTERNAL_ERROR)
FAKEGPU_EQUAL(ours::cublaslt::NotSupported, CUBLAS_STATUS_NOT_SUPPORTED)
FAKEGPU_EQUAL(ours::cublaslt::Float32, CUDA_R_32F)
FAKEGPU_EQUAL(ours::cublaslt::Float64, CUDA_R_64F)
FAKEGPU_EQUAL(ours::cublaslt::Float16, CUDA_R_16F)
FAKEGPU_EQUAL(ours::cublaslt::Bfloat16, CUDA_R_16BF)
FAKEGPU_EQUAL(ours::cublaslt::Compute32F, CUBLAS_COMPUTE_32F)
FAKEGPU_EQUAL(ours::cublaslt::Compute32FPedantic, CUBLAS_COMPUTE_32F_PEDANTIC)
FAKEGPU_EQUAL(ours::cublaslt::Compute32FFastTF32, CUBLAS_COMPUTE_32F_FAST_TF32)
FAKEGPU_EQUAL(ours::cublaslt::Compute64F, CUBLAS_COMPUTE_64F)
FAKEGPU_EQUAL(ours::cublaslt::Plain, CUBLAS_OP_N)
FAKEGPU_EQUAL(ours::cublaslt::Transposed, CUBLAS_OP_T)
FAKEGPU_EQUAL(ours::cublaslt::ColumnOrder, CUBLASLT_ORDER_COL)
FAKEGPU_EQUAL(ours::cublaslt::RowOrder, CUBLASLT_ORDER_ROW)
FAKEGPU_EQUAL(ours::cublaslt::NoReduction, CUBLASLT_REDUCTION_SCHEME_NONE)
FAKEGPU_EQUAL(ours::cublaslt::InPlace, CUBLASLT_REDUCTION_SCHEME_INPLACE)
FAKEGPU_EQUAL(ours::cublaslt::ComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
FAKEGPU_EQUAL(ours::cublaslt::OutputType, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
FAKEGPU_EQUAL(ours::cublaslt::Default, CUBLASLT_EPILOGUE_DEFAULT)
FAKEGPU_EQUAL(ours::cublaslt::Relu, CUBLASLT_EPILOGUE_RELU)
FAKEGPU_EQUAL(ours::cublaslt::Bias, CUBLASLT_EPILOGUE_BIAS)
FAKEGPU_EQUAL(ours::cublaslt::ReluBias, CUBLASLT_EPILOGUE_RELU_BIAS)
FAKEGPU_EQUAL(ours::cublaslt::Gelu, CUBLASLT_EPILOGUE_GELU)
FAKEGPU_EQUAL(ours::cublaslt::GeluBias, CUBLASLT_EPILOGUE_GELU_BIAS)
FAKEGPU_EQUAL(ours::cublaslt::LayoutOrder, CUBLASLT_MATRIX_LAYOUT_ORDER)
FAKEGPU_EQUAL(ours::cublaslt::LayoutBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
FAKEGPU_EQUAL(ours::cublaslt::LayoutBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
FAKEGPU_EQUAL(ours::cublaslt::PointerMode, CUBLASLT_MATMUL_DESC_POINTER_MODE)
FAKEGPU_EQUAL(ours::cublaslt::TransA, CUBLASLT_MATMUL_DESC_TRANSA)
FAKEGPU_EQUAL(ours::cublaslt::TransB, CUBLASLT_MATMUL_DESC_TRANSB)
FAKEGPU_EQUAL(ours::cublaslt::EpilogueKind, CUBLASLT_MATMUL_DESC_EPILOGUE)
FAKEGPU_EQUAL(ours::cublaslt::BiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER)
FAKEGPU_EQUAL(ours::cublaslt::BiasBatchStride, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE)
FAKEGPU_EQUAL(ours::cublaslt::BiasType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)
FAKEGPU_EQUAL(ours::cublaslt::MaxWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
FAKEGPU_EQUAL(ours::cublaslt::ReductionMask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
FAKEGPU_EQUAL(ours::cublaslt::AlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
FAKEGPU_EQUAL(ours::cublaslt::AlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)
FAKEGPU_EQUAL(ours::cublaslt::AlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
FAKEGPU_EQUAL(ours::cublaslt::AlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
FAKEGPU_EQUAL(sizeof(ours::cublaslt::Algorithm), sizeof(cublasLtMatmulAlgo_t))
FAKEGPU_EQUAL(sizeof(ours::cublaslt::Heuristic), sizeof(cublasLtMatmulHeuristicResult_t))
FAKEGPU_EQUAL(offsetof(ours::cublaslt::Heuristic, algorithm), offsetof(cublasLtMatmulHeuristicResult_t, algo))
FAKEGPU_EQUAL(offsetof(ours::cublaslt::Heuristic, workspace), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize))
FAKEGPU_EQUAL(offsetof(ours::cublaslt::Heuristic, state), offsetof(cublasLtMatmulHeuristicResult_t, state))
FAKEGPU_EQUAL(offsetof(ours::cublaslt::Heuristic, waves), offsetof(cublasLtMatmulHeuristicResult_t, wavesCount))
} // namespace cublaslt

namespace cuda {
FAKEGPU_EQUAL(ours::cuda::Success, CUDA_SUCCESS)
FAKEGPU_EQUAL(ours::cuda::InvalidValue, CUDA_ERROR_INVALID_VALUE)
FAKEGPU_EQUAL(ours::cuda::OutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
FAKEGPU_EQUAL(ours::cuda::NotInitialized, CUDA_ERROR_NOT_INITIALIZED)
FAKEGPU_EQUAL(ours::cuda::NoDevice, CUDA_ERROR_NO_DEVICE)
FAKEGPU_EQUAL(ours::cuda::InvalidDevice, CUDA_ERROR_INVALID_DEVICE)
FAKEGPU_EQUAL(ours::cuda::NotFound, CUDA_ERROR_NOT_FOUND)
FAKEGPU_EQUAL(ours::cuda::NotReady, CUDA_ERROR_NOT_READY)
FAKEGPU_EQUAL(ours::cuda::PeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
FAKEGPU_EQUAL(ours::cuda::ClockRate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)
FAKEGPU_EQUAL(ours::cuda::MemoryClockRate, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
FAKEGPU_EQUAL(ours::cuda::MemoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
FAKEGPU_EQUAL(ours::cuda::MultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
FAKEGPU_EQUAL(ours::cuda::CapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
FAKEGPU_EQUAL(ours::cuda::CapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
FAKEGPU_EQUAL(ours::cuda::SharedMemoryOptIn, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
FAKEGPU_EQUAL(ours::cuda::MaxDynamicSharedMemory, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
FAKEGPU_EQUAL(ours::cuda::ErrorLogBuffer, CU_JIT_ERROR_LOG_BUFFER)
FAKEGPU_EQUAL(ours::cuda::ErrorLogBytes, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
FAKEGPU_EQUAL(ours::cuda::CaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
FAKEGPU_EQUAL(ours::cuda::CaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED)
FAKEGPU_EQUAL(ours::cuda::NonBlocking, CU_STREAM_NON_BLOCKING)
FAKEGPU_EQUAL(ours::cuda::WithTimes, CU_EVENT_DEFAULT)
FAKEGPU_EQUAL(ours::cuda::WithoutTimes, CU_EVENT_DISABLE_TIMING)
FAKEGPU_EQUAL(ours::cuda::MapFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
FAKEGPU_EQUAL(ours::cuda::MapBfloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
FAKEGPU_EQUAL(ours::cuda::Swizzle128, CU_TENSOR_MAP_SWIZZLE_128B)
FAKEGPU_EQUAL(ours::cuda::Promote256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
FAKEGPU_EQUAL(sizeof(ours::cuda::TensorMap), sizeof(CUtensorMap))
FAKEGPU_EQUAL(alignof(ours::cuda::TensorMap), alignof(CUtensorMap))
} // namespace cuda

int main() {
#define FAKEGPU_PRINT_NCCL(function, ...) printf("libnccl.so.2 %s\n", #function);
#define FAKEGPU_PRINT_CUBLASLT(function, ...) printf("libcublasLt.so.13 %s\n", #function);
#define FAKEGPU_PRINT_CUDA(function, ...) printf("libcuda.so.1 %s\n", #function);
  MESHWRIGHT_NCCL_FUNCTIONS(FAKEGPU_PRINT_NCCL)
  MESHWRIGHT_CUBLASLT_FUNCTIONS(FAKEGPU_PRINT_CUBLASLT)
  MESHWRIGHT_CUDA_FUNCTIONS(FAKEGPU_PRINT_CUDA)
  return 0;
}
