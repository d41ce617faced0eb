//===- SplitFusedLinears.cpp - take fused projections apart ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/Support/FormatVariadic.h"

#include <map>

using namespace mlir;
using namespace meshwright;

namespace meshwright {
#define GEN_PASS_DEF_SPLITFUSEDLINEARSPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

/// A linear, or one for each expert.
struct Projection {
  Operation *op;
  Value input, weight, bias;
  /// The dimension of the weight that holds the output features.
  int64_t outDim;

  Value getResult() const { return op->getResult(0); }
  RankedTensorType getType() const { return typeOf(getResult()); }
  /// Writes the projection of some features, of a part of the weight.
  Value create(OpBuilder &builder, Value partOfWeight, Value partOfBias) const {
    SmallVector<int64_t> shape(getType().getShape());
    shape.back() = shapeOf(partOfWeight)[outDim];
    RankedTensorType type = getType().clone(shape);
    if (auto linear = dyn_cast<nn::LinearOp>(op))
      return nn::LinearOp::create(builder, op->getLoc(), type, input, partOfWeight, partOfBias,
                                  linear.getInOutAttr());
    return nn::GroupedLinearOp::create(builder, op->getLoc(), type, input, partOfWeight,
                                       cast<nn::GroupedLinearOp>(op).getInOutAttr());
  }
};

std::optional<Projection> getProjection(Operation *op) {
  if (auto linear = dyn_cast<nn::LinearOp>(op))
    return Projection{op, linear.getInput(), linear.getWeight(), linear.getBias(),
                      linear.getInOut() ? 1 : 0};
  if (auto linear = dyn_cast<nn::GroupedLinearOp>(op))
    return Projection{op, linear.getRows(), linear.getWeight(), Value(), linear.getInOut() ? 2 : 1};
  return std::nullopt;
}

/// A slice that reads a contiguous range of a linear's output features, through a chain of
/// reshapes and transposes.
struct Section {
  nn::SliceOp slice;
  /// The ops from the linear to the slice, both excluded.
  SmallVector<Operation *> chain;
  /// The sliced dimension of each op in the chain.
  SmallVector<int64_t> dims;
  int64_t start, size;
};

/// Follows a slice up to a linear. Returns nothing where the slice does not read one
/// contiguous range of the output features.
std::optional<Section> trace(nn::SliceOp slice, const Projection &linear) {
  Section section;
  section.slice = slice;
  int64_t dim = -1;
  for (int64_t d = 0; d < slice.getType().getRank(); ++d) {
    if (slice.getType().getDimSize(d) == shapeOf(slice.getInput())[d])
      continue;
    if (dim >= 0 || slice.getStrides()[d] != 1)
      return std::nullopt;
    dim = d;
  }
  if (dim < 0)
    return std::nullopt;
  section.start = slice.getStarts()[dim];
  section.size = slice.getType().getDimSize(dim);
  Value value = slice.getInput();
  while (value != linear.getResult()) {
    Operation *op = value.getDefiningOp();
    section.chain.push_back(op);
    section.dims.push_back(dim);
    if (auto transpose = dyn_cast_or_null<nn::TransposeOp>(op)) {
      dim = transpose.getPermutation()[dim];
      value = transpose.getInput();
      continue;
    }
    auto reshape = dyn_cast_or_null<nn::ReshapeOp>(op);
    if (!reshape)
      return std::nullopt;
    // The range must be one of the major factor of the operand's dimension.
    dist::FactorRule rule = reshape.getFactorRule();
    const auto &to = rule.results[0][dim];
    if (to.size() != 1)
      return std::nullopt;
    int64_t from = -1;
    for (auto [d, factors] : llvm::enumerate(rule.operands[0]))
      if (!factors.empty() && factors.front() == to.front())
        from = d;
    if (from < 0)
      return std::nullopt;
    int64_t inner = 1;
    for (int factor : ArrayRef<int>(rule.operands[0][from]).drop_front())
      inner *= rule.factors[factor].size;
    section.start *= inner;
    section.size *= inner;
    dim = from;
    value = reshape.getInput();
  }
  if (dim != linear.getType().getRank() - 1)
    return std::nullopt;
  std::reverse(section.chain.begin(), section.chain.end());
  std::reverse(section.dims.begin(), section.dims.end());
  return section;
}

/// The sections that the users of a linear read, in the order of the features. Empty where a
/// user reads anything but a section.
SmallVector<Section> getSections(const Projection &linear) {
  SmallVector<Section> sections;
  SmallVector<Value> worklist{linear.getResult()};
  while (!worklist.empty()) {
    Value value = worklist.pop_back_val();
    for (Operation *user : value.getUsers()) {
      if (isa<nn::ReshapeOp, nn::TransposeOp>(user)) {
        worklist.push_back(user->getResult(0));
        continue;
      }
      auto slice = dyn_cast<nn::SliceOp>(user);
      auto section = slice ? trace(slice, linear) : std::nullopt;
      if (!section)
        return {};
      auto *at = llvm::upper_bound(
          sections, *section, [](const Section &a, const Section &b) { return a.start < b.start; });
      sections.insert(at, std::move(*section));
    }
  }
  return sections;
}

/// Splits the fused linears of one function.
class LinearSplitter {
public:
  LinearSplitter(func::FuncOp func, bool splitsExperts) : func(func), splitsExperts(splitsExperts) {}

  /// Returns true if a linear was split.
  bool run();

private:
  static bool isParameter(Value value) {
    std::optional<Weight> weight = getWeight(value);
    return weight && weight->isStored();
  }
  Value takePart(Value parameter, int64_t dim, int64_t start, int64_t size);
  void split(const Projection &linear, MutableArrayRef<Section> sections);
  bool pairFeatures();
  Value copyChain(OpBuilder &builder, const Section &section, Value value);
  void eraseWholes();

  func::FuncOp func;
  /// True if it splits projections of experts.
  bool splitsExperts;
  /// Parts of arguments, by argument, dimension, start and size.
  std::map<std::tuple<unsigned, int64_t, int64_t, int64_t>, Value> slices;
};

/// A part of a parameter along `dim`, as an argument of its own. A trained parameter is one state,
/// of which the part is a slice.
Value LinearSplitter::takePart(Value parameter, int64_t dim, int64_t start, int64_t size) {
  auto arg = cast<BlockArgument>(parameter);
  auto [it, inserted] = slices.try_emplace({arg.getArgNumber(), dim, start, size}, Value());
  if (!inserted)
    return it->second;
  auto type = cast<RankedTensorType>(arg.getType());
  if (func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kStateAttr)) {
    OpBuilder builder = OpBuilder::atBlockBegin(&func.front());
    return it->second = nn::Writer(builder, arg.getLoc()).slice(arg, dim, start, start + size);
  }
  SmallVector<int64_t> shape(type.getShape()), offsets(type.getRank(), 0);
  if (auto old = func.getArgAttrOfType<DenseI64ArrayAttr>(arg.getArgNumber(),
                                                          nn::NnDialect::kParameterOffsetsAttr))
    offsets.assign(old.asArrayRef().begin(), old.asArrayRef().end());
  shape[dim] = size;
  offsets[dim] += start;
  NamedAttrList attrs(func.getArgAttrDict(arg.getArgNumber()));
  attrs.set(nn::NnDialect::kParameterOffsetsAttr,
            DenseI64ArrayAttr::get(func.getContext(), offsets));
  unsigned index = func.getNumArguments();
  (void)func.insertArgument(index, RankedTensorType::get(shape, type.getElementType()),
                            attrs.getDictionary(func.getContext()), arg.getLoc());
  return it->second = func.getArgument(index);
}

/// Repeats the ops between the linear and the slice on the section alone.
Value LinearSplitter::copyChain(OpBuilder &builder, const Section &section, Value value) {
  for (auto [op, dim] : llvm::zip_equal(section.chain, section.dims)) {
    SmallVector<int64_t> to(shapeOf(op->getResult(0)));
    int64_t elements = 1, others = 1;
    for (int64_t s : shapeOf(value))
      elements *= s;
    for (auto [d, s] : llvm::enumerate(to))
      others *= int64_t(d) == dim ? 1 : s;
    to[dim] = elements / others;
    Operation *copy = builder.clone(*op);
    copy->removeAttr(nn::NnDialect::kIdAttr);
    copy->setOperand(0, value);
    copy->getResult(0).setType(typeOf(value).clone(to));
    value = copy->getResult(0);
  }
  return value;
}

void LinearSplitter::split(const Projection &linear, MutableArrayRef<Section> sections) {
  OpBuilder builder(linear.op);
  for (Section &section : sections) {
    Value weight = takePart(linear.weight, linear.outDim, section.start, section.size);
    Value bias = linear.bias ? takePart(linear.bias, 0, section.start, section.size) : Value();
    Value value = linear.create(builder, weight, bias);
    value = copyChain(builder, section, value);
    if (auto id = section.slice->getAttr(nn::NnDialect::kIdAttr))
      value.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
    section.slice.replaceAllUsesWith(value);
  }
  dist::DistDialect::getDecisionLog(func.getContext())
      .add("split-fused-linears", Outcome::Applied, linear.op->getLoc(),
           llvm::formatv("a projection to {0} features is split into {1}",
                         linear.getType().getShape().back(), sections.size())
               .str(),
           {{"parts", double(sections.size())}});
  // Users go before the ops that they use. Sections may share ops of their chains.
  for (Section &section : sections)
    section.slice.erase();
  bool erased = true;
  while (erased) {
    erased = false;
    for (Section &section : sections)
      for (Operation *&op : llvm::reverse(section.chain))
        if (op && op->use_empty()) {
          Operation *dead = op;
          for (Section &other : sections)
            std::replace(other.chain.begin(), other.chain.end(), dead,
                         static_cast<Operation *>(nullptr));
          dead->erase();
          erased = true;
        }
  }
  linear.op->erase();
}

/// Erases the parameters of which only parts are used.
void LinearSplitter::eraseWholes() {
  for (int i = func.getNumArguments() - 1; i >= 0; --i) {
    bool wasSliced = llvm::any_of(
        slices, [&](const auto &entry) { return std::get<0>(entry.first) == unsigned(i); });
    if (wasSliced && func.getArgument(i).use_empty())
      (void)func.eraseArgument(i);
  }
}

/// Returns true if features come from a projection, through ops that compute each on its own.
static bool comeFromProjection(Value features) {
  while (Operation *op = features.getDefiningOp()) {
    if (getProjection(op))
      return true;
    auto same = llvm::find_if(op->getOperands(),
                              [&](Value operand) { return operand.getType() == features.getType(); });
    if (!op->hasTrait<dist::Elementwise>() || same == op->getOperands().end())
      return false;
    features = *same;
  }
  return false;
}

/// Writes slices of every n-th feature of a projection, as of gates and values that alternate, as one of
/// n in a dimension of their own. The groups of n features can then be sharded.
bool LinearSplitter::pairFeatures() {
  bool changed = false;
  for (auto slice : llvm::to_vector(func.getOps<nn::SliceOp>())) {
    RankedTensorType type = slice.getType();
    int64_t last = type.getRank() - 1, stride = last < 0 ? 1 : slice.getStrides()[last];
    SmallVector<int64_t> shape(shapeOf(slice.getInput()));
    bool takesOthers = last >= 0 && ArrayRef(shape).drop_back() == type.getShape().drop_back();
    if (stride < 2 || !takesOthers || shape[last] != stride * type.getShape()[last] ||
        !comeFromProjection(slice.getInput()))
      continue;
    OpBuilder builder(slice);
    nn::Writer w(builder, slice.getLoc());
    shape[last] /= stride;
    shape.push_back(stride);
    int64_t start = slice.getStarts()[last];
    Value pairs = w.reshape(slice.getInput(), shape);
    Value part = w.reshape(w.slice(pairs, last + 1, start, start + 1), type.getShape());
    if (auto id = slice->getAttr(nn::NnDialect::kIdAttr))
      part.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
    slice.replaceAllUsesWith(part);
    slice.erase();
    changed = true;
  }
  return changed;
}

bool LinearSplitter::run() {
  bool changed = pairFeatures();
  SmallVector<Operation *> projections;
  for (Operation &op : func.getBody().getOps())
    if (getProjection(&op) && (splitsExperts || !isa<nn::GroupedLinearOp>(op)))
      projections.push_back(&op);
  for (Operation *op : projections) {
    std::optional<Projection> linear = getProjection(op);
    if (!isParameter(linear->weight) || (linear->bias && !isParameter(linear->bias)))
      continue;
    // An annotation of a weight is about the whole weight.
    if (func.getArgAttr(cast<BlockArgument>(linear->weight).getArgNumber(),
                        dist::DistDialect::kShardingAttr))
      continue;
    SmallVector<Section> sections = getSections(*linear);
    if (sections.size() >= 2)
      split(*linear, sections);
  }
  eraseWholes();
  return changed || !slices.empty();
}

/// Returns true if an axis may shard features of experts: a tensor axis that does not shard the experts.
/// Without a mesh it is not known.
bool mayShardExpertFeatures(ModuleOp module) {
  auto meshes = module.getOps<dist::MeshOp>();
  RoleAxes tensor(AxisRole::Tensor, AxisChoice()), experts(AxisRole::Expert, AxisChoice());
  return meshes.empty() || llvm::any_of(meshes, [&](dist::MeshOp mesh) {
           return llvm::any_of(getStageMeshes(mesh), [&](const StageMesh &view) {
             dist::AxisList ofExperts = experts.get(mesh, view);
             return llvm::any_of(tensor.get(mesh, view), [&](const dist::Axis &axis) {
               return !llvm::is_contained(ofExperts, axis);
             });
           });
         });
}

struct SplitFusedLinearsPass : meshwright::impl::SplitFusedLinearsPassBase<SplitFusedLinearsPass> {
  void runOnOperation() override {
    bool changed = false, splitsExperts = mayShardExpertFeatures(getOperation());
    for (func::FuncOp func : getGlobalFunctions(getOperation()))
      changed |= LinearSplitter(func, splitsExperts).run();
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace
