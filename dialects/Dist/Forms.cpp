//===- Forms.cpp - tensors with scales beside their elements --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Forms.h"

#include "meshwright/lib/Support/ElementTypes.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// The attribute
//===----------------------------------------------------------------------===//

/// - the kind has blocks;
/// - `along` is a dimension of a matrix, of a kind whose blocks depend on it.
LogicalResult FormAttr::verify(function_ref<InFlightDiagnostic()> emitError, GatherKind kind,
                               int64_t along) {
  if (kind == GatherKind::Plain)
    return emitError() << "form: expected mxfp8 or nvfp4, got plain";
  if (along < -1 || along > 1 || (along >= 0 && kind != GatherKind::Mxfp8))
    return emitError() << "form " << stringify(kind) << ": expected "
                       << (kind == GatherKind::Mxfp8 ? "the dimension 0 or 1" : "no dimension")
                       << " along which a product contracts, got " << along;
  return success();
}

static Type getCodeType(GatherKind kind, MLIRContext *context) {
  return kind == GatherKind::Mxfp8 ? Type(Float8E4M3FNType::get(context))
                                   : Type(Float4E2M1FNType::get(context));
}

RankedTensorType FormAttr::getType(RankedTensorType weight) const {
  return RankedTensorType::get(weight.getShape(), getCodeType(getKind(), getContext()), *this);
}

int64_t FormAttr::getNumGroups(int64_t rows) const {
  return llvm::divideCeil(rows, getBlockShape(getKind(), getAlong()).rows);
}

int64_t FormAttr::getGroupBytes(int64_t columns) const {
  BlockShape block = getBlockShape(getKind(), getAlong());
  int64_t codes = getBytesOf(getCodeType(getKind(), getContext()), block.rows * columns);
  int64_t whole = getKind() == GatherKind::Nvfp4 ? sizeof(float) : 0;
  return codes + llvm::divideCeil(columns, block.columns) + whole;
}

FormAttr dist::getForm(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor ? dyn_cast_or_null<FormAttr>(tensor.getEncoding()) : FormAttr();
}

int64_t dist::getStoredBytes(RankedTensorType type) {
  if (FormAttr form = getForm(type))
    return form.getNumGroups(type.getDimSize(0)) * form.getGroupBytes(type.getDimSize(1));
  return getBytesOf(type.getElementType(), getStoredElements(type));
}

int64_t dist::getStoredElements(RankedTensorType type) {
  auto compact = dyn_cast_or_null<CompactAttrInterface>(type.getEncoding());
  return compact ? compact.getCapacity(type.getShape()) : type.getNumElements();
}

int64_t dist::getExpectedElements(RankedTensorType type) {
  auto compact = dyn_cast_or_null<CompactAttrInterface>(type.getEncoding());
  return compact ? compact.getExpected(type.getShape()) : type.getNumElements();
}

double dist::getRowLoad(Operation *op) {
  auto func = op->getParentOfType<FunctionOpInterface>();
  auto load = func ? func->getAttrOfType<FloatAttr>(DistDialect::kRowLoadAttr) : FloatAttr();
  return load ? load.getValueAsDouble() : 1;
}

RankedTensorType dist::getBytesType(RankedTensorType type) {
  FormAttr form = getForm(type);
  if (!form)
    return type;
  return RankedTensorType::get(
      {form.getNumGroups(type.getDimSize(0)), form.getGroupBytes(type.getDimSize(1))},
      IntegerType::get(type.getContext(), 8));
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// A rank encodes its own part, so blocks never cross ranks.
static FactorRule getFormRule(Operation *op) {
  FactorRule rule;
  FactorRule::ValueFactors dims =
      rule.addFactors(cast<RankedTensorType>(op->getOperand(0).getType()).getShape());
  rule.operands.assign(op->getNumOperands(), {});
  rule.operands.front() = dims;
  rule.results = {dims};
  return rule;
}

/// The code of zero is zero, under any scale.
static padding::Padding getFormPadding(const padding::Operands &in) {
  return padding::isZero(in[0]) ? padding::Padding::Zero : padding::Padding::Arbitrary;
}

/// Checks a tensor of floats of two dimensions.
static LogicalResult verifyMatrix(Operation *op, Type type, StringRef what) {
  auto tensor = cast<RankedTensorType>(type);
  if (tensor.getRank() == 2 && tensor.hasStaticShape() && !tensor.getEncoding() &&
      isa<Float32Type, BFloat16Type, Float16Type, Float64Type>(tensor.getElementType()))
    return success();
  return op->emitOpError() << "expected " << what
                           << " to be a matrix of f32, bf16, f16 or f64, got " << type;
}

/// Checks that a tensor has a form and is a weight of `like` in this form.
static LogicalResult verifyForm(Operation *op, Type type, Type like, StringRef what) {
  FormAttr form = getForm(type);
  if (!form)
    return op->emitOpError() << "expected " << what << " to have a form (#dist.form), got " << type;
  if (form.getKind() == GatherKind::Mxfp8 && form.getAlong() < 0)
    return op->emitOpError() << "expected the form of " << what
                             << " to name the dimension of its blocks, got " << type;
  if (RankedTensorType expected = form.getType(cast<RankedTensorType>(like)); type != expected)
    return op->emitOpError() << "expected " << what << " to be " << expected << ", got " << type;
  return success();
}

static LogicalResult verifyScalar(Operation *op, Type type, StringRef what) {
  if (type == RankedTensorType::get({}, Float32Type::get(type.getContext())))
    return success();
  return op->emitOpError() << "expected " << what << " to be tensor<f32>, got " << type;
}

FactorRule RoundOp::getFactorRule() { return getFormRule(*this); }
padding::Padding RoundOp::getResultPadding(const padding::Operands &in) {
  return getFormPadding(in);
}
LogicalResult RoundOp::verify() { return verifyMatrix(*this, getInput().getType(), "the weight"); }

FormAttr EncodeOp::getForm() { return dist::getForm(getResult().getType()); }
FactorRule EncodeOp::getFactorRule() { return getFormRule(*this); }
padding::Padding EncodeOp::getResultPadding(const padding::Operands &in) {
  return getFormPadding(in);
}

/// - the result is the weight in a form;
/// - the largest magnitude is a scalar, and of a form that needs it.
LogicalResult EncodeOp::verify() {
  if (failed(verifyMatrix(*this, getInput().getType(), "the weight")) ||
      failed(verifyForm(*this, getResult().getType(), getInput().getType(), "the result")))
    return failure();
  if (!getLargest())
    return success();
  if (getForm().getKind() != GatherKind::Nvfp4)
    return emitOpError() << "expected no largest magnitude for " << getForm() << ", got one";
  return verifyScalar(*this, getLargest().getType(), "the largest magnitude");
}

FormAttr DecodeOp::getForm() { return dist::getForm(getInput().getType()); }
/// Rows that are left out are read as a whole, as by a slice.
FactorRule DecodeOp::getFactorRule() {
  ArrayRef<int64_t> from = cast<RankedTensorType>(getInput().getType()).getShape();
  ArrayRef<int64_t> to = cast<RankedTensorType>(getType()).getShape();
  if (from == to)
    return getFormRule(*this);
  FactorRule rule;
  int read = rule.addFactor(from[0], FactorKind::Special), rows = rule.addFactor(to[0]);
  int columns = rule.addFactor(to[1]);
  rule.operands = {{{read}, {columns}}};
  rule.results = {{{rows}, {columns}}};
  return rule;
}
padding::Padding DecodeOp::getResultPadding(const padding::Operands &in) {
  return getFormPadding(in);
}

LogicalResult DecodeOp::verify() {
  if (failed(verifyMatrix(*this, getResult().getType(), "the result")))
    return failure();
  auto coded = cast<RankedTensorType>(getInput().getType());
  auto result = cast<RankedTensorType>(getResult().getType());
  if (coded.getRank() == 2 && coded.getDimSize(0) > result.getDimSize(0))
    result = result.clone({coded.getDimSize(0), result.getDimSize(1)});
  return verifyForm(*this, coded, result, "the operand");
}

FactorRule LargestOp::getFactorRule() {
  FactorRule rule;
  FactorRule::ValueFactors dims = rule.addFactors(
      cast<RankedTensorType>(getInput().getType()).getShape(), FactorKind::Contracted);
  for (RuleFactor &factor : rule.factors)
    factor.reductions = {ReductionKind::Max};
  rule.operands = {dims};
  rule.results = {{}};
  return rule;
}

padding::Padding LargestOp::getResultPadding(const padding::Operands &in) {
  const padding::Padding &content = in[0];
  return {0, std::max(std::abs(content.lower), std::abs(content.upper)), content.mayBeNaN};
}

std::optional<padding::Need> LargestOp::getPaddingNeed() {
  return padding::Need{padding::Padding::Zero, "expected zero"};
}

LogicalResult LargestOp::verify() {
  if (failed(verifyMatrix(*this, getInput().getType(), "the weight")))
    return failure();
  return verifyScalar(*this, getResult().getType(), "the result");
}
