//===- Bundle.h - compiled programs on disk ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A bundle is a folder with a compiled program and its weights. It runs without the compiler.
// docs/bundles.md describes its files.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_BUNDLE_H
#define MESHWRIGHT_RUNTIME_INCLUDE_BUNDLE_H

#include "meshwright/runtime/include/Session.h"
#include "meshwright/runtime/include/WholeFile.h"

#include <functional>
#include <optional>

namespace meshwright::rt {

/// The version of the files in a bundle. Changes whenever their format does.
constexpr int64_t kBundleVersion = 16;

/// The weights of a session of a bundle.
struct BundleWeights {
  /// For a bundle without weights: a safetensors file, or a seed of random ones (RandomWeights.h).
  /// A bundle with weights takes neither.
  std::string file;
  std::optional<uint64_t> seed;
  /// Read all weights of the bundle now, and compare their checksums.
  bool verify = false;
};

/// Starts a session of a bundle's program. Maps the stored weights of this process's ranks, or cuts
/// each rank's parts from `weights` if the bundle stores none. Returns null, with an error that
/// names the file, if the bundle is incomplete, of another version, or for another processor. Stored
/// weights are read from disk when a rank first uses them.
std::unique_ptr<Session> openBundle(const std::string &path, const std::string &backend,
                                    const BundleWeights &weights, std::string &error);
/// Reads the description of a bundle's program, without its code and weights. Returns false, with
/// an error, as `openBundle`.
bool readDescription(const std::string &path, ProgramDescription &description, std::string &error);
/// Returns the bundle's report as text or JSON; empty, with an error, if there is none.
std::string readReport(const std::string &path, bool asJson, std::string &error);

/// Writes a bundle under another name. `finish` gives it its own name.
class BundleWriter {
public:
  /// Returns null, with an error, if no folder can be made beside `path`, or if `path` exists and
  /// is neither an empty folder nor a bundle (of any version) without other files.
  static std::unique_ptr<BundleWriter> create(const std::string &path, std::string &error);
  /// Deletes the bundle if it is not finished.
  ~BundleWriter();

  /// The path at which the caller writes the program's shared object before `write`, which
  /// renames it.
  std::string getProgramPath() const;
  /// Returns the stored tensor of a parameter, by its index in the description. Null, with an error, if it
  /// cannot be computed.
  using Weights =
      std::function<std::shared_ptr<const HostTensor>(int64_t parameter, std::string &error)>;
  /// Writes all other files. Empty reports are left out. Without `weights` the bundle stores none,
  /// and each session takes the tensors that `tensors` of the description lists.
  bool write(const ProgramDescription &description, const Weights &weights,
             const std::string &textReport, const std::string &jsonReport, std::string &error);
  /// Renames the bundle to its path, in place of a bundle that is there. That one goes only when the
  /// new one is on the disk.
  bool finish(std::string &error);

private:
  BundleWriter() = default;
  bool takePlace(std::string &error);
  std::string path;
  std::unique_ptr<Temporary> partial;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_BUNDLE_H
