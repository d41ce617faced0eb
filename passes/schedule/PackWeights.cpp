//===- PackWeights.cpp - weights in the form that kernels read ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/PackWeights.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"

namespace meshwright {
#define GEN_PASS_DEF_PACKWEIGHTSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// To pack a weight takes as long as a product of about 40 rows (`bench/gemm.py`).
static constexpr int64_t kLeastRows = 64;

/// Returns true if the function gives the state of an argument another value.
static bool writesStateOf(func::FuncOp func, BlockArgument argument) {
  StringAttr name = rt::getState(argument);
  for (unsigned i = 0; i < func.getNumResults(); ++i)
    if (name && func.getResultAttr(i, nn::NnDialect::kStateAttr) == name)
      return true;
  return false;
}

/// Returns true if a cast can be prepared before a call.
static bool isPrepared(nn::CastOp cast) {
  return rt::PrepareOp::isCastable(getElementTypeOrSelf(cast.getInput().getType())) &&
         rt::PrepareOp::isCastable(getElementTypeOrSelf(cast.getResult().getType()));
}

bool meshwright::isPreparedBefore(func::FuncOp func, const Weight &weight) {
  return !writesStateOf(func, weight.stored) && llvm::all_of(weight.links, [](Operation *link) {
    auto cast = dyn_cast<nn::CastOp>(link);
    return rt::isView(link) || (cast && isPrepared(cast));
  });
}

bool meshwright::isWorthPackingAtUse(Operation *product, Value weight) {
  int64_t elements = cast<RankedTensorType>(weight.getType()).getNumElements();
  auto work = dyn_cast<dist::WorkOpInterface>(product);
  // Each row multiplies all elements and adds the products.
  return elements && work && work.getFlops() >= 2.0 * kLeastRows * elements;
}

/// A weight without the waits of its readers. It is packed before the call and waits for nothing.
static Value skipWaits(OpBuilder &builder, Value weight) {
  Operation *view = weight.getDefiningOp();
  if (!view)
    return weight;
  Value source = skipWaits(builder, view->getOperand(0));
  if (isa<dist::AfterOp>(view))
    return source;
  if (source == view->getOperand(0))
    return weight;
  IRMapping mapping;
  mapping.map(view->getOperand(0), source);
  return builder.clone(*view, mapping)->getResult(0);
}

/// The packed weight behind all that a reader of `weight` waits for.
static Value addWaits(OpBuilder &builder, Value packed, Value weight) {
  Operation *view = weight.getDefiningOp();
  if (!view)
    return packed;
  packed = addWaits(builder, packed, view->getOperand(0));
  if (auto after = dyn_cast<dist::AfterOp>(view))
    packed = dist::AfterOp::create(builder, after.getLoc(), packed, after.getEarlier());
  return packed;
}

/// Returns true if a value is another one behind waits: not another part or shape of it.
static bool isOnlyWait(Value value, Value source) {
  while (auto after = value.getDefiningOp<dist::AfterOp>())
    value = after.getInput();
  return value == source;
}

/// The cast that is all that a launch does, if a weight can be cast so before the call; else null.
static nn::CastOp getCast(Operation *launch) {
  auto cast = dyn_cast_or_null<nn::CastOp>(rt::getOnlyOp(launch));
  return cast && isPrepared(cast) ? cast : nullptr;
}

namespace {

/// A weight as products read it, before it is packed.
struct Source {
  /// The value that is cast and packed, its buffer, and the offset in that.
  Value value, buffer;
  int64_t offset;

  explicit Source(Value value) : value(value) { buffer = rt::getBuffer(value, &offset); }
  /// The stored form if the buffer is that.
  std::optional<Weight> getStored() const {
    return isa<BlockArgument>(buffer) ? getWeight(buffer) : std::nullopt;
  }
};

/// The launches that read a weight in one packed form.
struct Readers {
  Source source;
  Type element;
  rt::PackingAttr packing;
  SmallVector<OpOperand *> operands = {};
};

} // namespace

/// The decoding of all rows that is all that a launch does; else null.
static dist::DecodeOp getDecoding(Operation *launch) {
  auto decoding = dyn_cast_or_null<dist::DecodeOp>(rt::getOnlyOp(launch));
  return decoding && cast<RankedTensorType>(decoding.getInput().getType()).getShape() ==
                         cast<RankedTensorType>(decoding.getResult().getType()).getShape()
             ? decoding
             : nullptr;
}

/// Where the weight that a launch reads comes from, seen through a cast or a decoding.
static Source findSource(Value read) {
  Source source(read);
  Operation *maker = source.buffer.getDefiningOp();
  if (!isOnlyWait(read, source.buffer))
    return source;
  if (auto prepare = dyn_cast_or_null<rt::PrepareOp>(maker); prepare && !prepare.getPacking())
    return Source(prepare.getWeight());
  return getCast(maker) || getDecoding(maker) ? Source(maker->getOperand(0)) : source;
}

/// Returns true if the launch computes other ops besides the product.
static bool isFused(Operation *launch) {
  return llvm::count_if(cast<rt::KernelOp>(launch).getOps(),
                        [](Operation &op) { return !rt::isView(&op); }) > 1;
}

/// Where a product reads a weight as it is stored, the library packs it. So to pack it once costs
/// as much as one product saves. If that is once in each call, because the function gives the
/// weight another value or makes it, it pays if more than one product reads it, or one that the
/// library cannot perform.
static bool pays(func::FuncOp func, const Readers &readers) {
  std::optional<Weight> stored = readers.source.getStored();
  if (stored && !writesStateOf(func, stored->stored))
    return true;
  if (llvm::any_of(readers.operands,
                   [](OpOperand *operand) { return isFused(operand->getOwner()); }))
    return true;
  return readers.operands.size() > 1 &&
         (stored || llvm::any_of(readers.operands, [](OpOperand *operand) {
            Block &block = cast<rt::KernelOp>(operand->getOwner()).getBlock();
            Value weight = block.getArgument(operand->getOperandNumber());
            return llvm::any_of(weight.getUsers(), [&](Operation *product) {
              return isWorthPackingAtUse(product, weight);
            });
          }));
}

/// Prepares a weight before the call: `type` is that of the result.
static Value prepareBefore(func::FuncOp func, const Source &source, RankedTensorType type,
                           rt::PackingAttr packing) {
  // Behind earlier ones, so that weights are prepared in the order of their readers.
  OpBuilder builder(&*llvm::find_if(func.getBody().front(),
                                    [](Operation &op) { return !isa<rt::PrepareOp>(op); }));
  Value value = skipWaits(builder, source.value);
  if (Operation *view = value.getDefiningOp())
    builder.setInsertionPointAfter(view);
  return rt::PrepareOp::create(builder, source.buffer.getLoc(), type, value, packing,
                               source.getStored()->isState ? rt::PrepareTime::Update
                                                           : rt::PrepareTime::Load);
}

/// Packs a weight in a launch of its own before its first reader.
static Value prepareAtUse(Operation *reader, const Source &source, Type element,
                          rt::PackingAttr packing) {
  OpBuilder builder(reader);
  Location loc = reader->getLoc();
  auto type =
      RankedTensorType::get(cast<RankedTensorType>(source.value.getType()).getShape(), element);
  auto kernel = rt::KernelOp::create(builder, loc, TypeRange(type), ValueRange(source.value),
                                     /*offsets=*/nullptr, /*over=*/nullptr,
                                     /*counted_by=*/nullptr);
  Block *block = builder.createBlock(&kernel.getBody());
  Value weight = block->addArgument(source.value.getType(), loc);
  auto prepare = rt::PrepareOp::create(builder, loc, type, weight, packing, rt::PrepareTime::Use);
  rt::YieldOp::create(builder, loc, ValueRange(prepare.getResult()));
  return kernel.getResult(0);
}

namespace {
struct PackWeightsPass : meshwright::impl::PackWeightsPassBase<PackWeightsPass> {
  using PackWeightsPassBase::PackWeightsPassBase;

  void encodeBefore(func::FuncOp func);
  void castBefore(func::FuncOp func, const KernelTarget &kernelTarget);
  void packProducts(func::FuncOp func, const KernelTarget &kernelTarget);

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    std::shared_ptr<const KernelTarget> kernelTarget = getKernelTarget(func, target);
    if (!kernelTarget)
      return signalPassFailure();
    encodeBefore(func);
    castBefore(func, *kernelTarget);
    packProducts(func, *kernelTarget);
    // A view that nothing reads has no place in an order of launches. Casts may have no reader.
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(func.front())))
      if (op.use_empty() && (rt::isView(&op) || isa<rt::PrepareOp>(op) || getCast(&op) ||
                             getDecoding(&op)))
        op.erase();
  }
};
} // namespace

/// Lets readers of a parameter in another form read it from an rt.prepare. It is then stored so.
void PackWeightsPass::encodeBefore(func::FuncOp func) {
  for (auto launch : llvm::make_early_inc_range(func.getOps<rt::KernelOp>())) {
    auto encoding = dyn_cast_or_null<dist::EncodeOp>(rt::getOnlyOp(launch));
    if (!encoding || encoding.getLargest())
      continue;
    Source source(launch.getOperand(0));
    std::optional<Weight> weight = source.getStored();
    if (!weight || weight->isState)
      continue;
    Value prepared =
        prepareBefore(func, source, cast<RankedTensorType>(launch.getResult(0).getType()), {});
    OpBuilder builder(launch);
    launch.getResult(0).replaceAllUsesWith(addWaits(builder, prepared, source.value));
    launch.erase();
  }
}

/// Lets readers of cast weights read them from an rt.prepare.
void PackWeightsPass::castBefore(func::FuncOp func, const KernelTarget &kernelTarget) {
  for (auto launch : llvm::make_early_inc_range(func.getOps<rt::KernelOp>())) {
    nn::CastOp cast = getCast(launch);
    if (!cast)
      continue;
    Source source(launch.getOperand(0));
    std::optional<Weight> weight = source.getStored();
    // The host casts a state after an update, so the state has to be in its memory.
    if (!weight || writesStateOf(func, weight->stored) ||
        (weight->isState && !kernelTarget.getDeviceChip().empty()) ||
        llvm::any_of(launch->getUsers(), [](Operation *user) {
          return rt::isView(user) || user->hasTrait<OpTrait::IsTerminator>();
        }))
      continue;
    Value prepared =
        prepareBefore(func, source, llvm::cast<RankedTensorType>(cast.getType()), {});
    OpBuilder builder(launch);
    launch.getResult(0).replaceAllUsesWith(addWaits(builder, prepared, source.value));
    launch.erase();
  }
}

/// Lets products read their weights packed.
void PackWeightsPass::packProducts(func::FuncOp func, const KernelTarget &kernelTarget) {
  llvm::MapVector<std::tuple<Value, int64_t, Type, Attribute>, Readers> forms;
  WeightFinder weights(func);
  for (auto launch : func.getOps<rt::KernelOp>()) {
    std::optional<PackedWeight> weight =
        kernelTarget.getPackedWeight(lower::KernelRegion::of(launch));
    if (!weight)
      continue;
    OpOperand &operand = launch->getOpOperand(weight->operand);
    Source source = findSource(operand.get());
    rt::PrepareOp earlier = rt::getPrepare(source.buffer);
    if (!weights.find(source.value) || (earlier && earlier.getPacking()))
      continue;
    const mw_rt_packing &form = weight->packing;
    auto packing = rt::PackingAttr::get(&getContext(), form.k, form.n, form.transposed != 0,
                                        form.panel, form.group, form.batch);
    Type element = getElementTypeOrSelf(operand.get().getType());
    Readers &readers = forms.try_emplace({source.buffer, source.offset, element, packing},
                                         Readers{source, element, packing}).first->second;
    readers.operands.push_back(&operand);
  }
  for (auto &[key, readers] : forms) {
    if (!pays(func, readers))
      continue;
    Value prepared =
        readers.source.getStored()
            ? prepareBefore(func, readers.source,
                            cast<RankedTensorType>(readers.source.value.getType())
                                .clone(readers.element),
                            readers.packing)
            : prepareAtUse(readers.operands.front()->getOwner(), readers.source, readers.element,
                           readers.packing);
    for (OpOperand *operand : readers.operands) {
      OpBuilder atReader(operand->getOwner());
      operand->set(addWaits(atReader, prepared, operand->get()));
    }
  }
}
