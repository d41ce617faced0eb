//===- Compare.cpp - outputs against a file -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Compare.h"

#include <cmath>
#include <cstdio>

using namespace meshwright;
using namespace meshwright::run;

/// The largest difference relative to the largest entry. It is infinite if one entry is not
/// finite and the other differs from it.
static double differenceOf(const rt::NamedTensor &got, rt::DType wantedType, const void *wanted) {
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

Status run::compareWithReference(const Options &options,
                                 const std::vector<rt::NamedTensor> &outputs) {
  std::string error;
  auto reference = rt::SafeTensorsFile::open(options.reference, error);
  if (!reference)
    return fail(error);
  Status status = Fine;
  for (const rt::NamedTensor &output : outputs) {
    const rt::SafeTensorsFile::Tensor *wanted = reference->find(output.name);
    if (!wanted || !wanted->supported)
      return fail(options.reference + " has no tensor '" + output.name +
                  "', an output of the program");
    if (wanted->shape != output.shape)
      return fail("output '" + output.name + "' is " + rt::describe(output.type, output.shape) +
                  ", in " + options.reference + " " + rt::describe(wanted->type, wanted->shape));
    double difference = differenceOf(output, wanted->type, wanted->data);
    double tolerance = options.tolerance >= 0 ? options.tolerance : rt::getTolerance(output.type);
    bool fine = difference <= tolerance;
    std::printf("%s: differs by %.2e, tolerance %.2e%s\n", output.name.c_str(), difference,
                tolerance, fine ? "" : ": FAILED");
    if (!fine)
      status = CheckFailed;
  }
  return status;
}
