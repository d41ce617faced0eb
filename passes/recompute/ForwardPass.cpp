//===- ForwardPass.cpp - segments of a forward pass -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/recompute/ForwardPass.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/ProgramCost.h"

#include "llvm/ADT/MapVector.h"

#include <algorithm>
#include <limits>

using namespace mlir;
using namespace meshwright;

ForwardPass::ForwardPass(func::FuncOp func, KeptBytes bytes) : keptBytes(std::move(bytes)) {
  if (!keptBytes)
    keptBytes = [](Value value) { return getTensorBytes(value.getType()); };
  for (Operation &op : func.front()) {
    numbers[&op] = ops.size();
    if (!boundary && op.getNumOperands() > 0 && op.hasAttr(nn::NnDialect::kBackwardAttr))
      boundary = ops.size();
    ops.push_back(&op);
  }
  if (!boundary)
    return;
  findBackward();
  findReads();
}

void ForwardPass::findBackward() {
  for (int64_t i = boundary, e = ops.size() - 1; i < e; ++i) {
    auto reads = [&](Value value) { return backward.contains(value.getDefiningOp()); };
    if (ops[i]->hasAttr(nn::NnDialect::kBackwardAttr) || llvm::any_of(ops[i]->getOperands(), reads))
      backward.insert(ops[i]);
  }
  for (int64_t i = ops.size() - 1; i-- > boundary;)
    if (!ops[i]->use_empty() &&
        llvm::all_of(ops[i]->getUsers(), [&](Operation *user) { return isBackward(user); }))
      backward.insert(ops[i]);
  for (Operation *op : ops) {
    if (!isBackward(op))
      continue;
    int64_t last = -1;
    for (Value operand : op->getOperands())
      if (Operation *producer = operand.getDefiningOp())
        last = std::max(last, isBackward(producer) ? getReach(producer) : getNumber(producer));
    reach[op] = last;
  }
}

/// Returns true for gathers of weights, and steps of them.
static bool isFetch(Operation *op) {
  auto collective = dyn_cast<dist::CollectiveOpInterface>(op);
  return collective && collective.communicates() && collective.getRole() == dist::CollectiveRole::Weights;
}

void ForwardPass::findReads() {
  for (Operation *op : ops) {
    if (isFetch(op) || (op->hasTrait<dist::KeepsWeight>() &&
                        fetched.contains(op->getOperand(0).getDefiningOp())))
      fetched.insert(op);
    auto isGenerated = [&](Value value) { return generated.contains(value.getDefiningOp()); };
    if (llvm::all_of(op->getOperands(), isGenerated))
      generated.insert(op);
    if (!isBackward(op))
      for (Value operand : op->getOperands()) {
        int64_t &last = lastRead[skipViews(operand)];
        last = std::max(last, getNumber(op));
      }
  }
}

bool ForwardPass::isReadFrom(Value value, int64_t end) const {
  return lastRead.lookup_or(skipViews(value), -1) >= end;
}

bool ForwardPass::takesMemory(Value value) const {
  Operation *maker = skipViews(value).getDefiningOp();
  return maker && !generated.contains(maker) && !fetched.contains(maker);
}

bool ForwardPass::hasBackwardReader(Value value) const {
  return llvm::any_of(value.getUsers(), [&](Operation *user) { return isBackward(user); });
}

//===----------------------------------------------------------------------===//
// Cuts
//===----------------------------------------------------------------------===//

/// The buffers that are not needed to the end anyhow.
SmallVector<ForwardPass::Buffer> ForwardPass::getBuffers() const {
  llvm::MapVector<Value, Buffer> buffers;
  for (Operation *op : getOps({0, boundary}))
    for (Value result : op->getResults()) {
      if (!takesMemory(result) || isReadFrom(result, boundary))
        continue;
      Value root = skipViews(result);
      Buffer &buffer = buffers
                           .try_emplace(root, Buffer{getNumber(root.getDefiningOp()),
                                                     lastRead.lookup_or(root, -1),
                                                     getTensorBytes(root.getType()), keptBytes(root),
                                            false})
                           .first->second;
      buffer.isNeeded |= hasBackwardReader(result);
    }
  return llvm::to_vector_of<Buffer>(llvm::make_second_range(buffers));
}

/// Points where fewer bytes are alive than next to them.
std::vector<int64_t> ForwardPass::findCuts(ArrayRef<Buffer> buffers) const {
  std::vector<int64_t> alive(boundary + 1);
  for (const Buffer &buffer : buffers)
    if (buffer.lastRead > buffer.made) {
      alive[buffer.made + 1] += buffer.bytes;
      alive[buffer.lastRead + 1] -= buffer.bytes;
    }
  for (int64_t i = 0; i < boundary; ++i)
    alive[i + 1] += alive[i];
  std::vector<int64_t> cuts;
  for (int64_t i = 1; i < boundary; ++i)
    if (alive[i] <= alive[i - 1] && alive[i] < alive[i + 1])
      cuts.push_back(i);
  // Of too many, the best of each stretch: a program whose later layers had no cut would keep, or repeat,
  // all of them at once.
  if (size_t count = cuts.size(); count > kMostCuts) {
    auto isBefore = [&](int64_t a, int64_t b) { return alive[a] < alive[b]; };
    std::vector<int64_t> spread;
    for (size_t i = 0; i < kMostCuts; ++i)
      spread.push_back(*std::min_element(cuts.begin() + i * count / kMostCuts,
                                         cuts.begin() + (i + 1) * count / kMostCuts, isBefore));
    cuts = std::move(spread);
  }
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(boundary);
  return cuts;
}

SmallVector<Segment> ForwardPass::cut() const {
  SmallVector<Buffer> buffers = getBuffers();
  std::vector<int64_t> cuts = findCuts(buffers);
  size_t count = cuts.size();
  // The bytes that the backward pass needs of what is made before a cut.
  std::vector<int64_t> needed(count);
  // For two cuts, the bytes made in between that cross the second one.
  std::vector<std::vector<int64_t>> crossing(count, std::vector<int64_t>(count));
  for (size_t i = 0; i < count; ++i) {
    std::vector<int64_t> made(count + 1);
    for (const Buffer &buffer : buffers) {
      if (buffer.made >= cuts[i])
        continue;
      needed[i] += buffer.isNeeded ? buffer.bytes : 0;
      if (buffer.lastRead >= cuts[i])
        made[llvm::upper_bound(cuts, buffer.made) - cuts.begin() - 1] += buffer.kept;
    }
    for (size_t from = i; from-- > 0;)
      crossing[i][from] = made[from] + (from + 1 < i ? crossing[i][from + 1] : 0);
  }
  std::vector<size_t> best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t parts = 1; parts <= std::min<int64_t>(count, kMostSizes); ++parts) {
    // The fewest bytes that cross cuts if no segment with a cut in it needs more than `most`.
    int64_t most = needed.back() / parts;
    std::vector<int64_t> kept(count, std::numeric_limits<int64_t>::max());
    std::vector<size_t> before(count);
    kept[0] = 0;
    for (size_t i = 1; i < count; ++i)
      for (size_t from = i; from-- > 0;) {
        if (needed[i] - needed[from] > most && from + 1 < i)
          break;
        if (kept[from] + crossing[i][from] <= kept[i]) {
          kept[i] = kept[from] + crossing[i][from];
          before[i] = from;
        }
      }
    std::vector<size_t> chosen{count - 1};
    int64_t largest = 0;
    while (chosen.back() != 0) {
      size_t end = chosen.back();
      chosen.push_back(before[end]);
      largest = std::max(largest, needed[end] - needed[before[end]]);
    }
    if (kept.back() + largest < least) {
      least = kept.back() + largest;
      best = std::move(chosen);
    }
  }
  SmallVector<Segment> segments;
  for (size_t i = best.size() - 1; i > 0; --i)
    segments.push_back({cuts[best[i]], cuts[best[i - 1]]});
  return segments;
}
