//===- DeviceFile.h - devices as JSON -----------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A file that describes a device by the keys of its spelling, and says where and when they
// were measured. docs/devices.md has the format. A plan turns the file into a spelling, so
// that IR does not depend on files.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_COSTMODEL_DEVICEFILE_H
#define MESHWRIGHT_LIB_COSTMODEL_DEVICEFILE_H

#include "meshwright/lib/CostModel/CostModel.h"

#include "llvm/ADT/StringRef.h"

namespace meshwright {

struct DeviceFile {
  static constexpr int64_t kVersion = 1;
  /// The bytes of all weights in the programs that measure products with weights. A program with more
  /// weights reads them from slower memory.
  static constexpr int64_t kProductWeights = 8 << 20;

  /// The processor, or the GPU, on which the numbers were measured, and its cores; empty and 0
  /// for a device of data sheets.
  std::string processor;
  int64_t cores = 0;
  /// The date in UTC, as 2026-01-31T12:00:00Z.
  std::string date;
  /// The backend, the target, the ranks and the threads of each that the numbers hold for.
  std::string backend = "local", target = "cpu";
  int64_t ranks = 1, threads = 1;
  Device device;

  /// The spelling of the device for a mesh, with the name that reports show.
  std::string spell(llvm::StringRef name) const;
  std::string toJson() const;

  /// Reads a file. `error` says what is wrong, and where, if there is no result.
  static std::optional<DeviceFile> read(llvm::StringRef path, std::string &error);
  static std::optional<DeviceFile> parse(llvm::StringRef text, std::string &error);
};

/// The processor of this machine, by the name that it gives itself.
std::string getProcessorName();

} // namespace meshwright

#endif // MESHWRIGHT_LIB_COSTMODEL_DEVICEFILE_H
