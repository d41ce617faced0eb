//===- Compiled.cpp - models that the compiler library runs ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Model.h"

#include "meshwright-c/Run.h"
#include "meshwright/runtime/include/Progress.h"

#include <cstdio>
#include <dlfcn.h>

using namespace meshwright;
using namespace meshwright::run;

namespace {

void refuseOption(void *, int32_t, const char *, const char *what) { refuse(what); }

/// Prints a diagnostic.
void say(void *user, int32_t severity, const char *where, const char *what) {
  if (severity != MW_ERROR && !static_cast<const Options *>(user)->speaks)
    return;
  rt::Progress::clear();
  const char *names[] = {"note", "remark", "warning", "error"};
  if (*where)
    std::fprintf(stderr, "%s: ", where);
  std::fprintf(stderr, "%s: %s\n", names[severity], what);
}

/// The functions of meshwright-c/Run.h, from the compiler library.
struct Compiler {
  decltype(&mw_calibrate) calibrate = nullptr;
  decltype(&mw_check_options) checkOptions = nullptr;
  decltype(&mw_program_open) open = nullptr;
  decltype(&mw_program_close) close = nullptr;
  decltype(&mw_program_select) select = nullptr;
  decltype(&mw_program_count) count = nullptr;
  decltype(&mw_program_port) port = nullptr;
  decltype(&mw_program_load_weights) loadWeights = nullptr;
  decltype(&mw_program_random_weights) randomWeights = nullptr;
  decltype(&mw_program_run) run = nullptr;
  decltype(&mw_program_check) check = nullptr;
  decltype(&mw_program_report) report = nullptr;

  bool load(std::string &error) {
    // Found beside this program, as the runtime is.
    void *library = dlopen("libMeshwright.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      error = std::string("the compiler library cannot be opened: ") + dlerror();
      return false;
    }
    auto find = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (!function)
        error = std::string("the compiler library has no ") + name;
      return function != nullptr;
    };
    return find(calibrate, "mw_calibrate") && find(checkOptions, "mw_check_options") && find(open, "mw_program_open") && find(close, "mw_program_close") &&
           find(select, "mw_program_select") && find(count, "mw_program_count") &&
           find(port, "mw_program_port") &&
           find(loadWeights, "mw_program_load_weights") &&
           find(randomWeights, "mw_program_random_weights") && find(run, "mw_program_run") &&
           find(check, "mw_program_check") && find(report, "mw_program_report");
  }
};

class Compiled : public Model {
public:
  ~Compiled() override {
    if (program)
      compiler.close(program);
  }

  Status open(const Options &options) {
    std::string error;
    if (!compiler.load(error))
      return fail(error);
    backend = options.backend;
    target = options.target;
    const char *rewriting = options.parallelize ? options.parallelize->c_str() : nullptr;
    if (compiler.checkOptions(rewriting, target.empty() ? nullptr : target.c_str(), refuseOption,
                              nullptr) != 0)
      return WrongUsage;
    {
      rt::Progress progress("planning");
      program =
          compiler.open(options.model.c_str(), rewriting, say, const_cast<Options *>(&options));
    }
    if (!program || compiler.select(program, options.entry.c_str()) != 0)
      return Error;
    inputs = getPorts(MW_INPUT);
    outputs = getPorts(MW_OUTPUT);
    int64_t numParameters = compiler.count(program, MW_PARAMETER);
    if (!options.weights.empty()) {
      rt::Progress progress("loading weights");
      return compiler.loadWeights(program, options.weights.c_str()) == 0 ? Fine : Error;
    }
    if (options.randomWeights) {
      rt::Progress progress("drawing weights");
      return compiler.randomWeights(program, *options.randomWeights) == 0 ? Fine : Error;
    }
    if (numParameters > 0)
      return fail("the program has " + std::to_string(numParameters) +
                  " parameters: give --weights or --random-weights");
    return Fine;
  }

  Status run(const std::vector<rt::HostTensor> &inputs, const std::vector<void *> &outputs,
             const Options &given) override {
    const rt::RunOptions &options = given.running;
    mw_run_options running = {};
    running.state = given.state.empty() ? nullptr : given.state.c_str();
    running.save_state = given.saveState.empty() ? nullptr : given.saveState.c_str();
    running.no_recover = !given.recover;
    running.backend = backend.c_str();
    running.target = target.empty() ? nullptr : target.c_str();
    running.threads_per_rank = options.threadsPerRank;
    running.timeout = options.timeout;
    running.check_finite = options.checkFinite;
    running.measure = options.measure;
    running.trace = options.traceFile.empty() ? nullptr : options.traceFile.c_str();
    return compiler.run(program, toTensors(inputs).data(), outputs.data(), &running) == 0 ? Fine
                                                                                          : Error;
  }
  Status check(const std::vector<rt::HostTensor> &inputs, double tolerance) override {
    return Status(compiler.check(program, toTensors(inputs).data(), tolerance));
  }
  Status report(Format format, std::string &text) override {
    const char *report = compiler.report(program, int32_t(format));
    if (report)
      text = report;
    return report ? Fine : Error;
  }

private:
  std::vector<rt::ProgramValue> getPorts(int32_t kind) const {
    std::vector<rt::ProgramValue> values;
    for (int64_t i = 0; i < compiler.count(program, kind); ++i) {
      const mw_port &port = *compiler.port(program, kind, i);
      rt::ProgramValue &value = values.emplace_back();
      value.name = port.name;
      value.type = rt::DType(port.dtype);
      value.shape.assign(port.shape, port.shape + port.rank);
      value.indexBound = port.index_bound;
      if (port.default_element)
        value.defaultElement.assign(static_cast<const char *>(port.default_element),
                                    rt::sizeOf(value.type));
    }
    return values;
  }
  static std::vector<mw_tensor> toTensors(const std::vector<rt::HostTensor> &tensors) {
    std::vector<mw_tensor> converted;
    for (const rt::HostTensor &tensor : tensors)
      converted.push_back(
          {int64_t(tensor.type), int64_t(tensor.shape.size()), tensor.shape.data(), tensor.data});
    return converted;
  }

  Compiler compiler;
  mw_program *program = nullptr;
  std::string backend, target;
};

} // namespace

Status run::compileModel(const Options &options, std::unique_ptr<Model> &model) {
  auto compiled = std::make_unique<Compiled>();
  Status status = compiled->open(options);
  model = std::move(compiled);
  return status;
}

Status run::calibrate(const Options &options) {
  Compiler compiler;
  std::string error;
  if (!compiler.load(error))
    return fail(error);
  mw_run_options running = {};
  running.backend = options.backend.c_str();
  running.target = options.target.empty() ? nullptr : options.target.c_str();
  running.threads_per_rank = options.running.threadsPerRank;
  void *user = const_cast<Options *>(&options);
  return compiler.calibrate(options.calibrate->c_str(), &running, say, user) == 0 ? Fine : Error;
}
