//===- KernelBuilder.cpp - kernels of a program ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelBuilder.h"

#include "KernelScope.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/IR/AffineExpr.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;

namespace meshwright::lower {

std::string describeOp(Operation *op) {
  std::string text = op->getName().getStringRef().str();
  SourceLocation source = getSourceLocation(op->getLoc());
  if (!source.name.empty())
    text += " at " + source.name;
  if (!source.file.empty())
    text += " (" + source.file + ":" + std::to_string(source.line) + ")";
  return text;
}

KernelBuilder::KernelBuilder(MLIRContext *context)
    : module(ModuleOp::create(UnknownLoc::get(context))) {}

func::FuncOp KernelBuilder::begin(Location, ArrayRef<Type> types, int64_t workspaceBytes) {
  OpBuilder builder(module->getContext());
  SmallVector<Type> all(types);
  all.append(2, builder.getIndexType());
  all.push_back(MemRefType::get(workspaceBytes, builder.getI8Type()));
  return beginFunction(all);
}

func::FuncOp KernelBuilder::beginFunction(ArrayRef<Type> types) {
  OpBuilder builder = OpBuilder::atBlockEnd(module->getBody());
  auto kernel = func::FuncOp::create(builder, builder.getUnknownLoc(), "kernel",
                                     builder.getFunctionType(types, {}));
  Block *entry = kernel.addEntryBlock();
  // Inputs are only read, and nothing else points to the outputs, unless a result
  // lies over an operand: then each element is written by what read it.
  for (unsigned i = 0; i < entry->getNumArguments(); ++i)
    if (isa<MemRefType>(types[i]))
      kernel.setArgAttr(i, "llvm.noalias", builder.getUnitAttr());
  return kernel;
}

static std::string print(func::FuncOp kernel) {
  std::string text;
  llvm::raw_string_ostream os(text);
  kernel->print(os, OpPrintingFlags().useLocalScope());
  return text;
}

std::string KernelBuilder::finish(func::FuncOp kernel) {
  OpBuilder builder = OpBuilder::atBlockEnd(&kernel.getBody().front());
  func::ReturnOp::create(builder, builder.getUnknownLoc());
  // Named by what it is: also in another program.
  std::string name = "kernel_" + llvm::utohexstr(llvm::xxh3_64bits(print(kernel)), true, 16);
  if (names.insert(name).second) {
    kernel.setName(name);
    sources.push_back({name, print(kernel)});
  }
  kernel.erase();
  return name;
}

//===----------------------------------------------------------------------===//
// Clusters
//===----------------------------------------------------------------------===//

namespace {
/// A value read by a cluster, and the element of it that each point reads.
struct Leaf {
  Value value;
  AffineMap map;
};

/// The reads of a cluster, and how its points are numbered.
struct ClusterReads {
  const Cluster &cluster;
  SmallVector<Leaf> leaves;
  /// Whether a value is read by position (an iota) or in another order, so that
  /// dimensions must stay as they are.
  bool ordered = false;

  int find(Value value, AffineMap map) const {
    for (auto [i, leaf] : llvm::enumerate(leaves))
      if (leaf.value == value && leaf.map == map)
        return i;
    return -1;
  }
  void collect(Value value, AffineMap map);
};
} // namespace

/// Where a point reads an operand, given where it reads the op's result.
static AffineMap getOperandMap(Operation *op, Value operand, AffineMap map) {
  MLIRContext *context = op->getContext();
  auto shape = cast<RankedTensorType>(operand.getType()).getShape();
  SmallVector<AffineExpr> exprs(shape.size());
  if (auto transpose = dyn_cast<nn::TransposeOp>(op)) {
    for (auto [i, from] : llvm::enumerate(transpose.getPermutation()))
      exprs[from] = map.getResult(i);
  } else if (auto slice = dyn_cast<nn::SliceOp>(op)) {
    for (size_t i = 0; i < shape.size(); ++i)
      exprs[i] = map.getResult(i) * slice.getStrides()[i] + slice.getStarts()[i];
  } else {
    size_t missing = map.getNumResults() - shape.size();
    for (size_t i = 0; i < shape.size(); ++i)
      exprs[i] = map.getResult(missing + i);
  }
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == 1)
      exprs[i] = getAffineConstantExpr(0, context);
  return simplifyAffineMap(AffineMap::get(map.getNumDims(), 0, exprs, context));
}

void ClusterReads::collect(Value value, AffineMap map) {
  Operation *op = value.getDefiningOp();
  if (!op || !cluster.members.contains(op)) {
    if (find(value, map) < 0)
      leaves.push_back({value, map});
    return;
  }
  ordered |= isa<nn::TransposeOp, nn::SliceOp, nn::IotaOp>(op);
  for (Value operand : op->getOperands())
    collect(operand, getOperandMap(op, operand, map));
}

namespace {
/// Emits a cluster's arithmetic at one point.
class PointEmitter {
public:
  PointEmitter(ImplicitLocOpBuilder &builder, const ClusterReads &reads, ValueRange elements)
      : builder(builder), reads(reads), elements(elements) {}

  Value emit(Value value, AffineMap map) {
    Value &known = emitted[{value, map}];
    if (!known) {
      // Emitting operands may move the map's entries.
      Value result = emitNew(value, map);
      emitted[{value, map}] = result;
      return result;
    }
    return known;
  }

private:
  Value emitNew(Value value, AffineMap map) {
    Type type = getElementTypeOrSelf(value.getType());
    Operation *op = value.getDefiningOp();
    if (!op || !reads.cluster.members.contains(op))
      return fromStorage(builder, elements[reads.find(value, map)], type);
    if (auto constant = dyn_cast<nn::ConstantOp>(op)) {
      auto splat = cast<DenseElementsAttr>(constant.getValue());
      return arith::ConstantOp::create(builder, splat.getSplatValue<TypedAttr>());
    }
    if (auto iota = dyn_cast<nn::IotaOp>(op)) {
      SmallVector<Value> indices;
      for (unsigned i = 0; i < map.getNumDims(); ++i)
        indices.push_back(linalg::IndexOp::create(builder, i));
      Value index = affine::AffineApplyOp::create(
          builder, AffineMap::get(map.getNumDims(), 0, map.getResult(iota.getDim())), indices);
      index = arith::IndexCastOp::create(builder, builder.getI64Type(), index);
      return emitCast(builder, index, type);
    }
    SmallVector<Value> operands;
    for (Value operand : op->getOperands())
      operands.push_back(emit(operand, getOperandMap(op, operand, map)));
    return emitElement(builder, op, operands);
  }

  ImplicitLocOpBuilder &builder;
  const ClusterReads &reads;
  ValueRange elements;
  llvm::DenseMap<std::pair<Value, AffineMap>, Value> emitted;
};

/// Iteration dimensions with those of size 1 dropped, and joined where every
/// leaf reads them together.
struct CollapsedSpace {
  SmallVector<int64_t> sizes;
  /// For each leaf and dimension, whether the leaf depends on it.
  SmallVector<SmallVector<bool>> uses;
};
} // namespace

static CollapsedSpace collapse(ArrayRef<int64_t> shape, ArrayRef<Leaf> leaves) {
  CollapsedSpace space;
  space.uses.resize(leaves.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1)
      continue;
    SmallVector<bool> uses;
    for (const Leaf &leaf : leaves)
      uses.push_back(leaf.map.isFunctionOfDim(d));
    bool joins = !space.sizes.empty();
    for (size_t i = 0; i < leaves.size() && joins; ++i)
      joins = space.uses[i].back() == uses[i];
    if (joins) {
      space.sizes.back() *= shape[d];
      continue;
    }
    space.sizes.push_back(shape[d]);
    for (size_t i = 0; i < leaves.size(); ++i)
      space.uses[i].push_back(uses[i]);
  }
  return space;
}

/// The type of a leaf's buffer. Where its map names a dimension of the space
/// plainly, the space takes its size from there, so a leaf of which only the
/// first elements are read (a slice from 0 on) is declared with that size.
static MemRefType getLeafType(const Leaf &leaf, ArrayRef<int64_t> space) {
  MemRefType dense = getBufferType(leaf.value);
  SmallVector<int64_t> shape(dense.getShape());
  for (auto [i, expr] : llvm::enumerate(leaf.map.getResults()))
    if (auto dim = dyn_cast<AffineDimExpr>(expr))
      shape[i] = space[dim.getPosition()];
  if (ArrayRef<int64_t>(shape) == dense.getShape())
    return dense;
  auto [strides, offset] = dense.getStridesAndOffset();
  return MemRefType::get(shape, dense.getElementType(),
                         StridedLayoutAttr::get(dense.getContext(), offset, strides));
}

KernelInfo KernelScope::buildCluster(const Cluster &cluster) {
  Operation *root = cluster.root;
  MLIRContext *context = root->getContext();
  auto type = cast<RankedTensorType>(root->getResult(0).getType());
  AffineMap identity = AffineMap::getMultiDimIdentityMap(type.getRank(), context);
  ClusterReads reads{cluster, {}, false};
  reads.collect(root->getResult(0), identity);

  SmallVector<Type> types;
  SmallVector<AffineMap> maps;
  SmallVector<int64_t> space(type.getShape());
  if (reads.ordered) {
    for (const Leaf &leaf : reads.leaves) {
      types.push_back(getLeafType(leaf, space));
      maps.push_back(leaf.map);
    }
  } else {
    CollapsedSpace collapsed = collapse(type.getShape(), reads.leaves);
    space = collapsed.sizes;
    for (auto [leaf, uses] : llvm::zip_equal(reads.leaves, collapsed.uses)) {
      SmallVector<int64_t> shape;
      SmallVector<AffineExpr> exprs;
      for (size_t d = 0; d < space.size(); ++d)
        if (uses[d]) {
          shape.push_back(space[d]);
          exprs.push_back(getAffineDimExpr(d, context));
        }
      types.push_back(getBufferType(leaf.value, shape));
      maps.push_back(AffineMap::get(space.size(), 0, exprs, context));
    }
  }
  types.push_back(getBufferType(root->getResult(0), space));
  maps.push_back(AffineMap::getMultiDimIdentityMap(space.size(), context));

  func::FuncOp kernel = begin(root, types);
  ImplicitLocOpBuilder builder = getBuilder(kernel);
  ValueRange buffers = kernel.getArguments().take_front(types.size());
  SmallVector<utils::IteratorType> iterators(space.size(), utils::IteratorType::parallel);
  linalg::GenericOp::create(builder, buffers.drop_back(), buffers.back(), maps, iterators,
                            [&](OpBuilder &nested, Location loc, ValueRange elements) {
                              ImplicitLocOpBuilder body(loc, nested);
                              PointEmitter emitter(body, reads, elements);
                              Value value = emitter.emit(root->getResult(0), identity);
                              linalg::YieldOp::create(body, toStorage(body, value));
                            });
  KernelInfo info{finish(kernel), {}};
  for (const Leaf &leaf : reads.leaves)
    info.inputs.push_back(leaf.value);
  return info;
}

//===----------------------------------------------------------------------===//
// Kernels of single ops
//===----------------------------------------------------------------------===//

std::optional<KernelInfo> KernelScope::buildElements(rt::KernelOp launch) {
  if (launch.getNumResults() != 1 ||
      !llvm::all_of(launch.getOps(), [](Operation &op) { return isElementwise(&op); }))
    return std::nullopt;
  Cluster cluster;
  cluster.root = launch.getYielded().front().getDefiningOp();
  for (Operation &op : launch.getOps())
    cluster.members.insert(&op);
  return buildCluster(cluster);
}

std::optional<KernelInfo> KernelScope::buildSingle(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1)
    return std::nullopt;
  return llvm::TypeSwitch<Operation *, std::optional<KernelInfo>>(&*ops.begin())
      .Case([&](nn::ConcatOp op) { return buildConcat(op); })
      .Case([&](dist::PadOp op) { return buildPad(op); })
      .Case([&](nn::RotaryOp op) { return buildRotary(op); })
      .Case([&](nn::RmsNormOp op) { return buildRmsNorm(op); })
      .Case([&](nn::LayerNormOp op) { return buildLayerNorm(op); })
      .Case([&](nn::SoftmaxOp op) { return buildSoftmax(op); })
      .Case([&](nn::ReduceOp op) { return buildReduce(op); })
      .Case([&](nn::CumsumOp op) { return buildCumsum(op); })
      .Default([](Operation *) { return std::nullopt; });
}

std::optional<KernelInfo> KernelBuilder::build(rt::KernelOp launch) {
  // Those for one kind of launch first. Each looks at the ops in the region and
  // declines, before it has begun a kernel, what it is not for.
  using Emitter = std::optional<KernelInfo> (KernelScope::*)(rt::KernelOp);
  constexpr Emitter emitters[] = {&KernelScope::buildSingle, &KernelScope::buildElements};
  KernelScope scope(*this);
  for (Emitter emitter : emitters)
    if (std::optional<KernelInfo> info = (scope.*emitter)(launch))
      return info;
  return std::nullopt;
}

std::string KernelBuilder::buildAttentionKernel(nn::AttentionOp op) {
  return KernelScope(*this).buildAttention(op);
}

} // namespace meshwright::lower
