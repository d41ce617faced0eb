//===- FuseProducts.cpp - what products do besides ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A product's kernel can process its results while they are in cache. The elementwise
// ops of the kernel that reads the product move there, up to the first op that needs
// whole rows: all of an activation or a gate, but of a residual addition and a norm only
// the addition. That pays if fewer bytes go through memory, so `countBytes` decides.
//
// The product's kernel also copies its input, by blocks, and can compute it then. Each
// thread copies the whole input, and again for each block of columns. So only cheap ops
// on one buffer of the input's size move there: a cast, a scale of features, a bias.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/FuseProducts.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/RuntimeCalls.h"
#include "meshwright/lib/Support/NumberText.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/PackWeights.h"
#include "meshwright/passes/schedule/Spans.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::lower;

namespace {

class Fuser {
public:
  Fuser(Block &body, std::vector<KernelGroup> &groups, const GroupingOptions &options)
      : body(body), groups(groups), options(options), spans(body),
        weights(body.getParentOp()) {}

  void run();

private:
  using OpSet = llvm::SmallSetVector<Operation *, 8>;

  void findLive();
  bool canCompute(nn::LinearOp linear, const KernelGroup &group) const;
  bool fuse(size_t product);
  bool fuseAhead(size_t reader);
  SmallVector<size_t> findReaders(Value value) const;
  OpSet chooseOps(size_t reader, Value product) const;
  bool dependsOn(const OpSet &ops, Value product) const;
  KernelGroup makeGroup(const OpSet &ops) const;
  int64_t countBytes(const KernelGroup &group) const;
  int64_t countWidening(nn::LinearOp linear) const;
  bool isWanted(Value value) const;
  void decline(Operation *op, const Twine &reason) const;
  void replace(size_t index, KernelGroup group) {
    groups[index] = std::move(group);
    addSpan(groups[index]);
  }
  void addSpan(const KernelGroup &group) {
    if (Operation *first = getFirstResult(group))
      spans.add(first, group.ops.back());
  }
  /// The first op of which other kernels read the result. Null for a kernel that is no more.
  static Operation *getFirstResult(const KernelGroup &group) {
    Operation *first = nullptr;
    for (Value result : group.results)
      if (Operation *op = result.getDefiningOp(); !first || op->isBeforeInBlock(first))
        first = op;
    return first;
  }

  Block &body;
  std::vector<KernelGroup> &groups;
  GroupingOptions options;
  ProgramSet<Operation *> live;
  /// The groups that compute an op.
  ProgramMap<Operation *, SmallVector<size_t, 2>> groupsOf;
  /// From the first result to the last op of each group, as it is or was.
  Spans spans;
  WeightFinder weights;
};

} // namespace

/// Finds the ops that a kernel or the function's results need.
void Fuser::findLive() {
  for (Operation &op : llvm::reverse(body))
    if (op.hasTrait<OpTrait::IsTerminator>() || groupsOf.contains(&op) ||
        llvm::any_of(op.getUsers(), [&](Operation *user) { return live.contains(user); }))
      live.insert(&op);
}

/// Returns true if the user probes the value.
bool Fuser::isWanted(Value value) const {
  return options.keepProbed && value.getDefiningOp()->hasAttr(nn::NnDialect::kIdAttr);
}

void Fuser::decline(Operation *op, const Twine &reason) const {
  logKernelDecision(
      op, Outcome::Declined,
      (op->getName().getStringRef() + " takes no further ops into its kernel: " + reason)
          .str());
}

/// The kernels that read a value, the first ones first.
SmallVector<size_t> Fuser::findReaders(Value value) const {
  llvm::SmallSetVector<size_t, 4> readers;
  for (Operation *user : value.getUsers())
    if (auto owners = groupsOf.find(user); owners != groupsOf.end())
      readers.insert(owners->second.begin(), owners->second.end());
  SmallVector<size_t> sorted = readers.takeVector();
  llvm::sort(sorted, [&](size_t a, size_t b) {
    return groups[a].ops.back()->isBeforeInBlock(groups[b].ops.back());
  });
  return sorted;
}

/// The ops of the reader's kernel that process the product element by element, and the
/// ops that only they need.
Fuser::OpSet Fuser::chooseOps(size_t reader, Value product) const {
  auto type = cast<RankedTensorType>(product.getType());
  const KernelGroup &group = groups[reader];
  llvm::SmallDenseSet<Operation *> members(group.ops.begin(), group.ops.end()), able, dependent;
  for (Operation *op : group.ops) {
    if (!options.target.canFollowProduct(op, type) ||
        (!isFree(op) && groupsOf.lookup(op).size() > 1))
      continue;
    bool canMove = true, depends = false;
    for (Value operand : op->getOperands()) {
      Operation *producer = operand.getDefiningOp();
      canMove &= !producer || !members.contains(producer) || able.contains(producer);
      depends |= operand == product || (producer && dependent.contains(producer));
    }
    if (!canMove)
      continue;
    able.insert(op);
    if (depends)
      dependent.insert(op);
  }
  llvm::SmallDenseSet<Operation *> needed;
  for (Operation *op : llvm::reverse(group.ops))
    if (dependent.contains(op) ||
        (able.contains(op) &&
         llvm::any_of(op->getUsers(), [&](Operation *user) { return needed.contains(user); })))
      needed.insert(op);
  OpSet ops;
  if (!dependent.empty())
    for (Operation *op : group.ops)
      if (needed.contains(op))
        ops.insert(op);
  return ops;
}

/// Returns true if an operand of the ops depends on the product by a path outside of the
/// ops.
bool Fuser::dependsOn(const OpSet &ops, Value product) const {
  // Ops behind the last of these lead to them only through results of groups that stand before it.
  Operation *last = spans.getEnd(ops.back());
  llvm::SmallDenseSet<Operation *> seen(ops.begin(), ops.end());
  SmallVector<Operation *> open;
  bool found = false;
  auto follow = [&](Operation *user) {
    auto owners = groupsOf.find(user);
    if (owners == groupsOf.end()) {
      if (live.contains(user) && user->isBeforeInBlock(last) && seen.insert(user).second)
        open.push_back(user);
      return;
    }
    for (size_t owner : owners->second)
      if (Operation *first = getFirstResult(groups[owner]); first && first->isBeforeInBlock(last))
        for (Value result : groups[owner].results)
          if (seen.insert(result.getDefiningOp()).second)
            open.push_back(result.getDefiningOp());
  };
  for (Operation *user : product.getUsers())
    follow(user);
  while (!open.empty() && !found)
    for (Operation *user : open.pop_back_val()->getUsers()) {
      found |= ops.contains(user);
      follow(user);
    }
  return found;
}

/// The ops as a kernel. Its results are the values that other ops read.
KernelGroup Fuser::makeGroup(const OpSet &ops) const {
  KernelGroup group;
  group.ops.assign(ops.begin(), ops.end());
  llvm::sort(group.ops, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : group.ops)
    for (Value result : op->getResults())
      if (!isFree(op) && (isWanted(result) || llvm::any_of(op->getUsers(), [&](Operation *user) {
                            return live.contains(user) && !ops.contains(user);
                          })))
        group.results.push_back(result);
  return group;
}

/// Bytes that a kernel reads and writes, without results that are only probed.
int64_t Fuser::countBytes(const KernelGroup &group) const {
  llvm::SmallDenseSet<Operation *> members(group.ops.begin(), group.ops.end());
  llvm::SmallDenseSet<Value> seen;
  int64_t bytes = 0;
  auto add = [&](Value value) {
    if (seen.insert(value).second)
      bytes += rt::getBufferBytes(value.getType());
  };
  for (Operation *op : group.ops)
    for (Value operand : op->getOperands())
      if (Operation *producer = operand.getDefiningOp(); !producer || !members.contains(producer))
        add(operand);
  for (Value result : group.results)
    if (llvm::any_of(result.getUsers(), [&](Operation *user) {
          return live.contains(user) && !members.contains(user);
        }))
      add(result);
  return bytes;
}

/// Bytes that are read and written to widen and pack a weight of codes, which the product alone would
/// read as it is. 0 for other weights.
int64_t Fuser::countWidening(nn::LinearOp linear) const {
  auto weight = linear.getWeight().getDefiningOp<nn::DequantizeOp>();
  if (!weight || !weight->hasOneUse() || !options.target.multipliesForms() ||
      !options.target.isLibraryOp(weight) || !isCodedMatrix(weight) ||
      !mayReadCodes(linear.getWeightMutable()))
    return 0;
  // One launch writes the weight, another one reads and packs it, and the product reads that.
  return 4 * rt::getBufferBytes(weight.getType());
}

/// Returns true if one kernel computes these ops, among them a product by a weight of the model,
/// which the kernel may have to read packed.
bool Fuser::canCompute(nn::LinearOp linear, const KernelGroup &group) const {
  KernelRegion region = KernelRegion::of(group.ops, group.results);
  if (!options.target.canComputeProduct(region))
    return false;
  std::optional<Weight> weight = weights.find(linear.getWeight());
  return weight->isStored() || !options.target.getPackedWeight(region) ||
         isWorthPackingAtUse(linear, linear.getWeight()) ||
         isPreparedBefore(linear->getParentOfType<func::FuncOp>(), *weight);
}

/// Moves a kernel into the products that read its result. Returns true if groups changed.
bool Fuser::fuseAhead(size_t made) {
  KernelGroup &group = groups[made];
  if (group.results.size() != 1 || llvm::any_of(group.ops, [&](Operation *op) {
        return !isFree(op) && isWanted(op->getResult(0));
      }))
    return false;
  Value value = group.results.front();
  auto type = cast<RankedTensorType>(value.getType());
  if (!llvm::all_of(group.ops, [&](Operation *op) {
        return options.target.canPrecedeProduct(op, type) &&
               (isFree(op) || groupsOf.lookup(op).size() == 1);
      }))
    return false;
  // All readers, directly or through a view, must be products.
  OpSet views;
  llvm::SmallMapVector<size_t, KernelGroup, 4> fused;
  int64_t before = countBytes(group), after = 0;
  SmallVector<Value> open{value};
  while (!open.empty()) {
    Value read = open.pop_back_val();
    for (Operation *user : read.getUsers()) {
      if (!live.contains(user))
        continue;
      SmallVector<size_t, 2> owners = groupsOf.lookup(user);
      if (isa<nn::ReshapeOp>(user) && owners.empty()) {
        if (views.insert(user))
          open.push_back(user->getResult(0));
        continue;
      }
      auto linear = dyn_cast<nn::LinearOp>(user);
      if (!linear || linear.getInput() != read || !weights.find(linear.getWeight()) ||
          owners.size() != 1)
        return false;
      OpSet ops;
      ops.insert(group.ops.begin(), group.ops.end());
      for (Value input = read; input != value; input = input.getDefiningOp()->getOperand(0))
        ops.insert(input.getDefiningOp());
      ops.insert(groups[owners[0]].ops.begin(), groups[owners[0]].ops.end());
      KernelGroup whole = makeGroup(ops);
      // Views inside the kernel are no results of it.
      whole.results = groups[owners[0]].results;
      if (!canCompute(linear, whole))
        return false;
      before += countBytes(groups[owners[0]]);
      after += countBytes(whole) + (groups[owners[0]].ops.size() == 1 ? countWidening(linear) : 0);
      fused.insert({owners[0], std::move(whole)});
    }
  }
  if (fused.empty() || after >= before)
    return false;
  for (Operation *op : group.ops)
    groupsOf[op].clear();
  group = KernelGroup();
  for (auto &[product, whole] : fused) {
    for (Operation *op : whole.ops)
      if (!llvm::is_contained(groupsOf[op], product))
        groupsOf[op].push_back(product);
    replace(product, std::move(whole));
  }
  return true;
}

/// Moves ops of the kernel that reads a product into the product's kernel. Returns true if
/// groups changed.
bool Fuser::fuse(size_t product) {
  auto linear = cast<nn::LinearOp>(groups[product].ops.front());
  if (!weights.find(linear.getWeight()))
    return false;
  // The readers may read a view of the product.
  Value value = linear.getResult();
  Operation *view = value.hasOneUse() ? *value.user_begin() : nullptr;
  if (view && isa<nn::ReshapeOp>(view) && live.contains(view) && !groupsOf.contains(view))
    value = view->getResult(0);
  else
    view = nullptr;
  std::optional<size_t> reader;
  OpSet ops;
  for (size_t other : findReaders(value))
    if (ops = chooseOps(other, value); !ops.empty()) {
      reader = other;
      break;
    }
  if (!reader)
    return false;
  if (dependsOn(ops, value)) {
    decline(linear, "another operand of these ops depends on the product");
    return false;
  }
  if (view && llvm::any_of(view->getUsers(), [&](Operation *user) {
        return live.contains(user) && !ops.contains(user);
      }))
    return false;
  // Free ops stay in the reader, too, if other ops there need them.
  KernelGroup left;
  llvm::SmallDenseSet<Operation *> kept;
  for (Operation *op : llvm::reverse(groups[*reader].ops))
    if (isFree(op)
            ? llvm::any_of(op->getUsers(), [&](Operation *user) { return kept.contains(user); })
            : !ops.contains(op)) {
      kept.insert(op);
      left.ops.insert(left.ops.begin(), op);
    }
  llvm::copy_if(groups[*reader].results, std::back_inserter(left.results),
                [&](Value result) { return kept.contains(result.getDefiningOp()); });
  ops.insert(linear);
  if (view)
    ops.insert(view);
  KernelGroup fused = makeGroup(ops);
  // A view between kernels is no result of a kernel.
  if (llvm::any_of(fused.results, [](Value result) { return rt::isView(result.getDefiningOp()); }))
    return false;
  if (!canCompute(linear, fused)) {
    decline(linear, "its kernel cannot compute these ops");
    return false;
  }
  int64_t before = countBytes(groups[product]) + countBytes(groups[*reader]);
  int64_t after = countBytes(fused) + countBytes(left) + countWidening(linear);
  if (after >= before) {
    decline(linear, "that would move " + formatBytes(after) + " instead of " + formatBytes(before));
    return false;
  }
  replace(product, std::move(fused));
  replace(*reader, std::move(left));
  for (Operation *op : groups[product].ops) {
    SmallVector<size_t, 2> &owners = groupsOf[op];
    if (!llvm::is_contained(groups[*reader].ops, op))
      llvm::erase(owners, *reader);
    if (!llvm::is_contained(owners, product))
      owners.push_back(product);
  }
  return true;
}

void Fuser::run() {
  SmallVector<size_t> products;
  for (auto [i, group] : llvm::enumerate(groups)) {
    addSpan(group);
    for (Operation *op : group.ops)
      groupsOf[op].push_back(i);
    if (group.ops.size() == 1 && isa<nn::LinearOp>(group.ops.front()))
      products.push_back(i);
  }
  findLive();
  // If one kernel reads several products, the last product comes first: all operands of
  // the ops are there when it ends.
  llvm::sort(products, [&](size_t a, size_t b) {
    return groups[b].ops.front()->isBeforeInBlock(groups[a].ops.front());
  });
  for (size_t product : products)
    fuse(product);
  for (size_t made = 0; made < groups.size(); ++made)
    fuseAhead(made);
  llvm::erase_if(groups, [](const KernelGroup &group) { return group.ops.empty(); });
}

void meshwright::fuseProducts(Block &body, std::vector<KernelGroup> &groups,
                              const GroupingOptions &options) {
  Fuser(body, groups, options).run();
}
