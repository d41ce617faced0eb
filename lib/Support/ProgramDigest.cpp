//===- ProgramDigest.cpp - numbers for contents of programs ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ProgramDigest.h"

#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/Support/xxhash.h"

using namespace mlir;
using namespace meshwright;

namespace {

/// Writes ops as words. A context has one address for each attribute, type, location and name.
class ContentWriter {
public:
  void add(Operation *op);

  SmallVector<uint64_t, 0> words;

private:
  void add(uint64_t word) { words.push_back(word); }
  void add(const void *address) { add(uint64_t(reinterpret_cast<uintptr_t>(address))); }
  void add(Value value) { add(uint64_t(numbers.try_emplace(value, numbers.size()).first->second)); }
  void define(Value value) {
    add(value);
    add(value.getType().getAsOpaquePointer());
  }
  void add(Region &region);

  ProgramMap<Value, unsigned> numbers;
  llvm::DenseMap<Block *, unsigned> blocks;
};

} // namespace

void ContentWriter::add(Operation *op) {
  add(op->getName().getAsOpaquePointer());
  add(op->getLoc().getAsOpaquePointer());
  add(op->getDiscardableAttrDictionary().getAsOpaquePointer());
  add(uint64_t(op->getPropertiesStorage() ? size_t(op->hashProperties()) : 0));
  add(uint64_t(op->getNumOperands()));
  for (Value operand : op->getOperands())
    add(operand);
  add(uint64_t(op->getNumResults()));
  for (Value result : op->getResults())
    define(result);
  for (Block *successor : op->getSuccessors())
    add(uint64_t(blocks.lookup(successor)));
  add(uint64_t(op->getNumRegions()));
  for (Region &region : op->getRegions())
    add(region);
}

void ContentWriter::add(Region &region) {
  add(uint64_t(region.getBlocks().size()));
  for (Block &block : region)
    blocks.try_emplace(&block, blocks.size());
  for (Block &block : region) {
    add(uint64_t(block.getNumArguments()));
    for (BlockArgument argument : block.getArguments())
      define(argument);
    add(uint64_t(block.getOperations().size()));
    for (Operation &op : block)
      add(&op);
  }
}

ProgramDigest meshwright::getDigest(ArrayRef<Operation *> ops) {
  ContentWriter writer;
  for (Operation *op : ops)
    writer.add(op);
  auto *bytes = reinterpret_cast<const uint8_t *>(writer.words.data());
  llvm::XXH128_hash_t hash = llvm::xxh3_128bits({bytes, writer.words.size() * sizeof(uint64_t)});
  return {hash.low64, hash.high64};
}
