//===- Libraries.h - NVIDIA's libraries, loaded at run time -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each library is loaded once per process and never closed. It is looked for by its name, then in
// CUDA_HOME, then in the folders `nvidia/*/lib` of the Python on the path.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_LIBRARIES_H
#define MESHWRIGHT_RUNTIME_GPU_LIBRARIES_H

#include "CublasLtApi.h"
#include "CudaApi.h"
#include "NcclApi.h"

#include <stdexcept>
#include <string>

namespace meshwright::rt {

namespace cuda {
/// The driver's functions.
struct Functions {
#define MESHWRIGHT_FUNCTION(name, parameters) Result(*name) parameters = nullptr;
  MESHWRIGHT_CUDA_FUNCTIONS(MESHWRIGHT_FUNCTION)
#undef MESHWRIGHT_FUNCTION
};
} // namespace cuda

namespace nccl {
struct Functions {
#define MESHWRIGHT_FUNCTION(name, result, parameters) result(*name) parameters = nullptr;
  MESHWRIGHT_NCCL_FUNCTIONS(MESHWRIGHT_FUNCTION)
#undef MESHWRIGHT_FUNCTION
};
} // namespace nccl

namespace cublaslt {
struct Functions {
#define MESHWRIGHT_FUNCTION(name, result, parameters) result(*name) parameters = nullptr;
  MESHWRIGHT_CUBLASLT_FUNCTIONS(MESHWRIGHT_FUNCTION)
#undef MESHWRIGHT_FUNCTION
};
} // namespace cublaslt

namespace gpu {

using Cuda = cuda::Functions;
using Nccl = nccl::Functions;
using CublasLt = cublaslt::Functions;

/// Return null, with an error that names the missing part. `loadCuda` also initialises the driver.
const Cuda *loadCuda(std::string &error);
const Nccl *loadNccl(std::string &error);
const CublasLt *loadCublasLt(std::string &error);

/// A call of a library that failed. The runtime turns it into the failure of the rank.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throw a Failure with the call, and the error's name and text, unless the result is a success.
void check(const Cuda &cuda, cuda::Result result, const char *call);
void check(const Nccl &nccl, nccl::Result result, const char *call);
void check(const CublasLt &library, cublaslt::Status status, const char *call);

} // namespace gpu
} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_GPU_LIBRARIES_H
