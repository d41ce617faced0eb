//===- GemmKernels.cpp - launches that are matrix products ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/Gemm.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/RowEmitter.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace meshwright::lower {

/// The region's product by a weight; null if it has none, or several.
static nn::LinearOp findLinear(const KernelRegion &region) {
  nn::LinearOp found;
  for (Operation *op : region.ops)
    if (auto linear = dyn_cast<nn::LinearOp>(op)) {
      if (found)
        return nullptr;
      found = linear;
    }
  return found;
}

static GemmSpec getSpec(nn::LinearOp linear) {
  auto result = cast<RankedTensorType>(linear.getType());
  auto weight = cast<RankedTensorType>(linear.getWeight().getType());
  GemmSpec spec;
  spec.type = weight.getElementType();
  spec.resultType = result.getElementType();
  spec.n = result.getShape().back();
  spec.k = weight.getDimSize(linear.getInOut() ? 0 : 1);
  spec.m = 1;
  for (int64_t size : result.getShape().drop_back())
    spec.m *= size;
  spec.hasBias = linear.getBias() != nullptr;
  return spec;
}

/// Returns true if there is a kernel for the product without other ops.
static bool isSupported(nn::LinearOp linear, const GemmSpec &spec, const Processor &processor) {
  if (!hasGemm(spec.type, processor) || spec.m == 0 || spec.n == 0 || spec.k == 0)
    return false;
  // All operands and the result have one element type.
  return spec.resultType == spec.type && llvm::all_of(linear->getOperandTypes(), [&](Type type) {
           return getElementTypeOrSelf(type) == spec.type;
         });
}

bool isEpilogueOp(Operation *op, RankedTensorType product) {
  if (op->getNumResults() != 1)
    return false;
  if (isFree(op))
    return !isa<nn::IotaOp>(op);
  auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  return (op->hasTrait<dist::View>() || op->hasTrait<dist::Elementwise>()) &&
         type && type.getNumElements() == product.getNumElements() && type.getRank() > 0 &&
         product.getRank() > 0 && type.getShape().back() == product.getShape().back();
}

bool isPrologueOp(Operation *op, RankedTensorType input) {
  // Each thread computes it, and repeats it for each block of columns.
  return isEpilogueOp(op, input) && (isFree(op) || isCheap(op));
}

/// The plan of a row kernel that computes the elements of a matrix in order, without
/// reductions. Returns nothing if there is no such plan.
static std::optional<RowPiece> planElements(const KernelRegion &region, int64_t columns,
                                            const CpuTarget &target) {
  RowPlanResult plan = target.planRows(region);
  if (!plan.plan || plan.plan->isScalar || plan.plan->pieces.size() != 1)
    return std::nullopt;
  RowPiece &piece = plan.plan->pieces.front();
  bool isDense = piece.statistics.empty() && piece.space.end == columns &&
                 llvm::none_of(piece.stores, [](const Store &store) { return store.perRow; }) &&
                 llvm::all_of(piece.cuts, [](auto &entry) { return entry.second.empty(); });
  if (!isDense)
    return std::nullopt;
  return std::move(piece);
}

namespace {
/// The ops that compute the product's input `made` from `source`, which has as many elements.
struct Prologue {
  KernelRegion region;
  RowPiece piece;
  Value source, made;
};
} // namespace

/// Ops that the product's input depends on.
static llvm::SetVector<Operation *> findAhead(const KernelRegion &region, nn::LinearOp linear) {
  llvm::SetVector<Operation *> ahead;
  if (Operation *op = region.getDefiningOp(linear.getInput()))
    ahead.insert(op);
  for (size_t i = 0; i < ahead.size(); ++i)
    for (Value operand : ahead[i]->getOperands())
      if (Operation *op = region.getDefiningOp(operand))
        ahead.insert(op);
  return ahead;
}

/// Returns nothing if the ops before the product cannot be computed while its input is copied.
/// They may read only one buffer of the input's size, because they read it several times.
static std::optional<Prologue> planPrologue(const KernelRegion &region, nn::LinearOp linear,
                                            const CpuTarget &target) {
  auto input = cast<RankedTensorType>(linear.getInput().getType());
  llvm::SetVector<Operation *> ahead = findAhead(region, linear);
  Prologue prologue;
  prologue.region.inputs = region.inputs;
  // The value before the views, which join dimensions of the rows.
  prologue.made = linear.getInput();
  while (auto op = dyn_cast_or_null<nn::ReshapeOp>(region.getDefiningOp(prologue.made))) {
    auto type = cast<RankedTensorType>(op.getInput().getType());
    if (type.getRank() == 0 || type.getShape().back() != input.getShape().back())
      break;
    prologue.made = op.getInput();
  }
  if (!region.getDefiningOp(prologue.made))
    return std::nullopt;
  prologue.region.outputs = {prologue.made};
  for (Operation *op : region.ops) {
    if (!ahead.contains(op))
      continue;
    if (!isPrologueOp(op, input))
      return std::nullopt;
    prologue.region.add(op);
    for (Value operand : op->getOperands()) {
      auto type = cast<RankedTensorType>(operand.getType());
      if (region.getDefiningOp(operand) || type.getNumElements() != input.getNumElements())
        continue;
      if (prologue.source && prologue.source != operand)
        return std::nullopt;
      prologue.source = operand;
    }
  }
  if (!prologue.source)
    return std::nullopt;
  Type type = getElementTypeOrSelf(prologue.source.getType());
  std::optional<RowPiece> piece = planElements(prologue.region, input.getShape().back(), target);
  if (!piece || !(type.isF32() || type.isBF16()))
    return std::nullopt;
  prologue.piece = std::move(*piece);
  return prologue;
}

/// The plan of the ops after the product. Returns nothing if they cannot be an epilogue.
static std::optional<RowPiece> planEpilogue(const KernelRegion &region, nn::LinearOp linear,
                                            const CpuTarget &target) {
  auto product = cast<RankedTensorType>(linear.getType());
  llvm::SetVector<Operation *> ahead = findAhead(region, linear);
  KernelRegion rest;
  rest.inputs.assign(region.inputs.begin(), region.inputs.end());
  rest.inputs.push_back(linear.getResult());
  rest.outputs = region.outputs;
  for (Operation *op : region.ops) {
    if (op == linear || (ahead.contains(op) && !isFree(op)))
      continue;
    if (!isEpilogueOp(op, product))
      return std::nullopt;
    rest.add(op);
    auto shape = cast<RankedTensorType>(op->getResult(0).getType()).getShape();
    for (Value operand : op->getOperands()) {
      // The buffers of the product's operands have other forms.
      if (llvm::is_contained(linear->getOperands(), operand) && operand != linear.getBias())
        return std::nullopt;
      Operation *producer = region.getDefiningOp(operand);
      if (producer && ahead.contains(producer) && !isFree(producer))
        return std::nullopt;
      // Values of the region are in registers, so they do not broadcast.
      if (producer && !isFree(producer) && !op->hasTrait<dist::View>() &&
          cast<RankedTensorType>(operand.getType()).getShape() != shape)
        return std::nullopt;
    }
  }
  for (Value output : region.outputs)
    if (auto op = region.getDefiningOp(output);
        !op || ahead.contains(op) || (op != linear && isFree(op)))
      return std::nullopt;
  return planElements(rest, product.getShape().back(), target);
}

namespace {
/// The ops of a product's kernel before and after the product.
struct Fusion {
  std::optional<Prologue> prologue;
  std::optional<RowPiece> epilogue;
  /// The value that the product's rows are copied from.
  Value source;
};
} // namespace

static std::optional<Fusion> planFusion(const KernelRegion &region, nn::LinearOp linear,
                                        const CpuTarget &target) {
  Fusion fusion;
  fusion.source = linear.getInput();
  if (region.getDefiningOp(linear.getInput())) {
    if (!(fusion.prologue = planPrologue(region, linear, target)))
      return std::nullopt;
    fusion.source = fusion.prologue->source;
  }
  if (!llvm::equal(region.outputs, ValueRange(linear.getResult())) &&
      !(fusion.epilogue = planEpilogue(region, linear, target)))
    return std::nullopt;
  auto isReadOnce = [&](Operation *op) {
    return op == linear || !llvm::is_contained(op->getOperands(), fusion.source) ||
           (fusion.prologue && llvm::is_contained(fusion.prologue->region.ops, op));
  };
  bool isKnown = llvm::is_contained(region.inputs, fusion.source) &&
                 fusion.source != linear.getBias() && llvm::all_of(region.ops, isReadOnce);
  return isKnown ? std::make_optional(std::move(fusion)) : std::nullopt;
}

std::optional<PackedWeight> getGemmWeight(const KernelRegion &region, const CpuTarget &target) {
  nn::LinearOp linear = findLinear(region);
  if (!linear)
    return std::nullopt;
  GemmSpec spec = getSpec(linear);
  if (!isSupported(linear, spec, target.getProcessor()))
    return std::nullopt;
  auto weight = llvm::find(region.inputs, linear.getWeight());
  if (weight == region.inputs.end() || !planFusion(region, linear, target))
    return std::nullopt;
  return PackedWeight{unsigned(weight - region.inputs.begin()),
                      choosePacking(spec.type, spec.k, spec.n, !linear.getInOut(),
                                    target.getProcessor())};
}

/// A text that is equal for regions with equal kernels: ops, their operands, and the stored
/// values.
static std::string describe(const KernelRegion &region) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::DenseMap<Value, size_t> numbers;
  auto print = [&](Value value) {
    os << " " << numbers.try_emplace(value, numbers.size()).first->second;
  };
  for (Value input : region.inputs) {
    print(input);
    os << ":" << input.getType();
  }
  for (Operation *op : region.ops) {
    os << ";" << op->getName();
    for (NamedAttribute attribute : op->getAttrs())
      if (op->getName().getAttributeNames().empty() ||
          llvm::is_contained(op->getName().getAttributeNames(), attribute.getName()))
        os << " " << attribute.getName().getValue() << "=" << attribute.getValue();
    llvm::for_each(op->getOperands(), print);
    for (Value result : op->getResults()) {
      print(result);
      os << ":" << result.getType();
    }
  }
  os << ";";
  llvm::for_each(region.outputs, print);
  return text;
}

namespace {
/// Emits the ops before and after a product as elements of a row kernel.
class FusedRows {
public:
  FusedRows(const KernelRegion &region, nn::LinearOp linear, const Fusion &fusion)
      : region(region), linear(linear), fusion(fusion) {}

  /// Sets the flat buffers of the inputs and of the outputs.
  void setBuffers(ArrayRef<std::pair<Value, Value>> inputs, ValueRange outputs) {
    this->inputs.assign(inputs.begin(), inputs.end());
    this->outputs.assign(outputs.begin(), outputs.end());
  }
  /// The elements that are multiplied, computed from those of the source.
  Value emitPrologue(Builder &b, Value elements, const GemmPoint &point);
  void emitEpilogue(Builder &b, Value sums, const GemmPoint &point);

private:
  void start(RowEmitter &row, const RowPiece &piece, const GemmPoint &point);

  const KernelRegion &region;
  nn::LinearOp linear;
  const Fusion &fusion;
  SmallVector<std::pair<Value, Value>> inputs;
  SmallVector<Value> outputs;
};
} // namespace

void FusedRows::start(RowEmitter &row, const RowPiece &piece, const GemmPoint &point) {
  Builder &b = row.builder;
  for (auto [value, buffer] : inputs)
    row.setBuffer(value, buffer);
  // The row's index in each dimension.
  SmallVector<Value> indices(piece.space.rows.size());
  Value left = point.row;
  bool isOnly = llvm::count_if(piece.space.rows, [](int64_t size) { return size != 1; }) <= 1;
  for (size_t d = indices.size(); d-- > 0;) {
    if (piece.space.rows[d] == 1)
      continue;
    Value size = emitIndex(b, piece.space.rows[d]);
    indices[d] = isOnly ? left : arith::RemUIOp::create(b, left, size);
    left = arith::DivUIOp::create(b, left, size);
  }
  row.startRow(piece.space, indices);
  row.startColumns(0, piece.space.end, point.column, point.count, /*anchor=*/nullptr);
}

Value FusedRows::emitPrologue(Builder &b, Value elements, const GemmPoint &point) {
  const Prologue &prologue = *fusion.prologue;
  RowEmitter row(b, prologue.region);
  start(row, prologue.piece, point);
  // Elements are consecutive in both buffers.
  const Access &access = prologue.piece.stores.front().from;
  row.setElement(prologue.source, access,
                 emitCast(b, elements, getElementTypeOrSelf(prologue.source.getType())));
  return emitCast(b, row.emitVector(prologue.made, access), b.getF32Type());
}

void FusedRows::emitEpilogue(Builder &b, Value sums, const GemmPoint &point) {
  const RowPiece &piece = *fusion.epilogue;
  RowEmitter row(b, region);
  start(row, piece, point);
  if (point.count < point.lanes)
    sums = vector::ExtractStridedSliceOp::create(b, sums, int64_t(0), point.count, int64_t(1));
  auto add = [&](Value value) {
    Access access;
    access.rows.assign(piece.space.rows.size(), 0);
    access.column = 1;
    Value other = row.emitVector(value, access);
    sums = arith::AddFOp::create(b, sums, emitCast(b, other, b.getF32Type()));
  };
  if (linear.getBias())
    add(linear.getBias());
  row.setElement(linear.getResult(), piece.stores.front().from,
                 emitCast(b, sums, getElementTypeOrSelf(linear.getType())));
  for (const Store &store : piece.stores)
    row.store(row.emit(store.value, store.from), outputs[store.output], store.to);
}

std::optional<KernelInfo> KernelScope::buildGemm(rt::KernelOp launch) {
  const Processor &processor = kernels.getProcessor();
  KernelRegion region = KernelRegion::of(launch);
  std::optional<PackedWeight> weight = getGemmWeight(region, kernels.getTarget());
  if (!weight)
    return std::nullopt;
  auto prepared = launch.getInputs()[weight->operand].getDefiningOp<rt::PrepareOp>();
  if (!prepared)
    return std::nullopt;
  // A program may come with a schedule of its own, whose panels are not whole vectors here.
  rt::PackingAttr packing = prepared.getPacking();
  if (packing.getGroup() != weight->packing.group || packing.getPanel() % processor.getLanes() != 0)
    return std::nullopt;

  nn::LinearOp linear = findLinear(region);
  GemmSpec spec = getSpec(linear);
  Fusion fusion = *planFusion(region, linear, kernels.getTarget());
  FusedRows rows(region, linear, fusion);
  bool isFused = fusion.prologue || fusion.epilogue;
  if (fusion.prologue)
    spec.prologue = [&](Builder &b, Value elements, const GemmPoint &point) {
      return rows.emitPrologue(b, elements, point);
    };
  if (fusion.epilogue) {
    // The epilogue adds the bias, as one of its own inputs.
    spec.hasBias = false;
    spec.epilogue = [&](Builder &b, Value sums, const GemmPoint &point) {
      rows.emitEpilogue(b, sums, point);
    };
  }
  GemmPlan plan = planGemm(spec, packing.getPanel(), processor);
  KernelInfo info;
  info.inputs = {fusion.source, linear.getWeight()};
  if (linear.getBias())
    info.inputs.push_back(linear.getBias());
  for (Value input : region.inputs)
    if (!llvm::is_contained(info.inputs, input))
      info.inputs.push_back(input);
  llvm::append_range(info.inputs, region.getPositions());
  info.kind = MW_RT_GEMM;
  info.items = plan.items;
  info.grain = chooseGrain(plan.items, plan.bytes, plan.flops);
  info.workspaceBytes = plan.workspaceBytes;
  info.flops = plan.flops;
  if (!isFused)
    info.bytes = plan.bytes;

  // Models have many equal products. Each is written once.
  std::string key = "gemm";
  for (int64_t part : {spec.m, spec.n, spec.k, int64_t(spec.hasBias), int64_t(spec.type.isBF16()),
                       packing.getPanel()})
    key += "," + std::to_string(part);
  if (isFused)
    key += describe(region);
  std::string &name = kernels.known[key];
  if (name.empty()) {
    Type sourceType = getElementTypeOrSelf(fusion.source.getType());
    SmallVector<Type> types = {MemRefType::get({spec.m, spec.k}, sourceType),
                               MemRefType::get({plan.panels * plan.steps * plan.tileVectors *
                                                plan.lanes * packing.getGroup()},
                                               spec.type)};
    // Row kernels read and write flat buffers.
    auto addFlat = [&](Value value) {
      auto type = cast<RankedTensorType>(value.getType());
      if (isa_and_nonnull<dist::PositionsOp>(region.getDefiningOp(value)))
        types.push_back(getFirstBufferType(value));
      else
        types.push_back(
            MemRefType::get({type.getNumElements()}, getRowStorageType(type.getElementType())));
    };
    if (spec.hasBias)
      types.push_back(MemRefType::get({spec.n}, spec.type));
    for (size_t i = types.size(); i < info.inputs.size(); ++i)
      addFlat(info.inputs[i]);
    if (fusion.epilogue)
      llvm::for_each(region.outputs, addFlat);
    else
      types.push_back(MemRefType::get({spec.m, spec.n}, spec.resultType));
    func::FuncOp kernel = begin(linear, types, plan.workspaceBytes);
    Builder b = getBuilder(kernel);
    ValueRange arguments = kernel.getArguments();
    ValueRange rest = arguments.drop_front(types.size());
    GemmBuffers buffers{arguments[0], arguments[1], Value(), Value(), rest[0], rest[1], rest[2]};
    SmallVector<std::pair<Value, Value>> inputs;
    for (size_t i = 2; i < info.inputs.size(); ++i)
      inputs.push_back({info.inputs[i], arguments[i]});
    rows.setBuffers(inputs, arguments.slice(info.inputs.size(), region.outputs.size()));
    if (spec.hasBias)
      buffers.bias = arguments[2];
    if (!fusion.epilogue)
      buffers.c = arguments[types.size() - 1];
    emitGemm(b, spec, plan, buffers);
    name = finish(kernel, launch, info.inputs);
  }
  info.name = name;
  return info;
}

} // namespace meshwright::lower
