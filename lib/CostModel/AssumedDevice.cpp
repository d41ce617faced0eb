//===- AssumedDevice.cpp - the device that a plan assumes -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/AssumedDevice.h"

#include "meshwright/lib/CostModel/DeviceFile.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cstdlib>

using namespace meshwright;
using llvm::StringRef;

/// The kind of a target: cpu or gpu.
static StringRef getKind(StringRef target) { return target.empty() ? "cpu" : target.split(':').first; }

std::string meshwright::getCalibrationPath() {
  llvm::SmallString<128> path;
  if (const char *folder = std::getenv("XDG_CONFIG_HOME"); folder && *folder)
    path = folder;
  else if (const char *home = std::getenv("HOME"); home && *home)
    llvm::sys::path::append(path, home, ".config");
  else
    return "";
  llvm::sys::path::append(path, "meshwright", "device.json");
  return path.str().str();
}

/// The device of a file. `more` overrides its numbers.
static std::optional<AssumedDevice> readFile(StringRef path, StringRef more, StringRef target, std::string &error) {
  std::optional<DeviceFile> file = DeviceFile::read(path, error);
  if (!file)
    return std::nullopt;
  AssumedDevice found;
  found.spelling = file->spell(llvm::sys::path::stem(path));
  if (!more.empty())
    found.spelling += (" " + more).str();
  if (!getDevice(found.spelling, &error))
    return std::nullopt;
  found.name = getDeviceName(found.spelling);
  if (file->processor.empty())
    return found;
  found.reason = "measured " + file->date.substr(0, 10) + " on " + file->processor + ", ";
  std::string here = getProcessorName();
  if (getKind(file->target) == "cpu" && file->processor != here)
    found.warning = ("device file '" + path + "': was measured on another machine, " + file->processor + ": this one is " +
                     here + "; measure again with sharding-run --calibrate")
                        .str();
  else if (getKind(file->target) != getKind(target))
    found.warning = ("device file '" + path + "': was measured for the target " + file->target + ": expected one for " +
                     getKind(target))
                        .str();
  return found;
}

/// The device of an option or a variable.
static std::optional<AssumedDevice> readSpelling(StringRef text, StringRef target, std::string &error) {
  auto [first, rest] = text.split(' ');
  if (text.ends_with(".json"))
    return readFile(text, "", target, error);
  if (first.ends_with(".json"))
    return readFile(first, rest.trim(), target, error);
  if (!getDevice(text, &error))
    return std::nullopt;
  return AssumedDevice{text.str(), getDeviceName(text), "", ""};
}

std::optional<AssumedDevice> meshwright::findDevice(StringRef wanted, StringRef target, std::string &error) {
  auto because = [](std::optional<AssumedDevice> found, const llvm::Twine &why) {
    if (found)
      found->reason += why.str();
    return found;
  };
  if (!wanted.empty() && wanted != "auto")
    return because(readSpelling(wanted, target, error), "as the option device says");
  if (const char *variable = std::getenv("MESHWRIGHT_DEVICE"); variable && *variable) {
    std::optional<AssumedDevice> found = readSpelling(StringRef(variable).trim(), target, error);
    if (!found)
      error = "MESHWRIGHT_DEVICE: " + error;
    return because(std::move(found), "as MESHWRIGHT_DEVICE says");
  }
  bool isCpu = getKind(target) == "cpu";
  // Until a machine is measured, plans are the same on all machines. A target that names a processor has the preset of one.
  StringRef preset = isCpu && !target.empty() ? "cpu" : "h100";
  std::string path = getCalibrationPath();
  bool hasFile = !path.empty() && llvm::sys::fs::is_regular_file(path);
  // Another processor than this one has no calibration here.
  if (hasFile && (!isCpu || target.empty() || target == "cpu")) {
    std::optional<DeviceFile> file = DeviceFile::read(path, error);
    if (!file)
      return std::nullopt;
    if (getKind(file->target) == getKind(target))
      return because(readFile(path, "", target, error), "the calibration of this machine, " + path);
  }
  std::string why = "the usual device: ";
  if (path.empty())
    why += "there is no home folder with a calibration";
  else if (hasFile)
    why += path + " was measured for another target";
  else
    why += "no calibration at " + path;
  return AssumedDevice{preset.str(), preset.str(), why, ""};
}
