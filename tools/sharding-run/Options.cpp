//===- Options.cpp - the command line of sharding-run ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Options.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace meshwright::run {

const char *const usage =
    "usage: sharding-run MODEL [options]\n"
    "\n"
    "Compiles a model, a .mlir file or a bundle's folder, in process and runs it.\n"
    "\n"
    "  --weights=FILE        parameters (safetensors; default: the bundle's)\n"
    "  --inputs=FILE         inputs by name (safetensors)\n"
    "  --random-inputs=SEED  inputs at random instead\n"
    "  --outputs=FILE        write the outputs by name (safetensors)\n"
    "  --parallelize=OPTIONS rewrite the model for several ranks first, for example\n"
    "                        \"mesh=tp=4 sequence-parallel=auto\"\n"
    "  --backend=NAME        who runs the ranks (local)\n"
    "  --check               compare with the model as it was, on one rank\n"
    "  --reference=FILE      compare the outputs with these (safetensors)\n"
    "  --tolerance=X         for both, relative to an output's largest entry\n"
    "                        (default: f32 1e-5, bf16 2e-2, f16 2.5e-3, f64 1e-12)\n"
    "  --report[=FILE]       what is sent and held; JSON where FILE ends in .json\n"
    "\n"
    "exit status: 0 fine, 1 an error, 2 wrong usage, 3 a check that failed\n";

/// The value of `--name=value`, or null.
static const char *valueOf(const char *argument, const char *name) {
  size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0 || argument[length] != '=')
    return nullptr;
  return argument + length + 1;
}

bool parseOptions(int argc, char **argv, Options &options, std::string &error) {
  for (int i = 1; i < argc; ++i) {
    const char *argument = argv[i];
    const std::pair<const char *, std::string *> texts[] = {{"--weights", &options.weights},
                                                            {"--inputs", &options.inputs},
                                                            {"--outputs", &options.outputs},
                                                            {"--reference", &options.reference},
                                                            {"--backend", &options.backend}};
    bool known = false;
    for (auto [name, to] : texts)
      if (const char *value = valueOf(argument, name)) {
        if (*value == '\0') {
          error = std::string(name) + " needs a value";
          return false;
        }
        *to = value;
        known = true;
      }
    if (known)
      continue;
    char *end = nullptr;
    if (const char *value = valueOf(argument, "--random-inputs")) {
      options.randomInputs = std::strtoull(value, &end, 10);
      if (end == value || *end != '\0' || *value == '-') {
        error = std::string("--random-inputs is '") + value + "', expected a natural number";
        return false;
      }
    } else if (const char *value = valueOf(argument, "--tolerance")) {
      options.tolerance = std::strtod(value, &end);
      if (end == value || *end != '\0' || !(options.tolerance >= 0)) {
        error = std::string("--tolerance is '") + value + "', expected a number from 0 on";
        return false;
      }
    } else if (const char *value = valueOf(argument, "--parallelize")) {
      options.parallelize = value;
    } else if (const char *value = valueOf(argument, "--report")) {
      options.report = value;
    } else if (std::strcmp(argument, "--report") == 0) {
      options.report = "-";
    } else if (std::strcmp(argument, "--check") == 0) {
      options.check = true;
    } else if (std::strcmp(argument, "--help") == 0 || std::strcmp(argument, "-h") == 0) {
      options.help = true;
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
  if (options.help)
    return true;
  if (options.model.empty()) {
    error = "no model given";
    return false;
  }
  // A bundle brings its weights, and has nothing to be rewritten or compared with.
  if (std::error_code code; std::filesystem::is_directory(options.model, code)) {
    std::filesystem::path bundle = options.model;
    if (!std::filesystem::exists(bundle / "bundle.json", code)) {
      error = "'" + options.model + "' is a folder, but no bundle: it has no bundle.json";
      return false;
    }
    if (options.parallelize || options.check) {
      error = "a bundle is parallelized already: expected no --parallelize, and --reference "
              "instead of --check";
      return false;
    }
    options.model = (bundle / "program.mlir").string();
    if (options.weights.empty())
      options.weights = (bundle / "weights.safetensors").string();
  }
  if (!options.inputs.empty() && options.randomInputs) {
    error = "--inputs and --random-inputs exclude each other";
    return false;
  }
  return true;
}

} // namespace meshwright::run
