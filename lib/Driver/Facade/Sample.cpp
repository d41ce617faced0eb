//===- Sample.cpp - small programs that a calibration measures ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Facade/Sample.h"

#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/runtime/include/Session.h"

#include "llvm/ADT/StringExtras.h"

#include <chrono>
#include <cstring>

using namespace meshwright;

//===----------------------------------------------------------------------===//
// Texts
//===----------------------------------------------------------------------===//

std::string Sample::type(std::initializer_list<int64_t> shape, const std::string &element) {
  std::string text = "tensor<";
  for (int64_t size : shape)
    text += std::to_string(size) + "x";
  return text + element + ">";
}

std::string Sample::getSharding(const std::string &type) const {
  if (ranks == 1)
    return "";
  size_t rank = llvm::StringRef(type).count('x');
  std::string dims;
  for (size_t i = 0; i < rank; ++i)
    dims += i ? ", {}" : "{}";
  return ", dist.global = " + type + ", dist.sharding = #dist.sharding<@m, [" + dims + "]>";
}

std::string Sample::addArgument(const std::string &type, const char *attribute) {
  std::string name = "%a" + std::to_string(numArguments++);
  arguments += (arguments.empty() ? "" : ", ") + name + ": " + type + " {" + attribute + " = \"" + name.substr(1) +
               "\"" + getSharding(type) + "}";
  return name;
}

std::string Sample::inner(const llvm::Twine &text) {
  std::string name = "%o" + std::to_string(numOps++);
  body += "  " + name + " = " + text.str() + "\n";
  return name;
}

void Sample::output(const std::string &name, const std::string &type) {
  results.push_back(name);
  resultTypes.push_back(type);
}

void Sample::op(const llvm::Twine &text, const std::string &type, int64_t numResults) {
  if (numResults == 1)
    return output(inner(text), type);
  std::string name = "%o" + std::to_string(numOps++);
  body += "  " + name + ":" + std::to_string(numResults) + " = " + text.str() + "\n";
  for (int64_t i = 0; i < numResults; ++i)
    output(name + "#" + std::to_string(i), type);
}

std::string Sample::str() const {
  std::string outputs;
  for (size_t i = 0; i < results.size(); ++i)
    outputs += (i ? ", " : "") + resultTypes[i] + " {nn.output = \"y" + std::to_string(i) + "\"" +
               getSharding(resultTypes[i]) + "}";
  std::string text = ranks == 1 ? "" : "dist.mesh @m = <[\"x\"=" + std::to_string(ranks) + "]>\n";
  text += "func.func @main(" + arguments + ") -> (" + outputs + ")" + (ranks == 1 ? "" : " attributes {dist.spmd = @m}");
  return text + " {\n" + body + "  return " + llvm::join(results, ", ") + " : " + llvm::join(resultTypes, ", ") + "\n}\n";
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

namespace {

/// Arrays of small numbers, which no arithmetic makes large.
class Arrays {
public:
  HostArray add(const Port &port) {
    size_t count = 1;
    for (int64_t size : port.shape)
      count *= size;
    std::vector<char> &bytes = memory.emplace_back(count * getByteWidth(port.type));
    const float values[] = {0.01f, -0.02f, 0.03f, 0.015f, -0.005f};
    for (size_t i = 0; i < count; ++i) {
      float value = values[i % 5];
      if (port.type == ElementType::F32)
        std::memcpy(&bytes[4 * i], &value, 4);
      else if (port.type == ElementType::BF16)
        std::memcpy(&bytes[2 * i], reinterpret_cast<const char *>(&value) + 2, 2);
      else if (port.type == ElementType::F16)
        bytes[2 * i + 1] = char(0x20 + i % 4);
    }
    return {port.type, port.shape, bytes.data()};
  }

private:
  std::vector<std::vector<char>> memory;
};

} // namespace

/// The times of a launch in one run.
static Measured getTimes(const rt::RunReport &report) {
  int64_t launches = 0;
  Measured now;
  for (const rt::RunReport::Class &kernels : report.classes) {
    launches += kernels.launches;
    now.kernel += kernels.seconds;
  }
  now.kernel /= std::max<int64_t>(1, launches);
  now.collective = report.communication / std::max<int64_t>(1, report.collectives);
  now.all = report.seconds / std::max<int64_t>(1, launches + report.collectives);
  return now;
}

/// Other processes can only slow a run down, so the lower quartile is nearer to a quiet machine than the median.
static Measured getQuartiles(llvm::ArrayRef<Measured> runs) {
  Measured quartiles;
  for (double Measured::*part : {&Measured::kernel, &Measured::collective, &Measured::all}) {
    std::vector<double> times;
    for (const Measured &run : runs)
      times.push_back(run.*part);
    std::nth_element(times.begin(), times.begin() + times.size() / 4, times.end());
    quartiles.*part = times[times.size() / 4];
  }
  return quartiles;
}

std::optional<Measured> SampleRunner::run(const std::string &text) {
  auto keep = [&](const std::vector<Diagnostic> &found) {
    errors.insert(errors.end(), found.begin(), found.end());
    return std::nullopt;
  };
  Result<Program> program = Program::parse(text, "<calibration>");
  if (!program)
    return keep(program.getDiagnostics());
  Result<Plan> plan = Plan::asIs(*program);
  if (!plan)
    return keep(plan.getDiagnostics());
  Arrays arrays;
  std::vector<HostArray> inputs;
  std::vector<void *> outputs;
  for (const Port &port : plan->getParameters())
    if (Result<bool> done = plan->setParameter(port.name, arrays.add(port)); !done)
      return keep(done.getDiagnostics());
  for (const Port &port : plan->getInputs())
    inputs.push_back(arrays.add(port));
  for (const Port &port : plan->getOutputs())
    outputs.push_back(const_cast<void *>(arrays.add(port).data));
  RunOptions running;
  running.backend = options.backend;
  running.target = options.target;
  running.threadsPerRank = options.threadsPerRank;
  running.measure = true;
  using Clock = std::chrono::steady_clock;
  constexpr int kLeastRuns = 7, kMostRuns = 99;
  constexpr std::chrono::milliseconds kTime(250);
  std::vector<Measured> measured;
  Clock::time_point begin;
  // Processes that run together run equally often. A process alone runs small samples more often.
  bool isAlone = options.backend == "local";
  // The first run compiles, places the weights and warms caches.
  for (int i = -1; i < kMostRuns && (i < kLeastRuns || (isAlone && Clock::now() - begin < kTime)); ++i) {
    if (i == 0)
      begin = Clock::now();
    if (Result<bool> done = plan->run(inputs, outputs, running); !done)
      return keep(done.getDiagnostics());
    if (i >= 0)
      measured.push_back(getTimes(plan->getImpl().session->getRunReport()));
  }
  return getQuartiles(measured);
}
