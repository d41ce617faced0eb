//===- Module.h - A PTX module as text says it ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_PTX_MODULE_H
#define FAKEGPU_PTX_MODULE_H

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace fakegpu {

/// An error in a PTX text. Its message starts with "line N: ".
struct PtxError : std::runtime_error {
  PtxError(int line, const std::string &what)
      : std::runtime_error("line " + std::to_string(line) + ": " + what) {}
};

/// A fundamental type of PTX. `lanes` is 2 for the packed types (.f16x2, .bf16x2, ...).
struct Type {
  enum Kind : uint8_t { Bits, Unsigned, Signed, Float, BFloat, TF32, E4M3, E5M2, Pred };
  Kind kind = Bits;
  uint16_t bits = 0; // of one element
  uint8_t lanes = 1;

  unsigned width() const { return unsigned(bits) * lanes; }
  unsigned bytes() const { return (width() + 7) / 8; }
  bool isFloat() const { return kind >= Float && kind != Pred; }
  bool operator==(const Type &o) const {
    return kind == o.kind && bits == o.bits && lanes == o.lanes;
  }
};

/// The type that a modifier without its dot names, e.g. "u32", "bf16x2".
std::optional<Type> parseType(const std::string &text);

/// An operand as it is written.
struct Operand {
  enum Form : uint8_t {
    Name,    // a register, variable, label, or "_"
    Integer, // bits
    F32,     // bits of 0fXXXXXXXX
    F64,     // bits of 0dXXXXXXXXXXXXXXXX
    Decimal, // decimal
    Memory,  // [parts[0] + offset], further parts behind a comma
    Vector,  // {parts}
    Pair,    // parts[0] | parts[1]
    List     // (parts), of a call
  };
  Form form = Name;
  std::string name;
  uint64_t bits = 0;
  double decimal = 0;
  int64_t offset = 0; // of a name or a memory operand
  bool negated = false;
  std::vector<Operand> parts;
};

/// A variable of any state space, or a parameter.
struct Variable {
  std::string name, space; // space without the dot
  Type type;
  unsigned align = 0, vector = 1;
  uint64_t count = 1; // elements; 0 for an array of unknown size
  bool external = false;
  struct Relocation {
    uint64_t offset;
    std::string symbol;
    int64_t addend;
    bool generic;
  };
  std::vector<uint8_t> init;
  std::vector<Relocation> relocations;
  int line = 0;

  uint64_t size() const { return uint64_t(type.bytes()) * vector * count; }
};

struct Statement {
  std::string opcode;            // up to the first dot
  std::vector<std::string> mods; // behind it, without dots
  std::string guard;             // name of the predicate, empty for none
  bool guardNegated = false;
  std::vector<Operand> operands;
  int scope = 0, line = 0;
  std::string text;
};

/// A block of braces: names that are declared in it.
struct Scope {
  int parent = -1;
  std::map<std::string, int> registers; // index into Function::registers
  std::map<std::string, int> variables; // index into Function::variables
  std::map<std::string, int> labels;    // index into Function::statements
  std::map<std::string, std::vector<std::string>> branchTargets;
};

struct Function {
  std::string name;
  bool entry = false, hasBody = false;
  std::vector<Variable> params, results;
  std::vector<Type> registers;
  std::vector<Variable> variables; // .shared, .local, .param and others of the body
  std::vector<Scope> scopes;
  std::vector<Statement> statements;
  unsigned maxThreads = 0, minBlocks = 0, maxRegisters = 0;
  unsigned requiredThreads[3] = {0, 0, 0}, requiredCluster[3] = {0, 0, 0};
  int line = 0;
};

struct Module {
  int version = 0; // 10 * major + minor
  std::string target;
  std::map<std::string, Function> functions;
  std::map<std::string, Variable> variables;
  std::vector<std::string> order; // names of the variables, as declared
};

/// Parses a PTX text. Throws PtxError.
Module parsePtx(const std::string &text);

} // namespace fakegpu

#endif
