//===- Decoder.h - Helps the decoder of an instruction -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_INTERP_DECODER_H
#define FAKEGPU_INTERP_DECODER_H

#include "interp/Program.h"

#include <initializer_list>

namespace fakegpu {

class Linker;
class Decoder;
using DecodeFunction = void (*)(Decoder &);
using DecodeTable = std::map<std::string, DecodeFunction>;

/// Decoders by the first word of an opcode. Each file of ops/ adds its own.
const DecodeTable &decodeTable();

struct RegisterRef {
  uint32_t offset = kNone;
  Type type;
};

/// Decodes one statement. A decoder consumes each modifier that it knows; a modifier that is left
/// is an error, so that no instruction is executed without its whole meaning.
class Decoder {
public:
  Decoder(Linker &linker, const Function &function, const Statement &statement);

  const Statement &statement() const { return s; }
  [[noreturn]] void fail(const std::string &what) const;

  /// Consumes a modifier if it is there.
  bool take(const char *mod);
  void require(const char *mod);
  /// Consumes the first of these that is there; returns its index, or -1.
  int takeOneOf(std::initializer_list<const char *> mods);
  /// Consumes modifiers that have no effect on results (cache hints, ordering and scope).
  void ignore(std::initializer_list<const char *> mods);
  bool hasType() const;
  /// Consumes the first modifier that is a type.
  Type takeType();
  /// Consumes the first modifier that starts so, e.g. "m16n8k"; returns the rest.
  std::optional<std::string> takePrefix(const char *prefix);

  size_t operands() const { return s.operands.size(); }
  const Operand &operand(size_t i) const;
  void expectOperands(size_t least, size_t most) const;

  /// A source of this width: a register, or a constant.
  uint32_t source(const Operand &o, Type type);
  uint32_t source(size_t i, Type type) { return source(operand(i), type); }
  uint32_t predicate(size_t i);
  uint32_t constant(unsigned bits, uint64_t value);
  /// A register that is written; "_" gives one that no instruction reads.
  uint32_t destination(const Operand &o, Type type);
  uint32_t destination(size_t i, Type type) { return destination(operand(i), type); }
  /// The register of an operand, with its declared type.
  RegisterRef reg(const Operand &o);
  bool isRegister(const Operand &o) const;
  /// The elements of a vector operand, or the operand itself.
  std::vector<Operand> elements(size_t i) const;
  std::optional<uint64_t> integer(const Operand &o) const;

  /// Sets base, width of base, offset and, for a variable, the space of a memory operand.
  void address(size_t i, Space space);
  void address(const Operand &memory, Space space);
  Space takeSpace();

  Linker &linker;
  const Function &function;
  Inst inst;
  /// Sets the handler. Instructions that a decoder adds behind this one follow `emit`.
  void finish(Handler handler) { inst.run = handler; }
  void checkAllTaken() const;

private:
  const Statement &s;
  std::vector<bool> taken;
};

/// The width in bits of a register of this type: 16, 32, 64 or 128; 1 for a predicate.
unsigned registerBits(Type type);

} // namespace fakegpu

#endif
