//===- Program.h - A kernel decoded, with the functions it calls -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_INTERP_PROGRAM_H
#define FAKEGPU_INTERP_PROGRAM_H

#include "ptx/Module.h"

#include <functional>
#include <memory>

namespace fakegpu {

struct Warp;
struct Inst;
using Handler = void (*)(Warp &, const Inst &, uint32_t mask);

constexpr uint32_t kNone = ~0u;
constexpr unsigned kLanes = 32;

enum class Space : uint8_t { Generic, Global, Shared, Local, Param };

// Windows of the generic address space. Device and host addresses have at most 48 bits.
constexpr uint64_t kSharedWindow = uint64_t(1) << 56;
constexpr uint64_t kLocalWindow = uint64_t(1) << 57;
constexpr uint64_t kParamWindow = uint64_t(1) << 58;
/// Shared memory of the block with rank r of a cluster starts at (r + 1) << kRankShift.
constexpr unsigned kRankShift = 24;

/// A decoded instruction. Registers are byte offsets into a warp's register file, where a register
/// holds its 32 lanes side by side; a predicate is a mask of 32 bits. Constants and special
/// registers are registers that are filled before a warp starts.
struct Inst {
  enum Flow : uint8_t { Next, Branch, IndexedBranch, Exit, Call, End };
  Handler run = nullptr;
  Flow flow = Next;
  bool guardNegated = false;
  uint32_t guard = kNone;
  uint32_t dst = kNone, a = kNone, b = kNone, c = kNone, d = kNone;
  int64_t imm = 0;
  int target = -1, join = -1;
  uint32_t aux = 0;       // a number whose meaning depends on the operation
  Space space = Space::Generic;
  uint8_t width = 0;      // bytes of an element in memory
  uint8_t regWidth = 0;   // bits of the registers that hold elements
  bool wideBase = true;   // the address register has 64 bits
  bool flag = false;
  std::vector<uint32_t> regs; // vector operands
  std::vector<int> targets;   // of an indexed branch
  const Statement *statement = nullptr;
};

enum class Special : uint8_t {
  TidX, TidY, TidZ, NTidX, NTidY, NTidZ, CtaidX, CtaidY, CtaidZ, NCtaidX, NCtaidY, NCtaidZ,
  LaneId, WarpId, NWarpId, LaneMaskEq, LaneMaskLt, LaneMaskLe, LaneMaskGt, LaneMaskGe,
  ClusterCtaRank, ClusterNCtaRank, ClusterCtaidX, ClusterCtaidY, ClusterCtaidZ,
  ClusterNCtaidX, ClusterNCtaidY, ClusterNCtaidZ, ClusteridX, ClusteridY, ClusteridZ,
  NClusteridX, NClusteridY, NClusteridZ, IsExplicitCluster,
  DynamicSmem, TotalSmem, SmId, NSmId, GridId,
  Clock, Clock64, GlobalTimer // read when they are used
};

struct KernelParam {
  std::string name;
  uint32_t offset, size;
};

struct Program {
  std::string name;
  const Function *function = nullptr;
  std::shared_ptr<const Module> module;
  std::vector<Inst> code;
  int entry = 0; // index of the first instruction of the kernel
  std::vector<KernelParam> params;
  uint32_t paramBytes = 0;
  /// Bytes of shared memory that variables take, and the offset of the dynamic part.
  uint32_t staticShared = 0, dynamicShared = 0;
  uint32_t localBytes = 0; // of a lane
  std::vector<char> image; // the register file of a warp before it starts
  struct SpecialRegister {
    Special special;
    uint32_t offset;
    uint8_t bits;
  };
  std::vector<SpecialRegister> specials;
  unsigned raceGranule = 16; // bytes: the smallest access of shared memory
  bool readsNonCoherent = false;
  bool usesRegisterBudget = false; // setmaxnreg
  bool usesClusterBarrier = false;
};

/// Gives the device address of a global variable.
using SymbolAddress = std::function<uint64_t(const std::string &)>;

/// Decodes a kernel and all functions that it calls. `chip` is e.g. 90. Throws PtxError.
std::shared_ptr<const Program> linkKernel(std::shared_ptr<const Module> module,
                                          const std::string &kernel, const SymbolAddress &symbols);

} // namespace fakegpu

#endif
