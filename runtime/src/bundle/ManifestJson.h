//===- ManifestJson.h - a manifest as JSON ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_BUNDLE_MANIFESTJSON_H
#define MESHWRIGHT_RUNTIME_SRC_BUNDLE_MANIFESTJSON_H

#include <nlohmann/json.hpp>
#include <string>

namespace meshwright::rt {

using Json = nlohmann::ordered_json;

/// The value of `format` in the manifest of a bundle of any version.
inline constexpr const char *kBundleFormat = "meshwright bundle";

/// Returns the checksum of all other entries of a manifest. The program relies on most of them
/// and cannot detect a change.
std::string hashOf(const Json &json);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_BUNDLE_MANIFESTJSON_H
