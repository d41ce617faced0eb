//===- Warp.cpp - Steps of a warp: divergence and reconvergence --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Warp.h"

#include <algorithm>

namespace fakegpu {
namespace {

uint32_t specialValue(const Warp &w, Special special, unsigned lane) {
  const Block &b = *w.block;
  const Launch &l = *b.launch;
  unsigned t = w.id * kLanes + lane;
  auto group = [&](unsigned d) { return b.index[d] / l.cluster[d]; };
  auto inGroup = [&](unsigned d) { return b.index[d] % l.cluster[d]; };
  switch (special) {
  case Special::TidX: return t % l.block[0];
  case Special::TidY: return t / l.block[0] % l.block[1];
  case Special::TidZ: return t / (l.block[0] * l.block[1]);
  case Special::NTidX: return l.block[0];
  case Special::NTidY: return l.block[1];
  case Special::NTidZ: return l.block[2];
  case Special::CtaidX: return b.index[0];
  case Special::CtaidY: return b.index[1];
  case Special::CtaidZ: return b.index[2];
  case Special::NCtaidX: return l.grid[0];
  case Special::NCtaidY: return l.grid[1];
  case Special::NCtaidZ: return l.grid[2];
  case Special::LaneId: return lane;
  case Special::WarpId: return w.id;
  case Special::NWarpId: return unsigned(b.warps.size());
  case Special::LaneMaskEq: return 1u << lane;
  case Special::LaneMaskLt: return (1u << lane) - 1;
  case Special::LaneMaskLe: return (2u << lane) - 1;
  case Special::LaneMaskGt: return ~((2u << lane) - 1);
  case Special::LaneMaskGe: return ~((1u << lane) - 1);
  case Special::ClusterCtaRank: return b.rank;
  case Special::ClusterNCtaRank: return l.cluster[0] * l.cluster[1] * l.cluster[2];
  case Special::ClusterCtaidX: return inGroup(0);
  case Special::ClusterCtaidY: return inGroup(1);
  case Special::ClusterCtaidZ: return inGroup(2);
  case Special::ClusterNCtaidX: return l.cluster[0];
  case Special::ClusterNCtaidY: return l.cluster[1];
  case Special::ClusterNCtaidZ: return l.cluster[2];
  case Special::ClusteridX: return group(0);
  case Special::ClusteridY: return group(1);
  case Special::ClusteridZ: return group(2);
  case Special::NClusteridX: return l.grid[0] / l.cluster[0];
  case Special::NClusteridY: return l.grid[1] / l.cluster[1];
  case Special::NClusteridZ: return l.grid[2] / l.cluster[2];
  case Special::IsExplicitCluster: return l.cluster[0] * l.cluster[1] * l.cluster[2] > 1;
  case Special::DynamicSmem: return l.dynamicBytes;
  case Special::TotalSmem: return b.sharedBytes;
  case Special::SmId: return (b.index[0] + b.index[1] * 7) % l.multiprocessors;
  case Special::NSmId: return l.multiprocessors;
  case Special::GridId: return uint32_t(l.gridId);
  case Special::Clock:
  case Special::Clock64:
  case Special::GlobalTimer: return 0; // read when it is used
  }
  return 0;
}

} // namespace

void raise(Fault::Code code, const std::string &what, const Inst &inst, Warp &warp, unsigned lane) {
  const Block &b = *warp.block;
  const Launch &l = *b.launch;
  unsigned t = warp.id * kLanes + lane;
  auto triple = [](unsigned x, unsigned y, unsigned z) {
    return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
  };
  throw Fault(code, "kernel " + warp.program->name + ", line " +
                        std::to_string(inst.statement->line) + ", " + inst.statement->text +
                        ": block " + triple(b.index[0], b.index[1], b.index[2]) + ", thread " +
                        triple(t % l.block[0], t / l.block[0] % l.block[1],
                               t / (l.block[0] * l.block[1])) +
                        ": " + what);
}

void Warp::start(Block &owner, unsigned index) {
  block = &owner;
  program = owner.launch->program;
  id = index;
  state = Running;
  spun = clusterArrived = false;
  unsigned count = std::min(kLanes, owner.threads - index * kLanes);
  initial = live = count == kLanes ? ~0u : (1u << count) - 1;
  stack.assign(1, {program->entry, -1, live});
  file.resize(program->image.size() + 64);
  regs = file.data() + (64 - reinterpret_cast<uintptr_t>(file.data()) % 64) % 64;
  std::copy(program->image.begin(), program->image.end(), regs);
  local.assign(size_t(program->localBytes) * kLanes, char(0xff));
  for (const auto &s : program->specials)
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      uint32_t value = specialValue(*this, s.special, lane);
      if (s.bits == 64)
        at<uint64_t>(s.offset)[lane] = value;
      else if (s.bits == 32)
        at<uint32_t>(s.offset)[lane] = value;
      else
        at<uint16_t>(s.offset)[lane] = uint16_t(value);
    }
  retired = 0;
  registerBudget = owner.launch->registers;
  copies.clear();
  copyGroup.fill(0);
  wgmmas.clear();
  wgmmaSaved.clear();
  wgmmaGroup = bulkGroup = 0;
}

void Warp::exitLanes(uint32_t lanes) {
  live &= ~lanes;
  for (Entry &e : stack)
    e.mask &= live;
  stack.erase(std::remove_if(stack.begin(), stack.end(), [](const Entry &e) { return !e.mask; }),
              stack.end());
  if (stack.empty())
    state = Done;
}

void Warp::branch(const Inst &inst, uint32_t taken) {
  Entry top = stack.back();
  uint32_t rest = top.mask & ~taken;
  if (!rest) {
    stack.back().pc = inst.target;
    return;
  }
  int next = top.pc + 1;
  if (!taken) {
    stack.back().pc = next;
    return;
  }
  int join = inst.join;
  if (join < 0) {
    join = top.join;
    stack.pop_back();
  } else if (join == top.join) {
    stack.pop_back(); // the entry below holds these lanes
  } else {
    stack.back().pc = join;
  }
  if (next != join)
    stack.push_back({next, join, rest});
  if (inst.target != join)
    stack.push_back({inst.target, join, taken});
}

void Warp::indexedBranch(const Inst &inst, uint32_t mask) {
  Entry top = stack.back();
  uint32_t rest = top.mask & ~mask;
  int join = inst.join;
  if (join < 0 || join == top.join) {
    join = join < 0 ? top.join : join;
    stack.pop_back();
  } else {
    stack.back().pc = join;
  }
  if (rest && top.pc + 1 != join)
    stack.push_back({top.pc + 1, join, rest});
  const auto *index = at<uint32_t>(inst.a);
  for (size_t i = 0; i < inst.targets.size(); ++i) {
    uint32_t here = mask & maskOf([&](unsigned lane) { return index[lane] == i; });
    mask &= ~here;
    if (here && inst.targets[i] != join)
      stack.push_back({inst.targets[i], join, here});
  }
  if (mask)
    raise(Fault::LaunchFailed, "the index is outside of the list of targets", inst, *this,
          unsigned(__builtin_ctz(mask)));
}

bool Warp::rotate() {
  size_t n = stack.size();
  if (n < 2 || stack[n - 1].join != stack[n - 2].join || (stack[n - 1].mask & stack[n - 2].mask))
    return false;
  size_t first = n - 1;
  while (first > 0 && stack[first - 1].join == stack[n - 1].join &&
         !(stack[first - 1].mask & stack[n - 1].mask))
    --first;
  std::rotate(stack.begin() + long(first), stack.end() - 1, stack.end());
  return true;
}

void Warp::step(const Inst &inst, uint32_t mask) {
  switch (inst.flow) {
  case Inst::Next:
    ++stack.back().pc;
    if (mask)
      inst.run(*this, inst, mask);
    return;
  case Inst::Branch:
    return branch(inst, mask);
  case Inst::IndexedBranch:
    return mask ? indexedBranch(inst, mask) : void(++stack.back().pc);
  case Inst::Exit:
    ++stack.back().pc;
    return exitLanes(mask);
  case Inst::Call:
    ++stack.back().pc;
    if (!mask)
      return;
    inst.run(*this, inst, mask);
    stack.push_back({inst.target, -1, mask});
    return;
  case Inst::End:
    stack.pop_back();
    return;
  }
}

void Warp::run(uint64_t budget) {
  const Inst *code = program->code.data();
  uint64_t lanes = 0, count = 0;
  while (state == Running && count < budget) {
    Entry &top = stack.back();
    if (top.pc == top.join) {
      stack.pop_back();
      continue;
    }
    const Inst &inst = code[top.pc];
    uint32_t active = top.mask;
    if (inst.guard != kNone) {
      uint32_t guard = this->mask(inst.guard);
      active &= inst.guardNegated ? ~guard : guard;
    }
    ++count;
    ++retired;
    lanes += unsigned(__builtin_popcount(active));
    step(inst, active);
    if (spun)
      break;
  }
  block->cluster->retired += count;
  block->cluster->counters.warpInstructions += count;
  block->cluster->counters.laneInstructions += lanes;
}

} // namespace fakegpu
