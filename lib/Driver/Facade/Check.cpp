//===- Check.cpp - a plan against the program it comes from ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Driver/Facade/Assemble.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>
#include <limits>

using namespace meshwright;
using mlir::failed;

/// Returns the largest difference of pairs of numbers, relative to the largest expected number.
/// It is infinite if only one number of a pair is finite.
template <typename Actual, typename Expected>
static double getDifference(int64_t count, Actual actual, Expected expected) {
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    double a = actual(i), e = expected(i);
    if (std::isfinite(e))
      largest = std::max(largest, std::abs(e));
    if (a == e || (std::isnan(a) && std::isnan(e)))
      continue; // also for equal infinities, whose difference is NaN
    if (!std::isfinite(a) || !std::isfinite(e))
      return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(a - e));
  }
  return difference == 0 ? 0 : difference / std::max(largest, 1e-30);
}

static std::string formatNumber(double number) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.2g", number);
  return text;
}

namespace {

/// A program on its ranks, and the outputs and states of a run of its only entry.
struct Run {
  std::unique_ptr<Executable> executable;
  /// The outputs, then the states.
  std::vector<rt::ProgramValue> values;
  std::vector<std::vector<char>> arrays;

  mlir::LogicalResult run(const Plan::Impl &impl, PlanPhase phase, const CompileOptions &options,
                          const std::vector<HostArray> &inputs,
                          std::vector<Diagnostic> &diagnostics);
};

} // namespace

mlir::LogicalResult Run::run(const Plan::Impl &impl, PlanPhase phase,
                             const CompileOptions &options, const std::vector<HostArray> &inputs,
                             std::vector<Diagnostic> &diagnostics) {
  auto compiled = impl.compile(phase, options, diagnostics);
  if (failed(compiled))
    return mlir::failure();
  executable = std::move(*compiled);
  std::unique_ptr<rt::Session> session = impl.start(*executable, "local", diagnostics);
  if (!session)
    return mlir::failure();
  const rt::ProgramDescription &description = executable->getDescription();
  values = description.getCall(0).outputs.values;
  size_t numOutputs = values.size();
  for (const rt::ProgramState &kept : description.states)
    if (!kept.isTransient)
      values.push_back(kept.value);
  std::vector<void *> addresses;
  for (const rt::ProgramValue &value : values)
    arrays.emplace_back(rt::countOf(value.shape) * rt::sizeOf(value.type));
  for (std::vector<char> &array : arrays)
    addresses.push_back(array.data());
  std::vector<void *> outputs(addresses.begin(), addresses.begin() + numOutputs);
  if (failed(impl.run(*session, inputs, outputs, {}, diagnostics)))
    return mlir::failure();
  std::string error;
  if (values.size() == numOutputs ||
      session->getStates({addresses.begin() + numOutputs, addresses.end()}, error))
    return mlir::success();
  diagnostics.push_back(makeError(error));
  return mlir::failure();
}

/// Returns the ops that have an `nn.id`, by that id, in program order.
static llvm::DenseMap<int64_t, std::vector<mlir::Operation *>>
getOpsById(mlir::FunctionOpInterface function) {
  llvm::DenseMap<int64_t, std::vector<mlir::Operation *>> ops;
  function->walk([&](mlir::Operation *op) {
    auto id = op->getAttrOfType<mlir::IntegerAttr>(nn::NnDialect::kIdAttr);
    if (id && (op->getNumResults() == 1 || llvm::isa<nn::NnDialect>(op->getDialect())))
      ops[id.getInt()].push_back(op);
  });
  return ops;
}

/// Runs both programs again with all values kept, and describes the first value in program
/// order that differs. Leaves `result` unchanged if no value differs.
static mlir::LogicalResult findFirstDifference(const Plan::Impl &impl, PlanPhase before,
                                               const std::vector<HostArray> &inputs,
                                               double tolerance, llvm::StringRef name,
                                               CheckResult &result,
                                               std::vector<Diagnostic> &diagnostics) {
  CompileOptions probing;
  probing.probes = true;
  probing.entry = name.str();
  Run plan, reference;
  if (failed(plan.run(impl, PlanPhase::Spmd, probing, inputs, diagnostics)) ||
      failed(reference.run(impl, before, probing, inputs, diagnostics)))
    return mlir::failure();

  mlir::FunctionOpInterface entry = getEntry(impl.get(PlanPhase::Spmd), name);
  auto placement = PlacementAnalysis::run(llvm::cast<mlir::func::FuncOp>(*entry));
  if (failed(placement))
    return mlir::failure();
  auto ops = getOpsById(entry);
  llvm::DenseMap<int64_t, const Executable::ProbedValue *> references;
  for (const Executable::ProbedValue &value : reference.executable->getProbedValues())
    references.try_emplace(value.id, &value);

  llvm::DenseMap<int64_t, size_t> seen;
  for (const Executable::ProbedValue &value : plan.executable->getProbedValues()) {
    auto candidates = ops.find(value.id);
    const Executable::ProbedValue *want = references.lookup(value.id);
    size_t occurrence = seen[value.id]++;
    if (candidates == ops.end() || occurrence >= candidates->second.size() || !want ||
        want->values.empty() || want->type != value.type)
      continue;
    mlir::Operation *op = candidates->second[occurrence];
    const dist::Layout *layout = placement->lookup(op->getResult(0));
    // A pass may keep a value in another shape, which cannot be compared.
    if (!layout || layout->getGlobalShape() != llvm::ArrayRef<int64_t>(want->localShape) ||
        layout->getLocalShape() != llvm::ArrayRef<int64_t>(value.localShape))
      continue;
    double allowed = tolerance < 0 ? rt::getTolerance(value.type) : tolerance;
    for (const std::vector<double> &global :
         assemble(*layout, placement->getMesh(), value.type, value.values)) {
      double difference = getDifference(
          global.size(), [&](int64_t i) { return global[i]; },
          [&](int64_t i) { return rt::loadAsDouble(want->type, want->values.front().data(), i); });
      if (difference <= allowed)
        continue;
      SourceLocation location = getSourceLocation(op->getLoc());
      result.firstDifference += llvm::formatv(
          "; first in program order, the result of {0}{1}, laid out as {2}, differs by {3}",
          op->getName().getStringRef(), location.name.empty() ? "" : " '" + location.name + "'",
          dist::toString(*layout, placement->getMesh()), formatNumber(difference));
      result.file = location.file;
      result.line = location.line;
      return mlir::success();
    }
  }
  return mlir::success();
}

Result<CheckResult> Plan::check(const std::vector<HostArray> &inputs, double tolerance,
                                std::string_view name) {
  std::lock_guard<std::mutex> lock(impl->mutex);
  std::vector<Diagnostic> diagnostics;
  if (!impl->options)
    return std::vector<Diagnostic>{
        makeError("a check compares a rewritten program with the one it was: expected options to "
                  "parallelize")};
  if (!impl->get(PlanPhase::Global))
    return std::vector<Diagnostic>{makeError(
        "the program was SPMD from the start: there is no unsharded program to compare with")};
  const Entry *entry = findEntry(getEntries(), name, diagnostics);
  if (!entry)
    return diagnostics;
  CompileOptions compiling;
  compiling.entry = entry->name;
  Run reference, plan;
  // The policies note which weights are rounded because they travel so, and the propagation in
  // which parts.
  PlanPhase before =
      impl->options->gtpGather.rules.empty() ? PlanPhase::Global : PlanPhase::Propagated;
  CompileOptions scheduled = compiling;
  scheduled.schedule = impl->getScheduleOptions();
  if (failed(plan.run(*impl, PlanPhase::Spmd, scheduled, inputs, diagnostics)) ||
      failed(reference.run(*impl, before, compiling, inputs, diagnostics)))
    return diagnostics;

  CheckResult result;
  size_t numOutputs = entry->outputs.size();
  for (size_t i = 0; i < plan.values.size(); ++i) {
    const rt::ProgramValue &value = plan.values[i];
    const void *actual = plan.arrays[i].data(), *expected = reference.arrays[i].data();
    double difference = getDifference(
        rt::countOf(value.shape),
        [&](int64_t e) { return rt::loadAsDouble(value.type, actual, e); },
        [&](int64_t e) { return rt::loadAsDouble(value.type, expected, e); });
    double allowed = tolerance < 0 ? rt::getTolerance(value.type) : tolerance;
    if (i < numOutputs)
      result.outputs.push_back({value.name, difference});
    if (difference <= allowed || !result.passed)
      continue;
    result.passed = false;
    result.firstDifference = llvm::formatv(
        "{0} '{1}': expected a difference of at most {2} of its largest entry, got {3}",
        i < numOutputs ? "output" : "state", value.name, formatNumber(allowed),
        formatNumber(difference));
  }
  if (!result.passed && failed(findFirstDifference(*impl, before, inputs, tolerance, entry->name,
                                                   result, diagnostics)))
    return diagnostics;
  return {std::move(result), diagnostics};
}
