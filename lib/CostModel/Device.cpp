//===- Device.cpp - the table of devices ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/CostModel.h"

#include "llvm/ADT/StringExtras.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;

namespace {

struct Preset {
  llvm::StringLiteral name;
  Device device;
};

/// Vendors' figures for dense matrix products and memory, links in one
/// direction. docs/devices.md repeats the table. The rate of f32 is without
/// reduced-precision modes.
const Preset presets[] = {
    {"h100",
     {/*f32=*/67e12, /*bf16=*/989e12, /*f16=*/989e12, /*memory=*/3.35e12, 80'000'000'000,
      /*link=*/450e9, 1e-6, /*network=*/50e9, 5e-6, /*launch=*/4e-6}},
    {"h200", {67e12, 989e12, 989e12, 4.8e12, 141'000'000'000, 450e9, 1e-6, 50e9, 5e-6, 4e-6}},
    {"a100", {19.5e12, 312e12, 312e12, 2.039e12, 80'000'000'000, 300e9, 1e-6, 25e9, 5e-6, 4e-6}},
    {"a800", {19.5e12, 312e12, 312e12, 2.039e12, 80'000'000'000, 200e9, 1e-6, 25e9, 5e-6, 4e-6}},
    // Each rank is a core of a server CPU. Ranks exchange data through shared memory.
    {"cpu",
     {100e9, 200e9, 50e9, 30e9, 16'000'000'000, 10e9, 1e-6, 1.25e9, 50e-6, 5e-6, /*overlap=*/0}},
};

const llvm::StringLiteral presetNames[] = {"h100", "h200", "a100", "a800", "cpu"};

} // namespace

ArrayRef<llvm::StringLiteral> meshwright::getDeviceNames() { return presetNames; }

double Device::getFlops(Type elementType) const {
  if (elementType.isBF16())
    return flopsBF16;
  if (elementType.isF16())
    return flopsF16;
  return flopsF32;
}

std::optional<Device> meshwright::getDevice(llvm::StringRef spelling, std::string *error) {
  auto fail = [&](const llvm::Twine &message) -> std::optional<Device> {
    if (error)
      *error = message.str();
    return std::nullopt;
  };
  Device device;
  std::shared_ptr<Rates> rates;
  llvm::SmallVector<llvm::StringRef> words;
  llvm::SplitString(spelling, words, " ,");
  for (size_t i = 0; i < words.size(); ++i) {
    llvm::StringRef word = words[i], key = word.split('=').first, text = word.split('=').second;
    if (key.size() == word.size()) {
      const Preset *preset =
          llvm::find_if(presets, [&](const Preset &preset) { return preset.name == word; });
      if (i != 0 || preset == std::end(presets))
        return fail("unknown device '" + word + "': expected one of " +
                    llvm::join(getDeviceNames(), ", ") + ", or key=number");
      device = preset->device;
      continue;
    }
    if (key == "name") {
      device.name = text.str();
      continue;
    }
    if (const RateKey *known = llvm::find_if(getRateKeys(), [&](const RateKey &k) { return k.name == key; });
        known != getRateKeys().end()) {
      if (!rates)
        rates = std::make_shared<Rates>();
      std::string problem;
      if (!RateTable::parse(text, known->get(*rates), problem))
        return fail("device key '" + key + "': " + problem);
      continue;
    }
    double number;
    if (text.getAsDouble(number) || !std::isfinite(number) || number < 0)
      return fail("device key '" + key + "': expected a number of at least 0, got '" + text + "'");
    struct Key {
      llvm::StringLiteral name;
      double Device::*member;
    };
    static const Key keys[] = {
        {"flops_f32", &Device::flopsF32},
        {"flops_bf16", &Device::flopsBF16},
        {"flops_f16", &Device::flopsF16},
        {"memory_bandwidth", &Device::memoryBandwidth},
        {"link_bandwidth", &Device::linkBandwidth},
        {"link_latency", &Device::linkLatency},
        {"network_bandwidth", &Device::networkBandwidth},
        {"network_latency", &Device::networkLatency},
        {"launch", &Device::launch},
        {"overlap", &Device::overlap},
    };
    if (key == "memory_size") {
      if (number > 9e18)
        return fail("device key 'memory_size': " + text + " is too large");
      device.memorySize = number;
      continue;
    }
    if (key == "cheap_element" || key == "costly_element") {
      if (!rates)
        rates = std::make_shared<Rates>();
      (key == "cheap_element" ? rates->cheapElement : rates->costlyElement) = number;
      continue;
    }
    const Key *known = llvm::find_if(keys, [&](const Key &k) { return k.name == key; });
    if (known == std::end(keys))
      return fail("unknown device key '" + key + "'");
    device.*(known->member) = number;
  }
  device.rates = std::move(rates);
  return device;
}

std::string meshwright::getDeviceName(llvm::StringRef spelling) {
  std::optional<Device> device = getDevice(spelling);
  return device && !device->name.empty() ? device->name : spelling.str();
}

LogicalResult meshwright::verifyDevice(dist::MeshAttr mesh, Operation *func) {
  std::string error;
  if (getDevice(mesh.getDevice(), &error))
    return success();
  return func->emitError() << "mesh: " << error;
}
