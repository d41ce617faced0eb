//===- BundleFiles.cpp - the small files of a bundle ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BundleFiles.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace fs = std::filesystem;

namespace meshwright::rt {

static constexpr const char *kTextSuffix = ".ptx", *kBinarySuffix = ".cubin";

bool fail(const fs::path &path, int problem, std::string &error) {
  error = path.string() + ": " + std::strerror(problem);
  return false;
}

bool readFile(const fs::path &path, std::string &text, std::string &error) {
  std::ifstream file(path, std::ios::binary);
  text.assign(std::istreambuf_iterator<char>(file), {});
  if (file)
    return true;
  // Streams give no reason for an error.
  error = path.string() + ": " + std::strerror(errno ? errno : EIO);
  return false;
}

bool writeText(const fs::path &path, const std::string &text, std::string &error) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? true : fail(path, errno ? errno : EIO, error);
}

bool readKernels(const fs::path &folder, Manifest &manifest, std::string &error) {
  auto read = [&](const std::string &name, const Manifest::CodeFile &file, Bytes &bytes) {
    auto text = std::make_shared<std::string>();
    fs::path path = folder / kKernelFolder / name;
    if (!readFile(path, *text, error))
      return false;
    if (int64_t(text->size()) != file.bytes || hashOf(text->data(), file.bytes) != file.hash) {
      error = path.string() + ": changed since the bundle was written";
      return false;
    }
    bytes = {std::shared_ptr<const void>(text, text->data()), file.bytes};
    return true;
  };
  for (size_t i = 0; i < manifest.kernels.size(); ++i) {
    DeviceKernel &kernel = manifest.description.kernels[i];
    const Manifest::KernelFiles &files = manifest.kernels[i];
    if (!read(kernel.name + kTextSuffix, files.text, kernel.text) ||
        (files.binary.bytes > 0 &&
         !read(kernel.name + kBinarySuffix, files.binary, kernel.binary)))
      return false;
    // Behind a string is a zero byte.
    ++kernel.text.size;
  }
  return true;
}

bool writeKernels(const fs::path &folder, Manifest &manifest, std::string &error) {
  if (manifest.description.kernels.empty())
    return true;
  std::error_code code;
  if (!fs::create_directory(folder / kKernelFolder, code))
    return fail(folder / kKernelFolder, code.value(), error);
  for (const DeviceKernel &kernel : manifest.description.kernels) {
    auto write = [&](const std::string &name, const Bytes &bytes, int64_t size,
                     Manifest::CodeFile &file) {
      std::string text(static_cast<const char *>(bytes.data.get()), size);
      file = {size, hashOf(text.data(), size)};
      return writeText(folder / kKernelFolder / name, text, error);
    };
    Manifest::KernelFiles &files = manifest.kernels.emplace_back();
    // Without the zero byte.
    if (!write(kernel.name + kTextSuffix, kernel.text, kernel.text.size - 1, files.text) ||
        (kernel.binary.size > 0 &&
         !write(kernel.name + kBinarySuffix, kernel.binary, kernel.binary.size, files.binary)))
      return false;
  }
  return true;
}

} // namespace meshwright::rt
