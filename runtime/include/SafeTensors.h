//===- SafeTensors.h - tensors in files -------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_SAFETENSORS_H
#define MESHWRIGHT_RUNTIME_INCLUDE_SAFETENSORS_H

#include "meshwright/runtime/include/MappedFile.h"
#include "meshwright/runtime/include/Types.h"

#include <map>
#include <memory>
#include <string>

namespace meshwright::rt {

/// A safetensors file, mapped into memory. Tensors are read in place.
class SafeTensorsFile {
public:
  struct Tensor {
    /// The type as the file spells it: "F32".
    std::string storedType;
    /// True if programs have that type; `type` is valid only then.
    bool supported = false;
    DType type = DType::F32;
    /// Counts bytes of elements of four bits, as all shapes of the runtime do.
    std::vector<int64_t> shape;
    const void *data = nullptr;
  };

  /// Returns null, with an error that names the file, if it is unreadable, truncated or
  /// inconsistent.
  static std::unique_ptr<SafeTensorsFile> open(const std::string &path, std::string &error);
  ~SafeTensorsFile();

  const std::map<std::string, Tensor> &getTensors() const { return tensors; }
  const Tensor *find(const std::string &name) const;
  /// Returns the tensor of a parameter, under its name or an alias. Returns null, with an error, if
  /// the file has none, or one of a type that programs do not have.
  const Tensor *findParameter(const std::string &name, const std::vector<std::string> &aliases,
                              std::string &error) const;
  const std::string &getPath() const { return file->getPath(); }

private:
  SafeTensorsFile() = default;
  bool parse(std::string &error);

  std::shared_ptr<MappedFile> file;
  std::map<std::string, Tensor> tensors;
};

struct NamedTensor {
  std::string name;
  DType type;
  std::vector<int64_t> shape;
  const void *data;
};

/// Writes a safetensors file. It is written under another name and renamed, so that no
/// half-written file is left behind. `isDurable` as in `WholeFile::finish`.
bool writeSafeTensors(const std::string &path, const std::vector<NamedTensor> &tensors,
                      std::string &error, bool isDurable = false);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_SAFETENSORS_H
