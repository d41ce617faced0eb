//===- Links.cpp - the links that collectives share -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Links.h"

#include "llvm/ADT/EquivalenceClasses.h"

using namespace mlir;
using namespace meshwright;

SmallVector<int64_t>
meshwright::numberLinks(ArrayRef<dist::CollectiveOpInterface> collectives, dist::MeshAttr mesh) {
  SmallVector<dist::AxisList> sets;
  SmallVector<int64_t> setOf;
  for (dist::CollectiveOpInterface collective : collectives) {
    dist::AxisList axes = collective.getGroupAxes(mesh);
    auto known = llvm::find(sets, axes);
    setOf.push_back(known - sets.begin());
    if (known == sets.end())
      sets.push_back(axes);
  }
  llvm::EquivalenceClasses<int64_t> classes;
  for (size_t i = 0; i < sets.size(); ++i) {
    classes.insert(i);
    for (size_t j = 0; j < i; ++j)
      if (dist::anyOverlap(sets[i], sets[j]))
        classes.unionSets(i, j);
  }
  DenseMap<int64_t, int64_t> numbers;
  SmallVector<int64_t> links;
  for (int64_t set : setOf)
    links.push_back(
        numbers.try_emplace(classes.getLeaderValue(set), numbers.size() + 1).first->second);
  return links;
}
