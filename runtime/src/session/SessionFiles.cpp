//===- SessionFiles.cpp - the saved state of a session --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Session.h"

#include "Checkpoint.h"
#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/src/ranks/RankMemory.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <unistd.h>

namespace meshwright::rt {

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

/// Writes the file of a rank of this process: the boxes of states that it is the first to hold,
/// and, on the first rank, the states that are assembled.
bool Session::writeFile(int64_t rank, const std::map<size_t, Memory> &whole,
                        CheckpointWriter &writer, std::string &error) {
  std::vector<NamedTensor> tensors;
  std::vector<Box> boxes;
  std::vector<Memory> memories;
  for (size_t i = 0; i < description.states.size(); ++i) {
    const ProgramValue &value = description.states[i].value;
    if (description.states[i].isTransient || countOf(value.shape) == 0)
      continue;
    if (auto assembled = whole.find(i); assembled != whole.end()) {
      if (rank != 0)
        continue;
      boxes.push_back({std::vector<int64_t>(value.shape.size()), value.shape});
      tensors.push_back({value.name, value.type, value.shape, assembled->second.get()});
      continue;
    }
    std::optional<Box> box = findBox(value, rank);
    if (value.getHolder(rank) != rank || countOf(box->shape) == 0)
      continue;
    size_t position = getPosition(rank);
    const void *part = memory->read(position, memory->getState(i, position),
                                    value.getLocalBytes(), memories.emplace_back(), error);
    if (!part)
      return false;
    if (box->shape != value.localShape) {
      // Without padding.
      Memory packed = allocate(countOf(box->shape) * sizeOf(value.type));
      if (!packed) {
        error = "no memory for a copy of state '" + value.name + "'";
        return false;
      }
      std::vector<int64_t> zero(box->shape.size());
      copyBox(part, value.localShape, zero, packed.get(), box->shape, zero, box->shape,
              sizeOf(value.type));
      part = packed.get();
      memories.push_back(std::move(packed));
    }
    tensors.push_back({value.name, value.type, box->shape, part});
    boxes.push_back(std::move(*box));
  }
  return writer.write(rank, std::move(tensors), boxes, extras, error);
}

/// Assembles the states of which ranks hold no boxes: parts that are summed, and other orders of
/// elements.
bool Session::assembleOthers(std::map<size_t, Memory> &whole, std::string &error) {
  for (size_t i = 0; i < description.states.size(); ++i) {
    const ProgramValue &value = description.states[i].value;
    if (description.states[i].isTransient || findBox(value, 0))
      continue;
    int64_t bytes = countOf(value.shape) * sizeOf(value.type);
    Memory array = allocate(bytes);
    if (!array)
      return refuse(error, "no memory for the " + formatBytes(bytes) + " of state '" + value.name +
                               "'");
    std::vector<const void *> parts;
    for (size_t r = 0; r < ranks.size(); ++r)
      parts.push_back(memory->getState(i, r));
    if (!assemble(value, "state", parts, array.get(), error))
      return false;
    if (ranks.front() == 0)
      whole.emplace(i, std::move(array));
    else
      whole.emplace(i, Memory());
  }
  return true;
}

/// Gives all processes the text of the process of that rank.
bool Session::share(int64_t from, std::string &text, std::string &error) {
  int64_t size = text.size();
  if (!isSplit())
    return true;
  if (!world->getBackend().broadcast(from, &size, sizeof(size), error))
    return false;
  text.resize(size);
  return size == 0 || world->getBackend().broadcast(from, text.data(), size, error);
}

/// Writes the files of all ranks and then the index (Checkpoint.h has the steps). The first process has
/// the lock.
bool Session::saveTo(CheckpointWriter &writer, const FolderLock *lock, std::string &error) {
  std::map<size_t, Memory> whole;
  if (!assembleOthers(whole, error))
    return false;
  bool isFine = true, isFirst = ranks.front() == 0;
  for (size_t r = 0; isFine && r < ranks.size(); ++r)
    isFine = writeFile(ranks[r], whole, writer, error);
  if (!decide(isFine, error))
    return false;
  std::vector<SavedPart> all;
  for (int64_t rank = 0; rank < description.numRanks; ++rank) {
    size_t position = getPosition(rank);
    bool isHere = position < ranks.size();
    std::string text = isHere ? CheckpointWriter::toText(writer.getParts(position)) : "";
    if (!share(rank, text, error))
      return false;
    for (SavedPart &part : CheckpointWriter::fromText(text))
      all.push_back(std::move(part));
  }
  if (!decide(!isFirst || writer.prepare(description, all, extras, error), error))
    return false;
  if (!decide(writer.release(error), error)) {
    if (isFirst)
      writer.discard();
    return false;
  }
  return decide(!isFirst || writer.commit(*lock, error), error);
}

bool Session::save(const std::string &folder, std::string &error) {
  std::lock_guard<std::timed_mutex> lock(running);
  if (!checkEnd(error) || !restore(error) || !meet("a copy of the state", error) ||
      !decide(startStates(error), error))
    return false;
  // One process creates the folder, locks it and chooses the name of the files.
  bool isFirst = ranks.front() == 0, isNew = false;
  std::unique_ptr<FolderLock> folderLock;
  if (isFirst && CheckpointWriter::createFolder(folder, isNew, error))
    folderLock = FolderLock::take(folder, error);
  bool isFine = decide(!isFirst || folderLock, error);
  std::string id = isFirst ? makeRandomName() : "";
  isFine = isFine && share(0, id, error);
  if (isFine) {
    CheckpointWriter writer(folder, id);
    isFine = saveTo(writer, folderLock.get(), error);
  }
  folderLock.reset();
  if (isFine)
    return true;
  // When the other processes have deleted their files, too, the folder is empty.
  std::string problem;
  if (decide(true, problem) && isNew)
    rmdir(folder.c_str());
  return false;
}

/// Opens a saved state, the same in all processes. A session that saves there meanwhile may delete
/// the files that an index names: then there is a new index.
std::unique_ptr<Checkpoint> Session::openCheckpoint(const std::string &folder,
                                                    std::string &error) {
  std::string index;
  bool isFirst = ranks.front() == 0;
  while (true) {
    std::string text, problem;
    bool isFine = !isFirst || readIndex(folder, text, problem), isGone = false;
    if (!decide(isFine, problem) || !share(0, text, problem)) {
      error = problem;
      return nullptr;
    }
    std::unique_ptr<Checkpoint> saved =
        Checkpoint::open(folder, text, description, isGone, problem);
    // All processes have the same text, so all of them go on or end here.
    if (decide(!isGone, problem) || text == index) {
      error = problem;
      return saved;
    }
    index = text;
  }
}

bool Session::load(const std::string &folder, std::string &error) {
  std::lock_guard<std::timed_mutex> lock(running);
  if (!beginChange(error))
    return false;
  std::string problem;
  std::unique_ptr<Checkpoint> saved = openCheckpoint(folder, problem);
  Memory scratch;
  if (saved && saved->getScratchBytes() > 0 && !(scratch = allocate(saved->getScratchBytes())))
    problem = "no memory for a copy of a state of " + formatBytes(saved->getScratchBytes());
  auto isSaved = [&](const ProgramState &state) { return saved && saved->has(state.value.name); };
  if (!change(isSaved,
              [&](const std::string &name) { return saved->read(name, scratch.get()); }, problem,
              error))
    return false;
  extras = saved->getExtras();
  return true;
}

//===----------------------------------------------------------------------===//
// Values beside the state
//===----------------------------------------------------------------------===//

std::string checkLearningRate(double rate) {
  // Programs have it in f32.
  if (std::isfinite(float(rate)) && rate >= 0)
    return "";
  char text[32];
  std::snprintf(text, sizeof(text), "%g", rate);
  return std::string("the learning rate: expected a finite number from 0 on, got ") + text;
}

/// Returns true if an input of a call is the learning rate of a step.
static bool isRate(const ProgramDescription &program, const ProgramValue &input) {
  auto isTrained = [](const ProgramState &state) { return state.role == "parameter"; };
  return input.name == kLearningRate && input.type == DType::F32 && input.shape.empty() &&
         std::any_of(program.states.begin(), program.states.end(), isTrained);
}

void Session::giveRate(const ProgramValue &input, void *value) const {
  if (!extras.learningRate || !isRate(description, input))
    return;
  float rate = float(*extras.learningRate);
  std::memcpy(value, &rate, sizeof(rate));
}

bool Session::checkRate(const ProgramValue &input, const HostTensor &given,
                        std::string &error) const {
  if (!isRate(description, input))
    return true;
  float rate = 0;
  if (given.gpu < 0)
    std::memcpy(&rate, given.data, sizeof(rate));
  else if (!world->getDevice(ranks.front()).copyOut(&rate, given.data, sizeof(rate), error))
    return false;
  error = checkLearningRate(rate);
  return error.empty();
}

bool Session::setExtras(SavedExtras values, std::string &error) {
  error = values.learningRate ? checkLearningRate(*values.learningRate) : "";
  for (FixedTensor &tensor : values.unread) {
    std::shared_ptr<char> copy = allocate(tensor.bytes);
    if (copy && tensor.bytes > 0)
      std::memcpy(copy.get(), tensor.data.get(), tensor.bytes);
    else if (!copy)
      error = "no memory for a copy of tensor '" + tensor.name + "'";
    tensor.data = std::move(copy);
  }
  if (!error.empty())
    return false;
  std::lock_guard<std::timed_mutex> lock(running);
  extras = std::move(values);
  return true;
}

} // namespace meshwright::rt
