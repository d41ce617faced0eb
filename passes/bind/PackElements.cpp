//===- PackElements.cpp - elements of four bits as bytes ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A type is replaced wherever it occurs. An op that only moves elements then moves bytes. Before,
// `Packing` counts bytes where an op counts elements of the last dimension, and refuses an op that
// takes one of two elements that share a byte.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/bind/PackElements.h"

#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/bind/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/AttrTypeSubElements.h"

namespace meshwright {
#define GEN_PASS_DEF_PACKELEMENTSPASS
#include "meshwright/passes/bind/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The elements of a type that share a byte; 1 for a type that is no tensor, or whose encoding says
/// where its elements are.
static int64_t getShared(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && !tensor.getEncoding() ? getElementsPerByte(tensor.getElementType()) : 1;
}

bool meshwright::sharesBytes(ModuleOp module) {
  auto shares = [](Type type) { return getShared(type) > 1; };
  WalkResult result = module.walk([&](Operation *op) {
    if (auto state = dyn_cast<nn::StateOp>(op); state && shares(state.getMemoryType()))
      return WalkResult::interrupt();
    if (llvm::any_of(op->getResultTypes(), shares))
      return WalkResult::interrupt();
    for (Region &region : op->getRegions())
      for (Block &block : region)
        if (llvm::any_of(block.getArgumentTypes(), shares))
          return WalkResult::interrupt();
    return WalkResult::advance();
  });
  return result.wasInterrupted();
}

namespace {

/// Counts bytes where ops and layouts count elements of the last dimension.
class Packing {
public:
  explicit Packing(MLIRContext *context) : builder(context) {}

  LogicalResult pack(Operation *op);
  LogicalResult pack(func::FuncOp function);

private:
  LogicalResult packSlice(nn::SliceOp op, int64_t shared);
  /// The sharding of a value of `shared` elements a byte; null if a factor has a part of a byte.
  ShardingAttr packSharding(ShardingAttr sharding, int64_t shared);
  ArrayAttr packShardings(ArrayAttr shardings, TypeRange types);
  LogicalResult packOwnSharding(Operation *op, Type type);

  Builder builder;
};

} // namespace

static LogicalResult refuse(Operation *op, const Twine &what) {
  return op->emitOpError() << what << " of " << op->getOperandTypes().front()
                           << ": expected whole bytes, as two elements share one";
}

LogicalResult Packing::packSlice(nn::SliceOp op, int64_t shared) {
  size_t last = op.getStarts().size() - 1;
  SmallVector<int64_t> starts(op.getStarts()), limits(op.getLimits());
  if (starts[last] % shared != 0 || limits[last] % shared != 0 || op.getStrides()[last] != 1)
    return refuse(op, "takes the elements " + Twine(starts[last]) + " to " + Twine(limits[last]) +
                          " with stride " + Twine(op.getStrides()[last]) + " of the rows");
  starts[last] /= shared;
  limits[last] /= shared;
  op.setStarts(starts);
  op.setLimits(limits);
  return success();
}

ShardingAttr Packing::packSharding(ShardingAttr sharding, int64_t shared) {
  SmallVector<DimShardingAttr> dims(sharding.getDims());
  if (dims.empty() || dims.back().getFactors().empty())
    return sharding;
  SmallVector<FactorShardingAttr> factors(dims.back().getFactors());
  FactorShardingAttr minor = factors.back();
  // Without a size the factor is the whole dimension, and its size follows from the types.
  if (minor.getSize() == 0)
    return sharding;
  if (minor.getSize() % shared != 0 || minor.getPadded() % shared != 0)
    return nullptr;
  factors.back() =
      FactorShardingAttr::get(builder.getContext(), minor.getSize() / shared,
                              minor.getPadded() / shared, minor.getOrder(), minor.getOrderRanks(),
                              minor.getAxes());
  dims.back() = DimShardingAttr::get(builder.getContext(), factors, dims.back().getIsOpen());
  return ShardingAttr::get(builder.getContext(), sharding.getMesh(), dims,
                           sharding.getUnreduced(), sharding.getReduction());
}

/// Null if a factor has a part of a byte.
ArrayAttr Packing::packShardings(ArrayAttr shardings, TypeRange types) {
  SmallVector<Attribute> packed;
  for (auto [sharding, type] : llvm::zip_equal(shardings, types)) {
    int64_t shared = getShared(type);
    packed.push_back(shared > 1 ? packSharding(cast<ShardingAttr>(sharding), shared)
                                : cast<ShardingAttr>(sharding));
    if (!packed.back())
      return nullptr;
  }
  return builder.getArrayAttr(packed);
}

LogicalResult Packing::packOwnSharding(Operation *op, Type type) {
  auto sharding = op->getAttrOfType<ShardingAttr>(DistDialect::kShardingAttr);
  if (!sharding || getShared(type) == 1)
    return success();
  ShardingAttr packed = packSharding(sharding, getShared(type));
  if (!packed)
    return op->emitOpError() << "expected whole bytes on each rank, got the layout " << sharding
                             << " of " << type;
  op->setAttr(DistDialect::kShardingAttr, packed);
  return success();
}

LogicalResult Packing::pack(Operation *op) {
  for (Type type : op->getResultTypes())
    if (auto tensor = dyn_cast<RankedTensorType>(type); tensor && !getPackedType(tensor))
      return op->emitOpError() << "expected a result of even last dimension, got " << type
                               << ": two elements share a byte";
  if (auto state = dyn_cast<nn::StateOp>(op))
    return packOwnSharding(op, state.getMemoryType());
  if (op->getNumResults() == 1 && failed(packOwnSharding(op, op->getResultTypes().front())))
    return failure();
  int64_t shared = 1;
  for (Type type : op->getOperandTypes())
    shared = std::max(shared, getShared(type));
  if (shared == 1)
    return success();
  int64_t last = typeOf(op->getOperand(0)).getRank() - 1;
  if (auto slice = dyn_cast<nn::SliceOp>(op))
    return packSlice(slice, shared);
  if (auto dequantize = dyn_cast<nn::DequantizeOp>(op))
    dequantize.setPacked(true);
  if (auto transpose = dyn_cast<nn::TransposeOp>(op); transpose && transpose.getPermutation().back() != last)
    return refuse(op, "moves the last dimension");
  if (auto lookup = dyn_cast<LookupOpInterface>(op)) {
    // Elements of a row may have indices of their own.
    FactorRule rule = cast<ShardingRuleOpInterface>(op).getFactorRule();
    const auto &row = rule.operands[*lookup.getTableOperand()].back();
    if (lookup.getTableDim() == last ||
        llvm::is_contained(rule.operands[lookup.getIndexOperand()], row))
      return refuse(op, "takes single elements of the rows");
  }
  if (auto mask = dyn_cast<MaskPaddingOp>(op); mask && int64_t(mask.getDim()) == last) {
    if (mask.getSize() % shared != 0)
      return refuse(op, "has the true size " + Twine(mask.getSize()) + " in the rows");
    mask.setSize(mask.getSize() / shared);
  }
  if (auto reorder = dyn_cast<ReorderOp>(op); reorder && int64_t(reorder.getDim()) == last)
    return refuse(op, "reorders the elements of the rows");
  if (auto redistribute = dyn_cast<RedistributeOp>(op)) {
    ArrayAttr from = packShardings(redistribute.getFrom(), op->getOperandTypes());
    ArrayAttr to = packShardings(redistribute.getTo(), op->getResultTypes());
    if (!from || !to)
      return refuse(op, "has layouts that cut the rows");
    redistribute.setFromAttr(from);
    redistribute.setToAttr(to);
  }
  return success();
}

LogicalResult Packing::pack(func::FuncOp function) {
  auto packAttr = [&](Type type, Attribute attr, function_ref<void(ShardingAttr)> set) {
    auto sharding = dyn_cast_or_null<ShardingAttr>(attr);
    if (!sharding || getShared(type) == 1)
      return success();
    ShardingAttr packed = packSharding(sharding, getShared(type));
    if (!packed)
      return LogicalResult(function.emitOpError()
                           << "expected whole bytes on each rank, got the layout " << sharding
                           << " of " << type);
    set(packed);
    return success();
  };
  StringRef name = DistDialect::kShardingAttr;
  SignatureAttrs signatures;
  for (auto [i, type] : llvm::enumerate(function.getArgumentTypes()))
    if (failed(packAttr(type, function.getArgAttr(i, name),
                        [&, i = i](ShardingAttr to) { signatures.setArgument(function, i, name, to); })))
      return failure();
  for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
    if (failed(packAttr(type, function.getResultAttr(i, name),
                        [&, i = i](ShardingAttr to) { signatures.setResult(function, i, name, to); })))
      return failure();
  return success();
}

/// The bytes of elements. The first element of a byte has its low bits.
static Attribute packConstant(DenseElementsAttr elements, RankedTensorType packed, int64_t shared) {
  unsigned bits = 8 / shared;
  auto toBits = [](const APFloat &number) { return number.bitcastToAPInt().getZExtValue(); };
  SmallVector<uint8_t> bytes;
  if (elements.isSplat()) {
    uint64_t element = toBits(elements.getSplatValue<APFloat>());
    uint8_t byte = 0;
    for (int64_t i = 0; i < shared; ++i)
      byte |= element << (i * bits);
    return DenseElementsAttr::get(packed, IntegerAttr::get(packed.getElementType(), APInt(8, byte)));
  }
  for (auto [i, number] : llvm::enumerate(elements.getValues<APFloat>())) {
    if (i % shared == 0)
      bytes.push_back(0);
    bytes.back() |= toBits(number) << (i % shared * bits);
  }
  return DenseElementsAttr::get(packed, ArrayRef(bytes));
}

LogicalResult meshwright::packElements(ModuleOp module) {
  Packing packing(module.getContext());
  WalkResult result = module.walk([&](Operation *op) {
    auto function = dyn_cast<func::FuncOp>(op);
    bool isPacked = succeeded(function ? packing.pack(function) : packing.pack(op));
    return isPacked ? WalkResult::advance() : WalkResult::interrupt();
  });
  if (result.wasInterrupted())
    return failure();
  AttrTypeReplacer replacer;
  replacer.addReplacement([](RankedTensorType type) -> std::optional<Type> {
    return getShared(type) > 1 ? std::optional<Type>(getPackedType(type)) : std::nullopt;
  });
  replacer.addReplacement([](DenseElementsAttr elements) -> std::optional<Attribute> {
    auto type = dyn_cast<RankedTensorType>(elements.getType());
    if (!type || getShared(type) == 1)
      return std::nullopt;
    return packConstant(elements, getPackedType(type), getShared(type));
  });
  // A number that each element has, as the fill of a state.
  replacer.addReplacement([](FloatAttr number) -> std::optional<Attribute> {
    if (getElementsPerByte(number.getType()) == 1)
      return std::nullopt;
    std::string byte = nn::getElementBytes(number);
    return IntegerAttr::get(IntegerType::get(number.getContext(), 8), APInt(8, uint8_t(byte[0])));
  });
  replacer.recursivelyReplaceElementsIn(module, /*replaceAttrs=*/true, /*replaceLocs=*/false,
                                        /*replaceTypes=*/true);
  return success();
}

namespace {
struct PackElementsPass : meshwright::impl::PackElementsPassBase<PackElementsPass> {
  void runOnOperation() override {
    if (!sharesBytes(getOperation()))
      return markAllAnalysesPreserved();
    if (failed(packElements(getOperation())))
      signalPassFailure();
  }
};
} // namespace
