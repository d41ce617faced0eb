//===- Rates.cpp - measured rates of a device -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/Rates.h"

#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace meshwright;

double RateTable::getRate(double size) const {
  if (size <= points.front().first)
    return points.front().second;
  if (size >= points.back().first)
    return points.back().second;
  auto above = std::upper_bound(points.begin(), points.end(), size,
                                [](double size, auto &point) { return size < point.first; });
  auto below = std::prev(above);
  double first = below->first / below->second, last = above->first / above->second;
  return size / (first + (last - first) * (size - below->first) / (above->first - below->first));
}

double RateTable::getLargestRate() const {
  double rate = 0;
  for (auto &point : points)
    rate = std::max(rate, point.second);
  return rate;
}

/// No size or rate of a machine is beyond these, and times of their quotients are numbers.
static bool isPlausible(double number) { return std::isfinite(number) && number > 0 && number <= 1e18; }

bool RateTable::addChecked(double size, double rate, std::string &error) {
  auto fail = [&](const char *what, double number) {
    error = llvm::formatv("expected {0} above 0 and at most 1e18, got {1}", what, number).str();
    return false;
  };
  if (!isPlausible(size))
    return fail("a size", size);
  if (!isPlausible(rate))
    return fail("a rate", rate);
  if (!points.empty() && size <= points.back().first) {
    error = llvm::formatv("expected sizes that grow, got {0} behind {1}", size, points.back().first).str();
    return false;
  }
  add(size, rate);
  return true;
}

bool RateTable::parse(llvm::StringRef text, RateTable &table, std::string &error) {
  table.points.clear();
  llvm::SmallVector<llvm::StringRef> parts;
  text.split(parts, ';');
  for (llvm::StringRef part : parts) {
    auto [size, rate] = part.split(':');
    double x, y;
    if (size.getAsDouble(x) || rate.getAsDouble(y)) {
      error = ("expected size:rate;size:rate..., got '" + part + "'").str();
      return false;
    }
    if (!table.addChecked(x, y, error))
      return false;
  }
  return true;
}

std::string RateTable::str() const {
  std::string text;
  for (auto [size, rate] : points) {
    char point[64];
    std::snprintf(point, sizeof(point), "%s%.6g:%.4g", text.empty() ? "" : ";", size, rate);
    text += point;
  }
  return text;
}

llvm::ArrayRef<RateKey> meshwright::getRateKeys() {
#define TYPES(name, member)                                                                        \
  {name "_f32", [](Rates &r) -> RateTable & { return r.member[Rates::F32]; }},                     \
      {name "_bf16", [](Rates &r) -> RateTable & { return r.member[Rates::BF16]; }},               \
      {name "_f16", [](Rates &r) -> RateTable & { return r.member[Rates::F16]; }}
#define KEY(name, member)                                                                          \
  {name, [](Rates &r) -> RateTable & { return r.member; }}
  static const RateKey keys[] = {TYPES("product", products),
                                 TYPES("plain_product", plainProducts),
                                 TYPES("attention", attention),
                                 TYPES("attention_gradient", attentionGradients),
                                 KEY("rows", rows),
                                 KEY("moves", moves),
                                 KEY("weights", weights),
                                 KEY("all_reduce", allReduce),
                                 KEY("reduce_scatter", reduceScatter),
                                 KEY("all_gather", allGather),
                                 KEY("all_to_all", allToAll),
                                 KEY("permute", permute),
                                 KEY("redistribute", redistribute)};
#undef TYPES
#undef KEY
  return keys;
}
