//===- PostDominators.cpp - Where lanes that diverge meet again --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Linker.h"

namespace fakegpu {
namespace {

/// Immediate post-dominators by Cooper, Harvey and Kennedy: the dominators of the reversed graph,
/// whose root stands behind all instructions that leave the function.
class PostDominators {
public:
  PostDominators(const std::vector<Inst> &code, int begin, int end)
      : code(code), begin(begin), count(end - begin), parent(count + 1, -1), number(count + 1, -1) {}

  std::vector<int> run() {
    order();
    parent[count] = count;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = postorder.size(); i-- > 0;) {
        int node = postorder[i];
        if (node == count)
          continue;
        int found = -1;
        for (int next : successors(node))
          if (number[next] >= 0 && parent[next] >= 0)
            found = found < 0 ? next : meet(found, next);
        if (found != parent[node]) {
          parent[node] = found;
          changed = true;
        }
      }
    }
    return parent;
  }

private:
  std::vector<int> successors(int node) const {
    const Inst &inst = code[begin + node];
    std::vector<int> result;
    if (inst.flow == Inst::Branch)
      result.push_back(inst.target - begin);
    else if (inst.flow == Inst::IndexedBranch)
      for (int t : inst.targets)
        result.push_back(t - begin);
    else if (inst.flow == Inst::Exit || inst.flow == Inst::End)
      result.push_back(count);
    bool falls = inst.flow == Inst::Next || inst.flow == Inst::Call || inst.guard != kNone;
    if (falls && inst.flow != Inst::End)
      result.push_back(node + 1);
    return result;
  }

  int meet(int x, int y) const {
    while (x != y) {
      while (number[x] < number[y])
        x = parent[x];
      while (number[y] < number[x])
        y = parent[y];
    }
    return x;
  }

  /// A postorder of the reversed graph from its root.
  void order() {
    std::vector<std::vector<int>> before(count + 1);
    for (int i = 0; i < count; ++i)
      for (int next : successors(i))
        before[next].push_back(i);
    std::vector<std::pair<int, size_t>> stack{{count, 0}};
    std::vector<bool> seen(count + 1);
    seen[count] = true;
    while (!stack.empty()) {
      auto &[node, at] = stack.back();
      if (at == before[node].size()) {
        number[node] = int(postorder.size());
        postorder.push_back(node);
        stack.pop_back();
        continue;
      }
      int next = before[node][at++];
      if (!seen[next]) {
        seen[next] = true;
        stack.push_back({next, 0});
      }
    }
  }

  const std::vector<Inst> &code;
  int begin, count;
  std::vector<int> parent, number, postorder;
};

} // namespace

void findJoins(std::vector<Inst> &code, int begin, int end) {
  std::vector<int> parent = PostDominators(code, begin, end).run();
  for (int i = begin; i < end; ++i) {
    int join = parent[i - begin];
    code[i].join = join < 0 || join == end - begin ? -1 : begin + join;
  }
}

} // namespace fakegpu
