//===- main.cpp - sharding-compile ----------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Version.h"

#include "meshwright-c/Run.h"
#include "meshwright/runtime/include/MappedFile.h"
#include "meshwright/runtime/include/Progress.h"
#include "meshwright/runtime/include/WholeFile.h"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

namespace {

enum Status { Fine = 0, Error = 1, WrongUsage = 2 };

const char *const usage =
    "usage: sharding-compile MODEL.mlir [options] -o BUNDLE\n"
    "\n"
    "Compiles a model ahead of time. The bundle, a folder, runs by sharding-run on\n"
    "machines without a compiler. It replaces another bundle, and nothing else.\n"
    "\n"
    "  --weights=FILE        parameters (safetensors)\n"
    "  --random-weights=SEED parameters at random instead; the seed and a parameter's name\n"
    "                        decide its values\n"
    "  --without-weights     a bundle without weights: sharding-run is given some\n"
    "  --parallelize=OPTIONS rewrite the model for several ranks first, for example\n"
    "                        \"mesh=tp=4 sequence-parallel=auto\"\n"
    "  --target=TARGET       the target to compile for: cpu, this machine's processor, or\n"
    "                        cpu:NAME, another one by LLVM's name (cpu:x86-64-v3,\n"
    "                        cpu:znver4, ...; default: the target of --parallelize, or cpu);\n"
    "                        or gpu:CHIP (gpu:sm_90a, ...)\n"
    "  -o BUNDLE             where the bundle goes\n"
    "  --quiet               no line that says how far things are (there is none either\n"
    "                        where standard error is no terminal)\n"
    "  --version             the versions of the tool, LLVM and compiled programs\n"
    "\n"
    "exit status: 0 fine, 1 an error, 2 wrong usage\n";

struct Options {
  std::string model, weights, randomWeights, bundle, parallelize, target;
  uint64_t seed = 0;
  bool withWeights = true, rewrites = false, quiet = false, help = false, version = false;
};

bool parseOptions(int argc, char **argv, Options &options, std::string &error) {
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    const std::pair<const char *, std::string *> texts[] = {{"--weights", &options.weights},
                                                            {"--random-weights",
                                                             &options.randomWeights},
                                                            {"-o", &options.bundle},
                                                            {"--parallelize", &options.parallelize},
                                                            {"--target", &options.target}};
    bool known = false;
    for (auto [name, to] : texts) {
      size_t length = std::strlen(name);
      bool isLong = name[1] == '-';
      // --name=value or --name value, -o value.
      if (isLong && argument.compare(0, length, name) == 0 && argument[length] == '=')
        *to = argument.substr(length + 1);
      else if (argument != name)
        continue;
      else if (i + 1 < argc)
        *to = argv[++i];
      known = true;
      options.rewrites |= to == &options.parallelize;
      if (to->empty() && to != &options.parallelize) {
        error = std::string(name) + " needs a value";
        return false;
      }
    }
    if (known)
      continue;
    if (argument == "--quiet") {
      options.quiet = true;
    } else if (argument == "--without-weights") {
      options.withWeights = false;
    } else if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else if (argument == "--version") {
      options.version = true;
    } else if (argument.rfind("--target-cpu", 0) == 0) {
      error = "--target-cpu is now --target: expected --target=cpu:NAME";
      return false;
    } else if (argument.size() > 1 && argument[0] == '-') {
      error = "unknown option '" + argument + "'";
      return false;
    } else if (!options.model.empty()) {
      error = "more than one model: '" + options.model + "' and '" + argument + "'";
      return false;
    } else {
      options.model = argument;
    }
  }
  if (options.help || options.version)
    return true;
  if (options.model.empty())
    error = "no model given";
  else if (options.bundle.empty())
    error = "no bundle given: expected -o BUNDLE";
  else if (!options.weights.empty() && !options.randomWeights.empty())
    error = "--weights and --random-weights exclude each other";
  else if (!options.withWeights && !(options.weights + options.randomWeights).empty())
    error = std::string("--without-weights and ") +
            (options.weights.empty() ? "--random-weights" : "--weights") +
            " exclude each other";
  const char *seed = options.randomWeights.data(), *last = seed + options.randomWeights.size();
  if (auto [rest, problem] = std::from_chars(seed, last, options.seed);
      seed != last && (problem != std::errc() || rest != last))
    error = "--random-weights: expected a natural number below 2^64, got '" +
            options.randomWeights + "'";
  return error.empty() &&
         meshwright::rt::checkDistinct(
             {{"-o", options.bundle}},
             {{"the model", options.model}, {"--weights", options.weights}}, error);
}

void say(void *, int32_t severity, const char *where, const char *what) {
  meshwright::rt::Progress::clear();
  const char *names[] = {"note", "remark", "warning", "error"};
  if (*where)
    std::fprintf(stderr, "%s: ", where);
  std::fprintf(stderr, "%s: %s\n", names[severity], what);
}

/// Prints an error about the command line.
int refuse(const char *message) {
  std::fprintf(stderr, "sharding-compile: error: %s\nsee sharding-compile --help\n", message);
  return WrongUsage;
}

} // namespace

int main(int argc, char **argv) {
  Options options;
  std::string error;
  if (!parseOptions(argc, argv, options, error))
    return refuse(error.c_str());
  if (options.help || options.version) {
    if (options.help)
      std::fputs(usage, stdout);
    else
      std::printf("sharding-compile%s", meshwright::kVersionText);
    if (meshwright::rt::finishOutput(error))
      return Fine;
    say(nullptr, MW_ERROR, "", error.c_str());
    return Error;
  }
  const char *parallelize = options.rewrites ? options.parallelize.c_str() : nullptr;
  const char *target = options.target.empty() ? nullptr : options.target.c_str();
  auto refuseOption = [](void *, int32_t, const char *, const char *what) { refuse(what); };
  if (mw_check_options(parallelize, target, refuseOption, nullptr) != 0)
    return WrongUsage;
  if (options.quiet)
    meshwright::rt::Progress::hide();
  meshwright::rt::MappedFile::reportLostFiles("sharding-compile");
  meshwright::rt::Temporary::removeOnSignals();
  std::optional<meshwright::rt::Progress> progress;
  progress.emplace("planning");
  std::unique_ptr<mw_program, decltype(&mw_program_close)> program(
      mw_program_open(options.model.c_str(), parallelize, say, nullptr), mw_program_close);
  if (!program)
    return Error;
  if (int64_t count = mw_program_count(program.get(), MW_PARAMETER);
      count > 0 && options.withWeights && options.weights.empty() &&
      options.randomWeights.empty()) {
    say(nullptr, MW_ERROR, "",
        ("the program has " + std::to_string(count) +
         " parameters: give --weights, --random-weights or --without-weights")
            .c_str());
    return Error;
  }
  progress.emplace(options.randomWeights.empty() ? "loading weights" : "drawing weights");
  if (!options.randomWeights.empty() &&
      mw_program_random_weights(program.get(), options.seed) != 0)
    return Error;
  if (!options.weights.empty() &&
      mw_program_load_weights(program.get(), options.weights.c_str()) != 0)
    return Error;
  progress.emplace("compiling");
  auto *compile =
      options.withWeights ? mw_program_compile : mw_program_compile_without_weights;
  return compile(program.get(), options.bundle.c_str(), target) == 0 ? Fine : Error;
}
