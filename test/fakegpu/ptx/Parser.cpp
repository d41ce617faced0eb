//===- Parser.cpp - PTX text to a Module ------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ptx/Lexer.h"
#include "ptx/Module.h"

#include <cstdlib>
#include <cstring>

namespace fakegpu {

std::optional<Type> parseType(const std::string &text) {
  static const std::map<std::string, Type> types = [] {
    std::map<std::string, Type> t;
    for (uint16_t bits : {8, 16, 32, 64, 128}) {
      std::string n = std::to_string(bits);
      t["b" + n] = {Type::Bits, bits};
      if (bits < 128) {
        t["u" + n] = {Type::Unsigned, bits};
        t["s" + n] = {Type::Signed, bits};
      }
      if (bits >= 16 && bits < 128)
        t["f" + n] = {Type::Float, bits};
    }
    t["pred"] = {Type::Pred, 1};
    t["bf16"] = {Type::BFloat, 16};
    t["tf32"] = {Type::TF32, 32};
    t["f16x2"] = {Type::Float, 16, 2};
    t["bf16x2"] = {Type::BFloat, 16, 2};
    t["f32x2"] = {Type::Float, 32, 2};
    t["u16x2"] = {Type::Unsigned, 16, 2};
    t["s16x2"] = {Type::Signed, 16, 2};
    t["e4m3x2"] = {Type::E4M3, 8, 2};
    t["e5m2x2"] = {Type::E5M2, 8, 2};
    return t;
  }();
  auto found = types.find(text);
  return found == types.end() ? std::nullopt : std::optional<Type>(found->second);
}

namespace {

class Parser {
public:
  explicit Parser(const std::string &source) : source(source), tokens(tokenize(source)) {}

  Module run() {
    while (peek().kind != Token::End)
      topLevel();
    if (!module.version)
      throw PtxError(1, "no .version directive");
    return std::move(module);
  }

private:
  const Token &peek(size_t ahead = 0) const {
    return tokens[std::min(at + ahead, tokens.size() - 1)];
  }
  bool is(const char *text) const { return peek().text == text; }
  Token take() { return tokens[at < tokens.size() - 1 ? at++ : at]; }
  bool accept(const char *text) { return is(text) ? (take(), true) : false; }
  Token expect(const char *text) {
    if (!is(text))
      fail(std::string("expected '") + text + "', got '" + peek().text + "'");
    return take();
  }
  [[noreturn]] void fail(const std::string &what) const { throw PtxError(peek().line, what); }

  int64_t integer() {
    bool negative = accept("-");
    if (peek().kind != Token::Number)
      fail("expected an integer, got '" + peek().text + "'");
    auto value = int64_t(strtoull(take().text.c_str(), nullptr, 0));
    return negative ? -value : value;
  }

  std::string word() {
    if (peek().kind != Token::Word)
      fail("expected a name, got '" + peek().text + "'");
    return take().text;
  }

  void skipThroughSemicolon() {
    while (peek().kind != Token::End && !accept(";"))
      take();
  }

  void skipBraces() {
    int depth = 0;
    do {
      depth += is("{") ? 1 : is("}") ? -1 : 0;
      take();
    } while (depth && peek().kind != Token::End);
  }

  void topLevel() {
    if (accept(".version")) {
      std::string version = take().text; // "8.0"
      size_t dot = version.find('.');
      if (dot == std::string::npos)
        fail("expected a version such as 8.0, got '" + version + "'");
      module.version = atoi(version.c_str()) * 10 + atoi(version.c_str() + dot + 1);
    } else if (accept(".target")) {
      module.target = word();
      while (accept(","))
        word();
    } else if (accept(".address_size")) {
      if (integer() != 64)
        fail("expected .address_size 64");
    } else if (accept(".file") || accept(".loc")) {
      int line = peek().line;
      while (peek().line == line && peek().kind != Token::End)
        take();
    } else if (accept(".section")) {
      while (!is("{"))
        take();
      skipBraces();
    } else if (accept(".pragma") || accept(".alias")) {
      skipThroughSemicolon();
    } else {
      declaration();
    }
  }

  /// A function or a variable, with its linkage.
  void declaration() {
    bool external = false;
    for (;; take()) {
      if (is(".extern"))
        external = true;
      else if (!is(".visible") && !is(".weak") && !is(".common"))
        break;
    }
    if (accept(".entry"))
      return function(true);
    if (accept(".func"))
      return function(false);
    for (const char *space : {".global", ".const", ".shared"}) {
      if (!is(space))
        continue;
      for (Variable &v : variables()) {
        v.external = external;
        auto known = module.variables.find(v.name);
        if (known != module.variables.end() && !known->second.external && !external)
          throw PtxError(v.line, "variable '" + v.name + "' is defined twice");
        if (known == module.variables.end())
          module.order.push_back(v.name);
        if (known == module.variables.end() || !external)
          module.variables[v.name] = v;
      }
      return;
    }
    fail("unknown directive '" + peek().text + "'");
  }

  /// ".space attributes .type name[n] = init, ..." up to ";".
  std::vector<Variable> variables() {
    std::vector<Variable> result;
    Variable prototype = variableHead();
    do {
      Variable v = prototype;
      variableTail(v);
      result.push_back(v);
    } while (accept(","));
    expect(";");
    return result;
  }

  Variable variableHead() {
    Variable v;
    v.line = peek().line;
    v.space = word().substr(1);
    for (;;) {
      if (accept(".align")) {
        v.align = unsigned(integer());
      } else if (accept(".v2")) {
        v.vector = 2;
      } else if (accept(".v4")) {
        v.vector = 4;
      } else if (accept(".attribute")) {
        while (!accept(")"))
          take();
      } else if (accept(".ptr")) {
        for (const char *space : {".global", ".const", ".shared", ".local"})
          if (accept(space))
            break;
        if (accept(".align"))
          integer();
      } else if (auto type = parseType(is("") ? "" : peek().text.substr(1));
                 type && peek().text[0] == '.') {
        take();
        v.type = *type;
      } else {
        break;
      }
    }
    if (!v.type.bits)
      fail("expected a type, got '" + peek().text + "'");
    return v;
  }

  void variableTail(Variable &v) {
    v.line = peek().line;
    v.name = word();
    while (accept("[")) {
      v.count *= is("]") ? 0 : uint64_t(integer());
      expect("]");
    }
    if (!v.align)
      v.align = v.type.bytes() * v.vector;
    if (accept("="))
      initializer(v);
  }

  void initializer(Variable &v) {
    if (accept("{")) {
      while (!accept("}")) {
        initializer(v);
        accept(",");
      }
      return;
    }
    size_t offset = v.init.size();
    v.init.resize(offset + v.type.bytes());
    Operand value;
    if (is("generic") && peek(1).text == "(") {
      take(), take();
      value = operand();
      expect(")");
      v.relocations.push_back({offset, value.name, value.offset, true});
      return;
    }
    value = operand();
    if (value.form == Operand::Name) {
      v.relocations.push_back({offset, value.name, value.offset, false});
      return;
    }
    uint64_t bits = value.bits;
    if (value.form == Operand::Decimal && v.type.bits == 64)
      memcpy(&bits, &value.decimal, 8);
    if (value.form == Operand::Decimal && v.type.bits == 32) {
      auto f = float(value.decimal);
      memcpy(&bits, &f, 4);
    }
    memcpy(&v.init[offset], &bits, v.type.bytes());
  }

  std::vector<Variable> parameters() {
    std::vector<Variable> result;
    expect("(");
    while (!accept(")")) {
      Variable v = variableHead();
      variableTail(v);
      result.push_back(v);
      accept(",");
    }
    return result;
  }

  void function(bool entry) {
    Function f;
    f.entry = entry;
    f.line = peek().line;
    if (is("("))
      f.results = parameters();
    f.name = word();
    if (is("("))
      f.params = parameters();
    while (!is("{") && !is(";"))
      functionDirective(f);
    if (!accept(";")) {
      f.hasBody = true;
      f.scopes.push_back({});
      current = &f;
      take();
      body(0);
      current = nullptr;
    }
    auto known = module.functions.find(f.name);
    if (known != module.functions.end() && known->second.hasBody) {
      if (f.hasBody)
        throw PtxError(f.line, "function '" + f.name + "' is defined twice");
      return;
    }
    module.functions[f.name] = std::move(f);
  }

  void three(unsigned (&values)[3]) {
    values[0] = unsigned(integer());
    values[1] = accept(",") ? unsigned(integer()) : 1;
    values[2] = accept(",") ? unsigned(integer()) : 1;
  }

  void functionDirective(Function &f) {
    unsigned values[3];
    if (accept(".maxntid")) {
      three(values);
      f.maxThreads = values[0] * values[1] * values[2];
    } else if (accept(".reqntid")) {
      three(f.requiredThreads);
    } else if (accept(".reqnctapercluster")) {
      three(f.requiredCluster);
    } else if (accept(".minnctapersm")) {
      f.minBlocks = unsigned(integer());
    } else if (accept(".maxnreg")) {
      f.maxRegisters = unsigned(integer());
    } else if (accept(".maxclusterrank")) {
      integer();
    } else if (accept(".pragma")) {
      skipThroughSemicolon();
    } else if (!accept(".noreturn") && !accept(".explicitcluster") && !accept(".blocksareclusters")) {
      fail("unknown directive '" + peek().text + "' of a function");
    }
  }

  /// Statements up to the closing brace of a scope.
  void body(int scope) {
    while (!accept("}")) {
      if (peek().kind == Token::End)
        fail("expected '}'");
      if (accept("{")) {
        current->scopes.push_back({});
        current->scopes.back().parent = scope;
        body(int(current->scopes.size()) - 1);
      } else if (accept(";")) {
      } else if (peek().kind == Token::Word && peek(1).text == ":") {
        label(scope);
      } else if (peek().text[0] == '.') {
        bodyDirective(scope);
      } else {
        statement(scope);
      }
    }
  }

  void label(int scope) {
    std::string name = word();
    expect(":");
    if (accept(".branchtargets")) {
      auto &targets = current->scopes[scope].branchTargets[name];
      do
        targets.push_back(word());
      while (accept(","));
      expect(";");
      return;
    }
    if (is(".callprototype"))
      fail("indirect calls (.callprototype) are not supported");
    if (!current->scopes[scope].labels.emplace(name, int(current->statements.size())).second)
      fail("label '" + name + "' is defined twice");
  }

  void bodyDirective(int scope) {
    if (accept(".loc") || accept(".file")) {
      int line = tokens[at - 1].line;
      while (peek().line == line && !is("}"))
        take();
    } else if (accept(".pragma")) {
      skipThroughSemicolon();
    } else if (accept(".reg")) {
      registers(scope);
    } else if (is(".param") || is(".local") || is(".shared") || is(".global") || is(".const")) {
      for (Variable &v : variables()) {
        current->scopes[scope].variables[v.name] = int(current->variables.size());
        current->variables.push_back(v);
      }
    } else {
      fail("unknown directive '" + peek().text + "'");
    }
  }

  void registers(int scope) {
    auto type = parseType(word().substr(1));
    if (!type)
      fail("unknown type of a register");
    auto declare = [&](const std::string &name) {
      current->scopes[scope].registers[name] = int(current->registers.size());
      current->registers.push_back(*type);
    };
    do {
      std::string name = word();
      if (accept("<")) {
        int64_t count = integer();
        expect(">");
        for (int64_t i = 0; i < count; ++i)
          declare(name + std::to_string(i));
      } else {
        declare(name);
      }
    } while (accept(","));
    expect(";");
  }

  void statement(int scope) {
    Statement s;
    s.scope = scope;
    s.line = peek().line;
    size_t begin = peek().begin;
    if (accept("@")) {
      s.guardNegated = accept("!");
      s.guard = word();
    }
    std::string opcode = word();
    for (size_t from = 0; from <= opcode.size();) {
      size_t dot = std::min(opcode.find('.', from), opcode.size());
      std::string part = opcode.substr(from, dot - from);
      if (from == 0)
        s.opcode = part;
      else
        s.mods.push_back(part);
      from = dot + 1;
    }
    while (!is(";")) {
      s.operands.push_back(operand());
      if (!accept(",") && !is(";"))
        fail("expected ',' or ';', got '" + peek().text + "'");
    }
    s.text = oneLine(source.substr(begin, peek().begin - begin));
    take();
    current->statements.push_back(std::move(s));
  }

  static std::string oneLine(const std::string &text) {
    std::string result;
    for (char c : text) {
      bool blank = isspace((unsigned char)c);
      if (!blank || (!result.empty() && result.back() != ' '))
        result += blank ? ' ' : c;
    }
    while (!result.empty() && result.back() == ' ')
      result.pop_back();
    return result;
  }

  std::vector<Operand> until(const char *close) {
    std::vector<Operand> parts;
    while (!accept(close)) {
      parts.push_back(operand());
      if (!accept(",") && !is(close))
        fail(std::string("expected '") + close + "', got '" + peek().text + "'");
    }
    return parts;
  }

  Operand operand() {
    Operand o;
    if (accept("{")) {
      o.form = Operand::Vector;
      o.parts = until("}");
    } else if (accept("(")) {
      o.form = Operand::List;
      o.parts = until(")");
    } else if (accept("[")) {
      o.form = Operand::Memory;
      o.parts = until("]");
      if (o.parts.empty())
        fail("expected an address");
      o.offset = o.parts[0].offset;
    } else {
      o = simple();
      if (accept("|")) {
        Operand pair;
        pair.form = Operand::Pair;
        pair.parts = {o, simple()};
        return pair;
      }
    }
    return o;
  }

  Operand simple() {
    Operand o;
    o.negated = accept("!");
    if (peek().kind == Token::Word) {
      o.name = word();
      if (is("+") || is("-")) {
        bool negative = take().text == "-";
        int64_t value = integer();
        o.offset = negative ? -value : value;
      }
      return o;
    }
    bool negative = accept("-");
    if (peek().kind != Token::Number)
      fail("expected an operand, got '" + peek().text + "'");
    number(o, take().text, negative);
    return o;
  }

  static void number(Operand &o, const std::string &text, bool negative) {
    bool prefixed = text.size() > 2 && text[0] == '0';
    char kind = prefixed ? char(tolower(text[1])) : ' ';
    if (kind == 'f' || kind == 'd') {
      o.form = kind == 'f' ? Operand::F32 : Operand::F64;
      o.bits = strtoull(text.c_str() + 2, nullptr, 16);
      if (negative)
        o.bits ^= uint64_t(1) << (kind == 'f' ? 31 : 63);
    } else if (kind != 'x' && text.find_first_of(".eE") != std::string::npos) {
      o.form = Operand::Decimal;
      o.decimal = strtod(text.c_str(), nullptr) * (negative ? -1 : 1);
    } else {
      o.form = Operand::Integer;
      o.bits = kind == 'b' ? strtoull(text.c_str() + 2, nullptr, 2)
                           : strtoull(text.c_str(), nullptr, 0);
      if (negative)
        o.bits = -o.bits;
    }
  }

  const std::string &source;
  std::vector<Token> tokens;
  size_t at = 0;
  Module module;
  Function *current = nullptr;
};

} // namespace

Module parsePtx(const std::string &text) { return Parser(text).run(); }

} // namespace fakegpu
