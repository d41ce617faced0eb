//===- main.cpp - sharding-run --------------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Compare.h"
#include "Inputs.h"
#include "Model.h"
#include "Options.h"
#include "Page.h"
#include "Serve.h"
#include "Version.h"

#include "meshwright/runtime/include/Environment.h"
#include "meshwright/runtime/include/MappedFile.h"
#include "meshwright/runtime/include/Progress.h"
#include "meshwright/runtime/include/WholeFile.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <new>
#include <typeinfo>

using namespace meshwright;
using namespace meshwright::run;

Status run::fail(const std::string &message) {
  rt::Progress::clear();
  std::fprintf(stderr, "sharding-run: error: %s\n", message.c_str());
  return Error;
}

Status run::refuse(const std::string &message) {
  std::fprintf(stderr, "sharding-run: error: %s\nsee sharding-run --help\n", message.c_str());
  return WrongUsage;
}

static Status writeReport(const Options &options, Model &model) {
  const std::string &path = *options.report;
  std::string text;
  bool asJson = path.size() > 5 && path.compare(path.size() - 5, 5, ".json") == 0;
  Model::Format format = isPage(path) ? Model::Format::Facts : asJson ? Model::Format::Json : Model::Format::Text;
  if (Status status = model.report(format, text))
    return status;
  if (isPage(path))
    return writePage(text, path, options.running.traceFile);
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return Fine;
  }
  std::string error;
  return rt::WholeFile::write(path, text, error) ? Fine : fail(error);
}

/// A failed write to standard output is an error.
static Status finish(Status status) {
  std::string error;
  return rt::finishOutput(error) ? status : fail(error);
}

/// Ends the process at once. After a failed run, a rank may still use memory that an orderly end
/// would free.
[[noreturn]] static void leave(Status status) {
  std::fflush(nullptr);
  std::_Exit(status);
}

/// Checks before the work that the files of results can be written.
static Status checkFiles(const Options &options) {
  std::string error;
  for (const std::string &path :
       {options.outputs, options.completions, options.running.traceFile, options.report.value_or("-")})
    if (!path.empty() && path != "-" && !rt::WholeFile::check(path, error))
      return fail(error);
  return options.report && isPage(*options.report) ? checkPages(*options.report) : Fine;
}

static Status execute(const Options &options) {
  if (options.calibrate)
    return calibrate(options);
  if (!options.prompts.empty())
    return servePrompts(options);
  std::unique_ptr<Model> model;
  if (Status status = (options.isBundle ? loadBundle : compileModel)(options, model))
    return status;
  std::string error;
  // Never freed, because a rank that does not return from a failed run may still read them.
  Inputs &inputs = *new Inputs();
  if (!readInputs(options, *model, inputs, error))
    return fail(error);

  std::vector<rt::NamedTensor> outputs;
  std::vector<rt::Memory> arrays;
  std::vector<void *> pointers;
  for (const rt::ProgramValue &output : model->getOutputs()) {
    int64_t bytes = rt::countOf(output.shape) * rt::sizeOf(output.type);
    arrays.push_back(rt::allocate(bytes));
    if (!arrays.back())
      return fail("no memory for the " + std::to_string(bytes) + " bytes of output '" +
                  output.name + "'");
    pointers.push_back(arrays.back().get());
    outputs.push_back({output.name, output.type, output.shape, pointers.back()});
  }
  auto run = [&] {
    rt::Progress progress("running");
    return model->run(inputs.tensors, pointers, options);
  };
  auto check = [&] {
    rt::Progress progress("checking");
    return model->check(inputs.tensors, options.tolerance);
  };
  if (Status status = run()) {
    // Processes of other backends end together.
    if (options.backend == "local")
      leave(status);
    return status;
  }
  // All processes have the same outputs.
  if (!options.speaks)
    return Fine;
  Status status = options.check ? check() : Fine;
  if (status != Error && !options.reference.empty())
    status = std::max(status, compareWithReference(options, outputs));
  if (status == Error)
    return status;
  if (!options.outputs.empty() && !rt::writeSafeTensors(options.outputs, outputs, error))
    return fail(error);
  if (options.report && writeReport(options, *model) != Fine)
    return Error;
  return status;
}

/// Ends the process with an error instead of a crash where no memory is left.
[[noreturn]] static void terminate() {
  const std::type_info *type = abi::__cxa_current_exception_type();
  if (type && *type == typeid(std::bad_alloc)) {
    std::fputs("error: out of memory\n", stderr);
    std::_Exit(Error);
  }
  std::abort();
}

int main(int argc, char **argv) {
  std::set_terminate(terminate);
  Options options;
  std::string error;
  if (!parseOptions(argc, argv, options, error))
    return refuse(error);
  if (options.help || options.version) {
    if (options.help)
      std::fputs(options.usage.c_str(), stdout);
    else
      std::printf("sharding-run%s", kVersionText);
    return finish(Fine);
  }
  // With the backend local, each process runs a program of its own.
  rt::Launcher launcher;
  if (options.backend.rfind("mpi", 0) == 0)
    options.speaks = rt::isFirstProcess();
  else if (options.backend.rfind("nccl", 0) == 0)
    options.speaks = rt::readLauncher(launcher, error) && launcher.rank == 0;
  if (!options.link.empty())
    setenv("MESHWRIGHT_LINK", options.link.c_str(), /*overwrite=*/1);
  // The timeout also holds at the beginning and the end of the process, outside of runs.
  if (options.running.timeout > 0) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", options.running.timeout);
    setenv("MESHWRIGHT_TIMEOUT", text, /*overwrite=*/1);
  }
  if (options.quiet || !options.speaks)
    rt::Progress::hide();
  rt::MappedFile::reportLostFiles("sharding-run");
  rt::Temporary::removeOnSignals();
  if (options.speaks && checkFiles(options) != Fine)
    return Error;
  return finish(execute(options));
}
