//===- Linker.h - Lays out registers and memory of a kernel ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_INTERP_LINKER_H
#define FAKEGPU_INTERP_LINKER_H

#include "interp/Decoder.h"

namespace fakegpu {

struct Symbol {
  Space space;
  uint64_t address;
};

/// Makes a Program of a kernel and the functions that it calls. Each function has one activation:
/// a function that calls itself is an error.
class Linker {
public:
  Linker(std::shared_ptr<const Module> module, const SymbolAddress &symbols);
  std::shared_ptr<const Program> link(const std::string &kernel);

  RegisterRef findRegister(const Function &f, int scope, const std::string &name) const;
  std::optional<Symbol> findSymbol(const Function &f, int scope, const std::string &name);
  uint32_t constant(unsigned bits, uint64_t value);
  uint32_t special(Special special, unsigned bits);
  uint32_t allocateRegister(Type type);
  const std::vector<std::string> *branchTargets(const Function &f, int scope,
                                                const std::string &name) const;
  const Function &callee(const std::string &name, const Decoder &caller) const;
  /// The address in local memory of parameter i of a function, or of its result.
  uint32_t formal(const Function &f, bool result, size_t i) const;

  std::shared_ptr<Program> program;

private:
  struct Placed {
    std::vector<uint32_t> registers, variables, params, results;
    std::vector<int> codeOf; // of each statement, and of the end
  };
  void collect(const Function &f, std::vector<const Function *> &path);
  void useNames(const Function &f, const Statement &s, const Operand &o);
  void place(const Function &f);
  void decode(const Function &f);
  void resolveTargets(const Function &f, size_t begin);
  int label(const Function &f, int scope, const std::string &name, int line) const;
  uint32_t placeShared(const Variable &v);

  std::shared_ptr<const Module> module;
  const SymbolAddress &symbols;
  std::vector<const Function *> functions; // callees first
  std::map<const Function *, Placed> placed;
  std::map<std::string, uint32_t> sharedVariables;
  std::map<std::pair<unsigned, uint64_t>, uint32_t> constants;
  std::map<std::pair<Special, unsigned>, uint32_t> specials;
  std::vector<std::pair<std::pair<unsigned, uint64_t>, uint32_t>> constantList;
  uint32_t registerBytes = 0;
  bool hasDynamic = false;
  uint32_t dynamicAlign = 16;
};

/// Sets the join of each branch: the immediate post-dominator. The code of a function is
/// [begin, end); its last instruction is its End.
void findJoins(std::vector<Inst> &code, int begin, int end);

} // namespace fakegpu

#endif
