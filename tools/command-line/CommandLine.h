//===- CommandLine.h - the command lines of tools ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_COMMAND_LINE_COMMANDLINE_H
#define MESHWRIGHT_TOOLS_COMMAND_LINE_COMMANDLINE_H

#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace meshwright {

/// The command line of a tool: one model and options. The same table gives the parser (CLI11), the help, and by
/// the help the completions and the manual page.
///
/// A spelling is that of the help: `--seed=SEED`, `-o BUNDLE`, `--report[=FILE]`, `--quiet`. A value follows
/// behind `=` or as the next argument; one that may be missing follows behind `=` alone. Of an option that is
/// given twice the last value counts.
class CommandLine {
public:
  /// Reads a value. Returns the rest of an error, as in "expected a number, got 'x'"; empty if the value is right.
  using Read = std::function<std::string(const std::string &)>;

  /// The help begins with `usage`, one line for each form, and `summary`; it ends with `statuses`.
  CommandLine(std::string usage, std::string summary, std::string statuses);
  ~CommandLine();

  void setModel(std::string &to);
  /// An option whose value may be empty. An option without a text is not part of the help.
  void add(const char *spelling, const char *text, Read read);
  /// An option whose value is not empty.
  void add(const char *spelling, const char *text, std::string &to);
  /// An option whose value is a number: what it is, as in "a number above 0", and whether it is right.
  template <typename T>
  void addNumber(const char *spelling, const char *text, const char *what, std::function<bool(T)> isRight,
                 std::function<void(T)> set) {
    add(spelling, text, [=](const std::string &value) -> std::string {
      T number{};
      const char *last = value.data() + value.size();
      auto [rest, problem] = std::from_chars(value.data(), last, number);
      if (problem != std::errc() || rest != last || (isRight && !isRight(number)))
        return std::string("expected ") + what + ", got '" + value + "'";
      set(number);
      return "";
    });
  }
  /// A seed, a natural number below 2^64.
  void addSeed(const char *spelling, const char *text, std::optional<uint64_t> &to);
  void addFlag(const char *spelling, const char *text, bool &to, bool value = true);
  /// An option whose value may be missing, and is `without` then.
  void add(const char *spelling, const char *text, std::optional<std::string> &to, const char *without);
  /// An option whose value may be empty, as it is where nothing or another option follows; none if it is not given.
  void addMaybeEmpty(const char *spelling, const char *text, std::optional<std::string> &to);
  /// The options of all tools: `--quiet`, `--help` and `--version`.
  void addCommon(bool &quiet, bool &help, bool &version);
  /// An option that has another name now: an error that says so.
  void addRenamed(const char *name, const char *present, const char *expected);
  /// Two options exclude each other, as in ("--weights", "--random-weights").
  void exclude(const char *first, const char *second);

  /// Returns false, and sets `error`, for a wrong command line.
  bool parse(int argc, char **argv, std::string &error);
  std::string getHelp() const;

private:
  struct State;
  std::unique_ptr<State> state;
};

} // namespace meshwright

#endif // MESHWRIGHT_TOOLS_COMMAND_LINE_COMMANDLINE_H
