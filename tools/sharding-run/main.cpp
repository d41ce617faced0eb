//===- main.cpp - sharding-run --------------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Options.h"

#include "meshwright-c/Run.h"
#include "meshwright/runtime/include/SafeTensors.h"
#include "meshwright/runtime/include/Types.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <random>
#include <set>

using namespace meshwright;
using namespace meshwright::run;

namespace {

enum Status { Fine = 0, Error = 1, WrongUsage = 2, CheckFailed = 3 };

int fail(const std::string &message) {
  std::fprintf(stderr, "sharding-run: error: %s\n", message.c_str());
  return Error;
}

void say(void *, int32_t severity, const char *where, const char *what) {
  const char *names[] = {"note", "remark", "warning", "error"};
  if (*where)
    std::fprintf(stderr, "%s: ", where);
  std::fprintf(stderr, "%s: %s\n", names[severity], what);
}

/// The compiler library's part of meshwright-c/Run.h.
struct Compiler {
  decltype(&mw_program_open) open = nullptr;
  decltype(&mw_program_close) close = nullptr;
  decltype(&mw_program_count) count = nullptr;
  decltype(&mw_program_port) port = nullptr;
  decltype(&mw_program_set_parameter) setParameter = nullptr;
  decltype(&mw_program_run) run = nullptr;
  decltype(&mw_program_check) check = nullptr;
  decltype(&mw_program_report) report = nullptr;

  bool load(std::string &error) {
    // Found as the runtime is, beside this program.
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
    return find(open, "mw_program_open") && find(close, "mw_program_close") &&
           find(count, "mw_program_count") && find(port, "mw_program_port") &&
           find(setParameter, "mw_program_set_parameter") && find(run, "mw_program_run") &&
           find(check, "mw_program_check") && find(report, "mw_program_report");
  }
};

std::vector<int64_t> shapeOf(const mw_port &port) {
  return std::vector<int64_t>(port.shape, port.shape + port.rank);
}

/// Tensors of the program's inputs, and who owns them.
struct Inputs {
  std::vector<mw_tensor> tensors;
  std::unique_ptr<rt::SafeTensorsFile> file;
  std::vector<std::vector<char>> random;
};

/// Draws an input: what is read as an index stays below its bound.
std::vector<char> draw(const mw_port &port, std::mt19937_64 &generator) {
  rt::DType type = rt::DType(port.dtype);
  int64_t count = rt::countOf(shapeOf(port));
  std::vector<char> data(count * rt::sizeOf(type));
  std::normal_distribution<float> normal;
  int64_t bound = port.index_bound > 0 ? port.index_bound : 2;
  for (int64_t i = 0; i < count; ++i) {
    char *to = data.data() + i * rt::sizeOf(type);
    switch (type) {
    case rt::DType::F64: {
      double value = normal(generator);
      std::memcpy(to, &value, 8);
      break;
    }
    case rt::DType::F32: {
      float value = normal(generator);
      std::memcpy(to, &value, 4);
      break;
    }
    case rt::DType::BF16:
    case rt::DType::F16: {
      float value = normal(generator);
      rt::narrow(type, &value, to, 1);
      break;
    }
    case rt::DType::I64: {
      int64_t value = int64_t(generator() % uint64_t(bound));
      std::memcpy(to, &value, 8);
      break;
    }
    case rt::DType::I32: {
      int32_t value = int32_t(generator() % uint64_t(bound));
      std::memcpy(to, &value, 4);
      break;
    }
    case rt::DType::I1:
      // Mostly true: such inputs are masks.
      *to = generator() % 4 != 0;
      break;
    }
  }
  return data;
}

bool readInputs(const Options &options, const Compiler &compiler, mw_program *program,
                Inputs &inputs, std::string &error) {
  int64_t count = compiler.count(program, MW_INPUT);
  if (!options.inputs.empty()) {
    inputs.file = rt::SafeTensorsFile::open(options.inputs, error);
    if (!inputs.file)
      return false;
  } else if (!options.randomInputs && count > 0) {
    error = "the program has inputs: give --inputs or --random-inputs";
    return false;
  }
  std::mt19937_64 generator(options.randomInputs.value_or(0));
  std::set<std::string> names;
  for (int64_t i = 0; i < count; ++i) {
    const mw_port &port = *compiler.port(program, MW_INPUT, i);
    names.insert(port.name);
    if (!inputs.file) {
      inputs.random.push_back(draw(port, generator));
      inputs.tensors.push_back({port.dtype, port.rank, port.shape, inputs.random.back().data()});
      continue;
    }
    const rt::SafeTensorsFile::Tensor *tensor = inputs.file->find(port.name);
    if (!tensor) {
      error = options.inputs + " has no tensor '" + port.name + "', an input of the program";
      return false;
    }
    if (!tensor->supported || int64_t(tensor->type) != port.dtype ||
        tensor->shape != shapeOf(port)) {
      error = "input '" + std::string(port.name) + "' is " +
              (tensor->supported ? rt::describe(tensor->type, tensor->shape)
                                 : "of type " + tensor->storedType) +
              " in " + options.inputs + ", expected " +
              rt::describe(rt::DType(port.dtype), shapeOf(port));
      return false;
    }
    inputs.tensors.push_back({port.dtype, port.rank, port.shape, tensor->data});
  }
  if (inputs.file)
    for (const auto &[name, tensor] : inputs.file->getTensors())
      if (!names.count(name)) {
        error = options.inputs + ": tensor '" + name + "' is not an input of the program";
        return false;
      }
  return true;
}

bool setParameters(const Options &options, const Compiler &compiler, mw_program *program,
                   const rt::SafeTensorsFile *weights, std::string &error) {
  int64_t count = compiler.count(program, MW_PARAMETER);
  for (int64_t i = 0; i < count; ++i) {
    const mw_port &port = *compiler.port(program, MW_PARAMETER, i);
    if (!weights) {
      error = "the program has " + std::to_string(count) + " parameters: give --weights";
      return false;
    }
    const rt::SafeTensorsFile::Tensor *tensor = weights->find(port.name);
    for (int64_t a = 0; a < port.num_aliases && !tensor; ++a)
      tensor = weights->find(port.aliases[a]);
    if (!tensor) {
      error = options.weights + " has no tensor '" + port.name + "', a parameter of the program";
      return false;
    }
    if (!tensor->supported) {
      error = "parameter '" + std::string(port.name) + "' is of type " + tensor->storedType +
              " in " + options.weights + ", which programs do not have";
      return false;
    }
    mw_tensor given{int64_t(tensor->type), int64_t(tensor->shape.size()), tensor->shape.data(),
                    tensor->data};
    if (compiler.setParameter(program, port.name, &given) != 0) {
      error = options.weights + " does not fit " + options.model;
      return false;
    }
  }
  return true;
}

double toleranceOf(rt::DType type, double asked) {
  if (asked >= 0)
    return asked;
  switch (type) {
  case rt::DType::F64:
    return 1e-12;
  case rt::DType::F32:
    return 1e-5;
  case rt::DType::F16:
    return 2.5e-3;
  case rt::DType::BF16:
    return 2e-2;
  default:
    return 0;
  }
}

/// The largest difference relative to the largest entry; infinite where one
/// side is no finite number and the other is something else.
double differenceOf(const rt::NamedTensor &got, rt::DType wantedType, const void *wanted) {
  double difference = 0, largest = 0;
  for (int64_t i = 0, count = rt::countOf(got.shape); i < count; ++i) {
    double g = rt::loadAsDouble(got.type, got.data, i);
    double w = rt::loadAsDouble(wantedType, wanted, i);
    if (g == w || (std::isnan(g) && std::isnan(w)))
      difference = std::max(difference, 0.0);
    else if (!std::isfinite(g) || !std::isfinite(w))
      return INFINITY;
    else
      difference = std::max(difference, std::fabs(g - w));
    if (std::isfinite(w))
      largest = std::max(largest, std::fabs(w));
  }
  return difference == 0 ? 0 : difference / std::max(largest, 1e-30);
}

int compareWithReference(const Options &options, const std::vector<rt::NamedTensor> &outputs) {
  std::string error;
  auto reference = rt::SafeTensorsFile::open(options.reference, error);
  if (!reference)
    return fail(error);
  int status = Fine;
  for (const rt::NamedTensor &output : outputs) {
    const rt::SafeTensorsFile::Tensor *wanted = reference->find(output.name);
    if (!wanted || !wanted->supported)
      return fail(options.reference + " has no tensor '" + output.name +
                  "', an output of the program");
    if (wanted->shape != output.shape)
      return fail("output '" + output.name + "' is " + rt::describe(output.type, output.shape) +
                  ", in " + options.reference + " " + rt::describe(wanted->type, wanted->shape));
    double difference = differenceOf(output, wanted->type, wanted->data);
    double tolerance = toleranceOf(output.type, options.tolerance);
    bool fine = difference <= tolerance;
    std::printf("%s: differs by %.2e, tolerance %.2e%s\n", output.name.c_str(), difference,
                tolerance, fine ? "" : ": FAILED");
    if (!fine)
      status = CheckFailed;
  }
  return status;
}

int writeReport(const Options &options, const char *text) {
  if (*options.report == "-") {
    std::fputs(text, stdout);
    return Fine;
  }
  std::string partial = *options.report + ".partial";
  FILE *file = std::fopen(partial.c_str(), "w");
  bool fine = file && std::fputs(text, file) >= 0;
  fine = file && std::fclose(file) == 0 && fine;
  if (fine && std::rename(partial.c_str(), options.report->c_str()) == 0)
    return Fine;
  std::remove(partial.c_str());
  return fail(*options.report + ": cannot be written");
}

int execute(const Options &options) {
  std::string error;
  Compiler compiler;
  if (!compiler.load(error))
    return fail(error);
  // The files outlive the program, which reads them where they are mapped.
  std::unique_ptr<rt::SafeTensorsFile> weights;
  if (!options.weights.empty()) {
    weights = rt::SafeTensorsFile::open(options.weights, error);
    if (!weights)
      return fail(error);
  }
  Inputs inputs;
  std::vector<std::vector<char>> arrays;
  std::unique_ptr<mw_program, decltype(&mw_program_close)> program(
      compiler.open(options.model.c_str(),
                    options.parallelize ? options.parallelize->c_str() : nullptr,
                    options.backend.c_str(), say, nullptr),
      compiler.close);
  if (!program)
    return Error;
  if (!setParameters(options, compiler, program.get(), weights.get(), error) ||
      !readInputs(options, compiler, program.get(), inputs, error))
    return fail(error);

  std::vector<rt::NamedTensor> outputs;
  std::vector<void *> pointers;
  int64_t count = compiler.count(program.get(), MW_OUTPUT);
  arrays.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    const mw_port &port = *compiler.port(program.get(), MW_OUTPUT, i);
    rt::DType type = rt::DType(port.dtype);
    arrays[i].resize(rt::countOf(shapeOf(port)) * rt::sizeOf(type));
    outputs.push_back({port.name, type, shapeOf(port), arrays[i].data()});
    pointers.push_back(arrays[i].data());
  }
  if (compiler.run(program.get(), inputs.tensors.data(), pointers.data()) != 0)
    return Error;
  int status = Fine;
  if (options.check)
    status = compiler.check(program.get(), inputs.tensors.data(), options.tolerance);
  if (status != Error && !options.reference.empty())
    status = std::max(status, compareWithReference(options, outputs));
  if (status == Error)
    return status;
  if (!options.outputs.empty() && !rt::writeSafeTensors(options.outputs, outputs, error))
    return fail(error);
  if (options.report) {
    bool json = options.report->size() > 5 &&
                options.report->compare(options.report->size() - 5, 5, ".json") == 0;
    const char *text = compiler.report(program.get(), json);
    if (!text || writeReport(options, text) != Fine)
      return Error;
  }
  return status;
}

} // namespace

int main(int argc, char **argv) {
  Options options;
  std::string error;
  if (!parseOptions(argc, argv, options, error)) {
    std::fprintf(stderr, "sharding-run: %s\n%s", error.c_str(), usage);
    return WrongUsage;
  }
  if (options.help) {
    std::fputs(usage, stdout);
    return Fine;
  }
  return execute(options);
}
