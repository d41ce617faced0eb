//===- ExplainPlan.cpp - why a plan was chosen ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/plan/ExplainPlan.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/lib/Support/NumberText.h"
#include "meshwright/passes/plan/Passes.h"

#include "llvm/Support/Format.h"

#include <limits>

using namespace mlir;
using namespace meshwright;

/// Plans in the decision, and further points of the front that are named.
static constexpr size_t kNumAlternatives = 8, kMostOnFront = 4;
/// Times within this share of each other count as the same in texts.
static constexpr double kSameTime = 1e-3;
/// A plan with less memory is worth naming below this share.
static constexpr double kLessMemory = 0.99;
/// Links that differ by more than this factor are not what a user asks about.
static constexpr double kMostLinks = 100;

std::string meshwright::describePlan(const ParallelizeOptions &options) {
  ParallelizeOptions shown = options;
  shown.device.clear();
  shown.target.clear();
  std::string text = shown.str();
  // A plan without options has a name, too.
  return text.empty() ? "sequence-parallel=auto" : text;
}

/// Why a plan lost to the chosen one.
static std::string explain(const PlanSearch &search, const PlanPrice &price, const PlanPrice &chosen,
                           Objective objective) {
  if (!search.fits(price))
    return "needs " + formatBytes(price.memory) + ", which does not fit";
  auto more = [](double difference, const char *what) {
    return std::string(what) + " " + formatSeconds(std::abs(difference)) + (difference < 0 ? " less" : " longer");
  };
  std::string text;
  double time = price.seconds - chosen.seconds, waits = price.exposed - chosen.exposed;
  bool isSame = std::abs(time) < kSameTime * chosen.seconds;
  if (isSame)
    text = "takes the same time";
  else
    text = more(time, "takes") + ": " + more(time - waits, "computes") + ", " + more(waits, "waits for collectives");
  if (objective != Objective::Time || isSame) {
    if (price.memory > chosen.memory)
      text += ", and needs " + formatBytes(price.memory - chosen.memory) + " more";
    else if (isSame)
      text += ", and is less simple";
  }
  return text;
}

/// The plans that no other one beats in both time and memory, fastest first. A plan that saves next to no memory is left out.
static std::vector<const PricedPlan *> findFront(ArrayRef<const PricedPlan *> plans, const PricedPlan *chosen) {
  std::vector<const PricedPlan *> order(plans.begin(), plans.end()), front;
  llvm::stable_sort(order, [](const PricedPlan *a, const PricedPlan *b) {
    return std::make_pair(a->price.seconds, a->price.memory) < std::make_pair(b->price.seconds, b->price.memory);
  });
  double least = std::numeric_limits<double>::infinity();
  for (const PricedPlan *plan : order)
    if (double memory = double(plan->price.memory); memory < kLessMemory * least || (plan == chosen && memory < least)) {
      front.push_back(plan);
      least = memory;
    }
  return front;
}

static std::string describeFront(ArrayRef<const PricedPlan *> front, const PricedPlan *chosen) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "time over memory: ";
  if (!llvm::is_contained(front.take_front(kMostOnFront + 1), chosen))
    os << formatSeconds(chosen->price.seconds) << " with " << formatBytes(chosen->price.memory) << " (chosen), ";
  llvm::interleave(
      front.take_front(kMostOnFront + 1), os,
      [&](const PricedPlan *plan) {
        os << formatSeconds(plan->price.seconds) << " with " << formatBytes(plan->price.memory) << " ("
           << (plan == chosen ? "chosen" : describePlan(plan->options)) << ")";
      },
      ", ");
  if (front.size() > kMostOnFront + 1)
    os << ", and " << front.size() - kMostOnFront - 1 << " more down to " << formatBytes(front.back()->price.memory);
  return text;
}

/// The factor of the links' speed at which a slower plan takes the time of the chosen one. Waits for collectives
/// shrink as links are faster, and other times stay. 0: there is none.
static double findLinks(const PlanPrice &price, const PlanPrice &chosen) {
  double computes = (price.seconds - price.exposed) - (chosen.seconds - chosen.exposed);
  double waits = chosen.exposed - price.exposed;
  return price.seconds > chosen.seconds && computes * waits > 0 ? waits / computes : 0;
}

/// Which memory and which links would change the choice. Empty if none of the priced plans would win.
static std::string describeChange(ArrayRef<const PricedPlan *> plans, ArrayRef<const PricedPlan *> front,
                                  const PricedPlan *chosen, Objective objective) {
  SmallVector<std::string> changes;
  if (objective == Objective::Time)
    for (const PricedPlan *plan : front)
      if (plan->price.memory < chosen->price.memory) {
        changes.push_back("with less memory than " + formatBytes(chosen->price.memory) + " " +
                          describePlan(plan->options));
        break;
      }
  const PricedPlan *faster = nullptr, *slower = nullptr;
  auto links = [&](const PricedPlan *plan) { return findLinks(plan->price, chosen->price); };
  for (const PricedPlan *plan : plans) {
    double factor = plan == chosen ? 0 : links(plan);
    if (factor > 1 && factor < kMostLinks && (!faster || factor < links(faster)))
      faster = plan;
    if (factor > 1 / kMostLinks && factor < 1 && (!slower || factor > links(slower)))
      slower = plan;
  }
  auto addLinks = [&](const PricedPlan *plan) {
    if (!plan || objective != Objective::Time)
      return;
    std::string text;
    llvm::raw_string_ostream(text) << "with links " << llvm::format("%.2g", links(plan)) << " times as fast "
                                   << describePlan(plan->options);
    changes.push_back(text);
  };
  addLinks(faster);
  addLinks(slower);
  return changes.empty() ? "" : "the choice would be, " + llvm::join(changes, "; ");
}

void meshwright::logChoice(ModuleOp module, const PlanSearch &search, Objective objective) {
  std::vector<const PricedPlan *> ranked = search.rank();
  const PricedPlan *best = ranked.front();
  const PlanPrice &chosen = best->price;
  auto getNumbers = [](const PlanPrice &price) -> std::vector<std::pair<std::string, double>> {
    return {{"seconds", price.seconds},
            {"exposed_seconds", price.exposed},
            {"memory_bytes", double(price.memory)},
            {"bytes", double(price.bytes)}};
  };
  std::vector<Alternative> alternatives;
  for (const PricedPlan *plan : ArrayRef(ranked).take_front(kNumAlternatives)) {
    bool isChosen = plan == best;
    alternatives.push_back({describePlan(plan->options), getNumbers(plan->price),
                            isChosen ? "" : explain(search, plan->price, chosen, objective), isChosen});
  }
  std::string message;
  llvm::raw_string_ostream(message) << alternatives.front().name << " has the best " << objective << " of "
                                    << search.getNumPlans() << " plans";
  DecisionLog &log = dist::DistDialect::getDecisionLog(module.getContext());
  auto numbers = getNumbers(chosen);
  numbers.emplace_back("plans", search.getNumPlans());
  log.add(kPlannerPass, Outcome::Applied, module.getLoc(), message, numbers, std::move(alternatives));
  std::vector<const PricedPlan *> fitting = search.listFitting(), front = findFront(fitting, best);
  if (front.size() > 1)
    log.add(kPlannerNotes, Outcome::Note, module.getLoc(), describeFront(front, best));
  if (std::string change = describeChange(fitting, front, best, objective); !change.empty())
    log.add(kPlannerNotes, Outcome::Note, module.getLoc(), change);
}
