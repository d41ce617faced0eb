//===- main.cpp - sharding-compile ----------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CommandLine.h"
#include "Version.h"

#include "meshwright-c/Run.h"
#include "meshwright/runtime/include/MappedFile.h"
#include "meshwright/runtime/include/Progress.h"
#include "meshwright/runtime/include/WholeFile.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace {

enum Status { Fine = 0, Error = 1, WrongUsage = 2 };

struct Options {
  std::string model, weights, bundle, target;
  std::optional<std::string> parallelize;
  std::optional<uint64_t> randomWeights;
  bool withWeights = true, quiet = false, help = false, version = false;
  /// The help, where it is asked for.
  std::string usage;
};

void addOptions(meshwright::CommandLine &line, Options &options) {
  line.setModel(options.model);
  line.addFlag("--without-weights", "a bundle without weights: sharding-run is given some", options.withWeights,
               false);
  line.add("--weights=FILE", "parameters (safetensors)", options.weights);
  line.addSeed("--random-weights=SEED",
               "parameters at random instead; the seed and a parameter's name decide its values",
               options.randomWeights);
  line.addMaybeEmpty("--parallelize=OPTIONS",
                     "rewrite the model for several ranks first, for example \"mesh=tp=4 sequence-parallel=auto\"",
                     options.parallelize);
  line.add("--target=TARGET",
           "the target to compile for: cpu, this machine's processor, or cpu:NAME, another one by LLVM's name "
           "(cpu:x86-64-v3, cpu:znver4, ...; default: the target of --parallelize, or cpu); or gpu:CHIP "
           "(gpu:sm_90a, ...)",
           options.target);
  line.addRenamed("--target-cpu", "--target", "--target=cpu:NAME");
  line.add("-o BUNDLE", "where the bundle goes", options.bundle);
  line.addCommon(options.quiet, options.help, options.version);
  line.exclude("--weights", "--random-weights");
  line.exclude("--without-weights", "--weights");
  line.exclude("--without-weights", "--random-weights");
}

bool parseOptions(int argc, char **argv, Options &options, std::string &error) {
  meshwright::CommandLine line("sharding-compile MODEL.mlir [options] -o BUNDLE",
                               "Compiles a model ahead of time. The bundle, a folder, runs by sharding-run on machines "
                               "without a compiler. It replaces another bundle, and nothing else.",
                               "0 fine, 1 an error, 2 wrong usage");
  addOptions(line, options);
  if (!line.parse(argc, argv, error))
    return false;
  if (options.help)
    options.usage = line.getHelp();
  if (options.help || options.version)
    return true;
  if (options.model.empty())
    error = "no model given";
  else if (options.bundle.empty())
    error = "no bundle given: expected -o BUNDLE";
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
      std::fputs(options.usage.c_str(), stdout);
    else
      std::printf("sharding-compile%s", meshwright::kVersionText);
    if (meshwright::rt::finishOutput(error))
      return Fine;
    say(nullptr, MW_ERROR, "", error.c_str());
    return Error;
  }
  const char *parallelize = options.parallelize ? options.parallelize->c_str() : nullptr;
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
      count > 0 && options.withWeights && options.weights.empty() && !options.randomWeights) {
    say(nullptr, MW_ERROR, "",
        ("the program has " + std::to_string(count) +
         " parameters: give --weights, --random-weights or --without-weights")
            .c_str());
    return Error;
  }
  progress.emplace(options.randomWeights ? "drawing weights" : "loading weights");
  if (options.randomWeights && mw_program_random_weights(program.get(), *options.randomWeights) != 0)
    return Error;
  if (!options.weights.empty() &&
      mw_program_load_weights(program.get(), options.weights.c_str()) != 0)
    return Error;
  progress.emplace("compiling");
  auto *compile =
      options.withWeights ? mw_program_compile : mw_program_compile_without_weights;
  return compile(program.get(), options.bundle.c_str(), target) == 0 ? Fine : Error;
}
