//===- BackendLoader.cpp - backends by name -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BackendLoader.h"

#include <algorithm>
#include <dlfcn.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

namespace meshwright::rt {

static constexpr const char *kPrefix = "libMeshwrightBackend_", *kSuffix = ".so";

namespace {

struct AddedBackends {
  std::mutex mutex;
  std::map<std::string, BackendFactory> factories;
};

} // namespace

static AddedBackends &getAddedBackends() {
  static AddedBackends added;
  return added;
}

void addBackend(const std::string &name, BackendFactory factory) {
  AddedBackends &added = getAddedBackends();
  std::lock_guard<std::mutex> lock(added.mutex);
  added.factories[name] = factory;
}

static BackendFactory findAdded(const std::string &name) {
  AddedBackends &added = getAddedBackends();
  std::lock_guard<std::mutex> lock(added.mutex);
  auto found = added.factories.find(name);
  return found == added.factories.end() ? nullptr : found->second;
}

/// Returns the folder of the runtime library, which also has the backends.
static std::filesystem::path findFolder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void *>(&openBackend), &info) || !info.dli_fname)
    return {};
  std::error_code code;
  std::filesystem::path self = std::filesystem::weakly_canonical(info.dli_fname, code);
  return code ? std::filesystem::path() : self.parent_path();
}

static std::set<std::string> listBackends(const std::filesystem::path &folder) {
  std::set<std::string> names{"local"};
  std::error_code code;
  for (const auto &entry : std::filesystem::directory_iterator(folder, code)) {
    std::string file = entry.path().filename().string();
    size_t prefix = std::string(kPrefix).size(), suffix = std::string(kSuffix).size();
    if (file.size() > prefix + suffix && file.compare(0, prefix, kPrefix) == 0 &&
        file.compare(file.size() - suffix, suffix, kSuffix) == 0)
      names.insert(file.substr(prefix, file.size() - prefix - suffix));
  }
  return names;
}

/// Opens the shared object of a backend. Returns null, with an error, if there is none.
static void *openLibrary(const std::string &name, std::string &error) {
  std::filesystem::path folder = findFolder();
  std::set<std::string> names = listBackends(folder);
  if (!names.count(name)) {
    error = "backend '" + name + "' is not available; available: ";
    for (const std::string &known : names)
      error += (known == *names.begin() ? "" : ", ") + known;
    return nullptr;
  }
  // Never closed: libraries that it links (MPI, drivers) cannot be unloaded.
  std::string path = (folder / (kPrefix + name + kSuffix)).string();
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    error = "backend '" + name + "' cannot be opened: " + dlerror();
  return library;
}

/// Loads a backend. Returns null, with an error, if there is none.
static BackendFactory loadFactory(const std::string &name, std::string &error) {
  void *library = openLibrary(name, error);
  if (!library)
    return nullptr;
  auto factory = reinterpret_cast<BackendFactory>(dlsym(library, "mw_rt_create_backend"));
  if (!factory)
    error = "backend '" + name + "' has no mw_rt_create_backend";
  return factory;
}

bool getBackendTarget(const std::string &backend, std::string &target, std::string &error) {
  target.clear();
  std::string name = backend.substr(0, backend.find(':'));
  if (name == "local" || findAdded(name))
    return true;
  void *library = openLibrary(name, error);
  if (!library)
    return false;
  auto find = reinterpret_cast<BackendTarget>(dlsym(library, "mw_rt_backend_target"));
  if (!find)
    return true;
  std::string reason;
  target = find(reason);
  if (target.empty())
    error = "backend '" + name + "' cannot work here: " + reason;
  return !target.empty();
}

std::shared_ptr<GpuSpace> openGpuSpace(const std::string &backend, int64_t gpu,
                                       std::string &error) {
  std::string name = backend.substr(0, backend.find(':')), reason;
  void *library = name == "local" || findAdded(name) ? nullptr : openLibrary(name, error);
  if (!error.empty())
    return nullptr;
  auto open = library ? reinterpret_cast<GpuSpaceOpener>(dlsym(library, "mw_rt_open_gpu_space"))
                      : nullptr;
  std::shared_ptr<GpuSpace> space;
  if (open)
    open(gpu, space, reason);
  else
    reason = "it computes on processors: expected arrays in the memory of the host, or nccl";
  if (!space)
    error = "backend '" + name + "' cannot use arrays of GPU " + std::to_string(gpu) + ": " + reason;
  return space;
}

std::unique_ptr<Backend> openBackend(const std::string &spelling, World &world,
                                     std::string &error) {
  size_t colon = std::min(spelling.find(':'), spelling.size());
  std::string name = spelling.substr(0, colon);
  std::string mode = colon < spelling.size() ? spelling.substr(colon + 1) : "";
  if (name == "local" && mode.empty())
    return createLocalBackend(world);
  if (name == "local") {
    error = "backend 'local' has no mode '" + mode + "'";
    return nullptr;
  }
  BackendFactory factory = findAdded(name);
  if (!factory && !(factory = loadFactory(name, error)))
    return nullptr;
  std::string reason;
  std::unique_ptr<Backend> backend(factory(MW_RT_ABI_VERSION, world, mode, reason));
  if (!backend)
    error = "backend '" + name + "' cannot work here: " + reason;
  return backend;
}

} // namespace meshwright::rt
