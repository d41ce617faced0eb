//===- AssembleKernels.cpp - PTX to machine code --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AssembleKernels.h"

#include "KernelCache.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"

#include <cstdlib>

using namespace llvm;

namespace meshwright {

static std::string findPtxas() {
  if (ErrorOr<std::string> found = sys::findProgramByName("ptxas"))
    return *found;
  SmallVector<std::string> folders;
  for (const char *variable : {"CUDA_ROOT", "CUDA_HOME", "CUDA_PATH"})
    if (const char *folder = std::getenv(variable))
      folders.push_back(std::string(folder) + "/bin");
  folders.push_back("/usr/local/cuda/bin");
  SmallVector<StringRef> paths(folders.begin(), folders.end());
  ErrorOr<std::string> found = sys::findProgramByName("ptxas", paths);
  return found ? *found : "";
}

namespace {
/// Runs `ptxas` in a temporary folder.
class Assembler {
public:
  explicit Assembler(std::string program) : program(std::move(program)) {}
  ~Assembler() {
    if (!folder.empty())
      sys::fs::remove_directories(folder);
  }

  Error open() {
    if (std::error_code code = sys::fs::createUniqueDirectory("meshwright-ptx", folder))
      return createStringError("no temporary folder: " + code.message());
    return Error::success();
  }
  std::string getPath(StringRef name) const {
    SmallString<128> path(folder);
    sys::path::append(path, name);
    return path.str().str();
  }
  /// Returns false after a failure. `said` is the program's output.
  bool run(ArrayRef<StringRef> arguments, std::string &said) const {
    SmallVector<StringRef> all{program};
    all.append(arguments.begin(), arguments.end());
    std::string log = getPath("log");
    int status = sys::ExecuteAndWait(program, all, /*Env=*/std::nullopt,
                                     {StringRef(""), StringRef(log), StringRef(log)},
                                     /*SecondsToWait=*/0, /*MemoryLimit=*/0, &said);
    if (auto text = MemoryBuffer::getFile(log))
      said += (*text)->getBuffer().rtrim().str();
    return status == 0;
  }

private:
  std::string program;
  SmallString<128> folder;
};
} // namespace

Error assembleKernels(rt::ProgramDescription &description) {
  std::string program = description.kernels.empty() ? "" : findPtxas();
  if (program.empty())
    return Error::success();
  Assembler assembler(program);
  if (Error error = assembler.open())
    return error;
  std::string version, said, architecture = "-arch=" + description.targetChip;
  if (!assembler.run({"--version"}, version))
    return createStringError(program + " failed: " + version);
  KernelCache cache;
  for (rt::DeviceKernel &kernel : description.kernels) {
    StringRef text(static_cast<const char *>(kernel.text.data.get()), kernel.text.size - 1);
    std::string key = cache.isOn() ? KernelCache::getKey(text, architecture + "\n" + version) : "";
    std::optional<ObjectCode> code = cache.find(key);
    if (!code) {
      std::string from = assembler.getPath("kernel.ptx"), to = assembler.getPath("kernel.cubin");
      std::error_code problem;
      raw_fd_ostream os(from, problem);
      os << text;
      os.close();
      if (problem || os.has_error()) {
        os.clear_error();
        return createStringError("cannot write '" + from + "'");
      }
      if (!assembler.run({architecture, from, "-o", to}, said)) {
        // An older version than the chip.
        if (StringRef(said).contains("is not defined for option"))
          return Error::success();
        return createStringError("kernel '" + kernel.name + "' cannot be assembled: " + said);
      }
      auto file = MemoryBuffer::getFile(to, /*IsText=*/false, /*RequiresNullTerminator=*/false);
      if (!file)
        return createStringError("cannot read '" + to + "': " + file.getError().message());
      code = (*file)->getBuffer().str();
      cache.insert(key, *code);
    }
    auto owner = std::make_shared<std::string>(std::move(*code));
    kernel.binary = {std::shared_ptr<const void>(owner, owner->data()), int64_t(owner->size())};
  }
  return Error::success();
}

} // namespace meshwright
