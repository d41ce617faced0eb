//===- SplitFetches.cpp - a gather for each run of uses of a weight -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Dist/OpTraits.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/recompute/Passes.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_SPLITFETCHESPASS
#include "meshwright/passes/recompute/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// The first collective of a gathered weight, the ops behind it that give its result the form that
/// readers use, and its readers. Over links of different speed a gather takes several collectives.
struct Fetch {
  Operation *gather;
  SmallVector<Operation *> links;
  /// In the order of the program.
  SmallVector<Operation *> readers;
};

class FetchSplitter {
public:
  explicit FetchSplitter(func::FuncOp func);

  /// Returns the number of gathers that the program has more than before.
  int64_t run();
  int64_t getNumFetches() const { return fetches.size(); }
  /// The bytes of the weights that both the forward and the backward pass read.
  int64_t getKeptBytes() const;
  /// Notes on each gather the phase in which it is read first.
  void notePhases();

private:
  /// Readers at most this many other weights apart share a gather: the next one would begin at once.
  static constexpr size_t kNearby = 1;

  void collect(Operation *gather);
  bool share(const Fetch &fetch, Operation *reader, Operation *next) const;
  void split(const Fetch &fetch, ArrayRef<Operation *> readers);

  StringRef getPhase(Operation *reader) const;

  ProgramMap<Operation *, int64_t> numbers;
  /// The number of the first op of the backward pass.
  int64_t backward = std::numeric_limits<int64_t>::max();
  std::vector<Fetch> fetches;
  /// The ops that read weights, in the order of the program, with the numbers of their fetches.
  std::vector<std::pair<Operation *, size_t>> reads;
};

} // namespace

/// Returns true for a collective that gathers a weight, or takes a step of it.
static bool isStep(Operation *op) {
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  return collective && collective.communicates() &&
         collective.getRole() == CollectiveRole::Weights && op->getNumOperands() == 1;
}

/// Returns true for an op that gives a gathered weight another form, or takes a rank's part of it.
static bool isLink(Operation *op) {
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  return op->hasTrait<KeepsWeight>() && op->getNumOperands() == 1 &&
         (!collective || !collective.communicates() || isStep(op));
}

/// Returns true for a step that takes another one further.
static bool followsStep(Operation *op) {
  Operation *before = op->getOperand(0).getDefiningOp();
  while (before && isLink(before) && !isStep(before))
    before = before->getOperand(0).getDefiningOp();
  return before && isStep(before);
}

FetchSplitter::FetchSplitter(func::FuncOp func) {
  for (Operation &op : func.front()) {
    if (op.getNumOperands() > 0 && op.hasAttr(nn::NnDialect::kBackwardAttr))
      backward = std::min<int64_t>(backward, numbers.size());
    numbers[&op] = numbers.size();
  }
  for (auto collective : func.getOps<CollectiveOpInterface>())
    if (isStep(collective) && !followsStep(collective))
      collect(collective);
  for (auto [i, fetch] : llvm::enumerate(fetches))
    for (Operation *reader : fetch.readers)
      reads.emplace_back(reader, i);
  llvm::sort(reads, [&](auto &a, auto &b) {
    return std::pair(numbers.lookup(a.first), a.second) <
           std::pair(numbers.lookup(b.first), b.second);
  });
}

void FetchSplitter::collect(Operation *gather) {
  Fetch fetch{gather, {}, {}};
  llvm::SetVector<Operation *> readers;
  SmallVector<Operation *> worklist{gather};
  while (!worklist.empty()) {
    Operation *op = worklist.pop_back_val();
    for (Operation *user : op->getUsers()) {
      if (!isLink(user))
        readers.insert(user);
      else if (!llvm::is_contained(fetch.links, user)) {
        fetch.links.push_back(user);
        worklist.push_back(user);
      }
    }
  }
  auto isBefore = [&](Operation *a, Operation *b) { return numbers.lookup(a) < numbers.lookup(b); };
  fetch.readers = readers.takeVector();
  llvm::sort(fetch.readers, isBefore);
  llvm::sort(fetch.links, isBefore);
  fetches.push_back(std::move(fetch));
}

StringRef FetchSplitter::getPhase(Operation *reader) const {
  if (numbers.lookup(reader) < backward)
    return "forward";
  return reader->hasAttr(nn::NnDialect::kBackwardAttr) ? "backward" : "recompute";
}

/// Returns true if one gather serves two readers of a weight: an op that is computed again and its
/// backward pass, and ops between which few other weights are read.
bool FetchSplitter::share(const Fetch &fetch, Operation *reader, Operation *next) const {
  if (getPhase(reader) == "recompute" && getPhase(next) == "backward")
    return true;
  auto isBefore = [&](const auto &read, int64_t number) {
    return numbers.lookup(read.first) < number;
  };
  int64_t end = numbers.lookup(next);
  llvm::SmallDenseSet<size_t, 4> others;
  for (auto it = llvm::lower_bound(reads, numbers.lookup(reader) + 1, isBefore);
       it != reads.end() && numbers.lookup(it->first) < end && others.size() <= kNearby; ++it)
    if (&fetches[it->second] != &fetch)
      others.insert(it->second);
  return others.size() <= kNearby;
}

/// Gives readers a gather of their own, before the first of them.
void FetchSplitter::split(const Fetch &fetch, ArrayRef<Operation *> readers) {
  OpBuilder builder(readers.front());
  IRMapping mapping;
  auto phase = builder.getStringAttr(getPhase(readers.front()));
  builder.clone(*fetch.gather, mapping)->setAttr(DistDialect::kPhaseAttr, phase);
  SmallVector<Operation *> copies;
  for (Operation *link : fetch.links) {
    copies.push_back(builder.clone(*link, mapping));
    if (isStep(link))
      copies.back()->setAttr(DistDialect::kPhaseAttr, phase);
  }
  for (Operation *reader : readers)
    for (OpOperand &operand : reader->getOpOperands())
      operand.set(mapping.lookupOrDefault(operand.get()));
  // Not all readers need each form.
  for (Operation *copy : llvm::reverse(copies))
    if (copy->use_empty())
      copy->erase();
}

void FetchSplitter::notePhases() {
  for (const Fetch &fetch : fetches) {
    if (fetch.readers.empty())
      continue;
    auto phase = StringAttr::get(fetch.gather->getContext(), getPhase(fetch.readers.front()));
    fetch.gather->setAttr(DistDialect::kPhaseAttr, phase);
    for (Operation *link : fetch.links)
      if (isStep(link))
        link->setAttr(DistDialect::kPhaseAttr, phase);
  }
}

int64_t FetchSplitter::getKeptBytes() const {
  int64_t bytes = 0;
  for (const Fetch &fetch : fetches)
    if (!fetch.readers.empty() && numbers.lookup(fetch.readers.front()) < backward &&
        numbers.lookup(fetch.readers.back()) >= backward)
      bytes += getTensorBytes(fetch.gather->getResult(0).getType());
  return bytes;
}

int64_t FetchSplitter::run() {
  int64_t more = 0;
  for (const Fetch &fetch : fetches) {
    ArrayRef<Operation *> readers = fetch.readers;
    size_t begin = 0;
    for (size_t i = 1; i <= readers.size(); ++i) {
      if (i < readers.size() && share(fetch, readers[i - 1], readers[i]))
        continue;
      if (begin > 0) {
        split(fetch, readers.slice(begin, i - begin));
        ++more;
      }
      begin = i;
    }
  }
  // Forms that only later runs read.
  for (const Fetch &fetch : fetches)
    for (Operation *link : llvm::reverse(fetch.links))
      if (link->use_empty())
        link->erase();
  return more;
}

/// Splits the gathers of a function, or only notes their phases. Returns how many gathers it has more.
static int64_t splitFetches(func::FuncOp func, bool keeps) {
  FetchSplitter splitter(func);
  splitter.notePhases();
  return keeps ? 0 : splitter.run();
}

static void removeMarks(func::FuncOp func) {
  func.walk([](Operation *op) { op->removeAttr(nn::NnDialect::kBackwardAttr); });
}

namespace {
struct SplitFetchesPass : meshwright::impl::SplitFetchesPassBase<SplitFetchesPass> {
  using SplitFetchesPassBase::SplitFetchesPassBase;
  SplitFetchesPass(SplitFetchesPassOptions options, FindTime findTime)
      : SplitFetchesPassBase(std::move(options)), findTime(std::move(findTime)) {}

  void runOnOperation() override {
    bool changed = false;
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      if (getSpmdMeshSymbol(func) && func.getBody().hasOneBlock())
        changed |= split(func);
      removeMarks(func);
    }
    // Marks and phases are no part of a placement.
    if (!changed)
      markAllAnalysesPreserved();
  }
  bool split(func::FuncOp func);
  bool shouldKeep(func::FuncOp func);

  FindTime findTime;
};
} // namespace

/// Returns true if weights that are kept fit under the ceiling, and save time.
bool SplitFetchesPass::shouldKeep(func::FuncOp func) {
  if (keep != OnOffAuto::Auto || !memoryCeiling || !findTime)
    return keep == OnOffAuto::On;
  // Without a plan: what a rank stores, and the largest weights that would be kept together.
  int64_t bytes = 0;
  for (Type type : func.getArgumentTypes())
    bytes += getTensorBytes(type);
  if (bytes + FetchSplitter(func).getKeptBytes() > memoryCeiling)
    return false;
  auto copyWith = [&](bool keeps) {
    OwningOpRef<ModuleOp> module(getOperation().clone());
    auto copy = module->lookupSymbol<func::FuncOp>(func.getName());
    int64_t more = splitFetches(copy, keeps);
    removeMarks(copy);
    return std::tuple(std::move(module), copy, more);
  };
  auto [again, gathersAgain, more] = copyWith(/*keeps=*/false);
  if (!more)
    return false;
  auto [kept, keepsAll, none] = copyWith(/*keeps=*/true);
  std::optional<int64_t> keptTime = findTime(keepsAll, memoryCeiling, /*bestOnly=*/true);
  if (!keptTime)
    return false;
  std::optional<int64_t> time = findTime(gathersAgain, memoryCeiling, /*bestOnly=*/false);
  bool isBetter = !time || *keptTime < *time;
  std::vector<std::pair<std::string, double>> numbers = {
      {"memory_ceiling_bytes", double(memoryCeiling)}, {"kept_seconds", double(*keptTime) * 1e-12}};
  if (time)
    numbers.push_back({"gathered_again_seconds", double(*time) * 1e-12});
  DistDialect::getDecisionLog(func.getContext())
      .add("split-fetches", isBetter ? Outcome::Applied : Outcome::Declined, func.getLoc(),
           isBetter ? "gathered weights are kept from the forward to the backward pass: they keep to the "
                      "memory ceiling, and the step takes less time"
                    : "gathered weights are not kept from the forward to the backward pass: the step "
                      "would take no less time",
           std::move(numbers));
  return isBetter;
}

bool SplitFetchesPass::split(func::FuncOp func) {
  int64_t weights = FetchSplitter(func).getNumFetches();
  int64_t more = splitFetches(func, shouldKeep(func));
  if (!more)
    return false;
  DistDialect::getDecisionLog(func.getContext())
      .add("split-fetches", Outcome::Applied, func.getLoc(),
           llvm::formatv("{0} weights are gathered {1} times more: where they are used again, they "
                         "are gathered again",
                         weights, more)
               .str(),
           {{"weights", double(weights)}, {"gathers", double(more)}});
  return true;
}

std::unique_ptr<Pass> meshwright::createSplitFetchesPass(SplitFetchesPassOptions options,
                                                         FindTime findTime) {
  return std::make_unique<SplitFetchesPass>(std::move(options), std::move(findTime));
}
