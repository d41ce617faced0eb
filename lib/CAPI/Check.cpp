//===- Check.cpp - a plan against the program it comes from ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CAPI/PlanState.h"

#include "llvm/Support/FormatVariadic.h"

#include <cmath>
#include <limits>

using namespace meshwright;
using mlir::failed;

/// The largest difference relative to the largest entry of `expected`; infinite
/// where one is not a number and the other is.
static double getDifference(rt::DType type, const void *actual, const void *expected,
                            int64_t count) {
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    double a = rt::loadAsDouble(type, actual, i), e = rt::loadAsDouble(type, expected, i);
    if (a == e || (std::isnan(a) && std::isnan(e)))
      ; // equal infinities have no difference to speak of
    else if (!std::isfinite(a) || !std::isfinite(e))
      return std::numeric_limits<double>::infinity();
    else
      difference = std::max(difference, std::abs(a - e));
    if (std::isfinite(e))
      largest = std::max(largest, std::abs(e));
  }
  return difference == 0 ? 0 : difference / std::max(largest, 1e-30);
}

/// What another order of the same sums may change, by type.
static double getTolerance(rt::DType type) {
  switch (type) {
  case rt::DType::F64:
    return 1e-12;
  case rt::DType::F32:
    return 1e-5;
  case rt::DType::F16:
    return 2.5e-3;
  case rt::DType::BF16:
    return 2e-2;
  case rt::DType::I64:
  case rt::DType::I32:
  case rt::DType::I1:
    return 0;
  }
  return 0;
}

namespace {

/// Arrays for a program's outputs.
struct Outputs {
  std::vector<std::vector<char>> arrays;
  std::vector<void *> addresses;

  explicit Outputs(const std::vector<ProgramValue> &values) {
    for (const ProgramValue &value : values)
      arrays.emplace_back(rt::countOf(value.shape) * rt::sizeOf(value.type));
    for (std::vector<char> &array : arrays)
      addresses.push_back(array.data());
  }
};

} // namespace

Result<CheckResult> Plan::check(const std::vector<HostArray> &inputs, double tolerance) {
  std::vector<Diagnostic> diagnostics;
  if (!state->get(PlanPhase::Global))
    return std::vector<Diagnostic>{makeError(
        "the program was SPMD from the start: there is no unsharded program to compare with")};
  auto plan = state->compile(PlanPhase::Spmd, {}, diagnostics);
  if (failed(plan))
    return diagnostics;
  auto reference = state->compile(PlanPhase::Global, {}, diagnostics);
  if (failed(reference))
    return diagnostics;
  const std::vector<ProgramValue> &values = (*plan)->getOutputs();
  Outputs actual(values), expected((*reference)->getOutputs());
  if (failed(state->run(**plan, inputs, actual.addresses, diagnostics)) ||
      failed(state->run(**reference, inputs, expected.addresses, diagnostics)))
    return diagnostics;

  CheckResult result;
  for (size_t i = 0; i < values.size(); ++i) {
    double difference = getDifference(values[i].type, actual.addresses[i], expected.addresses[i],
                                      rt::countOf(values[i].shape));
    double allowed = tolerance < 0 ? getTolerance(values[i].type) : tolerance;
    result.outputs.push_back({values[i].name, difference});
    if (difference <= allowed || !result.passed)
      continue;
    result.passed = false;
    result.firstDifference =
        llvm::formatv("output '{0}' differs by {1:g} of its largest entry: expected at most {2:g}",
                      values[i].name, difference, allowed);
  }
  return {std::move(result), diagnostics};
}
