//===- AssembleKernels.cpp - PTX to machine code --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AssembleKernels.h"

#include "Compile.h"
#include "KernelCache.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"

#include <cstdlib>
#include <deque>

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
/// Runs `ptxas` in a temporary folder, as several processes at once.
class Assembler {
public:
  Assembler(std::string program, const std::string &chip)
      : program(std::move(program)), architecture("-arch=" + chip) {}
  ~Assembler();

  Error open();
  /// Assembles a kernel, or finds it in the cache.
  Error start(rt::DeviceKernel &kernel);
  /// Waits for the processes from the oldest on, until at most `count` are left.
  Error finish(size_t count);
  /// Returns true if ptxas does not know the chip. It has assembled nothing then.
  bool isTooOld() const { return tooOld; }

private:
  struct Job {
    rt::DeviceKernel *kernel;
    std::string key, name;
    sys::ProcessInfo process;
  };
  std::string getPath(const Twine &name) const {
    SmallString<128> path(folder);
    sys::path::append(path, name);
    return path.str().str();
  }
  /// The output of a process.
  std::string read(StringRef name) const {
    auto text = MemoryBuffer::getFile(getPath(name + ".log"));
    return text ? (*text)->getBuffer().rtrim().str() : "";
  }
  sys::ProcessInfo run(ArrayRef<std::string> arguments, StringRef name) const;
  static void keep(rt::DeviceKernel &kernel, ObjectCode code);
  Error collect(const Job &job);

  std::string program, architecture, version;
  SmallString<128> folder;
  KernelCache cache;
  std::deque<Job> jobs;
  size_t started = 0;
  bool tooOld = false;
};
} // namespace

Assembler::~Assembler() {
  for (const Job &job : jobs)
    sys::Wait(job.process, /*SecondsToWait=*/std::nullopt);
  if (!folder.empty())
    sys::fs::remove_directories(folder);
}

sys::ProcessInfo Assembler::run(ArrayRef<std::string> arguments, StringRef name) const {
  SmallVector<StringRef> all{program};
  all.append(arguments.begin(), arguments.end());
  std::string log = getPath(name + ".log");
  return sys::ExecuteNoWait(program, all, /*Env=*/std::nullopt,
                            {StringRef(""), StringRef(log), StringRef(log)});
}

Error Assembler::open() {
  if (std::error_code code = sys::fs::createUniqueDirectory("meshwright-ptx", folder))
    return createStringError("no temporary folder: " + code.message());
  sys::ProcessInfo process = run({"--version"}, "version");
  bool isDone = process.Pid != sys::ProcessInfo::InvalidPid &&
                sys::Wait(process, /*SecondsToWait=*/std::nullopt).ReturnCode == 0;
  version = read("version");
  return isDone ? Error::success() : createStringError(program + " failed: " + version);
}

void Assembler::keep(rt::DeviceKernel &kernel, ObjectCode code) {
  auto owner = std::make_shared<std::string>(std::move(code));
  kernel.binary = {std::shared_ptr<const void>(owner, owner->data()), int64_t(owner->size())};
}

Error Assembler::start(rt::DeviceKernel &kernel) {
  StringRef text(static_cast<const char *>(kernel.text.data.get()), kernel.text.size - 1);
  Job job{&kernel, "", "kernel" + std::to_string(started++), {}};
  if (cache.isOn())
    job.key = KernelCache::getKey(text, architecture + "\n" + version);
  if (std::optional<ObjectCode> code = cache.find(job.key)) {
    keep(kernel, std::move(*code));
    return Error::success();
  }
  std::string from = getPath(job.name + ".ptx"), to = getPath(job.name + ".cubin");
  std::error_code problem;
  raw_fd_ostream os(from, problem);
  os << text;
  os.close();
  if (problem || os.has_error()) {
    os.clear_error();
    return createStringError("cannot write '" + from + "'");
  }
  job.process = run({architecture, from, "-o", to}, job.name);
  if (job.process.Pid == sys::ProcessInfo::InvalidPid)
    return createStringError("cannot start " + program);
  jobs.push_back(std::move(job));
  return Error::success();
}

Error Assembler::collect(const Job &job) {
  if (sys::Wait(job.process, /*SecondsToWait=*/std::nullopt).ReturnCode != 0) {
    std::string said = read(job.name);
    tooOld |= StringRef(said).contains("is not defined for option");
    return tooOld ? Error::success()
                  : createStringError("kernel '" + job.kernel->name + "' cannot be assembled: " +
                                      said);
  }
  std::string path = getPath(job.name + ".cubin");
  auto file = MemoryBuffer::getFile(path, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!file)
    return createStringError("cannot read '" + path + "': " + file.getError().message());
  ObjectCode code = (*file)->getBuffer().str();
  cache.insert(job.key, code);
  keep(*job.kernel, std::move(code));
  return Error::success();
}

Error Assembler::finish(size_t count) {
  while (jobs.size() > count) {
    Job job = std::move(jobs.front());
    jobs.pop_front();
    if (Error error = collect(job))
      return error;
  }
  return Error::success();
}

Error assembleKernels(rt::ProgramDescription &description) {
  std::string program = description.kernels.empty() ? "" : findPtxas();
  if (program.empty())
    return Error::success();
  Assembler assembler(program, description.targetChip);
  if (Error error = assembler.open())
    return error;
  for (rt::DeviceKernel &kernel : description.kernels) {
    if (Error error = assembler.start(kernel))
      return error;
    if (Error error = assembler.finish(countProcessors() - 1))
      return error;
    if (assembler.isTooOld())
      return Error::success();
  }
  return assembler.finish(0);
}

} // namespace meshwright
