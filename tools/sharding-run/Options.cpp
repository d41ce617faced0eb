//===- Options.cpp - the command line of sharding-run ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Options.h"
#include "Page.h"

#include "meshwright/runtime/include/Link.h"
#include "meshwright/runtime/include/WholeFile.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace meshwright::run {

const char *const usage =
    "usage: sharding-run MODEL [options]\n"
    "       sharding-run --calibrate[=FILE] [options]\n"
    "\n"
    "Runs a bundle, a folder that sharding-compile wrote, or a .mlir file, which is\n"
    "compiled first.\n"
    "\n"
    "  --weights=FILE        parameters (safetensors); most bundles have their own\n"
    "  --random-weights=SEED parameters at random instead; the seed and a parameter's name\n"
    "                        decide its values\n"
    "  --verify-weights      read all of a bundle's weights first, and fail where they have\n"
    "                        changed since it was written\n"
    "  --entry=NAME          the entry to run (default: main, or the first one)\n"
    "  --state=DIR           start from the state that --save-state wrote, or session.save\n"
    "                        in Python; the plan may be another one\n"
    "  --save-state=DIR      write the state after the run; DIR may be that of --state\n"
    "  --no-recover          write over the state in place, without the memory to undo it;\n"
    "                        a run that fails saves no state in any case\n"
    "  --inputs=FILE         inputs by name (safetensors)\n"
    "  --random-inputs=SEED  inputs at random instead\n"
    "  --outputs=FILE        write the outputs by name (safetensors)\n"
    "  --prompts=FILE        prompts for a bundle of a model that serves: a JSON list of lists of\n"
    "                        tokens\n"
    "  --completions=FILE    write the new tokens of each prompt, as the prompts are (default:\n"
    "                        to standard output)\n"
    "  --max-new-tokens=N    how many new tokens a prompt has, at most (default: 32)\n"
    "  --temperature=X       0, the default, takes the likeliest token; above 0 draws one from\n"
    "                        softmax(logits / X)\n"
    "  --seed=SEED           of these draws (default: 0)\n"
    "  --stop=TOKEN,...      tokens that end a prompt's new ones\n"
    "  --parallelize=OPTIONS rewrite the model for several ranks first, for example\n"
    "                        \"mesh=tp=4 sequence-parallel=auto\"\n"
    "  --target=TARGET       the target to compile for: cpu, this machine's processor, or\n"
    "                        cpu:NAME, another one by LLVM's name (cpu:x86-64-v3) whose\n"
    "                        code this one can run\n"
    "  --backend=NAME        who runs the ranks: local, threads of this process; mpi, the\n"
    "                        processes that mpirun has started; mpi:fast, the same with\n"
    "                        sums in any order\n"
    "  --link=LINK           slow collectives down to a link between ranks, for example\n"
    "                        latency=20us,bandwidth=2GB/s\n"
    "  --check               compare with the model as it was, on one rank; a bundle needs\n"
    "                        --reference instead\n"
    "  --reference=FILE      compare the outputs with these (safetensors)\n"
    "  --tolerance=X         for both, relative to an output's largest entry\n"
    "                        (default: f32 1e-5, bf16 2e-2, f16 2.5e-3, f64 1e-12)\n"
    "  --threads-per-rank=N  threads that each rank computes with (default:\n"
    "                        MESHWRIGHT_THREADS, or 1)\n"
    "  --timeout=SECONDS     for a rank's wait in one collective (default:\n"
    "                        MESHWRIGHT_TIMEOUT, or 30)\n"
    "  --check-finite        fail where an op gives NaN or infinity; names the first\n"
    "  --trace=FILE          what each rank and stream does when, for Perfetto\n"
    "  --report[=FILE]       what is sent and held, and where the time went; JSON where\n"
    "                        FILE ends in .json, a page with pictures where it ends in .html,\n"
    "                        which the Python package meshwright[report] writes\n"
    "  --calibrate[=FILE]    instead of a run: measure this machine for the cost model, in about a\n"
    "                        minute, with --backend, --target and --threads-per-rank. Without\n"
    "                        FILE, plans assume it from then on\n"
    "  --quiet               no line that says how far things are (there is none either\n"
    "                        where standard error is no terminal)\n"
    "  --version             the versions of the tool, LLVM and compiled programs\n"
    "\n"
    "exit status: 0 fine, 1 an error, 2 wrong usage, 3 a check that failed\n";

namespace {

/// The arguments of the command line, and a position.
struct Arguments {
  int count;
  char **values;
  int at = 1;
  /// The value of the present argument if it is `--name=value` or `--name value`; otherwise null.
  const char *take(const char *name) {
    size_t length = std::strlen(name);
    const char *argument = values[at];
    if (std::strncmp(argument, name, length) != 0)
      return nullptr;
    if (argument[length] == '=')
      return argument + length + 1;
    if (argument[length] != '\0')
      return nullptr;
    return at + 1 < count ? values[++at] : "";
  }
};

} // namespace

static bool checkFiles(const Options &options, std::string &error) {
  return rt::checkDistinct({{"--outputs", options.outputs},
                            {"--completions", options.completions},
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

/// Reads the value of an option for a seed; sets `error` if it is wrong.
static void parseSeed(const char *name, const char *value, uint64_t &seed, std::string &error) {
  const char *last = value + std::strlen(value);
  auto [rest, problem] = std::from_chars(value, last, seed);
  if (problem != std::errc() || rest != last)
    error = std::string(name) + ": expected a natural number below 2^64, got '" + value + "'";
}

/// Reads an option whose value is a number. Returns false if the argument is another one;
/// sets `error` if the value is wrong.
static bool parseNumber(Arguments &arguments, Options &options, std::string &error) {
  char *end = nullptr;
  if (const char *value = arguments.take("--random-inputs")) {
    parseSeed("--random-inputs", value, options.randomInputs.emplace(), error);
  } else if (const char *value = arguments.take("--random-weights")) {
    parseSeed("--random-weights", value, options.randomWeights.emplace(), error);
  } else if (const char *value = arguments.take("--threads-per-rank")) {
    options.running.threadsPerRank = std::strtoll(value, &end, 10);
    if (end == value || *end != '\0' || options.running.threadsPerRank < 1 ||
        options.running.threadsPerRank > rt::kMaxThreads) {
      error = "--threads-per-rank: expected a number from 1 to " + std::to_string(rt::kMaxThreads) +
              ", got '" + value + "'";
      return true;
    }
  } else if (const char *value = arguments.take("--timeout")) {
    options.running.timeout = std::strtod(value, &end);
    if (end == value || *end != '\0' || !(options.running.timeout > 0)) {
      error = std::string("--timeout: expected a number above 0, got '") + value + "'";
      return true;
    }
  } else if (const char *value = arguments.take("--tolerance")) {
    options.tolerance = std::strtod(value, &end);
    if (end == value || *end != '\0' || !(options.tolerance >= 0)) {
      error = std::string("--tolerance: expected a number from 0 on, got '") + value + "'";
      return true;
    }
  } else {
    return false;
  }
  return true;
}

/// Reads an option of prompts. Returns false if the argument is another one; sets `error` if the value
/// is wrong.
static bool parseRequest(Arguments &arguments, RequestOptions &request, std::string &error) {
  auto read = [&](const char *name, const char *text, auto &number) {
    const char *last = text + std::strlen(text);
    auto [rest, problem] = std::from_chars(text, last, number);
    if (problem != std::errc() || rest != last)
      error = std::string(name) + ": expected a number, got '" + text + "'";
  };
  if (const char *value = arguments.take("--max-new-tokens")) {
    read("--max-new-tokens", value, request.maxNewTokens);
  } else if (const char *value = arguments.take("--temperature")) {
    read("--temperature", value, request.temperature);
  } else if (const char *value = arguments.take("--seed")) {
    read("--seed", value, request.seed);
  } else if (const char *value = arguments.take("--stop")) {
    std::string list = value;
    for (size_t begin = 0; begin <= list.size();) {
      size_t end = std::min(list.find(',', begin), list.size());
      read("--stop", list.substr(begin, end - begin).c_str(), request.stop.emplace_back());
      begin = end + 1;
    }
  } else {
    return false;
  }
  return true;
}

/// Checks the options of prompts against the others.
static bool checkPrompts(const Options &options, std::string &error) {
  if (options.prompts.empty()) {
    if (!options.completions.empty())
      error = "--completions needs --prompts";
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

/// Reads an option that may have a value behind "=". Returns false if the argument is another one; sets `error`
/// if the value is empty.
static bool parseOptional(const char *argument, const std::string &name, const char *without,
                          std::optional<std::string> &to, std::string &error) {
  if (argument == name) {
    to = without;
    return true;
  }
  if (std::strncmp(argument, (name + "=").c_str(), name.size() + 1) != 0)
    return false;
  to = argument + name.size() + 1;
  if (to->empty())
    error = name + "= needs a value";
  return true;
}

bool parseOptions(int argc, char **argv, Options &options, std::string &error) {
  for (Arguments arguments{argc, argv}; arguments.at < argc; ++arguments.at) {
    const char *argument = argv[arguments.at];
    const std::pair<const char *, std::string *> texts[] = {
        {"--entry", &options.entry},             {"--state", &options.state},
        {"--save-state", &options.saveState},    {"--weights", &options.weights},
        {"--inputs", &options.inputs},
        {"--prompts", &options.prompts},         {"--completions", &options.completions},
        {"--outputs", &options.outputs},         {"--reference", &options.reference},
        {"--backend", &options.backend},         {"--link", &options.link},
        {"--trace", &options.running.traceFile}, {"--target", &options.target}};
    bool known = false;
    for (auto [name, to] : texts)
      if (const char *value = arguments.take(name)) {
        if (*value == '\0') {
          error = std::string(name) + " needs a value";
          return false;
        }
        *to = value;
        known = true;
      }
    if (known)
      continue;
    if (parseNumber(arguments, options, error) ||
        parseRequest(arguments, options.request, error)) {
      if (!error.empty())
        return false;
    } else if (const char *value = arguments.take("--parallelize")) {
      options.parallelize = value;
    } else if (parseOptional(argument, "--report", "-", options.report, error) ||
               parseOptional(argument, "--calibrate", "", options.calibrate, error)) {
      if (!error.empty())
        return false;
    } else if (std::strcmp(argument, "--check-finite") == 0) {
      options.running.checkFinite = true;
    } else if (std::strcmp(argument, "--no-recover") == 0) {
      options.recover = false;
    } else if (std::strcmp(argument, "--verify-weights") == 0) {
      options.verifyWeights = true;
    } else if (std::strcmp(argument, "--check") == 0) {
      options.check = true;
    } else if (std::strcmp(argument, "--quiet") == 0) {
      options.quiet = true;
    } else if (std::strcmp(argument, "--help") == 0 || std::strcmp(argument, "-h") == 0) {
      options.help = true;
    } else if (std::strcmp(argument, "--version") == 0) {
      options.version = true;
    } else if (std::strncmp(argument, "--target-cpu", 12) == 0) {
      error = "--target-cpu is now --target: expected --target=cpu:NAME";
      return false;
    } else if (argument[0] == '-' && argument[1] != '\0') {
      error = std::string("unknown option '") + argument + "'";
      return false;
    } else if (!options.model.empty()) {
      error = std::string("more than one model: '") + options.model + "' and '" + argument + "'";
      return false;
    } else {
      options.model = argument;
    }
  }
  options.running.measure = options.report.has_value();
  if (options.help || options.version)
    return true;
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
  if (!options.inputs.empty() && options.randomInputs) {
    error = "--inputs and --random-inputs exclude each other";
    return false;
  }
  if (!options.weights.empty() && options.randomWeights) {
    error = "--weights and --random-weights exclude each other";
    return false;
  }
  return checkPrompts(options, error) && checkFiles(options, error);
}

} // namespace meshwright::run
