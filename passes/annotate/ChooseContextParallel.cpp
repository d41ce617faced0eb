//===- ChooseContextParallel.cpp - axes for Ulysses and ring --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/AttentionWork.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_CHOOSECONTEXTPARALLELPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

/// A less usual plan must save this share of the time. The price counts no communication as
/// hidden, which depends on the schedule, and assumes that kernels are as fast on small
/// parts as on large ones. Both errors are smaller than this share.
static constexpr double kLeastSavingOfPlan = 0.25;

/// The share that another order must save over the one that balances work.
static constexpr double kLeastSavingOfOrder = 0.1;

namespace {

/// Equal attention ops.
struct Attentions {
  nn::AttentionOp op;
  int64_t count = 0;
};

struct Choice {
  /// Indices of mesh axes; -1 for none.
  int ulysses = -1, ring = -1;
  TokenOrder order = TokenOrder::Contiguous;
};

/// The cost of attention to a rank, including communication.
struct Price {
  int64_t time = 0, bytes = 0, memory = 0;
  /// The largest over the mean number of pairs that a rank computes.
  double balance = 1;
};

class Chooser {
public:
  Chooser(MeshAttr mesh, int64_t dataSize, int64_t tensorSize)
      : mesh(mesh), model(mesh), dataSize(dataSize), tensorSize(tensorSize) {}

  void add(nn::AttentionOp op);
  bool empty() const { return attentions.empty(); }
  bool isCausal() const {
    return llvm::any_of(attentions,
                        [](const Attentions &entry) { return entry.op->hasAttr("causal"); });
  }
  Price getPrice(const Choice &choice);
  std::string getName(const Choice &choice) const;
  /// How unusual a plan is; less is more usual. The usual plan has no Ulysses over a slow
  /// link, no longer ring than it must, and no Ulysses that pads heads.
  int64_t getOddness(const Choice &choice) const {
    int64_t padded = padsHeads(choice.ulysses) ? getSize(choice.ulysses) : 1;
    return std::max(getSize(choice.ring), padded) + (isSlow(choice.ulysses) ? int64_t(1) << 32 : 0);
  }
  int64_t getSize(int axis) const { return axis < 0 ? 1 : mesh.getAxes()[axis].getSize(); }

private:
  void addPrice(Price &price, nn::AttentionOp op, int64_t count, const Choice &choice);
  AxisList getAxes(int axis) const {
    return axis < 0 ? AxisList() : AxisList{{axis, 1, getSize(axis)}};
  }
  /// Returns true if the axis takes over twice the time of the device's own links, or of
  /// the fastest axis where the device states none.
  bool isSlow(int axis) const {
    constexpr int64_t bytes = 1 << 30;
    double bandwidth = model.getDevice().linkBandwidth;
    int64_t usual =
        bandwidth > 0 ? int64_t(double(bytes) / bandwidth * 1e12) : model.getLeastTime(bytes);
    return axis >= 0 && model.getTime(getAxes(axis), bytes, 1) > 2 * usual;
  }
  bool padsHeads(int axis) const {
    return llvm::any_of(attentions, [&](const Attentions &entry) {
      nn::AttentionOp op = entry.op;
      int64_t heads = llvm::divideCeil(op.getQuery().getType().getDimSize(1), tensorSize);
      return heads % getSize(axis) != 0;
    });
  }

  MeshAttr mesh;
  CostModel model;
  int64_t dataSize, tensorSize;
  std::vector<Attentions> attentions;
};

} // namespace

static bool areAlike(nn::AttentionOp a, nn::AttentionOp b) {
  return a.getQuery().getType() == b.getQuery().getType() &&
         a.getKey().getType() == b.getKey().getType() &&
         a.getValue().getType() == b.getValue().getType() &&
         a->getAttrDictionary().get("causal") == b->getAttrDictionary().get("causal") &&
         a.getWindowLeft() == b.getWindowLeft() && a.getWindowRight() == b.getWindowRight();
}

void Chooser::add(nn::AttentionOp op) {
  for (Attentions &known : attentions)
    if (areAlike(known.op, op)) {
      ++known.count;
      return;
    }
  attentions.push_back({op, 1});
}

std::string Chooser::getName(const Choice &choice) const {
  auto name = [&](int axis) { return axis < 0 ? "none" : mesh.getAxes()[axis].getName(); };
  return llvm::formatv("ulysses={0} ring={1} order={2}", name(choice.ulysses), name(choice.ring),
                       stringify(getSequenceOrder(choice.order)));
}

Price Chooser::getPrice(const Choice &choice) {
  Price price;
  for (Attentions &entry : attentions)
    addPrice(price, entry.op, entry.count, choice);
  return price;
}

void Chooser::addPrice(Price &price, nn::AttentionOp op, int64_t count, const Choice &choice) {
  RankedTensorType query = op.getQuery().getType(), key = op.getKey().getType();
  int64_t ulysses = getSize(choice.ulysses), ring = getSize(choice.ring);
  int64_t batch = llvm::divideCeil(query.getDimSize(0), dataSize);
  int64_t size = query.getDimSize(3), valueSize = op.getValue().getType().getDimSize(3);
  int64_t element = getElementBytes(query.getElementType());
  // The heads of a rank under tensor parallelism, and then under ulysses. Heads that do
  // not divide are padded; key/value heads are copied.
  int64_t heads = llvm::divideCeil(query.getDimSize(1), tensorSize);
  int64_t keyHeads = llvm::divideCeil(key.getDimSize(1), tensorSize);
  HeadSplit own = splitHeads(keyHeads, llvm::divideCeil(heads, keyHeads), ulysses, ring);

  LayoutFactor tokens;
  tokens.size = query.getDimSize(2);
  tokens.padded =
      llvm::alignTo(tokens.size, std::lcm(ring * ulysses, getOrderChunks(choice.order, ring)));
  tokens.order = choice.order;
  tokens.orderRanks = ring;
  int64_t chunk = tokens.padded / ring;
  int64_t queryBytes = batch * own.heads * chunk * size * element;
  int64_t outputBytes = batch * own.heads * chunk * valueSize * element;
  int64_t keyBytes = batch * own.keyHeads * chunk * (size + valueSize) * element;

  // All-to-alls move q, k and v to heads, and the output back.
  int64_t time = 0, bytes = 0, memory = queryBytes + outputBytes + keyBytes;
  if (ulysses > 1) {
    for (int64_t moved : {queryBytes + keyBytes, outputBytes}) {
      Cost cost = model.getCost(CollectiveKind::AllToAll, getAxes(choice.ulysses), moved, 2);
      time += cost.time;
      bytes += cost.bytes;
    }
    memory *= 2;
  }

  // The steps of the ring. A step whose pairs are all masked is neither sent nor computed.
  std::vector<int64_t> pairs = countVisiblePairs(MaskShape::of(op), tokens, ring, tokens, ring);
  AttentionWork work;
  work.perRank.resize(ring);
  int64_t steps = 0;
  for (int64_t step = 0; step < ring; ++step) {
    int64_t largest = 0;
    for (int64_t rank = 0; rank < ring; ++rank) {
      int64_t own = pairs[rank * ring + (rank - step + ring) % ring];
      largest = std::max(largest, own);
      work.perRank[rank] += own;
    }
    if (largest == 0 && step > 0)
      continue;
    ++steps;
    double flops = 2.0 * double(size + valueSize) * double(batch * own.heads) * double(largest);
    time +=
        model.getLaunchTime() + std::max(model.getComputeTime(flops, query.getElementType()),
                                         model.getMemoryTime(queryBytes + keyBytes + outputBytes));
    if (step == 0)
      continue;
    Cost cost = model.getCost(CollectiveKind::Permute, getAxes(choice.ring), keyBytes);
    bytes += cost.bytes;
    // A merge reads two parts and writes one, in f32.
    int64_t part = outputBytes / element * 4;
    time += cost.time + model.getLaunchTime() + model.getMemoryTime(3 * part);
  }
  if (steps > 1)
    memory += 2 * keyBytes + 2 * (outputBytes / element * 4);
  price.time += count * time;
  price.bytes += count * bytes;
  price.memory = std::max(price.memory, memory);
  price.balance = std::max(price.balance, work.getLargestOverMean());
}

namespace {

struct ChooseContextParallelPass
    : meshwright::impl::ChooseContextParallelPassBase<ChooseContextParallelPass> {
  using ChooseContextParallelPassBase::ChooseContextParallelPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    markAnalysesPreserved<SharedFactorAnalysis>();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    if (hasStageMeshes(*meshOp)) {
      if (ulysses.kind != AxisChoice::Auto && ring.kind != AxisChoice::Auto)
        return;
      meshOp->emitOpError()
          << "has a mesh for each stage: expected the axes of context-parallel by "
             "name, not auto";
      return signalPassFailure();
    }
    StageMesh view = getStageMeshes(*meshOp).front();
    mesh = view.mesh;
    readRoles(view);
    if (failed(checkAxes(*meshOp)))
      return signalPassFailure();
    if (!choosesAxes() && order != SequenceOrder::Auto)
      return;
    Chooser chooser(mesh, getNumShards(RoleAxes(AxisRole::Data, data).get(*meshOp, view)),
                    getNumShards(RoleAxes(AxisRole::Tensor, tensor).get(*meshOp, view)));
    StageFilter stages;
    stages.except.assign(exceptStages.begin(), exceptStages.end());
    Location location = module.getLoc();
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      location = func.getLoc();
      func.walk([&](nn::AttentionOp op) {
        const FactorClasses &queries = factors->getClasses(op.getQuery())[2];
        if (stages.contains(op) && !queries.empty() &&
            queries == factors->getClasses(op.getKey())[2])
          chooser.add(op);
      });
    }
    choose(*meshOp, location, chooser);
  }

private:
  /// Notes the axes that have roles.
  void readRoles(const StageMesh &view) {
    auto getNames = [&](AxisRole role, const AxisChoice &choice) {
      return llvm::map_to_vector(RoleAxes(role, choice).getNames(view),
                                 [](StringRef name) { return name.str(); });
    };
    dataNames = getNames(AxisRole::Data, data);
    tensorNames = getNames(AxisRole::Tensor, tensor);
    // An axis that has the role already is not chosen again.
    auto read = [&](AxisRole role, const AxisChoice &choice) {
      auto names = getNames(role, choice);
      return names.empty() ? choice : AxisChoice::get(names.front());
    };
    givenUlysses = read(AxisRole::Ulysses, ulysses);
    givenRing = read(AxisRole::Ring, ring);
  }

  LogicalResult checkAxes(MeshOp meshOp) {
    for (auto [role, given] : {std::pair(AxisRole::Ring, givenRing),
                               std::pair(AxisRole::Ulysses, givenUlysses)}) {
      if (given.kind != AxisChoice::Named)
        continue;
      if (failed(RoleAxes(role, given).check(meshOp)))
        return failure();
      bool isData = llvm::is_contained(dataNames, given.name);
      if (isData || llvm::is_contained(tensorNames, given.name))
        return meshOp->emitOpError()
               << "axis \"" << given.name << "\" " << getRoleDescription(role).purpose
               << " is that of " << (isData ? "data" : "tensor")
               << " parallelism: expected another";
    }
    return success();
  }

  bool choosesAxes() const {
    return givenUlysses.kind == AxisChoice::Auto || givenRing.kind == AxisChoice::Auto;
  }
  void choose(MeshOp meshOp, Location location, Chooser &chooser);
  void declare(MeshOp meshOp, const Choice &choice);
  SmallVector<Choice> list(Chooser &chooser);

  MeshAttr mesh;
  /// The axes of data and tensor parallelism.
  SmallVector<std::string> dataNames, tensorNames;
  /// The axes for Ulysses and ring, auto for those to choose.
  AxisChoice givenUlysses, givenRing;
};

} // namespace

/// The plans that use the most axes.
SmallVector<Choice> ChooseContextParallelPass::list(Chooser &chooser) {
  auto candidates = [&](const AxisChoice &given) {
    SmallVector<int> axes;
    for (int i = 0, e = mesh.getAxes().size(); i < e; ++i) {
      StringRef name = mesh.getAxes()[i].getName();
      bool isFree = !llvm::is_contained(dataNames, name) &&
                    !llvm::is_contained(tensorNames, name) && name != givenUlysses.name &&
                    name != givenRing.name;
      bool isAuto = given.kind == AxisChoice::Auto;
      if (mesh.getAxes()[i].getSize() > 1 && (isAuto ? isFree : name == given.name))
        axes.push_back(i);
    }
    axes.push_back(-1);
    return axes;
  };
  SmallVector<Choice> choices;
  int most = 0;
  for (int u : candidates(givenUlysses))
    for (int r : candidates(givenRing)) {
      if (u == r && u >= 0)
        continue;
      SmallVector<TokenOrder> orders{TokenOrder::Contiguous};
      if (std::optional<TokenOrder> wanted = getTokenOrder(order); r >= 0 && wanted)
        orders = {*wanted};
      else if (r >= 0 && chooser.isCausal())
        orders = {TokenOrder::Zigzag, TokenOrder::Contiguous, TokenOrder::Striped};
      int used = (u >= 0) + (r >= 0);
      if (used > most)
        choices.clear();
      most = std::max(most, used);
      if (used == most)
        for (TokenOrder candidate : orders)
          choices.push_back({u, r, candidate});
    }
  return choices;
}

/// Writes the roles to the mesh, those of the options included, and the order to the ring's axis.
void ChooseContextParallelPass::declare(MeshOp meshOp, const Choice &choice) {
  MeshAttr declared = mesh;
  auto add = [&](AxisRole role, ArrayRef<std::string> names) {
    declared = declared.withRole(role, llvm::to_vector_of<StringRef>(names));
  };
  auto addOne = [&](AxisRole role, const AxisChoice &given, int chosen) {
    bool isChosen = given.kind == AxisChoice::Auto && chosen >= 0;
    std::string name = isChosen ? mesh.getAxes()[chosen].getName().str() : given.name;
    add(role, name.empty() ? ArrayRef<std::string>() : ArrayRef(name));
  };
  add(AxisRole::Data, dataNames);
  add(AxisRole::Tensor, tensorNames);
  addOne(AxisRole::Ulysses, givenUlysses, choice.ulysses);
  addOne(AxisRole::Ring, givenRing, choice.ring);
  if (choice.ring >= 0)
    declared = declared.withOrder(mesh.getAxes()[choice.ring].getName(), choice.order);
  meshOp.setMeshAttr(declared);
}

void ChooseContextParallelPass::choose(MeshOp meshOp, Location location, Chooser &chooser) {
  SmallVector<Choice> choices = list(chooser);
  DecisionLog &log = DistDialect::getDecisionLog(&getContext());
  bool isNothing = choices.front().ulysses < 0 && choices.front().ring < 0;
  if (isNothing || chooser.empty()) {
    if (choosesAxes())
      log.add("choose-context-parallel", Outcome::Declined, location,
              chooser.empty()
                  ? "context-parallel=auto: there is no self-attention over a sequence"
                  : "context-parallel=auto: the mesh has no axis of more than one rank that data "
                    "or tensor parallelism leaves");
    return declare(meshOp, choices.front());
  }
  int64_t ceiling = memoryCeiling;
  SmallVector<Price> prices;
  for (const Choice &choice : choices)
    prices.push_back(chooser.getPrice(choice));
  auto fits = [&](size_t i) { return ceiling == 0 || prices[i].memory <= ceiling; };
  auto saves = [&](size_t i, size_t than, double share) {
    return double(prices[i].time) <= double(prices[than].time) * (1 - share);
  };
  // For each pair of axes the first order counts, unless another one saves enough.
  SmallVector<size_t> finalists;
  for (size_t i = 0; i < choices.size(); ++i) {
    bool isNew = finalists.empty() || choices[finalists.back()].ulysses != choices[i].ulysses ||
                 choices[finalists.back()].ring != choices[i].ring;
    if (isNew)
      finalists.push_back(i);
    else if (saves(i, finalists.back(), kLeastSavingOfOrder))
      finalists.back() = i;
  }
  size_t fastest = finalists.front();
  for (size_t i : finalists)
    if (fits(i) != fits(fastest) ? fits(i) : prices[i].time < prices[fastest].time)
      fastest = i;
  size_t best = fastest;
  for (size_t i : finalists)
    if (fits(i) == fits(fastest) &&
        chooser.getOddness(choices[i]) < chooser.getOddness(choices[best]) &&
        !saves(fastest, i, kLeastSavingOfPlan))
      best = i;
  declare(meshOp, choices[best]);

  auto format = [](int64_t time) { return llvm::formatv("{0:f3} ms", double(time) * 1e-9).str(); };
  std::string why;
  if (choices.size() == 1)
    why = "there is nothing else to choose";
  else if (best != fastest)
    why = llvm::formatv("{0}; '{1}' would take {2}, which is not {3:P0} less, and {4}",
                        format(prices[best].time), chooser.getName(choices[fastest]),
                        format(prices[fastest].time), kLeastSavingOfPlan,
                        chooser.getSize(choices[best].ring) < chooser.getSize(choices[fastest].ring)
                            ? "a longer ring has more steps to hide"
                            : "it pads heads, or sends all of attention over a slow link");
  else
    why = llvm::formatv("{0}, the least", format(prices[best].time));
  const Choice &taken = choices[best];
  if (order == SequenceOrder::Auto && taken.order == TokenOrder::Zigzag)
    why += "; zigzag balances the causal mask in two runs of tokens a rank, striped does it in "
           "single ones and no better";
  std::vector<Alternative> table;
  for (auto [i, choice] : llvm::enumerate(choices)) {
    const Price &price = prices[i];
    table.push_back({chooser.getName(choice),
                     {{"seconds", double(price.time) * 1e-12},
                      {"bytes", double(price.bytes)},
                      {"memory_bytes", double(price.memory)},
                      {"largest_over_mean_work", price.balance}},
                     fits(i) ? "" : "above the memory ceiling",
                     i == best});
  }
  log.add("choose-context-parallel", Outcome::Applied, location,
          llvm::formatv("attention takes '{0}': {1}", chooser.getName(taken), why).str(),
          {{"ulysses_ranks", double(chooser.getSize(taken.ulysses))},
           {"ring_ranks", double(chooser.getSize(taken.ring))}},
          std::move(table));
}
