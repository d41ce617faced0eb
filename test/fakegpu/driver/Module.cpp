//===- Module.cpp - Modules, functions and launches --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

using namespace fakegpu;

namespace fakegpu {
namespace {

/// Log buffers among the options of cuModuleLoadDataEx.
struct JitLog {
  char *buffer = nullptr;
  size_t size = 0;

  JitLog(unsigned count, const CUjit_option *options, void *const *values) {
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
        buffer = static_cast<char *>(values[i]);
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        size = reinterpret_cast<size_t>(values[i]);
    }
  }
  void say(const std::string &text) const {
    if (buffer && size)
      snprintf(buffer, size, "%s", text.c_str());
    else
      fprintf(stderr, "fakegpu: %s\n", text.c_str());
  }
};

/// The newest PTX version that a driver of this CUDA version reads.
int newestPtx(int driver) {
  static const std::pair<int, int> versions[] = {{13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85},
                                                 {12040, 84}, {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80},
                                                 {11080, 78}, {11070, 77}, {11000, 70}};
  for (auto [cuda, ptx] : versions)
    if (driver >= cuda)
      return ptx;
  return 65;
}

CUresult checkTarget(const Module &m, const JitLog &log) {
  const Settings &s = Settings::get();
  if (m.version > newestPtx(s.driver)) {
    log.say("PTX version " + std::to_string(m.version / 10) + "." + std::to_string(m.version % 10) +
            " is newer than the driver reads");
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  unsigned chip = unsigned(atoi(m.target.c_str() + std::min<size_t>(3, m.target.size())));
  char variant = m.target.empty() ? ' ' : m.target.back();
  bool fits = variant == 'a' ? chip == s.chip : variant == 'f' ? chip / 10 == s.chip / 10 && chip <= s.chip : chip <= s.chip;
  if (fits && chip)
    return CUDA_SUCCESS;
  log.say("PTX for " + m.target + " does not run on sm_" + std::to_string(s.chip));
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult placeGlobals(CUmod_st &mod, const JitLog &log) {
  Device &d = *mod.context->device;
  for (const auto &[name, v] : mod.module->variables) {
    if (v.space == "shared")
      continue;
    if (v.external) {
      log.say("unresolved .extern variable '" + name + "'");
      return CUDA_ERROR_INVALID_PTX;
    }
    CUdeviceptr at;
    if (CUresult r = d.allocate(std::max<uint64_t>(1, v.size()), &at, nullptr))
      return r;
    mod.globals[name] = {at, v.size()};
    char *host = d.backing + (at - d.base);
    memset(host, 0, v.size());
    std::copy(v.init.begin(), v.init.end(), host);
  }
  for (const auto &[name, v] : mod.module->variables)
    for (const auto &r : v.relocations) {
      auto found = mod.globals.find(r.symbol);
      if (found == mod.globals.end()) {
        log.say("unknown name '" + r.symbol + "' in an initializer");
        return CUDA_ERROR_INVALID_PTX;
      }
      uint64_t value = found->second.first + uint64_t(r.addend);
      memcpy(d.backing + (mod.globals[name].first - d.base) + r.offset, &value, 8);
    }
  return CUDA_SUCCESS;
}

CUresult load(CUmodule *out, const void *image, const JitLog &log) {
  const char *text = static_cast<const char *>(image);
  if (!memcmp(text, "\177ELF", 4) || !memcmp(text, "\x50\xed\x55\xba", 4)) {
    log.say("the stand-in runs PTX, not machine code");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  auto mod = std::make_unique<CUmod_st>();
  mod->context = currentContext();
  mod->text = text;
  try {
    mod->module = std::make_shared<const Module>(parsePtx(mod->text));
    if (CUresult r = checkTarget(*mod->module, log))
      return r;
    if (CUresult r = placeGlobals(*mod, log))
      return r;
    SymbolAddress address = [&](const std::string &name) { return mod->globals.at(name).first; };
    for (const auto &[name, f] : mod->module->functions)
      if (f.entry && f.hasBody) {
        auto function = std::make_unique<CUfunc_st>();
        function->module = mod.get();
        function->program = linkKernel(mod->module, name, address);
        for (int k = 0; k < 3; ++k)
          function->requiredCluster[k] = int(f.requiredCluster[k]);
        mod->functions[name] = std::move(function);
      }
  } catch (const PtxError &e) {
    log.say(std::string("ptx: ") + e.what());
    return CUDA_ERROR_INVALID_PTX;
  }
  *out = mod.release();
  return CUDA_SUCCESS;
}

/// Asks ptxas for the registers of all kernels of a module; 0 where there is no ptxas.
void askPtxas(CUmod_st &mod) {
  mod.asked = true;
  char path[] = "/tmp/fakegpu-XXXXXX";
  int file = mkstemp(path);
  if (file < 0)
    return;
  bool written = write(file, mod.text.data(), mod.text.size()) == ssize_t(mod.text.size());
  close(file);
  std::string command = "ptxas -v -arch=" + mod.module->target + " " + path + " -o /dev/null 2>&1";
  FILE *pipe = written ? popen(command.c_str(), "r") : nullptr;
  char line[1024];
  std::string kernel;
  while (pipe && fgets(line, sizeof line, pipe)) {
    std::string text = line;
    size_t at = text.find("entry function '");
    if (at != std::string::npos)
      kernel = text.substr(at + 16, text.find('\'', at + 16) - at - 16);
    at = text.find("Used ");
    if (at != std::string::npos && !kernel.empty())
      mod.registers[kernel] = atoi(text.c_str() + at + 5);
  }
  if (pipe)
    pclose(pipe);
  unlink(path);
}

} // namespace

/// The registers of a thread, 0 if no ptxas can tell.
int registersOf(CUfunc_st &f) {
  CUmod_st &mod = *f.module;
  std::lock_guard<std::mutex> lock(mod.mutex);
  if (f.registers < 0) {
    if (!mod.asked)
      askPtxas(mod);
    auto found = mod.registers.find(f.program->name);
    f.registers = found == mod.registers.end() ? 0 : found->second;
  }
  return f.registers;
}

} // namespace fakegpu

FAKEGPU_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, CUjit_option *options, void **values) {
  FAKEGPU_ENTER("cuModuleLoadDataEx", true);
  if (!out || !image)
    return CUDA_ERROR_INVALID_VALUE;
  return load(out, image, JitLog(count, options, values));
}

FAKEGPU_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *out, const void *image) {
  FAKEGPU_ENTER("cuModuleLoadData", true);
  if (!out || !image)
    return CUDA_ERROR_INVALID_VALUE;
  return load(out, image, JitLog(0, nullptr, nullptr));
}

FAKEGPU_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule mod) {
  FAKEGPU_ENTER("cuModuleUnload", true);
  if (!mod)
    return CUDA_ERROR_INVALID_HANDLE;
  synchronizeContext(mod->context);
  for (auto &[name, place] : mod->globals)
    mod->context->device->release(place.first);
  delete mod;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *out, CUmodule mod, const char *name) {
  FAKEGPU_ENTER("cuModuleGetFunction", true);
  if (!mod || !out || !name)
    return CUDA_ERROR_INVALID_VALUE;
  auto found = mod->functions.find(name);
  if (found == mod->functions.end())
    return CUDA_ERROR_NOT_FOUND;
  *out = found->second.get();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr *at, size_t *bytes, CUmodule mod, const char *name) {
  FAKEGPU_ENTER("cuModuleGetGlobal", true);
  auto found = mod->globals.find(name);
  if (found == mod->globals.end())
    return CUDA_ERROR_NOT_FOUND;
  if (at)
    *at = found->second.first;
  if (bytes)
    *bytes = found->second.second;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
  FAKEGPU_ENTER("cuFuncGetAttribute", true);
  if (!f)
    return CUDA_ERROR_INVALID_HANDLE;
  const Function &source = *f->program->function;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: {
    int registers = std::max(1, registersOf(*f));
    int byRegisters = 65536 / (registers * 32) * 32;
    *value = std::min({1024, byRegisters, source.maxThreads ? int(source.maxThreads) : 1024});
    return CUDA_SUCCESS;
  }
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = int(f->program->staticShared); return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = int(f->program->localBytes); return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = registersOf(*f); return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = f->module->module->version; return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = int(Settings::get().chip); return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->maxDynamicShared; return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = f->carveout; return CUDA_SUCCESS;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
}

FAKEGPU_EXPORT CUresult CUDAAPI cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
  FAKEGPU_ENTER("cuFuncSetAttribute", true);
  if (!f)
    return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    if (value < 0 || unsigned(value) + f->program->dynamicShared > chipLimits().sharedOptIn)
      return CUDA_ERROR_INVALID_VALUE;
    f->maxDynamicShared = value;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    if (value < -1 || value > 100)
      return CUDA_ERROR_INVALID_VALUE;
    f->carveout = value;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    f->nonPortableCluster = value;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

FAKEGPU_EXPORT CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction f) {
  FAKEGPU_ENTER("cuFuncGetName", false);
  if (!f)
    return CUDA_ERROR_INVALID_HANDLE;
  *name = f->program->name.c_str();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
  FAKEGPU_ENTER("cuFuncGetParamInfo", false);
  if (!f || index >= f->program->params.size())
    return CUDA_ERROR_INVALID_VALUE;
  *offset = f->program->params[index].offset;
  if (size)
    *size = f->program->params[index].size;
  return CUDA_SUCCESS;
}
