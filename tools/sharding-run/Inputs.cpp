//===- Inputs.cpp - what a program is run on ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Inputs.h"

#include <cstring>
#include <random>
#include <set>

using namespace meshwright;
using namespace meshwright::run;

/// Draws a random input. Indices are below their bound. Returns null if there is no memory.
static rt::Memory draw(const rt::ProgramValue &input, std::mt19937_64 &generator) {
  rt::DType type = input.type;
  int64_t count = rt::countOf(input.shape);
  rt::Memory data = rt::allocate(count * rt::sizeOf(type));
  if (!data)
    return nullptr;
  std::normal_distribution<float> normal;
  int64_t bound = input.indexBound > 0 ? input.indexBound : 2;
  for (int64_t i = 0; i < count; ++i) {
    char *to = data.get() + i * rt::sizeOf(type);
    switch (type) {
    case rt::DType::F64: {
      double value = normal(generator);
      std::memcpy(to, &value, 8);
      break;
    }
    case rt::DType::F32: {
      float value = normal(generator);
      std::memcpy(to, &value, 4);
      break;
    }
    case rt::DType::BF16:
    case rt::DType::F16: {
      float value = normal(generator);
      rt::narrow(type, &value, to, 1);
      break;
    }
    case rt::DType::I64: {
      int64_t value = int64_t(generator() % uint64_t(bound));
      std::memcpy(to, &value, 8);
      break;
    }
    case rt::DType::I32: {
      int32_t value = int32_t(generator() % uint64_t(bound));
      std::memcpy(to, &value, 4);
      break;
    }
    case rt::DType::I1:
      // Mostly true, as such inputs are masks.
      *to = generator() % 4 != 0;
      break;
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case rt::DType::ID:
#include "meshwright-c/ElementTypes.def"
      *to = char(rt::toCode(generator()));
      break;
    }
  }
  return data;
}

/// Returns true if the program has inputs without a default value.
static bool needsInputs(const Model &model) {
  for (const rt::ProgramValue &input : model.getInputs())
    if (input.defaultElement.empty())
      return true;
  return false;
}

bool run::readInputs(const Options &options, const Model &model, Inputs &inputs,
                     std::string &error) {
  if (!options.inputs.empty()) {
    inputs.file = rt::SafeTensorsFile::open(options.inputs, error);
    if (!inputs.file)
      return false;
  } else if (!options.randomInputs && needsInputs(model)) {
    error = model.serves() ? "the bundle serves requests: give --prompts"
                           : "the program has inputs: give --inputs or --random-inputs";
    return false;
  }
  std::mt19937_64 generator(options.randomInputs.value_or(0));
  std::set<std::string> names;
  for (const rt::ProgramValue &input : model.getInputs()) {
    names.insert(input.name);
    if (!input.defaultElement.empty() && !(inputs.file && inputs.file->find(input.name))) {
      inputs.tensors.push_back({input.type, input.shape, nullptr});
      continue;
    }
    if (!inputs.file) {
      inputs.random.push_back(draw(input, generator));
      if (!inputs.random.back()) {
        error = "out of memory for input '" + input.name + "'";
        return false;
      }
      inputs.tensors.push_back({input.type, input.shape, inputs.random.back().get()});
      continue;
    }
    const rt::SafeTensorsFile::Tensor *tensor = inputs.file->find(input.name);
    if (!tensor) {
      error = options.inputs + " has no tensor '" + input.name + "', an input of the program";
      return false;
    }
    if (!tensor->supported || tensor->type != input.type || tensor->shape != input.shape) {
      error = "input '" + input.name + "' in " + options.inputs + ": expected " +
              rt::describe(input.type, input.shape) + ", got " +
              (tensor->supported ? rt::describe(tensor->type, tensor->shape)
                                 : "type " + tensor->storedType);
      return false;
    }
    inputs.tensors.push_back({tensor->type, tensor->shape, tensor->data});
  }
  if (inputs.file)
    for (const auto &[name, tensor] : inputs.file->getTensors())
      if (!names.count(name)) {
        error = options.inputs + ": tensor '" + name + "' is not an input of the program";
        return false;
      }
  return true;
}
