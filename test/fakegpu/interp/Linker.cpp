//===- Linker.cpp - Lays out registers and memory of a kernel ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Linker.h"

#include <algorithm>
#include <cstring>

namespace fakegpu {
namespace {

uint32_t alignTo(uint32_t value, uint32_t align) { return (value + align - 1) / align * align; }

} // namespace

unsigned registerBits(Type type) {
  return type.kind == Type::Pred ? 1 : std::max(16u, type.width());
}

Linker::Linker(std::shared_ptr<const Module> module, const SymbolAddress &symbols)
    : program(std::make_shared<Program>()), module(std::move(module)), symbols(symbols) {}

uint32_t Linker::allocateRegister(Type type) {
  uint32_t offset = registerBytes;
  unsigned bits = registerBits(type);
  registerBytes += bits == 1 ? 64 : bits / 8 * kLanes;
  return offset;
}

uint32_t Linker::constant(unsigned bits, uint64_t value) {
  if (bits < 64)
    value &= (uint64_t(1) << bits) - 1;
  auto [found, added] = constants.try_emplace({bits, value}, registerBytes);
  if (added)
    allocateRegister({Type::Bits, uint16_t(bits)});
  return found->second;
}

uint32_t Linker::special(Special special, unsigned bits) {
  auto [found, added] = specials.try_emplace({special, bits}, registerBytes);
  if (added) {
    program->specials.push_back({special, registerBytes, uint8_t(bits)});
    allocateRegister({Type::Bits, uint16_t(bits)});
  }
  return found->second;
}

RegisterRef Linker::findRegister(const Function &f, int scope, const std::string &name) const {
  for (int s = scope; s >= 0; s = f.scopes[s].parent) {
    auto found = f.scopes[s].registers.find(name);
    if (found != f.scopes[s].registers.end())
      return {placed.at(&f).registers[found->second], f.registers[found->second]};
  }
  // The older form of a function's parameters.
  return {};
}

std::optional<Symbol> Linker::findSymbol(const Function &f, int scope, const std::string &name) {
  auto spaceOf = [](const std::string &space) {
    return space == "shared" ? Space::Shared : space == "global" || space == "const" ? Space::Global
                                                                                     : Space::Local;
  };
  const Placed &p = placed.at(&f);
  for (int s = scope; s >= 0; s = f.scopes[s].parent) {
    auto found = f.scopes[s].variables.find(name);
    if (found != f.scopes[s].variables.end())
      return Symbol{spaceOf(f.variables[found->second].space), p.variables[found->second]};
  }
  for (size_t i = 0; i < f.params.size(); ++i)
    if (f.params[i].name == name)
      return Symbol{f.entry ? Space::Param : Space::Local, p.params[i]};
  for (size_t i = 0; i < f.results.size(); ++i)
    if (f.results[i].name == name)
      return Symbol{Space::Local, p.results[i]};
  auto found = module->variables.find(name);
  if (found == module->variables.end())
    return std::nullopt;
  if (found->second.space == "shared")
    return Symbol{Space::Shared, sharedVariables.at(name)};
  return Symbol{Space::Global, symbols(name)};
}

const std::vector<std::string> *Linker::branchTargets(const Function &f, int scope,
                                                      const std::string &name) const {
  for (int s = scope; s >= 0; s = f.scopes[s].parent) {
    auto found = f.scopes[s].branchTargets.find(name);
    if (found != f.scopes[s].branchTargets.end())
      return &found->second;
  }
  return nullptr;
}

const Function &Linker::callee(const std::string &name, const Decoder &caller) const {
  auto found = module->functions.find(name);
  if (found == module->functions.end())
    caller.fail("call of the unknown function '" + name + "'");
  if (!found->second.hasBody)
    caller.fail("unresolved .extern function '" + name + "'");
  return found->second;
}

uint32_t Linker::formal(const Function &f, bool result, size_t i) const {
  const Placed &p = placed.at(&f);
  return result ? p.results[i] : p.params[i];
}

uint32_t Linker::placeShared(const Variable &v) {
  uint32_t offset = alignTo(program->staticShared, v.align);
  program->staticShared = offset + uint32_t(v.size());
  return offset;
}

void Linker::useNames(const Function &f, const Statement &s, const Operand &o) {
  for (const Operand &part : o.parts)
    useNames(f, s, part);
  if (o.name.empty() || o.name[0] == '%')
    return;
  auto found = module->variables.find(o.name);
  if (found == module->variables.end() || found->second.space != "shared" ||
      sharedVariables.count(o.name))
    return;
  const Variable &v = found->second;
  if (v.external || v.count == 0) {
    hasDynamic = true;
    dynamicAlign = std::max(dynamicAlign, v.align);
    sharedVariables[o.name] = kNone;
  } else {
    sharedVariables[o.name] = placeShared(v);
  }
}

void Linker::collect(const Function &f, std::vector<const Function *> &path) {
  if (std::find(path.begin(), path.end(), &f) != path.end())
    throw PtxError(f.line, "function '" + f.name + "' calls itself, which is not supported");
  if (std::find(functions.begin(), functions.end(), &f) != functions.end())
    return;
  path.push_back(&f);
  for (const Statement &s : f.statements) {
    for (const Operand &o : s.operands)
      useNames(f, s, o);
    if (s.opcode != "call")
      continue;
    for (const Operand &o : s.operands) {
      auto found = o.form == Operand::Name ? module->functions.find(o.name) : module->functions.end();
      if (found != module->functions.end() && found->second.hasBody)
        collect(found->second, path);
    }
  }
  path.pop_back();
  functions.push_back(&f);
}

void Linker::place(const Function &f) {
  Placed p;
  for (Type type : f.registers)
    p.registers.push_back(allocateRegister(type));
  auto local = [&](const Variable &v) {
    uint32_t offset = alignTo(program->localBytes, std::max(v.align, 1u));
    program->localBytes = offset + uint32_t(v.size());
    return offset;
  };
  for (const Variable &v : f.variables) {
    if (v.space == "shared") {
      p.variables.push_back(placeShared(v));
    } else if (v.space == "local" || v.space == "param") {
      p.variables.push_back(local(v));
    } else {
      throw PtxError(v.line, "a ." + v.space + " variable in a function is not supported");
    }
  }
  for (const Variable &v : f.params) {
    if (!f.entry) {
      p.params.push_back(local(v));
      continue;
    }
    uint32_t offset = alignTo(program->paramBytes, v.align);
    p.params.push_back(offset);
    program->params.push_back({v.name, offset, uint32_t(v.size())});
    program->paramBytes = offset + uint32_t(v.size());
  }
  for (const Variable &v : f.results)
    p.results.push_back(local(v));
  placed[&f] = std::move(p);
}

int Linker::label(const Function &f, int scope, const std::string &name, int line) const {
  for (int s = scope; s >= 0; s = f.scopes[s].parent) {
    auto found = f.scopes[s].labels.find(name);
    if (found != f.scopes[s].labels.end())
      return placed.at(&f).codeOf[found->second];
  }
  throw PtxError(line, "unknown label '" + name + "'");
}

void Linker::decode(const Function &f) {
  Placed &p = placed[&f];
  size_t begin = program->code.size();
  for (const Statement &s : f.statements) {
    p.codeOf.push_back(int(program->code.size()));
    auto found = decodeTable().find(s.opcode);
    if (found == decodeTable().end())
      throw PtxError(s.line, "unknown instruction '" + s.text + "'");
    Decoder decoder(*this, f, s);
    found->second(decoder);
    decoder.checkAllTaken();
    program->code.push_back(std::move(decoder.inst));
  }
  p.codeOf.push_back(int(program->code.size()));
  Inst end;
  end.flow = f.entry ? Inst::Exit : Inst::End;
  static const Statement endStatement = [] {
    Statement s;
    s.text = "the end of the function";
    return s;
  }();
  end.statement = &endStatement;
  program->code.push_back(end);
  resolveTargets(f, begin);
  findJoins(program->code, int(begin), int(program->code.size()));
}

void Linker::resolveTargets(const Function &f, size_t begin) {
  int end = int(program->code.size()) - 1;
  for (size_t i = begin; i < program->code.size(); ++i) {
    Inst &inst = program->code[i];
    const Statement &s = *inst.statement;
    if (inst.flow == Inst::Branch)
      inst.target = s.opcode == "ret" ? end : label(f, s.scope, s.operands[0].name, s.line);
    if (inst.flow == Inst::IndexedBranch)
      for (const std::string &name : *branchTargets(f, s.scope, s.operands[1].name))
        inst.targets.push_back(label(f, s.scope, name, s.line));
  }
}

std::shared_ptr<const Program> Linker::link(const std::string &kernel) {
  auto found = module->functions.find(kernel);
  if (found == module->functions.end() || !found->second.entry)
    throw PtxError(1, "no kernel '" + kernel + "'");
  const Function &f = found->second;
  program->name = kernel;
  program->function = &f;
  program->module = module;
  std::vector<const Function *> path;
  collect(f, path);
  for (const Function *g : functions)
    place(*g);
  program->dynamicShared = alignTo(program->staticShared, dynamicAlign);
  if (hasDynamic)
    program->staticShared = program->dynamicShared;
  for (auto &[name, offset] : sharedVariables)
    if (offset == kNone)
      offset = program->dynamicShared;
  std::map<const Function *, int> starts;
  // A call needs the start of its callee, which stands before it.
  for (const Function *g : functions) {
    starts[g] = int(program->code.size());
    decode(*g);
  }
  program->entry = starts.at(&f);
  for (Inst &inst : program->code)
    if (inst.flow == Inst::Call)
      inst.target = starts.at(&module->functions.at(inst.statement->operands[inst.aux].name));
  program->image.assign(registerBytes, char(0xff));
  for (auto &[key, offset] : constants)
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      auto [bits, value] = key;
      if (bits == 1) {
        uint32_t mask = value ? ~0u : 0;
        memcpy(&program->image[offset], &mask, 4);
      } else if (bits == 128) {
        memset(&program->image[offset], 0, 16 * kLanes);
        memcpy(&program->image[offset + lane * 8], &value, 8);
      } else {
        memcpy(&program->image[offset + lane * bits / 8], &value, bits / 8);
      }
    }
  return program;
}

std::shared_ptr<const Program> linkKernel(std::shared_ptr<const Module> module,
                                          const std::string &kernel, const SymbolAddress &symbols) {
  return Linker(std::move(module), symbols).link(kernel);
}

} // namespace fakegpu
