//===- FactorAnalysis.cpp - the factors of a program's dimensions ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/Support/MathExtras.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Classes
//===----------------------------------------------------------------------===//

/// Classes of tied factors while they form: a union-find structure whose roots may be
/// cut into two.
class FactorAnalysis::Ties {
public:
  int add(int64_t size) {
    nodes.push_back({size});
    return nodes.size() - 1;
  }
  int64_t getSize(int node) const { return nodes[node].size; }
  size_t size() const { return nodes.size(); }
  void reserve(size_t count) { nodes.reserve(count); }
  /// Appends the classes that a node is made of.
  void expand(int node, FactorClasses &classes);
  bool unify(ArrayRef<int> a, ArrayRef<int> b);

private:
  struct Node {
    int64_t size;
    int parent = -1;
    int upper = -1, lower = -1;
  };
  int find(int node);

  std::vector<Node> nodes;
};

int FactorAnalysis::Ties::find(int node) {
  int root = node;
  while (nodes[root].parent >= 0)
    root = nodes[root].parent;
  while (nodes[node].parent >= 0) {
    int next = nodes[node].parent;
    nodes[node].parent = root;
    node = next;
  }
  return root;
}

void FactorAnalysis::Ties::expand(int node, FactorClasses &classes) {
  node = find(node);
  if (nodes[node].upper >= 0) {
    expand(nodes[node].upper, classes);
    expand(nodes[node].lower, classes);
  } else if (nodes[node].size != 1) {
    classes.push_back(node);
  }
}

/// Ties two products of factors, from the minor side. Cuts a factor where the other side has
/// a boundary. Stops where sizes do not divide; the rest stays untied. Returns true if there is
/// none.
bool FactorAnalysis::Ties::unify(ArrayRef<int> a, ArrayRef<int> b) {
  FactorClasses left, right;
  for (int node : a)
    expand(node, left);
  for (int node : b)
    expand(node, right);
  while (!left.empty() && !right.empty()) {
    int x = left.pop_back_val(), y = right.pop_back_val();
    // Tying one pair may have cut a class that occurs again.
    FactorClasses xs, ys;
    expand(x, xs);
    expand(y, ys);
    if (xs.size() > 1 || ys.size() > 1) {
      left.append(xs);
      right.append(ys);
      continue;
    }
    x = xs.front();
    y = ys.front();
    if (x == y)
      continue;
    int64_t m = nodes[x].size, n = nodes[y].size;
    if (m == n) {
      nodes[y].parent = x;
    } else if (m % n == 0 || n % m == 0) {
      int larger = m > n ? x : y;
      int64_t minor = std::min(m, n);
      int upper = add(nodes[larger].size / minor), lower = add(minor);
      nodes[larger].upper = upper;
      nodes[larger].lower = lower;
      left.push_back(x);
      right.push_back(y);
    } else {
      return false;
    }
  }
  return left.empty() && right.empty();
}

LogicalResult FactorAnalysis::addValue(Value value, Ties &ties) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type || !type.hasStaticShape())
    return emitError(value.getLoc())
           << "value: expected a tensor of static shape, got " << value.getType();
  // Users divide by sizes.
  if (!value.use_empty() && llvm::is_contained(type.getShape(), 0))
    return emitError(value.getLoc()) << "value: expected at least one element, got " << type;
  if (!values.try_emplace(value, firstDims.size()).second)
    return success();
  firstDims.push_back(dims.size());
  for (int64_t size : type.getShape())
    dims.push_back({ties.add(size)});
  return success();
}

static FactorRule getConstrainRule(ConstrainOp op) {
  FactorRule rule;
  FactorRule::ValueFactors dims;
  for (int64_t size : cast<RankedTensorType>(op.getType()).getShape())
    dims.push_back({rule.addFactor(size)});
  rule.operands = {dims};
  rule.results = {dims};
  rule.linearOperands = {0};
  return rule;
}

void FactorAnalysis::addOp(Operation *op, const FactorRule &rule, Ties &ties) {
  SmallVector<int, 8> ids;
  for (const RuleFactor &factor : rule.factors)
    ids.push_back(ties.add(factor.size));
  auto tie = [&](Value value, const FactorRule::ValueFactors &dims) {
    ArrayRef<FactorClasses> own = getClasses(value);
    FactorClasses tied;
    for (auto [classes, dim] : llvm::zip(own, dims)) {
      if (dim.empty())
        continue;
      tied.clear();
      for (int factor : dim)
        tied.push_back(ids[factor]);
      if (!ties.unify(classes, tied))
        untied.insert(op);
    }
  };
  for (auto [operand, dims] : llvm::zip(op->getOperands(), rule.operands))
    tie(operand, dims);
  for (auto [result, dims] : llvm::zip(op->getResults(), rule.results))
    tie(result, dims);
  ops.try_emplace(op, opFactors.size());
  OpFactors &factors = opFactors.emplace_back(OpFactors{rule, {}});
  for (int id : ids)
    factors.classes.push_back({id});
}

/// Numbers the classes of all values and ops, in the order of their nodes, after all factors
/// are tied.
void FactorAnalysis::numberClasses(Ties &ties) {
  FactorClasses result;
  std::vector<int> numbers(ties.size(), -1);
  auto expand = [&](FactorClasses &classes) {
    result.clear();
    for (int node : classes)
      ties.expand(node, result);
    classes = result;
    for (int node : classes)
      numbers[node] = 0;
  };
  auto forEach = [&](auto visit) {
    llvm::for_each(dims, visit);
    for (OpFactors &factors : opFactors)
      for (FactorClasses &factor : factors.classes)
        visit(factor);
  };
  forEach(expand);
  for (auto [node, number] : llvm::enumerate(numbers))
    if (number == 0) {
      number = sizes.size();
      sizes.push_back(ties.getSize(node));
    }
  forEach([&](FactorClasses &classes) {
    for (int &cls : classes)
      cls = numbers[cls];
  });
  for (const OpFactors &factors : opFactors)
    for (auto [factor, classes] : llvm::zip_equal(factors.rule.factors, factors.classes))
      if (factor.align > 1 && !classes.empty())
        alignments[classes.back()] = factor.align;
}

/// Gives all places of a shared value the same nodes, before any op cuts them.
LogicalResult FactorAnalysis::addShared(Ties &ties) {
  for (const SharedValue &value : shared) {
    if (failed(addValue(value.getFirst(), ties)))
      return failure();
    unsigned index = values.find(value.getFirst())->second;
    auto tie = [&](Value place) {
      auto [known, isNew] = values.try_emplace(place, index);
      if (isNew)
        return;
      // It may be a place of another shared value, too.
      for (auto [own, other] : llvm::zip_equal(getDims(known->second), getDims(index)))
        ties.unify(own, other);
    };
    for (BlockArgument argument : value.arguments)
      tie(argument);
    for (OpOperand *operand : value.written)
      tie(operand->get());
  }
  return success();
}

LogicalResult
FactorAnalysis::addFunction(func::FuncOp func, Ties &ties,
                            llvm::DenseMap<Operation *, const FactorRule *, OpSignature> &rulesByOp) {
  Block &block = func.getBody().front();
  for (BlockArgument arg : block.getArguments())
    if (failed(addValue(arg, ties)))
      return failure();
  for (Operation &op : block.without_terminator()) {
    for (Value result : op.getResults())
      if (failed(addValue(result, ties)))
        return failure();
    const FactorRule *&rule = rulesByOp[&op];
    if (!rule) {
      if (op.hasTrait<dist::NamesMemory>())
        return op.emitOpError() << "names a state: expected '--bind-state' to have run";
      if (auto constrain = dyn_cast<ConstrainOp>(op))
        rules.push_back(getConstrainRule(constrain));
      else if (auto iface = dyn_cast<ShardingRuleOpInterface>(op))
        rules.push_back(iface.getFactorRule());
      else
        return op.emitOpError() << "has no sharding rule: expected an op of the nn dialect";
      rule = &rules.back();
    }
    addOp(&op, *rule, ties);
  }
  return success();
}

FailureOr<FactorAnalysis> FactorAnalysis::run(ArrayRef<func::FuncOp> functions) {
  FactorAnalysis analysis;
  analysis.memo = std::make_unique<Memo>();
  size_t numValues = 0, numOps = 0;
  for (func::FuncOp func : functions) {
    if (!func.getBody().hasOneBlock())
      return func.emitOpError() << "expected one block, got " << func.getBody().getBlocks().size();
    Block &block = func.getBody().front();
    size_t own = block.getOperations().size();
    numOps += own;
    numValues += block.getNumArguments() + own;
  }
  analysis.values.reserve(numValues);
  analysis.ops.reserve(numOps);
  analysis.opFactors.reserve(numOps);
  auto shared = meshwright::getSharedValues(functions);
  if (failed(shared))
    return failure();
  analysis.shared = std::move(*shared);
  Ties ties;
  llvm::DenseMap<Operation *, const FactorRule *, OpSignature> rulesByOp;
  if (failed(analysis.addShared(ties)))
    return failure();
  for (func::FuncOp func : functions)
    if (failed(analysis.addFunction(func, ties, rulesByOp)))
      return failure();
  analysis.numberClasses(ties);
  analysis.separateUntied();
  for (func::FuncOp func : functions) {
    Block &block = func.getBody().front();
    for (BlockArgument arg : block.getArguments()) {
      auto sizes = func.getArgAttrOfType<ArrayAttr>(arg.getArgNumber(), nn::NnDialect::kSizesAttr);
      if (failed(analysis.readOrders(arg, getShardingAttr(arg))) ||
          failed(analysis.readSizes(arg, sizes)))
        return failure();
    }
    for (Operation &op : block.without_terminator()) {
      auto cut = dyn_cast<nn::CutOp>(op);
      auto uncut = dyn_cast<nn::UncutOp>(op);
      if ((cut && failed(analysis.readSizes(cut.getResult(), cut.getSizes()))) ||
          (uncut && failed(analysis.readSizes(uncut.getInput(), uncut.getSizes()))))
        return failure();
      for (Value result : op.getResults())
        if (failed(analysis.readOrders(result, getShardingAttr(result))))
          return failure();
    }
  }
  return analysis;
}

SharedFactorAnalysis::SharedFactorAnalysis(Operation *functionOrModule)
    : factors(failure()) {
  if (auto module = dyn_cast<ModuleOp>(functionOrModule))
    factors = FactorAnalysis::run(getGlobalFunctions(module));
  else
    factors = FactorAnalysis::run(cast<func::FuncOp>(functionOrModule));
}

const FailureOr<FactorAnalysis> &
SharedFactorAnalysis::get(AnalysisManager manager, ArrayRef<func::FuncOp> functions) {
  if (functions.size() == 1)
    return manager.getChildAnalysis<SharedFactorAnalysis>(functions.front()).factors;
  return manager.getAnalysis<SharedFactorAnalysis>().factors;
}

//===----------------------------------------------------------------------===//
// Run-time sizes
//===----------------------------------------------------------------------===//

/// Notes the run-time sizes that `names` gives the dimensions of a value; null if there are none.
LogicalResult FactorAnalysis::readSizes(Value value, ArrayAttr names) {
  if (!names)
    return success();
  for (auto [d, attr] : llvm::enumerate(names.getAsRange<StringAttr>())) {
    ArrayRef<int> classes = getClasses(value)[d];
    // A dimension of one element has at least that element.
    if (attr.empty() || classes.empty())
      continue;
    if (classes.size() != 1)
      return emitError(value.getLoc())
             << "dimension " << d << " has the run-time size @" << attr.getValue()
             << ", and the program takes it apart into factors of " << getSize(classes[0]) << " and "
             << getSize(classes[1]) << ": expected ops that leave it whole";
    auto name = FlatSymbolRefAttr::get(attr);
    auto [it, isNew] = runtimeSizes.try_emplace(classes[0], name);
    if (!isNew && it->second != name)
      return emitError(value.getLoc()) << "dimension " << d << " has the run-time size " << name
                                       << ", and is tied to one of size " << it->second;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Orders
//===----------------------------------------------------------------------===//

LogicalResult FactorAnalysis::readOrders(Value value, ShardingAttr attr) {
  if (!attr)
    return success();
  for (size_t d = 0; d < attr.getDims().size(); ++d) {
    DimShardingAttr dim = attr.getDims()[d];
    if (llvm::all_of(dim.getFactors(), [](FactorShardingAttr factor) {
          return factor.getOrder() == TokenOrder::Contiguous;
        }))
      continue;
    ArrayRef<int> rest = getClasses(value)[d];
    for (FactorShardingAttr factor : llvm::reverse(dim.getFactors())) {
      SmallVector<int> own;
      for (int64_t size = 1; size < factor.getSize() && !rest.empty(); rest = rest.drop_back()) {
        own.push_back(rest.back());
        size *= getSize(rest.back());
      }
      if (factor.getOrder() == TokenOrder::Contiguous)
        continue;
      if (own.size() > 1 || (own.size() == 1 && getSize(own[0]) != factor.getSize()))
        return emitError(value.getLoc())
               << "sharding gives an order to dimension " << d
               << ", which the program takes apart: expected the contiguous order";
      if (own.empty())
        continue;
      Order order{factor.getOrder(), factor.getOrderRanks()};
      auto [it, isNew] = orders.try_emplace(own[0], order);
      if (!isNew && !(it->second == order))
        return emitError(value.getLoc())
               << "dimension " << d << ": expected the order '"
               << dist::stringify(it->second.order) << "' for " << it->second.ranks
               << " ranks of a dimension that it is tied to, got '" << dist::stringify(order.order)
               << "' for " << order.ranks;
    }
  }
  return success();
}

int64_t FactorAnalysis::getMultiple(int cls, ArrayRef<Axis> axes) const {
  Order order = getOrder(cls);
  auto align = alignments.find(cls);
  int64_t shards = getNumShards(axes) * (align == alignments.end() ? 1 : align->second);
  return std::lcm(shards, getOrderChunks(order.order, order.ranks));
}

LayoutFactor FactorAnalysis::getFactor(int cls, ArrayRef<Axis> axes, int64_t padded) const {
  LayoutFactor factor;
  factor.size = factor.padded = getSize(cls);
  factor.runtimeSize = getRuntimeSize(cls);
  if (axes.empty())
    return factor;
  Order order = getOrder(cls);
  factor.axes.assign(axes.begin(), axes.end());
  factor.order = order.order;
  factor.orderRanks = order.ranks;
  factor.padded = padded ? padded : llvm::alignTo(factor.size, getMultiple(cls, axes));
  return factor;
}
