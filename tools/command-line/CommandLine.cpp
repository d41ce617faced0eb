//===- CommandLine.cpp - the command lines of tools -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CommandLine.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <deque>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

using namespace meshwright;

/// The columns of the help: where texts begin, and where lines end.
static constexpr size_t kTextColumn = 24, kWidth = 84;
/// The value of a flag without one. No file has this name.
static constexpr char kWithout[] = "\1";

namespace {
/// An option whose value may be missing. Empty text: the option is not given.
struct OptionalValue {
  std::optional<std::string> *to;
  const char *without;
  std::string text;
};
} // namespace

struct CommandLine::State {
  std::string usage, summary, statuses;
  CLI::App app;
  std::string *model = nullptr;
  /// More than one is an error.
  std::vector<std::string> models;
  /// Lines of the help: spelling and text.
  std::vector<std::pair<std::string, std::string>> lines;
  std::vector<std::pair<CLI::Option *, CLI::Option *>> exclusions;
  /// A deque, since options point to its elements.
  std::deque<OptionalValue> optional;
  /// The names of options whose value is empty where no argument, or another option, follows.
  std::set<std::string> maybeEmpty;

  /// Adds a line to the help, and returns the name of the option.
  std::string addLine(const char *spelling, const char *text) {
    if (text)
      lines.emplace_back(spelling, text);
    std::string name = spelling;
    return name.substr(0, name.find_first_of("= ["));
  }
  std::vector<std::string> separate(int argc, char **argv) const;
};

CommandLine::CommandLine(std::string usage, std::string summary, std::string statuses)
    : state(std::make_unique<State>()) {
  state->usage = std::move(usage);
  state->summary = std::move(summary);
  state->statuses = std::move(statuses);
  state->app.set_help_flag();
  state->app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CommandLine::~CommandLine() = default;

void CommandLine::setModel(std::string &to) {
  state->model = &to;
  state->app.add_option("model", state->models)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void CommandLine::add(const char *spelling, const char *text, Read read) {
  std::string name = state->addLine(spelling, text);
  state->app.add_option_function<std::string>(name, [=](const std::string &value) {
    if (std::string error = read(value); !error.empty())
      throw CLI::ValidationError(name, error);
  });
}

void CommandLine::add(const char *spelling, const char *text, std::string &to) {
  std::string name = state->addLine(spelling, text);
  state->app.add_option_function<std::string>(name, [&to, name](const std::string &value) {
    if (value.empty())
      throw CLI::ArgumentMismatch(name + " needs a value", CLI::ExitCodes::ArgumentMismatch);
    to = value;
  });
}

void CommandLine::addSeed(const char *spelling, const char *text, std::optional<uint64_t> &to) {
  addNumber<uint64_t>(spelling, text, "a natural number below 2^64", nullptr, [&to](uint64_t seed) { to = seed; });
}

void CommandLine::addMaybeEmpty(const char *spelling, const char *text, std::optional<std::string> &to) {
  std::string name = spelling;
  state->maybeEmpty.insert(name.substr(0, name.find('=')));
  add(spelling, text, [&to](const std::string &value) {
    to = value;
    return "";
  });
}

void CommandLine::addCommon(bool &quiet, bool &help, bool &version) {
  addFlag("--quiet",
          "no line that says how far things are (there is none either where standard error is no terminal)", quiet);
  addFlag("--help", "this text", help);
  addFlag("-h", nullptr, help);
  addFlag("--version", "the versions of the tool, LLVM and compiled programs", version);
}

void CommandLine::addRenamed(const char *name, const char *present, const char *expected) {
  std::string error = std::string(name) + " is now " + present + ": expected " + expected;
  state->app.add_option_function<std::string>(name, [=](const std::string &) {
    throw CLI::ArgumentMismatch(error, CLI::ExitCodes::ArgumentMismatch);
  });
}

void CommandLine::addFlag(const char *spelling, const char *text, bool &to, bool value) {
  std::string name = state->addLine(spelling, text);
  state->app.add_flag_callback(name, [&to, value] { to = value; })->disable_flag_override();
}

void CommandLine::add(const char *spelling, const char *text, std::optional<std::string> &to, const char *without) {
  std::string name = state->addLine(spelling, text);
  // CLI11 would take the next argument as the value of an option, but not as that of a flag.
  OptionalValue &value = state->optional.emplace_back(OptionalValue{&to, without, ""});
  state->app.add_flag(name + "{" + kWithout + "}", value.text);
}

void CommandLine::exclude(const char *first, const char *second) {
  CLI::Option *a = state->app.get_option(first), *b = state->app.get_option(second);
  a->excludes(b);
  state->exclusions.emplace_back(a, b);
}

/// CLI11 takes the next argument as the value in `--name=`, and expects one behind `--name`: an empty value
/// becomes an argument of its own.
std::vector<std::string> CommandLine::State::separate(int argc, char **argv) const {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    const CLI::Option *option =
        equals + 1 == argument.size() && argument[0] == '-' ? app.get_option_no_throw(name) : nullptr;
    if (!option) {
      arguments.push_back(argument);
      if (maybeEmpty.count(argument) && (i + 1 == argc || argv[i + 1][0] == '-'))
        arguments.emplace_back();
      continue;
    }
    if (option->get_items_expected_max() == 0)
      throw CLI::ArgumentMismatch(argument + " needs a value", CLI::ExitCodes::ArgumentMismatch);
    arguments.push_back(name);
    arguments.emplace_back();
  }
  // The parser takes them from the back.
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

bool CommandLine::parse(int argc, char **argv, std::string &error) {
  try {
    state->app.parse(state->separate(argc, argv));
  } catch (const CLI::ExtrasError &) {
    for (const std::string &argument : state->app.remaining())
      if (error.empty() && argument.size() > 1 && argument[0] == '-')
        error = "unknown option '" + argument + "'";
  } catch (const CLI::ExcludesError &) {
    for (auto [first, second] : state->exclusions)
      if (error.empty() && first->count() && second->count())
        error = first->get_name() + " and " + second->get_name() + " exclude each other";
  } catch (const CLI::ArgumentMismatch &mismatch) {
    error = mismatch.what();
    // The library's own are "-o: 1 required TEXT missing" and "quiet was given a disallowed flag override".
    if (size_t end = error.find(": 1 required"); end != std::string::npos)
      error = error.substr(0, end) + " needs a value";
    else if (size_t end = error.find(" was given a disallowed"); end != std::string::npos)
      error = (end == 1 ? "-" : "--") + error.substr(0, end) + " takes no value";
  } catch (const CLI::ParseError &other) {
    error = other.what();
  }
  if (!error.empty())
    return false;
  for (const OptionalValue &value : state->optional)
    if (!value.text.empty())
      *value.to = value.text == kWithout ? value.without : value.text;
  if (state->models.size() > 1)
    error = "more than one model: '" + state->models[0] + "' and '" + state->models[1] + "'";
  else if (!state->models.empty())
    *state->model = state->models.front();
  return error.empty();
}

/// Appends a text as words, in lines that begin at a column. The first line has begun.
static void wrap(std::string &to, const std::string &text, size_t column, size_t used) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (used > column && used + 1 + word.size() > kWidth) {
      to += "\n" + std::string(column, ' ');
      used = column;
    }
    if (used > column) {
      to += ' ';
      ++used;
    }
    to += word;
    used += word.size();
  }
  to += '\n';
}

std::string CommandLine::getHelp() const {
  std::string help = "usage: ";
  for (char c : state->usage)
    help += c == '\n' ? "\n       " : std::string(1, c);
  help += "\n\n";
  wrap(help, state->summary, 0, 0);
  help += '\n';
  for (const auto &[spelling, text] : state->lines) {
    std::string start = "  " + spelling;
    start.resize(std::max(start.size() + 1, kTextColumn), ' ');
    help += start;
    wrap(help, text, kTextColumn, kTextColumn);
  }
  return help + "\nexit status: " + state->statuses + "\n";
}
