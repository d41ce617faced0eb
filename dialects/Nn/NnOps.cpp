//===- NnOps.cpp - verifiers and folders ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/TableRows.h"

#include "mlir/IR/Builders.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

#define GET_OP_CLASSES
#include "meshwright/dialects/Nn/NnOps.cpp.inc"

//===----------------------------------------------------------------------===//
// Shared checks
//===----------------------------------------------------------------------===//

using Shape = ArrayRef<int64_t>;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
static Shape shapeOf(Value value) { return typeOf(value).getShape(); }

/// A shape as a user reads it: [2, 7, 16].
static std::string spell(Shape shape) {
  std::string text = "[";
  llvm::raw_string_ostream stream(text);
  llvm::interleaveComma(shape, stream);
  stream << "]";
  return text;
}

static LogicalResult verifyShape(Operation *op, StringRef subject, Value value, Shape expected) {
  if (shapeOf(value) == expected)
    return success();
  return op->emitOpError() << "expected " << subject << " of shape " << spell(expected) << ", got "
                           << spell(shapeOf(value));
}

static LogicalResult verifyRank(Operation *op, StringRef subject, Value value, int64_t expected) {
  int64_t rank = typeOf(value).getRank();
  if (rank == expected)
    return success();
  return op->emitOpError() << "expected " << subject << " of rank " << expected << ", got rank "
                           << rank;
}

static LogicalResult verifyRankAtLeast(Operation *op, StringRef subject, Value value,
                                       int64_t least) {
  int64_t rank = typeOf(value).getRank();
  if (rank >= least)
    return success();
  return op->emitOpError() << "expected " << subject << " of rank " << least
                           << " or more, got rank " << rank;
}

/// The element type of `value` is that of `reference`.
static LogicalResult verifyElementType(Operation *op, StringRef subject, Value value,
                                       StringRef referenceName, Value reference) {
  Type got = typeOf(value).getElementType(), expected = typeOf(reference).getElementType();
  if (got == expected)
    return success();
  return op->emitOpError() << "expected " << subject << " of element type " << expected << " as "
                           << referenceName << ", got " << got;
}

static LogicalResult verifyDim(Operation *op, int64_t dim, StringRef subject, Value value) {
  int64_t rank = typeOf(value).getRank();
  if (dim >= 0 && dim < rank)
    return success();
  return op->emitOpError() << "expected dim to be a dimension of " << subject << " of rank " << rank
                           << ", got " << dim;
}

static LogicalResult verifyEpsilon(Operation *op, const APFloat &eps) {
  double value = eps.convertToDouble();
  if (std::isfinite(value) && value >= 0)
    return success();
  return op->emitOpError() << "expected eps to be finite and not negative, got " << value;
}

std::optional<SmallVector<int64_t>> nn::broadcastShapes(ArrayRef<ArrayRef<int64_t>> shapes) {
  size_t rank = 0;
  for (Shape shape : shapes)
    rank = std::max(rank, shape.size());
  SmallVector<int64_t> result(rank, 1);
  for (Shape shape : shapes) {
    auto dims = MutableArrayRef(result).take_back(shape.size());
    for (auto [size, got] : llvm::zip_equal(dims, shape)) {
      if (size != 1 && got != 1 && size != got)
        return std::nullopt;
      if (got != 1)
        size = got;
    }
  }
  return result;
}

/// `operands` broadcast by NumPy's rules, to the shape of `result`.
static LogicalResult verifyBroadcast(Operation *op, ValueRange operands, Value result) {
  SmallVector<Shape> shapes = llvm::map_to_vector(operands, shapeOf);
  std::optional<SmallVector<int64_t>> shape = broadcastShapes(shapes);
  if (!shape) {
    InFlightDiagnostic diagnostic =
        op->emitOpError("expected operands whose shapes broadcast, got ");
    llvm::interleaveComma(shapes, diagnostic, [&](Shape shape) { diagnostic << spell(shape); });
    return diagnostic;
  }
  return verifyShape(op, "result", result, *shape);
}

/// `value` stretches to `target` by NumPy's rules.
static LogicalResult verifyStretchesTo(Operation *op, StringRef subject, Value value,
                                       Shape target) {
  Shape shapes[] = {shapeOf(value), target};
  std::optional<SmallVector<int64_t>> shape = broadcastShapes(shapes);
  if (shape && Shape(*shape) == target)
    return success();
  return op->emitOpError() << "expected " << subject << " that broadcasts to " << spell(target)
                           << ", got " << spell(shapes[0]);
}

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

/// Two operands of one element type, which is the result's too, that broadcast
/// to the result's shape.
static LogicalResult verifyBinary(Operation *op) {
  Value lhs = op->getOperand(0), rhs = op->getOperand(1), result = op->getResult(0);
  if (failed(verifyElementType(op, "rhs", rhs, "lhs", lhs)) ||
      failed(verifyElementType(op, "result", result, "lhs", lhs)))
    return failure();
  return verifyBroadcast(op, {lhs, rhs}, result);
}

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

LogicalResult CompareOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())))
    return failure();
  return verifyBroadcast(*this, {getLhs(), getRhs()}, getResult());
}

LogicalResult SelectOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyElementType(*this, "result", getResult(), "lhs", getLhs())))
    return failure();
  return verifyBroadcast(*this, {getCondition(), getLhs(), getRhs()}, getResult());
}

LogicalResult CastOp::verify() {
  return verifyShape(*this, "result", getResult(), shapeOf(getInput()));
}

//===----------------------------------------------------------------------===//
// Constants and shapes
//===----------------------------------------------------------------------===//

/// Whether a user's or a pass's sharding is stated on the op: it must not fold
/// away.
static bool isAnnotated(Operation *op) { return op->hasAttr(dist::DistDialect::kShardingAttr); }

/// The splat that a constant operand holds, in another shape; null if it is
/// none.
static Attribute reshapeSplat(Attribute operand, Type type) {
  auto splat = dyn_cast_or_null<SplatElementsAttr>(operand);
  return splat ? splat.resizeSplat(cast<ShapedType>(type)) : Attribute();
}

LogicalResult ConstantOp::verify() {
  // The types agree by a trait.
  if (!isa<DenseElementsAttr>(getValue()))
    return emitOpError() << "expected dense elements, got " << getValue();
  return success();
}

OpFoldResult ConstantOp::fold(FoldAdaptor adaptor) { return adaptor.getValueAttr(); }

LogicalResult IotaOp::verify() { return verifyDim(*this, getDim(), "result", getResult()); }

/// The number of elements, or none where it has no place in 64 bits.
static std::optional<int64_t> countElements(Shape shape) {
  int64_t count = 1;
  if (llvm::is_contained(shape, 0))
    return 0;
  for (int64_t size : shape)
    if (llvm::MulOverflow(count, size, count))
      return std::nullopt;
  return count;
}

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
    // Rounded up, without the sum that a large stride would overflow.
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

LogicalResult GatherOp::verify() {
  if (failed(verifyDim(*this, getDim(), "data", getData())) ||
      failed(verifyElementType(*this, "result", getResult(), "data", getData())))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getData()).take_front(getDim()));
  llvm::append_range(expected, shapeOf(getIndices()));
  llvm::append_range(expected, shapeOf(getData()).drop_front(getDim() + 1));
  return verifyShape(*this, "result", getResult(), expected);
}

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

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

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

//===----------------------------------------------------------------------===//
// Layers
//===----------------------------------------------------------------------===//

LogicalResult MatmulOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyElementType(*this, "result", getResult(), "lhs", getLhs())) ||
      failed(verifyRankAtLeast(*this, "lhs", getLhs(), 2)) ||
      failed(verifyRankAtLeast(*this, "rhs", getRhs(), 2)))
    return failure();
  SmallVector<int64_t> lhs(shapeOf(getLhs())), rhs(shapeOf(getRhs()));
  if (getTransposeLhs())
    std::swap(lhs.back(), lhs[lhs.size() - 2]);
  if (getTransposeRhs())
    std::swap(rhs.back(), rhs[rhs.size() - 2]);
  int64_t inner = rhs[rhs.size() - 2];
  if (lhs.back() != inner)
    return emitOpError() << "expected lhs and rhs to agree in the dimension that is summed, got "
                         << lhs.back() << " and " << inner;
  Shape batches[] = {Shape(lhs).drop_back(2), Shape(rhs).drop_back(2)};
  std::optional<SmallVector<int64_t>> expected = broadcastShapes(batches);
  if (!expected)
    return emitOpError() << "expected batch dimensions that broadcast, got " << spell(batches[0])
                         << " and " << spell(batches[1]);
  expected->push_back(lhs[lhs.size() - 2]);
  expected->push_back(rhs.back());
  return verifyShape(*this, "result", getResult(), *expected);
}

LogicalResult LinearOp::verify() {
  if (failed(verifyElementType(*this, "weight", getWeight(), "input", getInput())) ||
      failed(verifyElementType(*this, "result", getResult(), "input", getInput())) ||
      failed(verifyRankAtLeast(*this, "input", getInput(), 1)) ||
      failed(verifyRank(*this, "weight", getWeight(), 2)))
    return failure();
  Shape weight = shapeOf(getWeight());
  int64_t in = weight[getInOut() ? 0 : 1], out = weight[getInOut() ? 1 : 0];
  SmallVector<int64_t> expected(shapeOf(getInput()));
  if (expected.back() != in)
    return emitOpError() << "expected input of " << in << " features as weight, got "
                         << expected.back();
  if (getBias() && (failed(verifyElementType(*this, "bias", getBias(), "input", getInput())) ||
                    failed(verifyShape(*this, "bias", getBias(), {out}))))
    return failure();
  expected.back() = out;
  return verifyShape(*this, "result", getResult(), expected);
}

std::optional<int64_t> nn::getTableRows(EmbeddingOp embedding) {
  if (!embedding.getOffset())
    return shapeOf(embedding.getTable()).front();
  if (auto rows = embedding->getAttrOfType<IntegerAttr>(NnDialect::kTableRowsAttr))
    return rows.getInt();
  return std::nullopt;
}

LogicalResult EmbeddingOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "table", getTable())) ||
      failed(verifyRank(*this, "table", getTable(), 2)) ||
      (getOffset() && failed(verifyRank(*this, "offset", getOffset(), 0))))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getIds()));
  expected.push_back(shapeOf(getTable())[1]);
  return verifyShape(*this, "result", getResult(), expected);
}

/// Input and result of one type, with a last dimension to normalise over.
static LogicalResult verifyNorm(Operation *op, Value input, Value result, const APFloat &eps) {
  if (failed(verifyElementType(op, "result", result, "input", input)) ||
      failed(verifyRankAtLeast(op, "input", input, 1)) ||
      failed(verifyShape(op, "result", result, shapeOf(input))))
    return failure();
  return verifyEpsilon(op, eps);
}

/// An optional parameter of a norm: one number per feature.
static LogicalResult verifyNormParameter(Operation *op, StringRef subject, Value parameter,
                                         Value input) {
  if (!parameter)
    return success();
  if (failed(verifyElementType(op, subject, parameter, "input", input)))
    return failure();
  return verifyShape(op, subject, parameter, {shapeOf(input).back()});
}

LogicalResult RmsNormOp::verify() {
  if (failed(verifyNorm(*this, getInput(), getResult(), getEps())))
    return failure();
  if (getUnitOffset() && !getWeight())
    return emitOpError("expected weight with unit_offset, got none");
  return verifyNormParameter(*this, "weight", getWeight(), getInput());
}

LogicalResult LayerNormOp::verify() {
  if (failed(verifyNorm(*this, getInput(), getResult(), getEps())) ||
      failed(verifyNormParameter(*this, "weight", getWeight(), getInput())))
    return failure();
  return verifyNormParameter(*this, "bias", getBias(), getInput());
}

LogicalResult RotaryOp::verify() {
  if (failed(verifyElementType(*this, "cos", getCos(), "input", getInput())) ||
      failed(verifyElementType(*this, "sin", getSin(), "input", getInput())) ||
      failed(verifyElementType(*this, "result", getResult(), "input", getInput())) ||
      failed(verifyShape(*this, "result", getResult(), shapeOf(getInput()))) ||
      failed(verifyRankAtLeast(*this, "input", getInput(), 1)) ||
      failed(verifyRankAtLeast(*this, "cos", getCos(), 1)) ||
      failed(verifyRankAtLeast(*this, "sin", getSin(), 1)))
    return failure();
  int64_t rotated = shapeOf(getCos()).back(), features = shapeOf(getInput()).back();
  if (rotated < 2 || rotated > features || rotated % 2)
    return emitOpError() << "expected cos to end in an even number of features from 2 to "
                         << features << ", got " << rotated;
  SmallVector<int64_t> target(shapeOf(getInput()));
  target.back() = rotated;
  if (shapeOf(getSin()).back() != rotated)
    return emitOpError() << "expected sin to end in " << rotated << " features as cos, got "
                         << shapeOf(getSin()).back();
  if (failed(verifyStretchesTo(*this, "cos", getCos(), target)))
    return failure();
  return verifyStretchesTo(*this, "sin", getSin(), target);
}

/// The mask and the scaling of attention, whatever the shapes.
static LogicalResult verifyAttentionAttributes(AttentionOp op) {
  double scale = op.getScale().convertToDouble();
  if (!std::isfinite(scale))
    return op.emitOpError() << "expected scale to be finite, got " << scale;
  if (std::optional<APFloat> cap = op.getSoftCap()) {
    double value = cap->convertToDouble();
    if (!std::isfinite(value) || value <= 0)
      return op.emitOpError() << "expected soft_cap to be finite and positive, got " << value;
  }
  const std::pair<StringRef, std::optional<int64_t>> windows[] = {
      {"window_left", op.getWindowLeft()}, {"window_right", op.getWindowRight()}};
  for (auto [name, window] : windows)
    if (window && *window < 0)
      return op.emitOpError() << "expected " << name << " not to be negative, got " << *window;
  int64_t keys = shapeOf(op.getKey())[2];
  if (std::optional<int64_t> length = op.getKvLength(); length && (*length < 0 || *length > keys))
    return op.emitOpError() << "expected kv_length from 0 to the " << keys << " keys, got "
                            << *length;
  return success();
}

LogicalResult AttentionOp::verify() {
  const std::pair<StringRef, Value> tensors[] = {
      {"query", getQuery()}, {"key", getKey()}, {"value", getValue()}, {"result", getResult()}};
  for (auto [name, value] : tensors)
    if (failed(verifyRank(*this, name, value, 4)) ||
        failed(verifyElementType(*this, name, value, "query", getQuery())))
      return failure();
  Shape query = shapeOf(getQuery()), key = shapeOf(getKey()), value = shapeOf(getValue());
  if (llvm::is_contained(query, 0) || value[3] == 0)
    return emitOpError() << "expected at least one query, and features, got a query of type "
                         << getQuery().getType() << " and a value of type " << getValue().getType();
  if (key[1] < 1 || query[1] % key[1] != 0)
    return emitOpError() << "expected a number of query heads that is a multiple of the key's, got "
                         << query[1] << " and " << key[1];
  if (failed(verifyShape(*this, "key", getKey(), {query[0], key[1], key[2], query[3]})) ||
      failed(verifyShape(*this, "value", getValue(), {query[0], key[1], key[2], value[3]})) ||
      failed(verifyShape(*this, "result", getResult(), {query[0], query[1], query[2], value[3]})))
    return failure();
  if (getKeyPadding() &&
      failed(verifyShape(*this, "key_padding", getKeyPadding(), {query[0], key[2]})))
    return failure();
  if (getBias() &&
      (failed(verifyElementType(*this, "bias", getBias(), "query", getQuery())) ||
       failed(verifyStretchesTo(*this, "bias", getBias(), {query[0], query[1], query[2], key[2]}))))
    return failure();
  if (bool(getQPositions()) != bool(getKvPositions()))
    return emitOpError("expected positions of queries and keys, or of neither");
  if (getQPositions() && (failed(verifyShape(*this, "q_positions", getQPositions(), {query[2]})) ||
                          failed(verifyShape(*this, "kv_positions", getKvPositions(), {key[2]}))))
    return failure();
  if (Value lse = getLse()) {
    if (failed(verifyShape(*this, "lse", lse, {query[0], query[1], query[2]})))
      return failure();
    Type element = getElementTypeOrSelf(getQuery().getType());
    Type expected = element.isF64() ? element : Float32Type::get(getContext());
    if (Type got = getElementTypeOrSelf(lse.getType()); got != expected)
      return emitOpError() << "expected lse of element type " << expected << ", got " << got;
  }
  return verifyAttentionAttributes(*this);
}

LogicalResult MergeAttentionOp::verify() {
  if (failed(verifyRank(*this, "first", getFirst(), 4)))
    return failure();
  Shape out = shapeOf(getFirst());
  const std::pair<StringRef, Value> outs[] = {{"second", getSecond()}, {"result", getResult()}};
  for (auto [name, value] : outs)
    if (failed(verifyShape(*this, name, value, out)) ||
        failed(verifyElementType(*this, name, value, "first", getFirst())))
      return failure();
  const std::pair<StringRef, Value> lses[] = {
      {"first_lse", getFirstLse()}, {"second_lse", getSecondLse()}, {"lse", getLse()}};
  Type element = getElementTypeOrSelf(getFirst().getType());
  Type expected = element.isF64() ? element : Float32Type::get(getContext());
  for (auto [name, value] : lses) {
    if (failed(verifyShape(*this, name, value, out.drop_back())))
      return failure();
    if (Type got = getElementTypeOrSelf(value.getType()); got != expected)
      return emitOpError() << "expected " << name << " of element type " << expected << ", got "
                           << got;
  }
  return success();
}
