//===- ValueSharding.cpp - shardings of values, by classes of factors -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"

#include "meshwright/lib/Support/SignatureAttrs.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

ValueSharding ValueSharding::getReplicated(ArrayRef<FactorClasses> classes) {
  ValueSharding sharding;
  for (const FactorClasses &dim : classes)
    sharding.dims.emplace_back(dim.size());
  return sharding;
}

AxisList ValueSharding::getAxes() const {
  AxisList axes;
  for (const auto &dim : dims)
    for (const AxisList &cls : dim)
      axes.append(cls.begin(), cls.end());
  return axes;
}

bool ValueSharding::isReplicated() const {
  for (const auto &dim : dims)
    for (const AxisList &cls : dim)
      if (!cls.empty())
        return false;
  return true;
}

static FailureOr<ValueSharding> computeSharding(ShardingAttr attr, Value value,
                                                const FactorAnalysis &factors, MeshAttr mesh,
                                                function_ref<InFlightDiagnostic()> emitError) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(value.getType()).getShape();
  auto layout = getLayout(attr, mesh, shape, emitError);
  if (failed(layout))
    return failure();
  ArrayRef<FactorClasses> classes = factors.getClasses(value);
  ValueSharding sharding = ValueSharding::getReplicated(classes);
  for (size_t d = 0; d < layout->dims.size(); ++d) {
    const DimLayout &dim = layout->dims[d];
    // A dimension of size 1 has no factor to cut: axes shard nothing of it.
    if (!dim.isSharded() || classes[d].empty())
      continue;
    SmallVector<LayoutFactor, 2> rest(dim.factors.begin(), dim.factors.end());
    auto reject = [&, d = d]() {
      InFlightDiagnostic diag = emitError()
                                << "sharding " << toString(*layout, mesh) << " cuts dimension " << d
                                << " of size " << shape[d] << " across its factors (";
      llvm::interleaveComma(classes[d], diag, [&](int cls) { diag << factors.getSize(cls); });
      diag << ")";
      return failure();
    };
    for (int i = classes[d].size() - 1; i >= 0; --i) {
      int64_t size = factors.getSize(classes[d][i]);
      if (rest.empty())
        return reject();
      LayoutFactor factor = rest.pop_back_val();
      if (factor.size == size) {
        sharding.dims[d][i] = factor.axes;
        continue;
      }
      // The attribute joins several factors. Its chunks may be whole rows of the upper one.
      LayoutFactor upper, lower;
      if (factor.size % size == 0 && !factor.isExtended() &&
          splitFactor(factor, size, mesh, upper, lower)) {
        sharding.dims[d][i] = lower.axes;
        rest.push_back(upper);
        continue;
      }
      // Sizes that do not divide: the padding belongs to the upper factor.
      if (factor.size % size == 0) {
        upper = factor;
        upper.size = factor.size / size;
        upper.padded = llvm::alignTo(upper.size, getNumShards(upper.axes));
        rest.push_back(upper);
        continue;
      }
      return reject();
    }
    for (const LayoutFactor &factor : rest)
      if (!factor.axes.empty())
        return reject();
  }
  return sharding;
}

static ShardingAttr spellSharding(const ValueSharding &sharding, Value value,
                                  const FactorAnalysis &factors, MeshAttr mesh,
                                  FlatSymbolRefAttr symbol) {
  Layout layout;
  ArrayRef<FactorClasses> classes = factors.getClasses(value);
  for (auto [axes, dimClasses] : llvm::zip_equal(sharding.dims, classes)) {
    DimLayout dim;
    for (auto [classAxes, cls] : llvm::zip_equal(axes, dimClasses))
      dim.factors.push_back(factors.getFactor(cls, classAxes));
    if (dim.factors.empty())
      dim.factors.emplace_back();
    layout.dims.push_back(std::move(dim));
  }
  Layout canonical = layout;
  canonicalize(canonical, mesh);
  // A list of axes alone stands for the smallest padding. A padded factor of a dimension,
  // as in (4 pad 8{a}, 2), may need more, and is spelt out.
  for (auto [own, factored] : llvm::zip_equal(canonical.dims, layout.dims)) {
    const LayoutFactor &first = own.factors.front();
    if (own.factors.size() == 1 && first.isContiguous() &&
        first.padded != int64_t(llvm::alignTo(first.size, getNumShards(first.axes))))
      own = factored;
  }
  return getSharding(canonical, symbol, mesh);
}

namespace {

/// The bytes of numbers and pointers, as a key.
class KeyBuilder {
public:
  void add(int64_t number) { words.push_back(number); }
  void add(const void *pointer) { words.push_back(reinterpret_cast<intptr_t>(pointer)); }
  StringRef get() const {
    return {reinterpret_cast<const char *>(words.data()), words.size() * sizeof(int64_t)};
  }

private:
  SmallVector<int64_t, 64> words;
};

} // namespace

FailureOr<ValueSharding> meshwright::readSharding(ShardingAttr attr, Value value,
                                                  const FactorAnalysis &factors, MeshAttr mesh,
                                                  function_ref<InFlightDiagnostic()> emitError) {
  KeyBuilder key;
  key.add(attr.getAsOpaquePointer());
  key.add(mesh.getAsOpaquePointer());
  key.add(value.getType().getAsOpaquePointer());
  for (const FactorClasses &dim : factors.getClasses(value)) {
    key.add(dim.size());
    for (int cls : dim)
      key.add(factors.getSize(cls));
  }
  auto [it, isNew] = factors.memo->read.try_emplace(key.get());
  if (isNew) {
    auto sharding = computeSharding(attr, value, factors, mesh, emitError);
    if (failed(sharding)) {
      factors.memo->read.erase(it);
      return failure();
    }
    it->second = std::move(*sharding);
  }
  return it->second;
}

ShardingAttr meshwright::writeSharding(const ValueSharding &sharding, Value value,
                                       const FactorAnalysis &factors, MeshAttr mesh,
                                       FlatSymbolRefAttr symbol) {
  KeyBuilder key;
  key.add(mesh.getAsOpaquePointer());
  key.add(symbol.getAsOpaquePointer());
  for (auto [axes, classes] : llvm::zip_equal(sharding.dims, factors.getClasses(value))) {
    key.add(classes.size());
    for (auto [classAxes, cls] : llvm::zip_equal(axes, classes)) {
      key.add(factors.getSize(cls));
      key.add(factors.getRuntimeSize(cls).getAsOpaquePointer());
      key.add(classAxes.size());
      if (classAxes.empty())
        continue;
      FactorAnalysis::Order order = factors.getOrder(cls);
      key.add(static_cast<int64_t>(order.order));
      key.add(order.ranks);
      for (const Axis &axis : classAxes) {
        key.add(axis.axis);
        key.add(axis.pre);
        key.add(axis.size);
      }
    }
  }
  ShardingAttr &attr = factors.memo->written[key.get()];
  if (!attr)
    attr = spellSharding(sharding, value, factors, mesh, symbol);
  return attr;
}

SmallVector<func::FuncOp> meshwright::getGlobalFunctions(ModuleOp module) {
  SmallVector<func::FuncOp> functions;
  for (auto func : module.getOps<func::FuncOp>())
    if (!func.isExternal() && !func->hasAttr(DistDialect::kSpmdAttr))
      functions.push_back(func);
  return functions;
}

ShardingAttr meshwright::getShardingAttr(Value value) {
  if (auto arg = dyn_cast<BlockArgument>(value)) {
    auto func = cast<func::FuncOp>(arg.getOwner()->getParentOp());
    return func.getArgAttrOfType<ShardingAttr>(arg.getArgNumber(), DistDialect::kShardingAttr);
  }
  auto result = cast<OpResult>(value);
  if (auto constrain = dyn_cast<ConstrainOp>(result.getOwner()))
    return constrain.getSharding();
  Attribute attr = result.getOwner()->getDiscardableAttr(DistDialect::kShardingAttr);
  if (auto array = dyn_cast_or_null<ArrayAttr>(attr))
    return dyn_cast<ShardingAttr>(array[result.getResultNumber()]);
  return cast_or_null<ShardingAttr>(attr);
}

void meshwright::setShardingAttr(Value value, ShardingAttr attr) {
  if (auto arg = dyn_cast<BlockArgument>(value)) {
    auto func = cast<func::FuncOp>(arg.getOwner()->getParentOp());
    func.setArgAttr(arg.getArgNumber(), DistDialect::kShardingAttr, attr);
    return;
  }
  auto result = cast<OpResult>(value);
  Operation *op = result.getOwner();
  if (op->getNumResults() == 1) {
    op->setDiscardableAttr(DistDialect::kShardingAttr, attr);
    return;
  }
  // One entry for each result. A unit attribute stands for results without a sharding.
  SmallVector<Attribute> all(op->getNumResults(), UnitAttr::get(op->getContext()));
  if (auto known = op->getAttrOfType<ArrayAttr>(DistDialect::kShardingAttr))
    all.assign(known.begin(), known.end());
  all[result.getResultNumber()] = attr;
  op->setAttr(DistDialect::kShardingAttr, ArrayAttr::get(op->getContext(), all));
}

void meshwright::setArgumentAttrs(func::FuncOp func, StringRef name, ArrayRef<Attribute> attrs) {
  SignatureAttrs signatures;
  for (auto [i, attr] : llvm::enumerate(attrs))
    if (attr)
      signatures.setArgument(func, i, name, attr);
}
