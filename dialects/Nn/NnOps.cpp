//===- NnOps.cpp - elementwise ops, shapes and reductions -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Checks.h"

#include "mlir/IR/Builders.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

#define GET_OP_CLASSES
#include "meshwright/dialects/Nn/NnOps.cpp.inc"

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

#define BINARY(OP)                                                                                 \
  LogicalResult OP::verify() { return verifyBinary(*this); }
BINARY(AddOp)
BINARY(SubOp)
BINARY(MulOp)
BINARY(DivOp)
BINARY(RemOp)
BINARY(PowOp)
BINARY(MaximumOp)
BINARY(MinimumOp)
BINARY(AndOp)
BINARY(OrOp)
BINARY(XorOp)
#undef BINARY

/// Checks that the operands have one element type and broadcast to the result's shape.
LogicalResult CompareOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())))
    return failure();
  return verifyBroadcast(*this, {getLhs(), getRhs()}, getResult());
}

/// Checks that
///  - lhs, rhs and the result have one element type;
///  - the condition, lhs and rhs broadcast to the result's shape.
LogicalResult SelectOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyElementType(*this, "result", getResult(), "lhs", getLhs())))
    return failure();
  return verifyBroadcast(*this, {getCondition(), getLhs(), getRhs()}, getResult());
}

/// Checks that
///  - the index broadcasts to the input;
///  - seed and step are scalars;
///  - the probability is from 0 on and below 1.
LogicalResult DropoutOp::verify() {
  if (failed(verifyStretchesTo(*this, "index", getIndex(), shapeOf(getInput()))) ||
      failed(verifyShape(*this, "seed", getSeed(), {})) ||
      failed(verifyShape(*this, "step", getStep(), {})))
    return failure();
  return verifyProbability(*this, getProbability());
}

void DropoutOp::removeDropout() {
  getResult().replaceAllUsesWith(getInput());
  erase();
}

LogicalResult CastOp::verify() {
  return verifyShape(*this, "result", getResult(), shapeOf(getInput()));
}

//===----------------------------------------------------------------------===//
// Constants and shapes
//===----------------------------------------------------------------------===//

/// Returns true if the op states a sharding or, in an SPMD function, the layout of its result. Such an
/// op must not fold away.
static bool isAnnotated(Operation *op) {
  return op->hasAttr(dist::DistDialect::kShardingAttr) || op->hasAttr(dist::kResultsAttr);
}

/// The splat that a constant operand holds, in another shape; null for other operands.
static Attribute reshapeSplat(Attribute operand, Type type) {
  auto splat = dyn_cast_or_null<SplatElementsAttr>(operand);
  return splat ? splat.resizeSplat(cast<ShapedType>(type)) : Attribute();
}

/// Checks that the elements are dense. A trait checks their type.
LogicalResult ConstantOp::verify() {
  if (!isa<DenseElementsAttr>(getValue()))
    return emitOpError() << "expected dense elements, got " << getValue();
  return success();
}

OpFoldResult ConstantOp::fold(FoldAdaptor adaptor) { return adaptor.getValueAttr(); }

LogicalResult IotaOp::verify() { return verifyDim(*this, getDim(), "result", getResult()); }

/// The number of elements, or none if it does not fit in 64 bits.
static std::optional<int64_t> countElements(Shape shape) {
  int64_t count = 1;
  if (llvm::is_contained(shape, 0))
    return 0;
  for (int64_t size : shape)
    if (llvm::MulOverflow(count, size, count))
      return std::nullopt;
  return count;
}

/// Checks that
///  - input and result have one element type;
///  - both have the same number of elements, which is less than 2^63.
LogicalResult ReshapeOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "input", getInput())))
    return failure();
  std::optional<int64_t> from = countElements(shapeOf(getInput()));
  std::optional<int64_t> to = countElements(shapeOf(getResult()));
  if (!from || !to)
    return emitOpError() << "expected shapes of less than 2^63 elements, got "
                         << spell(shapeOf(getInput())) << " and " << spell(shapeOf(getResult()));
  if (*from != *to)
    return emitOpError() << "expected result of " << *from << " elements as input "
                         << spell(shapeOf(getInput())) << ", got " << *to << " in "
                         << spell(shapeOf(getResult()));
  return success();
}

OpFoldResult ReshapeOp::fold(FoldAdaptor adaptor) {
  if (isAnnotated(*this))
    return {};
  if (getInput().getType() == getType())
    return getInput();
  if (Attribute splat = reshapeSplat(adaptor.getInput(), getType()))
    return splat;
  if (auto elements = dyn_cast_or_null<DenseElementsAttr>(adaptor.getInput()))
    return elements.reshape(cast<ShapedType>(getType()));
  if (auto producer = getInput().getDefiningOp<ReshapeOp>(); producer && !isAnnotated(producer)) {
    if (producer.getInput().getType() == getType())
      return producer.getInput();
    getInputMutable().assign(producer.getInput());
    return getResult();
  }
  return {};
}

/// Checks that there is a name, or "", for each dimension.
static LogicalResult verifySizes(Operation *op, ArrayAttr sizes) {
  int64_t rank = shapeOf(op->getOperand(0)).size();
  if (int64_t(sizes.size()) == rank)
    return success();
  return op->emitOpError() << "expected a size for each of " << rank << " dimensions, got "
                           << sizes.size();
}

static bool isNameless(ArrayAttr sizes) {
  return llvm::all_of(sizes.getAsValueRange<StringAttr>(), [](StringRef name) { return name.empty(); });
}

LogicalResult CutOp::verify() { return verifySizes(*this, getSizes()); }
LogicalResult UncutOp::verify() { return verifySizes(*this, getSizes()); }

OpFoldResult CutOp::fold(FoldAdaptor) {
  return isNameless(getSizes()) && !isAnnotated(*this) ? getInput() : OpFoldResult();
}
OpFoldResult UncutOp::fold(FoldAdaptor) {
  return isNameless(getSizes()) && !isAnnotated(*this) ? getInput() : OpFoldResult();
}

/// Checks that
///  - input and result have one element type;
///  - `permutation` has each dimension of the input once;
///  - the result has the sizes of the input in that order.
LogicalResult TransposeOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "input", getInput())))
    return failure();
  Shape shape = shapeOf(getInput()), permutation = getPermutation();
  SmallVector<bool> seen(shape.size(), false);
  SmallVector<int64_t> expected;
  for (int64_t dim : permutation) {
    if (dim < 0 || dim >= static_cast<int64_t>(shape.size()) || seen[dim])
      break;
    seen[dim] = true;
    expected.push_back(shape[dim]);
  }
  if (permutation.size() != shape.size() || expected.size() != shape.size())
    return emitOpError() << "expected permutation of the dimensions 0 to " << shape.size()
                         << " (exclusive), got " << spell(permutation);
  return verifyShape(*this, "result", getResult(), expected);
}

OpFoldResult TransposeOp::fold(FoldAdaptor adaptor) {
  if (isAnnotated(*this))
    return {};
  // Exchanging equal sizes keeps the type but not the elements' order.
  if (llvm::equal(getPermutation(), llvm::seq<int64_t>(0, getPermutation().size())))
    return getInput();
  if (Attribute splat = reshapeSplat(adaptor.getInput(), getType()))
    return splat;
  auto producer = getInput().getDefiningOp<TransposeOp>();
  if (producer && !isAnnotated(producer)) {
    SmallVector<int64_t> composed;
    for (int64_t dim : getPermutation())
      composed.push_back(producer.getPermutation()[dim]);
    setPermutation(composed);
    getInputMutable().assign(producer.getInput());
    return getResult();
  }
  return {};
}

/// Checks that
///  - input and result have one element type;
///  - each dimension has a start, a limit and a stride;
///  - 0 <= start <= limit <= size and stride >= 1 in each dimension;
///  - the result has ceil((limit - start) / stride) elements in each dimension.
LogicalResult SliceOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "input", getInput())))
    return failure();
  Shape shape = shapeOf(getInput()), starts = getStarts(), limits = getLimits(),
        strides = getStrides();
  const std::pair<StringRef, Shape> lists[] = {
      {"starts", starts}, {"limits", limits}, {"strides", strides}};
  for (auto [name, list] : lists)
    if (list.size() != shape.size())
      return emitOpError() << "expected " << shape.size() << " " << name
                           << ", one for each dimension of input, got " << list.size();
  SmallVector<int64_t> expected;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (starts[i] < 0 || starts[i] > limits[i] || limits[i] > shape[i])
      return emitOpError() << "expected 0 <= start <= limit <= " << shape[i] << " in dimension "
                           << i << ", got start " << starts[i] << " and limit " << limits[i];
    if (strides[i] < 1)
      return emitOpError() << "expected stride of 1 or more in dimension " << i << ", got "
                           << strides[i];
    // Rounds up without the usual sum, which a large stride would overflow.
    int64_t length = limits[i] - starts[i];
    expected.push_back(length / strides[i] + (length % strides[i] != 0));
  }
  return verifyShape(*this, "result", getResult(), expected);
}

OpFoldResult SliceOp::fold(FoldAdaptor adaptor) {
  if (isAnnotated(*this))
    return {};
  // Only a slice that takes everything keeps all sizes.
  if (getInput().getType() == getType())
    return getInput();
  return reshapeSplat(adaptor.getInput(), getType());
}

/// Checks that
///  - there is an input, and `dim` is a dimension of it;
///  - all inputs and the result have one element type and rank;
///  - the inputs agree in all dimensions but `dim`;
///  - the result's size in `dim` is the sum of theirs, and less than 2^63.
LogicalResult ConcatOp::verify() {
  if (getInputs().empty())
    return emitOpError("expected one input or more, got none");
  Value first = getInputs().front();
  if (failed(verifyDim(*this, getDim(), "inputs", first)) ||
      failed(verifyElementType(*this, "result", getResult(), "inputs", first)))
    return failure();
  SmallVector<int64_t> expected(shapeOf(first));
  expected[getDim()] = 0;
  for (auto [i, input] : llvm::enumerate(getInputs())) {
    std::string subject = "input " + std::to_string(i);
    if (failed(verifyElementType(*this, subject, input, "input 0", first)) ||
        failed(verifyRank(*this, subject, input, typeOf(first).getRank())))
      return failure();
    int64_t size = shapeOf(input)[getDim()];
    SmallVector<int64_t> own(shapeOf(first));
    own[getDim()] = size;
    if (failed(verifyShape(*this, subject, input, own)))
      return failure();
    if (llvm::AddOverflow(expected[getDim()], size, expected[getDim()]))
      return emitOpError() << "expected dimension " << getDim()
                           << " of result of less than 2^63, got more";
  }
  return verifyShape(*this, "result", getResult(), expected);
}

/// Checks that input and result have one element type, and that the input broadcasts to the
/// result's shape.
LogicalResult BroadcastOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "input", getInput())))
    return failure();
  return verifyStretchesTo(*this, "input", getInput(), shapeOf(getResult()));
}

OpFoldResult BroadcastOp::fold(FoldAdaptor adaptor) {
  if (isAnnotated(*this))
    return {};
  if (getInput().getType() == getType())
    return getInput();
  return reshapeSplat(adaptor.getInput(), getType());
}

/// Checks that
///  - `dim` is a dimension of the data;
///  - data and result have one element type;
///  - the result's shape is the data's with `dim` replaced by the shape of the indices.
LogicalResult GatherOp::verify() {
  if (failed(verifyDim(*this, getDim(), "data", getData())) ||
      failed(verifyElementType(*this, "result", getResult(), "data", getData())))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getData()).take_front(getDim()));
  llvm::append_range(expected, shapeOf(getIndices()));
  llvm::append_range(expected, shapeOf(getData()).drop_front(getDim() + 1));
  return verifyShape(*this, "result", getResult(), expected);
}

/// Checks that
///  - `dim` is a dimension of the data;
///  - data and result have one element type;
///  - the indices have the data's rank, and its sizes in all dimensions but `dim`;
///  - the result has the shape of the indices.
LogicalResult TakeAlongOp::verify() {
  if (failed(verifyDim(*this, getDim(), "data", getData())) ||
      failed(verifyElementType(*this, "result", getResult(), "data", getData())) ||
      failed(verifyRank(*this, "indices", getIndices(), typeOf(getData()).getRank())))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getData()));
  expected[getDim()] = shapeOf(getIndices())[getDim()];
  if (failed(verifyShape(*this, "indices", getIndices(), expected)))
    return failure();
  return verifyShape(*this, "result", getResult(), expected);
}

/// Checks that
///  - `dim` is a dimension of the data;
///  - data, source and result have one element type;
///  - the last dimension of the indices is that of the rows, and those before it are the dimensions
///    of the data in front of `dim`, or there are none;
///  - the source has the data's shape, but for `dim`, which has the number of the rows;
///  - the result has the data's shape.
LogicalResult IndexCopyOp::verify() {
  if (failed(verifyDim(*this, getDim(), "data", getData())) ||
      failed(verifyElementType(*this, "source", getSource(), "data", getData())) ||
      failed(verifyElementType(*this, "result", getResult(), "data", getData())))
    return failure();
  Shape indices = shapeOf(getIndices());
  bool isBatched = indices.size() == getDim() + 1;
  if (!isBatched && failed(verifyRank(*this, "indices", getIndices(), 1)))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getData()));
  if (failed(verifyShape(*this, "result", getResult(), expected)))
    return failure();
  expected[getDim()] = indices.back();
  if (isBatched && failed(verifyShape(*this, "indices", getIndices(),
                                      ArrayRef(expected).take_front(getDim() + 1))))
    return failure();
  return verifyShape(*this, "source", getSource(), expected);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

/// Checks that
///  - input and result have one element type, which is a float type for a mean;
///  - `dims` are dimensions of the input, each once;
///  - the result's shape is the input's without them, or with size 1 if `keep_dims`.
LogicalResult ReduceOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "input", getInput())))
    return failure();
  Type elementType = typeOf(getInput()).getElementType();
  if (getKind() == ReduceKind::Mean && !isa<FloatType>(elementType))
    return emitOpError() << "expected a float element type for mean, got " << elementType;
  SmallVector<bool> reduced(typeOf(getInput()).getRank(), false);
  for (int64_t dim : getDims()) {
    if (failed(verifyDim(*this, dim, "input", getInput())))
      return failure();
    if (reduced[dim])
      return emitOpError() << "expected each dimension in dims once, got " << dim << " twice";
    reduced[dim] = true;
  }
  SmallVector<int64_t> expected;
  for (auto [isReduced, size] : llvm::zip_equal(reduced, shapeOf(getInput()))) {
    if (!isReduced)
      expected.push_back(size);
    else if (getKeepDims())
      expected.push_back(1);
  }
  return verifyShape(*this, "result", getResult(), expected);
}

LogicalResult CumsumOp::verify() { return verifyDim(*this, getDim(), "input", getInput()); }

LogicalResult SoftmaxOp::verify() { return verifyDim(*this, getDim(), "input", getInput()); }

/// - `dim` is a dimension of the logits;
/// - labels and result have the other dimensions;
/// - the result has the type of the logits, or a wider one in which it is computed;
/// - `label_smoothing` is in [0, 1].
LogicalResult CrossEntropyOp::verify() {
  if (failed(verifyDim(*this, getDim(), "logits", getLogits())))
    return failure();
  auto logits = cast<RankedTensorType>(getLogits().getType());
  SmallVector<int64_t> rows(logits.getShape());
  rows.erase(rows.begin() + getDim());
  for (auto [name, value] : {std::pair("labels", Value(getLabels())),
                             std::pair("result", Value(getResult()))}) {
    auto type = cast<RankedTensorType>(value.getType());
    if (type.getShape() != ArrayRef(rows))
      return emitOpError() << name << ": expected the dimensions of the logits " << logits
                           << " without dimension " << getDim() << ", got " << type;
  }
  Type have = getElementTypeOrSelf(getResult().getType()), own = logits.getElementType();
  if (have != own && !(have.isF32() && own.getIntOrFloatBitWidth() < 32))
    return emitOpError() << "expected result of element type " << own
                         << (own.getIntOrFloatBitWidth() < 32 ? " or 'f32'" : "") << ", got "
                         << have;
  if (std::optional<APFloat> smoothing = getLabelSmoothing()) {
    double value = smoothing->convertToDouble();
    if (!(value >= 0 && value <= 1))
      return emitOpError() << "'label_smoothing': expected 0 to 1, got " << value;
  }
  return success();
}
