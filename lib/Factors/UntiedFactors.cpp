//===- UntiedFactors.cpp - ops that cannot keep factors -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A dimension of a value may be cut into factors in another way than an op cuts it: a reshape
// to 4 x 39 reads a dimension that is the product of 13 and 12. From the minor side the two may
// still agree. The rest is read and written whole.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Writes a rule of its own for an op. In it the classes of each dimension are those of its
/// factors, in order:
/// - Classes on which a dimension and its factors agree, from the minor side, stay as they are.
/// - Other classes of the dimension are factors that the op reads whole, and that no other
///   dimension has.
/// - Other classes of the factors are read whole in all dimensions. Such a factor becomes one
///   factor a class.
class FactorAnalysis::Separation {
public:
  Separation(const FactorAnalysis &analysis, Operation *op)
      : analysis(analysis), op(op), rule(analysis.getFactors(op).rule),
        classes(analysis.getFactors(op).classes), refined(rule) {}

  void run();
  FactorRule takeRule() { return std::move(refined); }
  SmallVector<FactorClasses, 4> takeClasses() { return std::move(refinedClasses); }

private:
  /// A class of a factor of the op's rule.
  struct RuleClass {
    int factor;
    size_t cls;
  };
  using Visit = function_ref<void(ArrayRef<int> own, const FactorRule::DimFactors &dim,
                                  FactorRule::DimFactors &target)>;

  void forEachDim(Visit visit);
  SmallVector<RuleClass, 4> list(const FactorRule::DimFactors &dim) const;
  size_t countTied(ArrayRef<RuleClass> ruleClasses, ArrayRef<int> own) const;
  int add(RuleFactor factor, FactorClasses own);

  const FactorAnalysis &analysis;
  Operation *op;
  const FactorRule &rule;
  const SmallVector<FactorClasses, 4> &classes;
  FactorRule refined;
  SmallVector<FactorClasses, 4> refinedClasses;
};

/// Visits the dimensions that have factors: the classes of the value, the factors of the rule,
/// and those of the new rule.
void FactorAnalysis::Separation::forEachDim(Visit visit) {
  auto visitAll = [&](auto values, const auto &from, auto &to) {
    for (auto [value, dims, targets] : llvm::zip_equal(values, from, to))
      for (auto [own, dim, target] : llvm::zip(analysis.getClasses(value), dims, targets))
        if (!dim.empty())
          visit(own, dim, target);
  };
  visitAll(op->getOperands().take_front(rule.operands.size()), rule.operands, refined.operands);
  visitAll(op->getResults(), rule.results, refined.results);
}

auto FactorAnalysis::Separation::list(const FactorRule::DimFactors &dim) const
    -> SmallVector<RuleClass, 4> {
  SmallVector<RuleClass, 4> ruleClasses;
  for (int factor : dim)
    for (size_t cls = 0; cls < classes[factor].size(); ++cls)
      ruleClasses.push_back({factor, cls});
  return ruleClasses;
}

/// The number of classes on which a dimension and its factors agree, from the minor side.
size_t FactorAnalysis::Separation::countTied(ArrayRef<RuleClass> ruleClasses,
                                             ArrayRef<int> own) const {
  size_t count = 0;
  while (!ruleClasses.empty() && !own.empty() &&
         classes[ruleClasses.back().factor][ruleClasses.back().cls] == own.back()) {
    ruleClasses = ruleClasses.drop_back();
    own = own.drop_back();
    ++count;
  }
  return count;
}

int FactorAnalysis::Separation::add(RuleFactor factor, FactorClasses own) {
  factor.size = 1;
  for (int cls : own)
    factor.size *= analysis.getSize(cls);
  refined.factors.push_back(std::move(factor));
  refinedClasses.push_back(std::move(own));
  return refined.factors.size() - 1;
}

void FactorAnalysis::Separation::run() {
  std::vector<SmallVector<bool>> isTied;
  for (const FactorClasses &own : classes)
    isTied.emplace_back(own.size(), true);
  forEachDim([&](ArrayRef<int> own, const FactorRule::DimFactors &dim, FactorRule::DimFactors &) {
    SmallVector<RuleClass, 4> ruleClasses = list(dim);
    for (RuleClass ruleClass : ArrayRef(ruleClasses).drop_back(countTied(ruleClasses, own)))
      isTied[ruleClass.factor][ruleClass.cls] = false;
  });

  // The numbers of the factors that a factor becomes: one, or one a class.
  std::vector<SmallVector<int>> numbers(classes.size());
  refined.factors.clear();
  for (size_t i = 0; i < classes.size(); ++i) {
    if (!llvm::is_contained(isTied[i], false)) {
      numbers[i].push_back(add(rule.factors[i], classes[i]));
      continue;
    }
    for (auto [cls, tied] : llvm::zip_equal(classes[i], isTied[i])) {
      RuleFactor factor = rule.factors[i];
      if (!tied)
        factor.kind = FactorKind::Special;
      numbers[i].push_back(add(std::move(factor), {cls}));
    }
  }
  forEachDim(
      [&](ArrayRef<int> own, const FactorRule::DimFactors &dim, FactorRule::DimFactors &target) {
        SmallVector<RuleClass, 4> ruleClasses = list(dim);
        size_t tied = countTied(ruleClasses, own);
        target.clear();
        if (tied == ruleClasses.size() && tied == own.size()) {
          for (int factor : dim)
            target.append(numbers[factor]);
          return;
        }
        for (int cls : own.drop_back(tied))
          target.push_back(add({FactorKind::Special, 0, {}}, {cls}));
        for (RuleClass ruleClass : ArrayRef(ruleClasses).take_back(tied)) {
          ArrayRef<int> own = numbers[ruleClass.factor];
          int number = own[own.size() == 1 ? 0 : ruleClass.cls];
          if (!llvm::is_contained(target, number))
            target.push_back(number);
        }
      });
}

void FactorAnalysis::separateUntied() {
  for (Operation *op : untied) {
    Separation separation(*this, op);
    separation.run();
    rules.push_back(separation.takeRule());
    ops[op] = opFactors.size();
    opFactors.push_back({rules.back(), separation.takeClasses()});
  }
}
