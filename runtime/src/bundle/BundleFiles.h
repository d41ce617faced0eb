//===- BundleFiles.h - the small files of a bundle --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_BUNDLE_BUNDLEFILES_H
#define MESHWRIGHT_RUNTIME_SRC_BUNDLE_BUNDLEFILES_H

#include "Manifest.h"

#include <filesystem>

namespace meshwright::rt {

/// The folder of a bundle with the code of its kernels.
inline constexpr const char *kKernelFolder = "kernels";

/// Sets the error of a system call at a path. Returns false.
bool fail(const std::filesystem::path &path, int problem, std::string &error);
bool readFile(const std::filesystem::path &path, std::string &text, std::string &error);
bool writeText(const std::filesystem::path &path, const std::string &text, std::string &error);

/// Reads the code of the program's kernels into the description.
bool readKernels(const std::filesystem::path &folder, Manifest &manifest, std::string &error);
/// Writes the code of the program's kernels, and notes its files.
bool writeKernels(const std::filesystem::path &folder, Manifest &manifest, std::string &error);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_BUNDLE_BUNDLEFILES_H
