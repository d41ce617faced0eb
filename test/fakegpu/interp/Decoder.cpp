//===- Decoder.cpp - Helps the decoder of an instruction ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Decoder.h"
#include "interp/Linker.h"

#include <cstring>

namespace fakegpu {

Decoder::Decoder(Linker &linker, const Function &function, const Statement &statement)
    : linker(linker), function(function), s(statement), taken(statement.mods.size()) {
  inst.statement = &s;
  if (!s.guard.empty()) {
    RegisterRef guard = linker.findRegister(function, s.scope, s.guard);
    if (guard.offset == kNone || guard.type.kind != Type::Pred)
      fail("guard '" + s.guard + "' is not a predicate");
    inst.guard = guard.offset;
    inst.guardNegated = s.guardNegated;
  }
}

void Decoder::fail(const std::string &what) const { throw PtxError(s.line, s.text + ": " + what); }

bool Decoder::take(const char *mod) {
  for (size_t i = 0; i < taken.size(); ++i)
    if (!taken[i] && s.mods[i] == mod) {
      taken[i] = true;
      return true;
    }
  return false;
}

void Decoder::require(const char *mod) {
  if (!take(mod))
    fail(std::string("expected the modifier .") + mod);
}

int Decoder::takeOneOf(std::initializer_list<const char *> mods) {
  int index = 0;
  for (const char *mod : mods) {
    if (take(mod))
      return index;
    ++index;
  }
  return -1;
}

void Decoder::ignore(std::initializer_list<const char *> mods) {
  for (const char *mod : mods)
    take(mod);
}

bool Decoder::hasType() const {
  for (size_t i = 0; i < taken.size(); ++i)
    if (!taken[i] && parseType(s.mods[i]))
      return true;
  return false;
}

Type Decoder::takeType() {
  for (size_t i = 0; i < taken.size(); ++i)
    if (auto type = taken[i] ? std::nullopt : parseType(s.mods[i])) {
      taken[i] = true;
      return *type;
    }
  fail("expected a type among the modifiers");
}

std::optional<std::string> Decoder::takePrefix(const char *prefix) {
  size_t length = strlen(prefix);
  for (size_t i = 0; i < taken.size(); ++i)
    if (!taken[i] && s.mods[i].compare(0, length, prefix) == 0) {
      taken[i] = true;
      return s.mods[i].substr(length);
    }
  return std::nullopt;
}

void Decoder::checkAllTaken() const {
  for (size_t i = 0; i < taken.size(); ++i)
    if (!taken[i])
      fail("unknown modifier ." + s.mods[i]);
}

const Operand &Decoder::operand(size_t i) const {
  if (i >= s.operands.size())
    fail("expected at least " + std::to_string(i + 1) + " operands, got " +
         std::to_string(s.operands.size()));
  return s.operands[i];
}

void Decoder::expectOperands(size_t least, size_t most) const {
  if (s.operands.size() < least || s.operands.size() > most)
    fail("expected " + std::to_string(least) +
         (least == most ? "" : " to " + std::to_string(most)) + " operands, got " +
         std::to_string(s.operands.size()));
}

bool Decoder::isRegister(const Operand &o) const {
  return o.form == Operand::Name &&
         linker.findRegister(function, s.scope, o.name).offset != kNone;
}

RegisterRef Decoder::reg(const Operand &o) {
  if (o.form != Operand::Name)
    fail("expected a register");
  RegisterRef found = linker.findRegister(function, s.scope, o.name);
  if (found.offset == kNone)
    fail("unknown register '" + o.name + "'");
  return found;
}

uint32_t Decoder::constant(unsigned bits, uint64_t value) { return linker.constant(bits, value); }

namespace {

std::optional<Special> specialOf(const std::string &name) {
  static const std::map<std::string, Special> table = {
      {"%tid.x", Special::TidX}, {"%tid.y", Special::TidY}, {"%tid.z", Special::TidZ},
      {"%ntid.x", Special::NTidX}, {"%ntid.y", Special::NTidY}, {"%ntid.z", Special::NTidZ},
      {"%ctaid.x", Special::CtaidX}, {"%ctaid.y", Special::CtaidY}, {"%ctaid.z", Special::CtaidZ},
      {"%nctaid.x", Special::NCtaidX}, {"%nctaid.y", Special::NCtaidY},
      {"%nctaid.z", Special::NCtaidZ}, {"%laneid", Special::LaneId}, {"%warpid", Special::WarpId},
      {"%nwarpid", Special::NWarpId}, {"%lanemask_eq", Special::LaneMaskEq},
      {"%lanemask_lt", Special::LaneMaskLt}, {"%lanemask_le", Special::LaneMaskLe},
      {"%lanemask_gt", Special::LaneMaskGt}, {"%lanemask_ge", Special::LaneMaskGe},
      {"%cluster_ctarank", Special::ClusterCtaRank}, {"%cluster_nctarank", Special::ClusterNCtaRank},
      {"%cluster_ctaid.x", Special::ClusterCtaidX}, {"%cluster_ctaid.y", Special::ClusterCtaidY},
      {"%cluster_ctaid.z", Special::ClusterCtaidZ}, {"%cluster_nctaid.x", Special::ClusterNCtaidX},
      {"%cluster_nctaid.y", Special::ClusterNCtaidY}, {"%cluster_nctaid.z", Special::ClusterNCtaidZ},
      {"%clusterid.x", Special::ClusteridX}, {"%clusterid.y", Special::ClusteridY},
      {"%clusterid.z", Special::ClusteridZ}, {"%nclusterid.x", Special::NClusteridX},
      {"%nclusterid.y", Special::NClusteridY}, {"%nclusterid.z", Special::NClusteridZ},
      {"%is_explicit_cluster", Special::IsExplicitCluster},
      {"%dynamic_smem_size", Special::DynamicSmem}, {"%total_smem_size", Special::TotalSmem},
      {"%smid", Special::SmId}, {"%nsmid", Special::NSmId}, {"%gridid", Special::GridId},
      {"%clock", Special::Clock}, {"%clock64", Special::Clock64},
      {"%globaltimer", Special::GlobalTimer}};
  auto found = table.find(name);
  return found == table.end() ? std::nullopt : std::optional<Special>(found->second);
}

uint64_t floatBits(double value, Type type) {
  uint64_t bits = 0;
  if (type.bits == 64) {
    memcpy(&bits, &value, 8);
  } else {
    auto f = float(value);
    memcpy(&bits, &f, 4);
  }
  return bits;
}

} // namespace

std::optional<uint64_t> Decoder::integer(const Operand &o) const {
  if (o.form == Operand::Integer)
    return o.bits;
  if (o.form == Operand::Name && o.name == "WARP_SZ")
    return 32;
  return std::nullopt;
}

uint32_t Decoder::source(const Operand &o, Type type) {
  unsigned bits = registerBits(type);
  if (auto value = integer(o))
    return type.kind == Type::Pred ? constant(1, *value != 0) : constant(bits, *value);
  switch (o.form) {
  case Operand::F32:
    return constant(bits, bits == 64 ? (fail("a constant of 32 bits for a type of 64"), 0) : o.bits);
  case Operand::F64:
    if (bits != 64) {
      double value;
      memcpy(&value, &o.bits, 8);
      return constant(bits, floatBits(value, type));
    }
    return constant(bits, o.bits);
  case Operand::Decimal:
    return constant(bits, floatBits(o.decimal, type));
  case Operand::Name:
    break;
  default:
    fail("expected a register or a constant");
  }
  RegisterRef found = linker.findRegister(function, s.scope, o.name);
  if (found.offset != kNone) {
    if (registerBits(found.type) != bits)
      fail("register '" + o.name + "' has " + std::to_string(registerBits(found.type)) +
           " bits, expected " + std::to_string(bits));
    return found.offset;
  }
  if (auto special = specialOf(o.name)) {
    inst.flag |= *special >= Special::Clock;
    return linker.special(*special, bits);
  }
  if (auto symbol = linker.findSymbol(function, s.scope, o.name))
    return constant(bits, symbol->address + uint64_t(o.offset));
  fail("unknown name '" + o.name + "'");
}

uint32_t Decoder::predicate(size_t i) { return source(operand(i), {Type::Pred, 1}); }

uint32_t Decoder::destination(const Operand &o, Type type) {
  if (o.form == Operand::Name && o.name == "_")
    return linker.allocateRegister(type);
  RegisterRef found = reg(o);
  if (registerBits(found.type) != registerBits(type))
    fail("register '" + o.name + "' has " + std::to_string(registerBits(found.type)) +
         " bits, expected " + std::to_string(registerBits(type)));
  return found.offset;
}

std::vector<Operand> Decoder::elements(size_t i) const {
  const Operand &o = operand(i);
  return o.form == Operand::Vector ? o.parts : std::vector<Operand>{o};
}

Space Decoder::takeSpace() {
  if (take("global") || take("const"))
    return Space::Global;
  if (take("shared") || take("shared::cta") || take("shared::cluster"))
    return Space::Shared;
  if (take("local"))
    return Space::Local;
  if (take("param") || take("param::entry") || take("param::func"))
    return Space::Param;
  return Space::Generic;
}

void Decoder::address(size_t i, Space space) {
  const Operand &o = operand(i);
  if (o.form != Operand::Memory)
    fail("expected an address in brackets");
  address(o, space);
}

void Decoder::address(const Operand &memory, Space space) {
  inst.space = space;
  inst.imm = memory.offset;
  const Operand &base = memory.parts[0];
  if (auto value = integer(base)) {
    inst.a = constant(64, *value);
    return;
  }
  RegisterRef found;
  if (base.form == Operand::Name)
    found = linker.findRegister(function, s.scope, base.name);
  if (found.offset != kNone) {
    inst.a = found.offset;
    inst.wideBase = registerBits(found.type) == 64;
    if (!inst.wideBase && registerBits(found.type) != 32)
      fail("an address register has 32 or 64 bits");
    return;
  }
  auto symbol = linker.findSymbol(function, s.scope, base.name);
  if (!symbol)
    fail("unknown name '" + base.name + "'");
  if (space == Space::Param && symbol->space == Space::Local)
    inst.space = Space::Local; // parameters of functions live in local memory
  else if (space == Space::Generic)
    inst.space = symbol->space;
  else if (space != symbol->space)
    fail("'" + base.name + "' is in another state space");
  inst.a = constant(64, symbol->address);
}

} // namespace fakegpu
