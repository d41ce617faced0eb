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
#include <cmath>
#include <cstring>
#include <set>

namespace meshwright::rt {

int64_t ProgramDescription::findEntry(const std::string &name, std::string &error) const {
  std::string known;
  size_t count = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (isPart(i))
      continue;
    if (name.empty() || entries[i].name == name)
      return i;
    known += (count++ ? ", '" : "'") + entries[i].name + "'";
  }
  error = "the program has no entry '" + name + "': expected " + (count > 1 ? "one of " : "") +
          known;
  return -1;
}

static bool isCut(const ProgramValue &value) { return !value.shape.empty() && !value.isWhole; }

Call ProgramDescription::getCall(int64_t entry) const {
  Call call;
  call.steps = entries[entry].steps;
  if (call.steps.empty())
    call.steps.push_back({entry});
  std::vector<std::vector<ProgramValue>> inputs, outputs;
  std::vector<int64_t> chunks;
  for (const CallStep &step : call.steps) {
    inputs.push_back(entries[step.entry].inputs);
    outputs.push_back(entries[step.entry].outputs);
    chunks.push_back(step.chunks);
  }
  call.inputs = joinPorts(inputs, chunks, isCut);
  call.outputs = joinPorts(outputs, chunks, isCut);
  return call;
}

bool ProgramDescription::isPart(int64_t entry) const {
  for (size_t i = 0; i < entries.size(); ++i)
    for (const CallStep &step : entries[i].steps)
      if (step.entry == entry && int64_t(i) != entry)
        return true;
  return false;
}

/// Returns an error if a value differs from one of the same name that other steps of the call have,
/// or if all of its chunks are too large.
static std::string checkPort(const ProgramValue &value, const ProgramValue &known,
                             int64_t chunks) {
  if (value.type != known.type || value.shape != known.shape || value.isWhole != known.isWhole)
    return "'" + value.name + "': expected one type, got " + describe(value.type, value.shape) +
           (value.isWhole ? ", whole" : "") + " in one step and " +
           describe(known.type, known.shape) + (known.isWhole ? ", whole" : "") + " in another";
  int64_t bytes;
  if (isCut(value) && __builtin_mul_overflow(countOf(value.shape) * 8, chunks, &bytes))
    return "'" + value.name + "' has " + std::to_string(chunks) + " chunks, which are too large";
  return "";
}

/// Checks a step that is not the last one.
static std::string checkStep(const ProgramDescription &program, const CallStep &step) {
  const EntryDescription &entry = program.entries[step.entry];
  if (!entry.steps.empty())
    return "'" + entry.name + "' has steps of its own";
  for (int64_t state : entry.stateResults)
    if (!program.states[state].isTransient)
      return "'" + entry.name + "' writes the state '" + program.states[state].value.name +
             "': expected writes of transient states alone";
  if (step.until < 0)
    return "";
  const ProgramValue &output = entry.outputs[step.until];
  if (output.type == DType::I1 && output.shape.empty())
    return "";
  return "output '" + output.name + "': expected i1[] to end a step, got " +
         describe(output.type, output.shape);
}

/// Returns an error if two of the inputs, or of the outputs, of an entry have one name.
static std::string checkNames(const EntryDescription &entry) {
  for (const std::vector<ProgramValue> *values : {&entry.inputs, &entry.outputs}) {
    std::set<std::string> names;
    for (const ProgramValue &value : *values)
      if (!names.insert(value.name).second)
        return "entry '" + entry.name + "' has two values named '" + value.name +
               "': expected names that differ";
  }
  return "";
}

std::string ProgramDescription::checkSteps() const {
  for (const EntryDescription &entry : entries)
    if (std::string error = checkNames(entry); !error.empty())
      return error;
  for (size_t e = 0; e < entries.size(); ++e) {
    const std::vector<CallStep> &steps = entries[e].steps;
    auto refuse = [&](const std::string &why) {
      return "a step of entry '" + entries[e].name + "': " + why;
    };
    int64_t chunks = 0;
    for (const CallStep &step : steps) {
      bool isLast = &step == &steps.back();
      if (step.entry < 0 || step.entry >= int64_t(entries.size()) ||
          (step.entry == int64_t(e)) != isLast)
        return refuse("it runs entry " + std::to_string(step.entry) +
                      ": expected the entry itself, last, and others before");
      if (step.chunks < 1 || step.times < 1 || step.until < -1 ||
          step.until >= int64_t(entries[step.entry].outputs.size()) ||
          (isLast && (step.chunks > 1 || step.times > 1 || step.until >= 0)) ||
          __builtin_add_overflow(chunks, step.chunks, &chunks))
        return refuse(std::to_string(step.chunks) + " chunks, " + std::to_string(step.times) +
                      " times, until output " + std::to_string(step.until) +
                      ": expected positive numbers, and once for the last step");
      if (std::string error = isLast ? "" : checkStep(*this, step); !error.empty())
        return refuse(error);
    }
    std::map<std::string, const ProgramValue *> inputs, outputs;
    for (const CallStep &step : steps)
      for (auto [values, known] : {std::pair(&entries[step.entry].inputs, &inputs),
                                   {&entries[step.entry].outputs, &outputs}})
        for (const ProgramValue &value : *values) {
          const ProgramValue &first = *known->try_emplace(value.name, &value).first->second;
          if (std::string error = checkPort(value, first, chunks); !error.empty())
            return refuse(error);
        }
  }
  return "";
}

int64_t ProgramDescription::findParameter(const std::string &name) const {
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].offsets.empty() && parameters[i].isNamed(name))
      return i;
  return -1;
}

const WeightTensor *ProgramDescription::findTensor(const ProgramValue &parameter) const {
  for (const WeightTensor &tensor : tensors)
    if (parameter.isNamed(tensor.name))
      return &tensor;
  return nullptr;
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

bool ProgramValue::isZeroOn(int64_t rank) const {
  return reduction == MW_RT_SUM && coordinateOf(unreduced, rank) != 0;
}

void place(const ProgramValue &value, int64_t rank, const HostTensor &tensor, void *local) {
  if (value.isZeroOn(rank)) {
    std::memset(local, 0, value.getLocalBytes());
    return;
  }
  // A narrower tensor goes to the back of the memory, from where each element is widened in turn:
  // no element is written over that is not read yet.
  int64_t narrower = value.getLocalBytes() / sizeOf(value.type) *
                     (sizeOf(value.type) - sizeOf(tensor.type));
  char *to = static_cast<char *>(local) + narrower;
  if (!tensor.pieces.empty())
    shard(value.layout, rank, sizeOf(tensor.type), tensor.pieces, value.offsets, to);
  else
    shard(value.layout, rank, sizeOf(tensor.type), tensor.data,
          value.offsets.empty() ? std::vector<int64_t>() : tensor.shape, value.offsets, to);
  if (tensor.type == value.type)
    return;
  int64_t count = value.getLocalBytes() / sizeOf(value.type);
  for (int64_t i = 0; i < count; ++i) {
    float wide;
    widen(tensor.type, to + i * sizeOf(tensor.type), &wide, 1);
    std::memcpy(static_cast<char *>(local) + i * sizeof(wide), &wide, sizeof(wide));
  }
}

std::shared_ptr<const HostTensor> getPresent(const HostTensor &tensor, std::string &error) {
  if (!tensor.compute)
    return {std::shared_ptr<void>(), &tensor};
  std::shared_ptr<const void> array = tensor.compute(error);
  if (!array)
    return nullptr;
  struct Owner {
    HostTensor tensor;
    std::shared_ptr<const void> array;
  };
  auto owner = std::make_shared<Owner>(Owner{tensor, std::move(array)});
  owner->tensor.data = owner->array.get();
  return {owner, &owner->tensor};
}

void HostTensor::visitRuns(const std::vector<int64_t> &offsets, const std::vector<int64_t> &extents,
                           const std::function<void(const void *, int64_t)> &visit) const {
  size_t rank = shape.size();
  std::vector<TensorPiece> whole;
  if (pieces.empty())
    whole.push_back({std::vector<int64_t>(rank), shape, denseStrides(shape), data});
  for (const TensorPiece &piece : pieces.empty() ? whole : pieces) {
    // The part of the box in this piece, and its last dimensions, which are one run.
    std::vector<int64_t> begin(rank), size(rank);
    for (size_t d = 0; d < rank; ++d) {
      int64_t first = offsets.empty() ? 0 : offsets[d];
      begin[d] = std::max(first, piece.offsets[d]);
      size[d] = std::min(first + extents[d], piece.offsets[d] + piece.shape[d]) - begin[d];
      size[d] = std::max<int64_t>(size[d], 0);
    }
    int64_t run = 1, rows = 1;
    size_t outer = rank;
    while (outer > 0 && (size[outer - 1] == 1 || piece.strides[outer - 1] == run))
      run *= size[--outer];
    for (size_t d = 0; d < outer; ++d)
      rows *= size[d];
    for (int64_t row = 0; run > 0 && row < rows; ++row) {
      int64_t at = 0, left = row;
      for (size_t d = rank; d-- > 0;) {
        int64_t index = begin[d] - piece.offsets[d];
        if (d < outer) {
          index += left % size[d];
          left /= size[d];
        }
        at += index * piece.strides[d];
      }
      visit(static_cast<const char *>(piece.data) + at * sizeOf(type), run);
    }
  }
}

/// The largest of some elements without their signs, as bits. Bits of NaN are above all others.
template <typename Bits> static Bits getLargest(const void *data, int64_t count) {
  Bits largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const char *>(data) + i * sizeof(Bits), sizeof(Bits));
    largest = std::max(largest, Bits(bits & (Bits(-1) >> 1)));
  }
  return largest;
}

/// The number with these bits, without a sign.
static double toNumber(DType type, uint64_t bits) {
  int exponentBits = type == DType::F16 ? 5 : type == DType::F64 ? 11 : 8;
  int fractionBits = sizeOf(type) * 8 - 1 - exponentBits;
  int64_t most = (int64_t(1) << exponentBits) - 1, exponent = bits >> fractionBits;
  double fraction = std::ldexp(double(bits & ((uint64_t(1) << fractionBits) - 1)), -fractionBits);
  if (exponent == most)
    return fraction == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(exponent ? 1 + fraction : fraction,
                    int(std::max<int64_t>(exponent, 1) - most / 2));
}

/// The largest magnitude of a parameter's elements, which a tensor holds. NaN if one is NaN.
static double getMagnitude(const ProgramValue &parameter, const HostTensor &tensor) {
  uint64_t largest = 0;
  tensor.visitRuns(parameter.offsets, parameter.shape, [&](const void *data, int64_t count) {
    int64_t size = sizeOf(tensor.type);
    largest = std::max<uint64_t>(largest, size == 2   ? getLargest<uint16_t>(data, count)
                                          : size == 4 ? getLargest<uint32_t>(data, count)
                                                      : getLargest<uint64_t>(data, count));
  });
  return toNumber(tensor.type, largest);
}

/// Returns an error if an element is beyond the bound that the proof of padding relies on.
static std::string checkMagnitude(const ProgramValue &parameter, const HostTensor &tensor) {
  if (!isFloat(tensor.type) || std::isinf(parameter.magnitude) ||
      (!tensor.data && tensor.pieces.empty()))
    return "";
  double magnitude = getMagnitude(parameter, tensor);
  if (magnitude <= parameter.magnitude)
    return "";
  std::string most = std::to_string(parameter.magnitude), found = std::to_string(magnitude);
  return "parameter '" + parameter.name + "': expected elements of magnitude at most " + most +
         ", got " + found +
         ": the program pads dimensions and was made for smaller weights; import it with these, or "
         "state nn.magnitude";
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
    return checkMagnitude(parameter, tensor);
  std::string message = "parameter '" + parameter.name + "': expected " +
                        describe(parameter.type, parameter.shape);
  if (!parameter.offsets.empty()) {
    message += " within it, at";
    for (int64_t offset : parameter.offsets)
      message += " " + std::to_string(offset);
  }
  return message + ", got " + describe(tensor.type, tensor.shape);
}

bool placeFill(const ProgramValue &value, int64_t rank, const std::string &element, void *local) {
  auto fill = [&](char *to, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(to + i * element.size(), element.data(), element.size());
  };
  bool isZero = std::all_of(element.begin(), element.end(), [](char byte) { return byte == 0; });
  if (isZero || value.isZeroOn(rank)) {
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
