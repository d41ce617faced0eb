//===- PlanPrefetch.cpp - when gathers of weights begin -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/SortByOperands.h"
#include "meshwright/passes/schedule/LaunchTasks.h"
#include "meshwright/passes/schedule/Passes.h"


namespace meshwright {
#define GEN_PASS_DEF_PLANPREFETCHPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

class PrefetchPlan {
public:
  PrefetchPlan(func::FuncOp func, const CostModel &model);

  /// Chooses for each gather the kernel that it may run beside first.
  void choose(std::optional<int64_t> ahead);
  /// Orders the gathers behind the launches before these kernels.
  void write(func::FuncOp func);

  int64_t getNumFetches() const { return uses.size(); }
  int64_t getMostAhead() const;

private:
  /// A gather of weights, by its task and that of its first reader. Over links of different speed a
  /// gather takes several steps, each of which is read by the next.
  struct Fetch {
    unsigned task, reader;
    /// The number of the gathered weight, in the order in which kernels read them; of a joint launch, the
    /// last one.
    unsigned use = 0;
    /// The kernel that may run beside its begin.
    unsigned beside = 0;
  };

  /// Gathers begin so early that they may take so many times their time.
  static constexpr int64_t kSlack = 2;
  /// A gather ends where so many weights are read before its own, so that a rank that comes late delays no
  /// other. Under a ceiling memory may be short.
  static constexpr unsigned kLead = 2;

  /// A time in which a link has another collective.
  struct Interval {
    int64_t begin, end;
  };
  void addOthers();
  int64_t getBegin(int link, int64_t end, int64_t time) const;

  unsigned lead;
  LaunchTasks launches;
  /// The other collectives of each link, in order.
  DenseMap<int, std::vector<Interval>> others;
  /// In the order in which they are read.
  std::vector<Fetch> fetches;
  /// The first reader of each gathered weight.
  std::vector<unsigned> uses;
  /// For each task, picoseconds of the kernels before it.
  std::vector<int64_t> begins;
};

} // namespace

static bool isFetch(Operation *launch) {
  auto start = dyn_cast<rt::StartOp>(launch);
  return start && start.getCollective().getRole() == CollectiveRole::Weights;
}

/// Returns true for a launch that only brings a weight to the form of its reader.
static bool isWidening(Operation *launch) {
  return isa_and_nonnull<DecodeOp, rt::PrepareOp>(rt::getOnlyOp(launch));
}

static bool isDecoding(Operation *launch) {
  return isa_and_nonnull<DecodeOp>(rt::getOnlyOp(launch));
}

/// The first launch that computes with a value, seen through what brings it to another form.
static Operation *findReader(Value value) {
  Operation *first = nullptr;
  for (Operation *user : value.getUsers()) {
    Operation *reader = rt::isView(user) || isWidening(user) ? findReader(user->getResult(0)) : user;
    if (reader && (!first || reader->isBeforeInBlock(first)))
      first = reader;
  }
  return first;
}

/// Lets launches that decode a weight wait for what else their reader reads: until then the weight takes
/// less memory.
static void holdDecodings(func::FuncOp func) {
  for (auto kernel : func.getOps<rt::KernelOp>()) {
    if (!isDecoding(kernel))
      continue;
    Operation *reader = findReader(kernel->getResult(0));
    Value last;
    for (Value operand : reader ? reader->getOperands() : ValueRange())
      if (Operation *maker = operand.getDefiningOp();
          maker && maker->isBeforeInBlock(kernel) &&
          (!last || last.getDefiningOp()->isBeforeInBlock(maker)))
        last = operand;
    if (!last)
      continue;
    OpBuilder builder(kernel);
    OpOperand &operand = kernel->getOpOperand(0);
    operand.set(AfterOp::create(builder, kernel.getLoc(), operand.get(), last));
  }
}

PrefetchPlan::PrefetchPlan(func::FuncOp func, const CostModel &model)
    : lead(func->hasAttr(rt::RtDialect::kCeilingAttr) ? 0 : kLead), launches(func, model, RunBeside::Always) {
  ArrayRef<ScheduleTask> tasks = launches.tasks;
  std::vector<unsigned> readers(tasks.size(), tasks.size());
  int64_t now = 0;
  for (auto [i, task] : llvm::enumerate(tasks)) {
    begins.push_back(now);
    if (task.link == 0)
      now += task.time;
    for (unsigned dependence : task.dependences)
      if (task.reads(dependence))
        readers[dependence] = std::min<unsigned>(readers[dependence], i);
  }
  for (auto [i, launch] : llvm::enumerate(launches.launches))
    if (isFetch(launch) && readers[i] < tasks.size())
      fetches.push_back({unsigned(i), readers[i]});
  addOthers();
  llvm::sort(fetches, [](const Fetch &a, const Fetch &b) {
    return std::pair(a.reader, a.task) < std::pair(b.reader, b.task);
  });
  // A step comes before the one that reads it.
  DenseMap<unsigned, unsigned> useOf;
  for (Fetch &fetch : fetches)
    if (!isFetch(launches.launches[fetch.reader])) {
      // A joint launch gathers several weights.
      uses.insert(uses.end(), launches.launches[fetch.task]->getNumOperands(), fetch.reader);
      useOf[fetch.task] = fetch.use = uses.size() - 1;
    }
  for (Fetch &fetch : llvm::reverse(fetches))
    if (auto last = useOf.find(fetch.reader); last != useOf.end())
      useOf[fetch.task] = fetch.use = last->second;
}

/// Other collectives begin when the kernels before them have ended, one after the other on a link.
void PrefetchPlan::addOthers() {
  for (auto [i, task] : llvm::enumerate(launches.tasks)) {
    if (task.link == 0 || isFetch(launches.launches[i]))
      continue;
    std::vector<Interval> &list = others[task.link];
    int64_t begin = std::max(begins[i], list.empty() ? 0 : list.back().end);
    list.push_back({begin, begin + task.time});
  }
}

/// The latest begin of a gather that ends by `end`, if its link does the others that come before, too.
int64_t PrefetchPlan::getBegin(int link, int64_t end, int64_t time) const {
  int64_t begin = end - time;
  auto known = others.find(link);
  if (known == others.end())
    return begin;
  ArrayRef<Interval> list = known->second;
  const Interval *it = llvm::lower_bound(
      list, end, [](const Interval &own, int64_t time) { return own.begin < time; });
  for (; it != list.begin() && std::prev(it)->end > begin; --it)
    begin -= std::min(end, std::prev(it)->end) - std::prev(it)->begin;
  return begin;
}

void PrefetchPlan::choose(std::optional<int64_t> ahead) {
  ArrayRef<ScheduleTask> tasks = launches.tasks;
  DenseMap<int, int64_t> taken;
  DenseMap<unsigned, int64_t> planned;
  for (size_t i = fetches.size(); i-- > 0;) {
    Fetch &fetch = fetches[i];
    const ScheduleTask &task = tasks[fetch.task];
    // Back from the first reader, or from where the link has to begin with the next gather.
    auto next = planned.find(fetch.reader);
    unsigned reader = fetch.use >= lead ? std::min(uses[fetch.use - lead], fetch.reader) : fetch.reader;
    int64_t end = next == planned.end() ? begins[reader] : next->second;
    if (auto known = taken.find(task.link); known != taken.end())
      end = std::min(end, known->second);
    // A gather may take longer than modelled: a rank comes late.
    int64_t begin = getBegin(task.link, end, kSlack * task.time);
    taken[task.link] = planned[fetch.task] = begin;
    fetch.beside = fetch.reader;
    while (fetch.beside > 0 && begins[fetch.beside] > begin)
      --fetch.beside;
    if (ahead)
      fetch.beside =
          std::max(fetch.beside, *ahead > int64_t(fetch.use) ? 0 : uses[fetch.use - *ahead]);
  }
}

void PrefetchPlan::write(func::FuncOp func) {
  for (const Fetch &fetch : fetches) {
    // The last launch before that kernel whose result a gather can wait for. A decoding itself waits.
    Operation *earlier = nullptr;
    for (unsigned i = fetch.beside; i-- > 0 && !earlier;)
      if (isa<rt::KernelOp>(launches.launches[i]) && launches.launches[i]->getNumResults() > 0 &&
          !isDecoding(launches.launches[i]))
        earlier = launches.launches[i];
    if (!earlier)
      continue;
    auto start = cast<rt::StartOp>(launches.launches[fetch.task]);
    OpBuilder builder(start);
    OpOperand &operand = start->getOpOperand(0);
    operand.set(AfterOp::create(builder, start.getLoc(), operand.get(), earlier->getResult(0)));
  }
  // A gather may stand before the launch that it waits for.
  sortByOperands(func.front());
}

int64_t PrefetchPlan::getMostAhead() const {
  int64_t most = 0;
  for (const Fetch &fetch : fetches) {
    int64_t before = 0;
    for (size_t j = fetch.use; j-- > 0 && uses[j] > fetch.beside;)
      ++before;
    most = std::max(most, before);
  }
  return most;
}

namespace {
struct PlanPrefetchPass : meshwright::impl::PlanPrefetchPassBase<PlanPrefetchPass> {
  using PlanPrefetchPassBase::PlanPrefetchPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    MeshAttr mesh = getSpmdMesh(func);
    if (!mesh || func.isExternal() || !func.getBody().hasOneBlock())
      return markAllAnalysesPreserved();
    if (failed(verifyDevice(mesh, func)))
      return signalPassFailure();
    std::optional<int64_t> most = ahead.number;
    if (auto attr = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kPrefetchAttr))
      most = attr.getInt();
    if (llvm::none_of(func.front(), [](Operation &op) { return isFetch(&op); }))
      return markAllAnalysesPreserved();
    holdDecodings(func);
    PrefetchPlan plan(func, CostModel(mesh));
    plan.choose(most);
    plan.write(func);
    DistDialect::getDecisionLog(&getContext())
        .add("plan-prefetch", Outcome::Note, func.getLoc(),
             "weights are gathered as late as their links allow",
             {{"gathers", double(plan.getNumFetches())}, {"ahead", double(plan.getMostAhead())}});
  }
};
} // namespace
