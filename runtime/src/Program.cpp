//===- Program.cpp - the description of a compiled program ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Program.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Memory.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

int64_t ProgramDescription::findEntry(const std::string &name, std::string &error) const {
  std::string known;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (name.empty() || entries[i].name == name)
      return i;
    known += (i ? ", '" : "'") + entries[i].name + "'";
  }
  error = "the program has no entry '" + name + "', expected " +
          (entries.size() > 1 ? "one of " : "") + known;
  return -1;
}

int64_t ProgramDescription::findParameter(const std::string &name) const {
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].offsets.empty() && parameters[i].isNamed(name))
      return i;
  return -1;
}

std::vector<bool> ProgramDescription::findReadParameters() const {
  std::vector<bool> isRead(parameters.size(), false);
  for (const EntryDescription &entry : entries)
    for (const ProgramArgument &argument : entry.arguments)
      if (argument.kind == ProgramArgument::Parameter && argument.isRead)
        isRead[argument.index] = true;
  return isRead;
}

//===----------------------------------------------------------------------===//
// Parts of values
//===----------------------------------------------------------------------===//

bool ProgramValue::isNamed(const std::string &other) const {
  return name == other || std::find(aliases.begin(), aliases.end(), other) != aliases.end();
}

int64_t ProgramValue::getHolder(int64_t rank) const {
  int64_t holder = 0;
  auto add = [&](const mw_rt_axes &axes) {
    for (int64_t i = 0; i < axes.count; ++i)
      holder += rank / axes.axes[i].stride % axes.axes[i].size * axes.axes[i].stride;
  };
  for (const auto &dim : layout.dims)
    for (const ShardedFactor &factor : dim)
      add(factor.axes);
  add(unreduced);
  return holder;
}

void place(const ProgramValue &value, int64_t rank, const HostTensor &tensor, void *local) {
  if (coordinateOf(value.unreduced, rank) != 0) {
    std::memset(local, 0, value.getLocalBytes());
    return;
  }
  shard(value.layout, rank, sizeOf(value.type), tensor.data,
        value.offsets.empty() ? std::vector<int64_t>() : tensor.shape, value.offsets, local);
}

std::string checkParameter(const ProgramValue &parameter, const HostTensor &tensor) {
  bool fits = tensor.type == parameter.type;
  if (parameter.offsets.empty()) {
    fits &= tensor.shape == parameter.shape;
  } else {
    fits &= tensor.shape.size() == parameter.shape.size();
    for (size_t d = 0; fits && d < parameter.shape.size(); ++d)
      fits =
          parameter.offsets[d] >= 0 && parameter.offsets[d] + parameter.shape[d] <= tensor.shape[d];
  }
  if (fits)
    return "";
  std::string message = "parameter '" + parameter.name + "' is " +
                        describe(tensor.type, tensor.shape) + ", expected " +
                        describe(parameter.type, parameter.shape);
  if (!parameter.offsets.empty()) {
    message += " within it, at";
    for (int64_t offset : parameter.offsets)
      message += " " + std::to_string(offset);
  }
  return message;
}

bool placeFill(const ProgramValue &value, int64_t rank, const std::string &element, void *local) {
  auto fill = [&](char *to, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(to + i * element.size(), element.data(), element.size());
  };
  bool isZero = std::all_of(element.begin(), element.end(), [](char byte) { return byte == 0; });
  if (isZero || coordinateOf(value.unreduced, rank) != 0) {
    std::memset(local, 0, value.getLocalBytes());
    return true;
  }
  bool isPadded = false;
  for (const auto &dim : value.layout.dims)
    for (const ShardedFactor &factor : dim)
      isPadded |= factor.padded != factor.size;
  if (!isPadded) {
    fill(static_cast<char *>(local), countOf(value.localShape));
    return true;
  }
  // Padding is zero.
  int64_t count = countOf(value.shape);
  Memory global = allocate(count * int64_t(element.size()));
  if (!global)
    return false;
  fill(global.get(), count);
  place(value, rank, {value.type, value.shape, global.get()}, local);
  return true;
}

} // namespace meshwright::rt
