//===- Link.cpp - object code to a shared object --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Link.h"

#include "meshwright-c/Runtime.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"

#include <dlfcn.h>
#include <link.h>

using namespace llvm;

namespace meshwright {

/// The libraries that programs may call, from the places where this process loaded them.
static std::vector<std::string> getLibraries() {
  std::vector<std::string> paths;
  Dl_info runtime;
  if (dladdr(reinterpret_cast<void *>(&mw_rt_run_collective), &runtime))
    paths.push_back(runtime.dli_fname);
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *data) {
        StringRef name = sys::path::filename(info->dlpi_name);
        for (StringRef wanted : {"libm.so", "libc.so", "libgcc_s.so"})
          if (name.starts_with(wanted))
            static_cast<std::vector<std::string> *>(data)->push_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

Error linkSharedObject(ArrayRef<ObjectCode> objects, StringRef path) {
  std::string linker;
  for (StringRef name : {"ld.lld-22", "ld.lld", "cc"})
    if (ErrorOr<std::string> found = sys::findProgramByName(name)) {
      linker = *found;
      break;
    }
  if (linker.empty())
    return createStringError("no linker found: expected ld.lld-22, ld.lld or cc on the path "
                             "(Debian's package lld-22)");

  // Beside the result, so that both are deleted together.
  SmallString<128> folder(path);
  folder += ".objects";
  if (std::error_code code = sys::fs::create_directory(folder))
    return createStringError("no temporary folder: " + code.message());
  scope_exit cleanup([&] { sys::fs::remove_directories(folder); });
  std::vector<std::string> arguments{linker, "-shared", "-o", path.str()};
  // Undefined symbols are errors here, not on the machine that runs the program.
  bool isDriver = sys::path::filename(linker) == "cc";
  for (StringRef flag : {"--no-undefined", "--as-needed", "--gc-sections", "--strip-debug"})
    arguments.push_back(isDriver ? "-Wl," + flag.str() : flag.str());
  if (isDriver)
    arguments.push_back("-nostdlib");
  for (auto [i, object] : enumerate(objects)) {
    SmallString<128> file(folder);
    sys::path::append(file, std::to_string(i) + ".o");
    std::error_code code;
    raw_fd_ostream os(file, code);
    os << object;
    os.close();
    if (code || os.has_error()) {
      os.clear_error();
      return createStringError("cannot write '" + file.str() + "'");
    }
    arguments.push_back(file.str().str());
  }
  for (std::string &library : getLibraries())
    arguments.push_back(std::move(library));

  SmallString<128> log(folder);
  sys::path::append(log, "log");
  std::vector<StringRef> views(arguments.begin(), arguments.end());
  std::string message;
  int status = sys::ExecuteAndWait(linker, views, /*Env=*/std::nullopt,
                                   {StringRef(""), log.str(), log.str()}, /*SecondsToWait=*/0,
                                   /*MemoryLimit=*/0, &message);
  if (status == 0)
    return Error::success();
  if (auto said = MemoryBuffer::getFile(log))
    message += (*said)->getBuffer().rtrim().str();
  return createStringError(linker + " failed: " + message);
}

} // namespace meshwright
