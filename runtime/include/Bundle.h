//===- Bundle.h - compiled programs on disk ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A bundle is a folder with all it takes to run a program where there is no
// compiler; docs/bundles.md describes its files.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_BUNDLE_H
#define MESHWRIGHT_RUNTIME_INCLUDE_BUNDLE_H

#include "meshwright/runtime/include/Program.h"
#include "meshwright/runtime/include/WholeFile.h"

#include <functional>

namespace meshwright::rt {

/// Changes whenever the files of a bundle do.
constexpr int64_t kBundleVersion = 5;

/// A bundle's program, with its weights in place: a rank maps its own, and those
/// that all ranks share. Null, with an error that names the file, where the
/// bundle is incomplete, of another version, or for another processor. Files of
/// weights are read when they are needed, or at once to be verified.
std::unique_ptr<Program> openBundle(const std::string &path, const std::string &backend,
                                    bool verifyWeights, std::string &error);
/// Its report, as text or JSON; empty, with an error, where there is none.
std::string readReport(const std::string &path, bool asJson, std::string &error);

/// Writes a bundle under another name; it gets its own with `finish`.
class BundleWriter {
public:
  /// Null, with an error, where `path` is taken by anything but an empty folder or a
  /// bundle, of any version, with nothing else in it, or where no folder can be made
  /// beside it.
  static std::unique_ptr<BundleWriter> create(const std::string &path, std::string &error);
  /// Deletes what has not been finished.
  ~BundleWriter();

  /// Where the program's shared object is to be written; `write` gives it its name.
  std::string getProgramPath() const;
  /// The stored tensor of a parameter, by its index in the description.
  using Weights = std::function<HostTensor(int64_t parameter)>;
  /// Writes everything else. Empty reports are left out.
  bool write(const ProgramDescription &description, const Weights &weights,
             const std::string &textReport, const std::string &jsonReport, std::string &error);
  /// Puts the bundle in its place, instead of one that is there.
  bool finish(std::string &error);

private:
  BundleWriter() = default;
  std::string path;
  std::unique_ptr<Temporary> partial;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_BUNDLE_H
