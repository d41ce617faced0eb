//===- Libraries.cpp - NVIDIA's libraries, loaded at run time -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Libraries.h"

#include <cstdlib>
#include <dlfcn.h>
#include <glob.h>
#include <mutex>
#include <sstream>
#include <vector>

namespace meshwright::rt::gpu {

//===----------------------------------------------------------------------===//
// Finding
//===----------------------------------------------------------------------===//

static std::vector<std::string> expand(const std::string &pattern) {
  std::vector<std::string> paths;
  glob_t found;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

/// The files of that name in the folders of NVIDIA's packages for the first Python on the path.
static std::vector<std::string> findInPython(const std::string &name) {
  const char *path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (expand(folder + "/python3").empty() && expand(folder + "/python").empty())
      continue;
    std::vector<std::string> all;
    for (const char *packages : {"site-packages", "dist-packages"})
      for (std::string &file :
           expand(folder + "/../lib/python3*/" + packages + "/nvidia/*/lib/" + name))
        all.push_back(std::move(file));
    return all;
  }
  return {};
}

static void *open(const std::vector<const char *> &names) {
  std::vector<std::string> paths(names.begin(), names.end());
  for (const char *name : names)
    for (const char *variable : {"CUDA_HOME", "CUDA_PATH"})
      if (const char *folder = std::getenv(variable))
        for (const char *inside : {"/lib64/", "/lib/", "/targets/x86_64-linux/lib/"})
          paths.push_back(std::string(folder) + inside + name);
  for (const std::string &path : paths)
    if (void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
      return library;
  for (const char *name : names)
    for (const std::string &path : findInPython(name))
      if (void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
        return library;
  return nullptr;
}

/// Looks up the functions of a library. Returns false, with an error, if one is missing.
struct Lookup {
  void *library;
  const char *what;
  std::string &error;

  template <typename Function> void operator()(Function *&to, const char *name) const {
    to = reinterpret_cast<Function *>(dlsym(library, name));
    if (!to && error.empty())
      error = std::string(what) + " is too old: it has no " + name;
  }
};

namespace {
/// A library that is loaded once: the functions, or an error.
template <typename Library> struct Loaded {
  std::mutex mutex;
  bool isTried = false;
  Library library;
  std::string error;

  template <typename Load> const Library *get(std::string &problem, Load load) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!isTried)
      load(library, error);
    isTried = true;
    problem = error;
    return error.empty() ? &library : nullptr;
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// Loading
//===----------------------------------------------------------------------===//

/// "12.8" of 12080.
static std::string nameVersion(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

static void loadDriver(Cuda &cuda, std::string &error) {
  // A driver comes with the system; CUDA_HOME has a library of that name without code.
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    error = "NVIDIA driver not found: no libcuda.so.1";
    return;
  }
  auto getVersion =
      reinterpret_cast<cuda::Result (*)(int *)>(dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (!getVersion || getVersion(&version) != cuda::Success || version < cuda::kVersion) {
    error = "the NVIDIA driver: expected one for CUDA " + nameVersion(cuda::kVersion) +
            " or later, got one for " + nameVersion(version);
    return;
  }
  using GetAddress = cuda::Result (*)(const char *, void **, int, uint64_t, int *);
  auto getAddress = reinterpret_cast<GetAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (!getAddress) {
    error = "the NVIDIA driver has no cuGetProcAddress_v2";
    return;
  }
  auto find = [&](auto *&to, const char *name) {
    void *address = nullptr;
    int status = 0;
    if (getAddress(name, &address, cuda::kVersion, 0, &status) != cuda::Success || !address)
      error = std::string("the NVIDIA driver has no ") + name;
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(address);
  };
#define MESHWRIGHT_FUNCTION(name, parameters) find(cuda.name, #name);
  MESHWRIGHT_CUDA_FUNCTIONS(MESHWRIGHT_FUNCTION)
#undef MESHWRIGHT_FUNCTION
  if (!error.empty())
    return;
  try {
    cuda::Result result = cuda.cuInit(0);
    if (result == cuda::NoDevice)
      error = "the NVIDIA driver finds no device";
    else
      check(cuda, result, "cuInit");
  } catch (const Failure &failure) {
    error = failure.what();
  }
}

const Cuda *loadCuda(std::string &error) {
  static Loaded<Cuda> loaded;
  return loaded.get(error, loadDriver);
}

/// "2.26.2" of 22602.
static std::string nameNcclVersion(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

const Nccl *loadNccl(std::string &error) {
  static Loaded<Nccl> loaded;
  return loaded.get(error, [](Nccl &nccl, std::string &error) {
    // Kernels of NCCL wait for other ranks and hold processors of the GPU meanwhile. Ranks whose
    // GPUs begin those of several communicators in other orders can wait for each other without
    // end. This makes a GPU begin them in the order of the calls (docs/rationale/streams-by-role.md).
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/1);
    void *library = open({"libnccl.so.2"});
    if (!library) {
      error = "NCCL not found: no libnccl.so.2";
      return;
    }
    Lookup find{library, "NCCL", error};
#define MESHWRIGHT_FUNCTION(name, result, parameters) find(nccl.name, #name);
    MESHWRIGHT_NCCL_FUNCTIONS(MESHWRIGHT_FUNCTION)
#undef MESHWRIGHT_FUNCTION
    int version = 0;
    if (error.empty() && nccl.ncclGetVersion(&version) == nccl::Success &&
        version < nccl::kVersion)
      error = "NCCL: expected version " + nameNcclVersion(nccl::kVersion) + " or later, got " +
              nameNcclVersion(version);
  });
}

const CublasLt *loadCublasLt(std::string &error) {
  static Loaded<CublasLt> loaded;
  return loaded.get(error, [](CublasLt &cublasLt, std::string &error) {
    void *library = open({"libcublasLt.so.13", "libcublasLt.so.12"});
    if (!library) {
      error = "cuBLASLt not found: no libcublasLt.so.13 or libcublasLt.so.12";
      return;
    }
    Lookup find{library, "cuBLASLt", error};
#define MESHWRIGHT_FUNCTION(name, result, parameters) find(cublasLt.name, #name);
    MESHWRIGHT_CUBLASLT_FUNCTIONS(MESHWRIGHT_FUNCTION)
#undef MESHWRIGHT_FUNCTION
  });
}

//===----------------------------------------------------------------------===//
// Failures
//===----------------------------------------------------------------------===//

void check(const Cuda &cuda, cuda::Result result, const char *call) {
  if (result == cuda::Success)
    return;
  const char *name = nullptr, *text = nullptr;
  cuda.cuGetErrorName(result, &name);
  cuda.cuGetErrorString(result, &text);
  throw Failure(std::string(call) + " failed: " + (name ? name : std::to_string(result)) +
                (text ? std::string(": ") + text : ""));
}

void check(const Nccl &nccl, nccl::Result result, const char *call) {
  if (result == nccl::Success)
    return;
  const char *text = nccl.ncclGetErrorString(result);
  const char *last = nccl.ncclGetLastError(nullptr);
  throw Failure(std::string(call) + " failed: " + (text ? text : std::to_string(result)) +
                (last && *last ? std::string(": ") + last : ""));
}

void check(const CublasLt &library, cublaslt::Status status, const char *call) {
  if (status == cublaslt::Success)
    return;
  const char *name = library.cublasLtGetStatusName(status);
  throw Failure(std::string(call) + " failed: " + (name ? name : std::to_string(status)));
}

} // namespace meshwright::rt::gpu
