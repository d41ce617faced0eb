//===- ControlOps.cpp - Branches, calls and barriers -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Linker.h"
#include "interp/RaceShadow.h"
#include "interp/Warp.h"
#include "ops/Registry.h"

namespace fakegpu {
namespace {

void noEffect(Warp &, const Inst &, uint32_t) {}

void decodeBra(Decoder &d) {
  d.take("uni");
  d.expectOperands(1, 1);
  d.inst.flow = Inst::Branch;
}

void decodeBrx(Decoder &d) {
  d.require("idx");
  d.take("uni");
  d.expectOperands(2, 2);
  d.inst.a = d.source(0, {Type::Unsigned, 32});
  d.inst.flow = Inst::IndexedBranch;
  if (!d.linker.branchTargets(d.function, d.statement().scope, d.operand(1).name))
    d.fail("unknown list of targets '" + d.operand(1).name + "'");
}

void decodeRet(Decoder &d) {
  d.take("uni");
  d.inst.flow = d.function.entry ? Inst::Exit : Inst::Branch; // to the function's end
}

void decodeExit(Decoder &d) { d.inst.flow = Inst::Exit; }

void decodeTrap(Decoder &d) {
  d.finish([](Warp &w, const Inst &i, uint32_t mask) {
    raise(Fault::LaunchFailed, "trap", i, w, unsigned(__builtin_ctz(mask)));
  });
}

char *localAt(Warp &w, unsigned lane, uint32_t offset) {
  return w.local.data() + size_t(lane) * w.program->localBytes + offset;
}

/// Copies the arguments of a call into the callee's parameters: triples of source, destination and
/// size. A source above kInRegister is a register of 32 or 64 bits.
void callHandler(Warp &w, const Inst &i, uint32_t mask) {
  eachLane(mask, [&](unsigned l) {
    for (size_t k = 0; k + 2 < i.regs.size(); k += 3)
      memcpy(localAt(w, l, i.regs[k + 1]), localAt(w, l, i.regs[k]), i.regs[k + 2]);
  });
}

void decodeCall(Decoder &d) {
  d.take("uni");
  d.expectOperands(1, 3);
  size_t nameAt = d.operand(0).form == Operand::List ? 1 : 0;
  const Function &callee = d.linker.callee(d.operand(nameAt).name, d);
  size_t given = nameAt + 1 < d.operands() ? d.operand(nameAt + 1).parts.size() : 0;
  if (given != callee.params.size())
    d.fail("function '" + callee.name + "' has " + std::to_string(callee.params.size()) +
           " parameters, got " + std::to_string(given));
  for (size_t k = 0; k < given; ++k) {
    const Operand &argument = d.operand(nameAt + 1).parts[k];
    auto symbol = d.linker.findSymbol(d.function, d.statement().scope, argument.name);
    if (!symbol || symbol->space != Space::Local)
      d.fail("argument '" + argument.name + "' is not a .param variable");
    d.inst.regs.insert(d.inst.regs.end(), {uint32_t(symbol->address), d.linker.formal(callee, false, k),
                                           uint32_t(callee.params[k].size())});
  }
  d.inst.aux = uint32_t(nameAt);
  d.inst.flow = Inst::Call;
  d.finish(callHandler);
  if (!nameAt)
    return;
  // The result is copied by an instruction of its own, which runs when the callee has ended.
  const Operand &result = d.operand(0).parts.at(0);
  auto symbol = d.linker.findSymbol(d.function, d.statement().scope, result.name);
  if (!symbol || callee.results.size() != 1)
    d.fail("result '" + result.name + "' is not a .param variable");
  Inst call = d.inst;
  d.linker.program->code.push_back(call);
  d.inst.flow = Inst::Next;
  d.inst.regs = {d.linker.formal(callee, true, 0), uint32_t(symbol->address),
                 uint32_t(callee.results[0].size())};
}

/// bar and barrier. aux: 0 sync, 1 arrive, 2 popc, 3 and, 4 or. a: number, b: threads, c: predicate.
void barrierHandler(Warp &w, const Inst &i, uint32_t mask) {
  auto first = unsigned(__builtin_ctz(mask));
  if (mask != w.live)
    raise(Fault::LaunchFailed, "a barrier that only some threads of the warp reach", i, w, first);
  uint32_t number = w.at<uint32_t>(i.a)[first];
  uint32_t threads = i.b == kNone ? 0 : w.at<uint32_t>(i.b)[first];
  if (number > 15)
    raise(Fault::IllegalInstruction, "barrier " + std::to_string(number) + " of 16", i, w, first);
  if (threads % kLanes)
    raise(Fault::IllegalInstruction, "a barrier of " + std::to_string(threads) + " threads: expected a multiple of 32", i, w, first);
  NamedBarrier &b = w.block->barriers[number];
  if (b.arrived && b.expected != threads)
    raise(Fault::LaunchFailed, "barrier " + std::to_string(number) + " has arrivals that expect another number of threads", i, w, first);
  if (i.aux >= 2) {
    uint32_t p = w.mask(i.c);
    if (i.flag)
      p = ~p;
    p &= mask;
    b.value += uint32_t(__builtin_popcount(p));
    b.andValue &= p == mask ? ~0u : 0;
    b.orValue |= p;
  }
  w.block->arrive(w, number, threads, i.aux != 1);
}

/// The result of bar.red, when the barrier is complete.
void barrierResult(Warp &w, const Inst &i, uint32_t mask) {
  const NamedBarrier &b = w.block->barriers[w.at<uint32_t>(i.a)[__builtin_ctz(mask)]];
  if (i.aux == 2)
    return setLanes(w.at<uint32_t>(i.dst), mask, [&](unsigned) { return b.lastPopc; });
  bool value = i.aux == 3 ? b.lastAnd : b.lastOr;
  w.mask(i.dst) = value ? w.mask(i.dst) | mask : w.mask(i.dst) & ~mask;
}

void clusterBarrierHandler(Warp &w, const Inst &i, uint32_t mask) {
  if (mask != w.live)
    raise(Fault::LaunchFailed, "a barrier that only some threads of the warp reach", i, w, unsigned(__builtin_ctz(mask)));
  if (i.aux == 0) {
    if (w.clusterArrived)
      raise(Fault::LaunchFailed, "a second barrier.cluster.arrive without a wait", i, w, 0);
    w.clusterArrived = true;
  } else {
    if (!w.clusterArrived)
      raise(Fault::LaunchFailed, "barrier.cluster.wait without an arrive", i, w, 0);
    w.state = Warp::AtClusterBarrier;
  }
}

void syncWarpHandler(Warp &w, const Inst &i, uint32_t mask) {
  auto first = unsigned(__builtin_ctz(mask));
  uint32_t members = w.at<uint32_t>(i.a)[first];
  if ((members & w.live) != mask)
    raise(Fault::LaunchFailed, "bar.warp.sync names threads that do not reach it", i, w, first);
  w.block->shadow->syncWarp(w.id);
}

void decodeBarrier(Decoder &d) {
  d.take("cta");
  Type word{Type::Unsigned, 32};
  if (d.take("warp")) {
    d.require("sync");
    d.expectOperands(1, 1);
    d.inst.a = d.source(0, word);
    return d.finish(syncWarpHandler);
  }
  if (d.take("cluster")) {
    d.inst.aux = uint32_t(d.takeOneOf({"arrive", "wait"}));
    if (d.inst.aux > 1)
      d.fail("expected .arrive or .wait");
    d.ignore({"aligned", "release", "acquire", "relaxed"});
    return d.finish(clusterBarrierHandler);
  }
  bool reduces = d.take("red");
  d.take("aligned");
  if (!reduces) {
    d.inst.aux = d.take("arrive") ? 1 : (d.require("sync"), 0);
    d.expectOperands(1, 2);
    d.inst.a = d.source(0, word);
    if (d.operands() > 1)
      d.inst.b = d.source(1, word);
    return d.finish(barrierHandler);
  }
  int kind = d.takeOneOf({"popc", "and", "or"});
  if (kind < 0)
    d.fail("expected .popc, .and or .or");
  Type type = d.takeType();
  d.expectOperands(3, 4);
  d.inst.aux = uint32_t(kind + 2);
  d.inst.a = d.source(1, word);
  if (d.operands() > 3)
    d.inst.b = d.source(2, word);
  d.inst.c = d.predicate(d.operands() - 1);
  d.inst.flag = d.operand(d.operands() - 1).negated;
  d.inst.dst = d.destination(0, type);
  d.finish(barrierHandler);
  d.linker.program->code.push_back(d.inst);
  d.finish(barrierResult);
}

} // namespace

void addControlOps(DecodeTable &table) {
  table["bra"] = decodeBra;
  table["brx"] = decodeBrx;
  table["ret"] = decodeRet;
  table["exit"] = decodeExit;
  table["trap"] = decodeTrap;
  table["call"] = decodeCall;
  table["bar"] = decodeBarrier;
  table["barrier"] = decodeBarrier;
  table["nanosleep"] = [](Decoder &d) {
    d.takeType();
    d.finish([](Warp &w, const Inst &, uint32_t) { w.spun = true; });
  };
  table["griddepcontrol"] = [](Decoder &d) {
    if (d.takeOneOf({"launch_dependents", "wait"}) < 0)
      d.fail("expected .launch_dependents or .wait");
    d.finish(noEffect);
  };
  table["pmevent"] = table["brkpt"] = [](Decoder &d) { d.finish(noEffect); };
}

} // namespace fakegpu
