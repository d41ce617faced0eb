//===- Options.cpp - the command line of sharding-run ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Options.h"
#include "CommandLine.h"
#include "Page.h"

#include "meshwright/runtime/include/Link.h"
#include "meshwright/runtime/include/WholeFile.h"
#include "meshwright/runtime/include/World.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>

namespace meshwright::run {

static bool checkFiles(const Options &options, std::string &error) {
  return rt::checkDistinct({{"--outputs", options.outputs},
                            {"--completions", options.completions == "-" ? "" : options.completions},
                            {"--trace", options.running.traceFile},
                            {"--save-state", options.saveState},
                            {"--report", options.report == "-" ? "" : options.report.value_or("")}},
                           {{options.isBundle ? "the bundle" : "the model", options.model},
                            {"--weights", options.weights},
                            {"--inputs", options.inputs},
                            {"--prompts", options.prompts},
                            {"--reference", options.reference}},
                           error);
}

/// Checks the options of prompts against the others.
static bool checkPrompts(const Options &options, std::string &error) {
  if (options.prompts.empty()) {
    const std::string &first = options.completions.empty() ? options.requestOption : "--completions";
    if (!first.empty())
      error = first + " needs --prompts";
    return error.empty();
  }
  if (!options.isBundle)
    error = "--prompts is for bundles: expected a folder that Plan.compile of a model that serves wrote";
  const std::pair<const char *, bool> others[] = {{"--inputs", !options.inputs.empty()},
                                                  {"--random-inputs", options.randomInputs.has_value()},
                                                  {"--outputs", !options.outputs.empty()},
                                                  {"--entry", !options.entry.empty()},
                                                  {"--reference", !options.reference.empty()},
                                                  {"--trace", !options.running.traceFile.empty()},
                                                  {"--report", options.report.has_value()}};
  for (auto [name, isGiven] : others)
    if (isGiven && error.empty())
      error = std::string("--prompts and ") + name + " exclude each other";
  return error.empty();
}

/// Checks the options of a bundle, which is rewritten and compiled already.
static bool checkBundle(const Options &options, std::string &error) {
  if (options.parallelize) {
    error = "a bundle is parallelized already: expected no --parallelize";
    return false;
  }
  if (!options.target.empty()) {
    error = "a bundle is compiled already: expected no --target";
    return false;
  }
  if (options.report && isPage(*options.report)) {
    error = "a bundle has no launches and buffers for a page: expected --report=FILE.json or a text";
    return false;
  }
  if (options.check && options.reference.empty()) {
    error = "a bundle has no program to compare with: --check needs --reference";
    return false;
  }
  return true;
}

/// The tokens of a list, as in "2,50256". Returns an error.
static std::string readStop(const std::string &list, std::vector<int64_t> &stop) {
  // A comma at the end has an empty number behind it.
  std::istringstream tokens(list + ',');
  for (std::string text; std::getline(tokens, text, ',');) {
    const char *last = text.data() + text.size();
    auto [rest, problem] = std::from_chars(text.data(), last, stop.emplace_back());
    if (problem != std::errc() || rest != last)
      return "expected a number, got '" + text + "'";
  }
  return "";
}

static void addFiles(CommandLine &line, Options &options) {
  line.add("--weights=FILE", "parameters (safetensors); most bundles have their own", options.weights);
  line.addSeed("--random-weights=SEED",
               "parameters at random instead; the seed and a parameter's name decide its values",
               options.randomWeights);
  line.addFlag("--verify-weights",
               "read all of a bundle's weights first, and fail where they have changed since it was written",
               options.verifyWeights);
  line.add("--entry=NAME", "the entry to run (default: main, or the first one)", options.entry);
  line.add("--state=DIR",
           "start from the state that --save-state wrote, or session.save in Python; the plan may be another one",
           options.state);
  line.add("--save-state=DIR", "write the state after the run; DIR may be that of --state", options.saveState);
  line.addFlag("--no-recover",
               "write over the state in place, without the memory to undo it; a run that fails saves no state in "
               "any case",
               options.recover, false);
  line.add("--inputs=FILE", "inputs by name (safetensors)", options.inputs);
  line.addSeed("--random-inputs=SEED", "inputs at random instead", options.randomInputs);
  line.add("--outputs=FILE", "write the outputs by name (safetensors)", options.outputs);
  line.exclude("--inputs", "--random-inputs");
  line.exclude("--weights", "--random-weights");
}

static void addPrompts(CommandLine &line, Options &options) {
  RequestOptions &request = options.request;
  auto note = [&options](const char *name) {
    if (options.requestOption.empty())
      options.requestOption = name;
  };
  line.add("--prompts=FILE",
           "prompts for a bundle of a model that serves: a JSON list of lists of tokens", options.prompts);
  line.add("--completions=FILE",
           "write the new tokens of each prompt, as the prompts are (default: -, standard output)",
           options.completions);
  line.addNumber<int64_t>("--max-new-tokens=N", "how many new tokens a prompt has, at most (default: 32)",
                          "a number from 1 on", [](int64_t count) { return count >= 1; }, [&, note](int64_t count) {
                            request.maxNewTokens = count;
                            note("--max-new-tokens");
                          });
  line.addNumber<double>("--temperature=X",
                         "0, the default, takes the likeliest token; above 0 draws one from softmax(logits / X)",
                         "a finite number from 0 on", [](double value) { return value >= 0 && std::isfinite(value); },
                         [&, note](double value) {
                           request.temperature = value;
                           note("--temperature");
                         });
  line.addNumber<int64_t>("--seed=SEED", "of these draws (default: 0)", "a number", nullptr,
                          [&, note](int64_t seed) {
                            request.seed = seed;
                            note("--seed");
                          });
  line.add("--stop=TOKEN,...", "tokens that end a prompt's new ones",
           [&, note](const std::string &list) {
             note("--stop");
             return readStop(list, request.stop);
           });
}

static void addRun(CommandLine &line, Options &options) {
  rt::RunOptions &running = options.running;
  line.addMaybeEmpty("--parallelize=OPTIONS",
                     "rewrite the model for several ranks first, for example \"mesh=tp=4 sequence-parallel=auto\"",
                     options.parallelize);
  line.add("--target=TARGET",
           "the target to compile for: cpu, this machine's processor, or cpu:NAME, another one by LLVM's name "
           "(cpu:x86-64-v3) whose code this one can run",
           options.target);
  line.add("--backend=NAME",
           "who runs the ranks: local, threads of this process; mpi, the processes that mpirun has started; "
           "mpi:fast, the same with sums in any order",
           options.backend);
  line.add("--link=LINK",
           "slow collectives down to a link between ranks, for example latency=20us,bandwidth=2GB/s", options.link);
  line.addFlag("--check",
               "compare with the model as it was, on one rank; a bundle needs --reference instead", options.check);
  line.add("--reference=FILE", "compare the outputs with these (safetensors)", options.reference);
  line.addNumber<double>(
      "--tolerance=X",
      "for both, relative to an output's largest entry (default: f32 1e-5, bf16 2e-2, f16 2.5e-3, f64 1e-12)",
      "a number from 0 on", [](double x) { return x >= 0; }, [&](double x) { options.tolerance = x; });
  static const std::string threads = "a number from 1 to " + std::to_string(rt::kMaxThreads);
  line.addNumber<int64_t>(
      "--threads-per-rank=N", "threads that each rank computes with (default: MESHWRIGHT_THREADS, or 1)",
      threads.c_str(), [](int64_t n) { return n >= 1 && n <= rt::kMaxThreads; },
      [&](int64_t n) { running.threadsPerRank = n; });
  line.addNumber<double>(
      "--timeout=SECONDS", "for a rank's wait in one collective (default: MESHWRIGHT_TIMEOUT, or 30)",
      "a number above 0", [](double x) { return x > 0; }, [&](double x) { running.timeout = x; });
  line.addFlag("--check-finite", "fail where an op gives NaN or infinity; names the first", running.checkFinite);
  line.add("--trace=FILE", "what each rank and stream does when, for Perfetto", running.traceFile);
  line.add("--report[=FILE]",
           "what is sent and held, and where the time went; JSON where FILE ends in .json, a page with pictures "
           "where it ends in .html, which the Python package meshwright[report] writes",
           options.report, "-");
  line.add("--calibrate[=FILE]",
           "instead of a run: measure this machine for the cost model, in about a minute, with --backend, --target "
           "and --threads-per-rank. Without FILE, plans assume it from then on",
           options.calibrate, "");
}

/// Checks options against each other.
static bool checkOptions(Options &options, std::string &error) {
  if (options.calibrate) {
    if (!options.model.empty())
      error = "--calibrate measures this machine, not a model: expected no '" + options.model + "'";
    return error.empty();
  }
  if (options.model.empty()) {
    error = "no model given";
    return false;
  }
  if (std::error_code code; std::filesystem::is_directory(options.model, code)) {
    options.isBundle = true;
    if (!checkBundle(options, error))
      return false;
    options.check = false;
  } else if (options.verifyWeights) {
    error = "--verify-weights is for bundles: other files of weights have no hashes";
    return false;
  }
  if (!options.link.empty() && !rt::parseLink(options.link, error))
    return false;
  return checkPrompts(options, error) && checkFiles(options, error);
}

bool parseOptions(int argc, char **argv, Options &options, std::string &error) {
  CommandLine line("sharding-run MODEL [options]\nsharding-run --calibrate[=FILE] [options]",
                   "Runs a bundle, a folder that sharding-compile wrote, or a .mlir file, which is compiled first.",
                   "0 fine, 1 an error, 2 wrong usage, 3 a check that failed");
  line.setModel(options.model);
  addFiles(line, options);
  addPrompts(line, options);
  addRun(line, options);
  line.addCommon(options.quiet, options.help, options.version);
  line.addRenamed("--target-cpu", "--target", "--target=cpu:NAME");
  if (!line.parse(argc, argv, error))
    return false;
  options.running.measure = options.report.has_value();
  if (options.help)
    options.usage = line.getHelp();
  return options.help || options.version || checkOptions(options, error);
}

} // namespace meshwright::run
