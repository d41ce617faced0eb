//===- Calibrate.cpp - measures a machine for the cost model --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each class of the cost model has samples of a few sizes. The usual time of a launch at a size,
// without the time to start it, gives a rate.
//
//===----------------------------------------------------------------------===//

#include "meshwright/Calibration.h"

#include "meshwright-c/Run.h"
#include "meshwright/lib/CostModel/AssumedDevice.h"
#include "meshwright/lib/CostModel/DeviceFile.h"
#include "meshwright/lib/Driver/Facade/Handles.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Driver/Facade/Sample.h"
#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Environment.h"
#include "meshwright/runtime/include/Progress.h"
#include "meshwright/runtime/include/WholeFile.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <ctime>
#include <thread>
#include <unistd.h>

using namespace meshwright;
using llvm::Twine;

namespace {

/// Measures one class after the other, until one fails.
class Calibrator {
public:
  Calibrator(const CalibrationOptions &options, int64_t kernelRanks)
      : options(options), kernelRanks(kernelRanks), runner(options) {}

  /// Returns false after an error.
  bool measure(DeviceFile &file);
  std::vector<Diagnostic> takeErrors() { return runner.takeErrors(); }

private:
  /// Seconds of a kernel of a sample, without its launch.
  std::optional<double> time(const Sample &sample);
  /// Adds the rate of a sample that does so much work, in operations or bytes, in each kernel.
  bool addRate(RateTable &table, double size, double work, const Sample &sample);

  bool measureLaunch();
  bool measureProducts(const std::string &type, Rates::Type index);
  bool measurePlainProducts(const std::string &type, Rates::Type index);
  bool measureAttention(const std::string &type, Rates::Type index);
  bool measureGradients(const std::string &type, Rates::Type index);
  bool measureWeights();
  bool measureRows();
  bool measureElements();
  bool measureMoves();
  bool measureCollectives();
  bool addCollective(RateTable &table, const Twine &op, int64_t rows, int64_t columns, const std::string &result,
                     double sent, int64_t steps);

  const CalibrationOptions &options;
  /// The ranks of samples without collectives.
  int64_t kernelRanks;
  SampleRunner runner;
  Rates rates;
  double launch = 0, latency = 0;
  /// Seconds that the smallest kernel takes of the launch.
  double least = 0;
};

} // namespace

std::optional<double> Calibrator::time(const Sample &sample) {
  std::optional<Measured> measured = runner.run(sample.str());
  if (!measured)
    return std::nullopt;
  return std::max(measured->kernel - least, 0.1 * measured->kernel);
}

bool Calibrator::addRate(RateTable &table, double size, double work, const Sample &sample) {
  std::optional<double> seconds = time(sample);
  if (seconds)
    table.add(size, work / std::max(*seconds, 1e-9));
  return seconds.has_value();
}

bool Calibrator::measureLaunch() {
  Sample sample(kernelRanks);
  std::string type = Sample::type({4, 4}, "f32");
  for (int i = 0; i < 64; ++i)
    sample.op("nn.tanh " + Twine(sample.input(type)) + " : " + type, type);
  std::optional<Measured> measured = runner.run(sample.str());
  if (!measured)
    return false;
  launch = measured->all;
  least = measured->kernel;
  return true;
}

bool Calibrator::measureProducts(const std::string &type, Rates::Type index) {
  constexpr int64_t n = 512, k = 512;
  for (int64_t rows : {1, 4, 16, 32, 64, 128, 256, 1024}) {
    Sample sample(kernelRanks);
    std::string x = Sample::type({rows, k}, type), w = Sample::type({n, k}, type), y = Sample::type({rows, n}, type);
    std::string input = sample.input(x);
    int64_t count = DeviceFile::kProductWeights / (n * k * (index == Rates::F32 ? 4 : 2));
    for (int64_t i = 0; i < count; ++i)
      sample.op("nn.linear " + Twine(input) + ", " + sample.parameter(w) + " : (" + x + ", " + w + ") -> " + y,
                y);
    if (!addRate(rates.products[index], rows, 2.0 * rows * n * k, sample))
      return false;
  }
  return true;
}

bool Calibrator::measurePlainProducts(const std::string &type, Rates::Type index) {
  // Sums over rows, as the gradients of weights are.
  constexpr int64_t n = 512;
  for (int64_t rows : {16, 64, 256}) {
    Sample sample(kernelRanks);
    std::string x = Sample::type({rows, n}, type), y = Sample::type({n, n}, "f32");
    for (int i = 0; i < 2; ++i)
      sample.op("nn.weight_grad " + Twine(sample.input(x)) + ", " + sample.input(x) + " : (" + x + ", " + x + ") -> " + y,
                y);
    if (!addRate(rates.plainProducts[index], rows, 2.0 * rows * n * n, sample))
      return false;
  }
  return true;
}

bool Calibrator::measureAttention(const std::string &type, Rates::Type index) {
  constexpr int64_t heads = 4, d = 64;
  for (int64_t length : {4, 16, 64, 256, 1024}) {
    Sample sample(kernelRanks);
    std::string q = Sample::type({1, heads, length, d}, type);
    for (int i = 0; i < 2; ++i) {
      std::string a = sample.input(q), b = sample.input(q), c = sample.input(q);
      sample.op("nn.attention " + Twine(a) + ", " + b + ", " + c + " scale 0.125 : (" + q + ", " + q + ", " + q + ") -> " + q,
                q);
    }
    if (!addRate(rates.attention[index], 4.0 * length * d, 4.0 * heads * length * length * d, sample))
      return false;
  }
  return true;
}

bool Calibrator::measureGradients(const std::string &type, Rates::Type index) {
  constexpr int64_t heads = 4, d = 64;
  for (int64_t length : {16, 64, 256}) {
    Sample sample(kernelRanks);
    std::string q = Sample::type({1, heads, length, d}, type), l = Sample::type({1, heads, length}, "f32");
    std::string g = Sample::type({1, heads, length, d}, "f32");
    std::string a = sample.input(q), b = sample.input(q), c = sample.input(q), cotangent = sample.input(q);
    std::string lse = sample.input(l), delta = sample.input(l);
    sample.op("nn.attention_grad " + Twine(a) + ", " + b + ", " + c + " lse " + lse + " delta " + delta + " cotangent " +
                  cotangent + " scale 0.125 : (" + q + ", " + q + ", " + q + ", " + l + ", " + l + ", " + q + ") -> (" + g +
                  ", " + g + ", " + g + ")",
              g, /*numResults=*/3);
    if (!addRate(rates.attentionGradients[index], 10.0 * length * d, 10.0 * heads * length * length * d, sample))
      return false;
  }
  return true;
}

bool Calibrator::measureWeights() {
  // Products of one row read each weight once, which is all that they have to do.
  constexpr int64_t n = 512, k = 512, bytes = n * k * 4;
  std::string x = Sample::type({1, k}, "f32"), w = Sample::type({n, k}, "f32"), y = Sample::type({1, n}, "f32");
  for (int64_t count : {1, 4, 16, 64, 128}) {
    Sample sample(kernelRanks);
    std::string input = sample.input(x);
    for (int64_t i = 0; i < count; ++i)
      sample.op("nn.linear " + Twine(input) + ", " + sample.parameter(w) + " : (" + x + ", " + w + ") -> " + y, y);
    if (!addRate(rates.weights, double(count * bytes), bytes, sample))
      return false;
  }
  return true;
}

bool Calibrator::measureRows() {
  for (int64_t rows : {4, 16, 64, 256, 1024, 4096}) {
    constexpr int64_t columns = 1024;
    Sample sample(kernelRanks);
    std::string x = Sample::type({rows, columns}, "f32");
    for (int i = 0; i < 3; ++i)
      sample.op("nn.add " + Twine(sample.input(x)) + ", " + sample.input(x) + " : (" + x + ", " + x + ") -> " + x, x);
    if (!addRate(rates.rows, 12.0 * rows * columns, 12.0 * rows * columns, sample))
      return false;
  }
  return true;
}

/// Elements in the first cache cost what their arithmetic costs.
bool Calibrator::measureElements() {
  constexpr int64_t rows = 8, columns = 512;
  constexpr double elements = double(rows * columns);
  std::string x = Sample::type({rows, columns}, "f32");
  auto measureChain = [&](const char *cheap, int length) -> std::optional<double> {
    Sample sample(kernelRanks);
    for (int i = 0; i < 4; ++i) {
      std::string value = sample.input(x), other = sample.input(x);
      for (int j = 0; j < length; ++j)
        value = sample.inner(Twine(cheap) + " " + value + ", " + other + " : (" + x + ", " + x + ") -> " + x);
      sample.output(value, x);
    }
    return time(sample);
  };
  std::optional<double> one = measureChain("nn.mul", 1), many = measureChain("nn.mul", 9);
  if (!one || !many)
    return false;
  rates.cheapElement = std::max(1e-13, (*many - *one) / 8 / elements);
  double costly = 0;
  const char *const costlier[] = {"nn.silu $ : T", "nn.gelu $ : T", "nn.softmax $ dim 1 : T",
                                  "nn.rms_norm $ eps 1.0e-5 : (T) -> T"};
  for (const char *pattern : costlier) {
    Sample sample(kernelRanks);
    for (int i = 0; i < 4; ++i) {
      std::string text = pattern;
      for (size_t at; (at = text.find('$')) != std::string::npos;)
        text.replace(at, 1, sample.input(x));
      for (size_t at; (at = text.find('T')) != std::string::npos;)
        text.replace(at, 1, x);
      sample.op(text, x);
    }
    std::optional<double> seconds = time(sample);
    if (!seconds)
      return false;
    costly += *seconds / elements / std::size(costlier);
  }
  rates.costlyElement = std::max(costly, rates.cheapElement);
  return true;
}

bool Calibrator::measureMoves() {
  for (int64_t rows : {16, 128, 1000, 4000}) {
    constexpr int64_t columns = 520;
    Sample sample(kernelRanks);
    std::string x = Sample::type({rows, columns}, "f32"), y = Sample::type({columns, rows}, "f32");
    for (int i = 0; i < 2; ++i)
      sample.op("nn.transpose " + Twine(sample.input(x)) + " [1, 0] : (" + x + ") -> " + y, y);
    if (!addRate(rates.moves, 8.0 * rows * columns, 8.0 * rows * columns, sample))
      return false;
  }
  return true;
}

bool Calibrator::addCollective(RateTable &table, const Twine &op, int64_t rows, int64_t columns, const std::string &result,
                               double sent, int64_t steps) {
  Sample sample(options.ranks);
  std::string x = Sample::type({rows, columns}, "f32");
  for (int i = 0; i < 4; ++i) {
    std::string text = op.str();
    // Ranks come from kernels to a collective, and not at the same moment.
    text.replace(text.find('$'), 1, sample.inner("nn.tanh " + Twine(sample.input(x)) + " : " + x));
    sample.op(text + " : (" + x + ") -> " + result, result);
  }
  std::optional<Measured> measured = runner.run(sample.str());
  if (!measured)
    return false;
  // The smallest collective says what a step costs.
  double rest = measured->collective - launch - double(steps) * latency;
  if (latency == 0) {
    latency = std::max(1e-8, (measured->collective - launch) / double(steps));
    return true;
  }
  table.add(sent, sent / std::max(rest, 0.05 * measured->collective));
  return true;
}

bool Calibrator::measureCollectives() {
  int64_t k = options.ranks;
  if (k < 2)
    return true;
  RateTable none;
  std::string tiny = Sample::type({k, 1}, "f32");
  if (!addCollective(none, "dist.all_reduce sum $ axes [\"x\"]", k, 1, tiny, 1, 2 * (k - 1)))
    return false;
  for (int64_t rows : {4, 64, 512, 4096}) {
    constexpr int64_t columns = 256;
    int64_t all = rows * k;
    double bytes = double(all * columns * 4), part = bytes * double(k - 1) / double(k);
    std::string whole = Sample::type({all, columns}, "f32"), own = Sample::type({rows, columns}, "f32");
    std::string turned = Sample::type({rows, columns * k}, "f32");
    bool isFine =
        addCollective(rates.allReduce, "dist.all_reduce sum $ axes [\"x\"]", all, columns, whole, 2 * part, 2 * (k - 1)) &&
        addCollective(rates.reduceScatter, "dist.reduce_scatter sum $ axes [\"x\"] dims [0]", all, columns, own, part, k - 1) &&
        addCollective(rates.allGather, "dist.all_gather $ axes [\"x\"] dims [0]", rows, columns, whole, part, k - 1) &&
        addCollective(rates.allToAll, "dist.all_to_all $ axes [\"x\"] from [1] to [0]", all, columns, turned, part, k - 1) &&
        addCollective(rates.permute, "dist.permute $ axes [\"x\"] shift 1", all, columns, whole, bytes, 1);
    if (!isFine)
      return false;
  }
  return true;
}

bool Calibrator::measure(DeviceFile &file) {
  rt::Progress progress("calibrating", 18);
  bool isFine = true;
  auto step = [&](bool done) {
    progress.step();
    isFine &= done;
    return isFine;
  };
  if (!step(measureLaunch()) || !step(measureWeights()) || !step(measureRows()) || !step(measureElements()) ||
      !step(measureMoves()))
    return false;
  for (int i = 0; i < Rates::kNumTypes; ++i) {
    // The first keys are those of products, by type.
    std::string type = getRateKeys()[i].name.split('_').second.str();
    auto index = Rates::Type(i);
    if (!step(measureProducts(type, index)) || !step(measurePlainProducts(type, index)) ||
        !step(measureAttention(type, index)) || !step(measureGradients(type, index)))
      return false;
  }
  if (!step(measureCollectives()))
    return false;

  Device &device = file.device;
  device = *getDevice("cpu");
  device.flopsF32 = rates.products[Rates::F32].getLargestRate();
  device.flopsBF16 = rates.products[Rates::BF16].getLargestRate();
  device.flopsF16 = rates.products[Rates::F16].getLargestRate();
  device.memoryBandwidth = rates.rows.get().back().second;
  device.launch = launch;
  int64_t memory = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  device.memorySize = memory / options.ranks;
  if (!rates.allGather.empty()) {
    device.linkLatency = latency;
    device.linkBandwidth = rates.allGather.get().back().second;
  }
  device.rates = std::make_shared<Rates>(rates);
  return true;
}

/// The time in UTC, as 2026-01-31T12:00:00Z.
static std::string getDate() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Result<std::string> meshwright::calibrate(std::string_view given, const CalibrationOptions &wanted) {
  auto fail = [](std::string message) { return Result<std::string>(std::vector<Diagnostic>{makeError(std::move(message))}); };
  std::string error, needed;
  CalibrationOptions options = wanted;
  if (options.ranks < 0 || options.ranks > 1024)
    return fail("calibrate: expected 0 to 1024 ranks, got " + std::to_string(options.ranks));
  if (!rt::getBackendTarget(options.backend, needed, error))
    return fail(error);
  if (options.target.empty())
    options.target = needed.empty() ? "cpu" : needed;
  if (!llvm::StringRef(options.target).starts_with("cpu"))
    return fail("calibrate: expected a backend whose ranks compute on processors, got '" + options.backend + "'");
  std::string path(given);
  if (path.empty()) {
    path = getCalibrationPath();
    if (path.empty())
      return fail("no home folder to keep the calibration in: expected a file, or XDG_CONFIG_HOME");
    if (std::error_code code = llvm::sys::fs::create_directories(llvm::sys::path::parent_path(path)))
      return fail(llvm::sys::path::parent_path(path).str() + ": " + code.message());
  }
  if (!rt::WholeFile::check(path, error))
    return fail(error);
  // Processes of a launcher are ranks of one world each.
  bool isLocal = options.backend == "local";
  int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  rt::Launcher launcher;
  if (!isLocal && !rt::readLauncher(launcher, error))
    return fail(error);
  if (!isLocal)
    options.ranks = launcher.size;
  else if (options.ranks == 0)
    options.ranks = std::min<int64_t>(2, cores);
  if (options.threadsPerRank == 0)
    options.threadsPerRank = rt::defaultThreads();

  Calibrator calibrator(options, isLocal ? 1 : options.ranks);
  DeviceFile file;
  file.processor = getProcessorName();
  file.cores = cores;
  file.date = getDate();
  file.backend = options.backend;
  file.target = options.target;
  file.ranks = options.ranks;
  file.threads = options.threadsPerRank;
  if (!calibrator.measure(file))
    return calibrator.takeErrors();
  // One process writes the file.
  if (!isLocal && launcher.rank != 0)
    return {path};
  if (!rt::WholeFile::write(path, file.toJson(), error))
    return fail(error);
  return {path};
}

int32_t mw_calibrate(const char *path, const mw_run_options *options, mw_say say, void *user) {
  CalibrationOptions wanted;
  if (options->backend)
    wanted.backend = options->backend;
  if (options->target)
    wanted.target = options->target;
  wanted.threadsPerRank = options->threads_per_rank;
  Result<std::string> done = calibrate(path, wanted);
  tell(done.getDiagnostics(), say, user);
  if (done)
    say(user, MW_NOTE, "", ("calibration written to " + *done).c_str());
  return done ? 0 : 1;
}
