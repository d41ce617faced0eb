//===- EntryBuilder.cpp - the step of serving for one bucket --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The dimension of the tokens has the rows of all groups, group by group. Groups are a dimension of
// their own in pages, in attention, and where the last token of each request is taken.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/serve/EntryBuilder.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/serve/CachedAttention.h"
#include "meshwright/passes/serve/CachedValues.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;
using nn::Writer;

namespace {

/// Writes the entry of one bucket.
class EntryBuilder {
public:
  EntryBuilder(const CausalForward &forward, const ServingSizes &sizes, int64_t tokens,
               std::optional<int64_t> sum)
      : forward(forward), sizes(sizes), tokens(tokens), sum(sum),
        builder(forward.getFunction().getContext()) {}

  LogicalResult build();

private:
  struct Inputs {
    Value tokens, positions, slots, tables, starts, lengths;
  };

  void makeFunction();
  void readInputs(ValueRange arguments);
  int64_t getNumRows(bool isHead) const {
    return sizes.groups * (isHead ? sizes.maxRequests : tokens);
  }
  FailureOr<RankedTensorType> getType(Value value, int64_t rows) const;
  FailureOr<Value> use(Value value, bool isHead, Operation *user);
  FailureOr<Value> useOfPositions(OpResult value, int64_t dim, bool isHead);
  FailureOr<Operation *> copyRows(Operation *op, bool isHead);
  LogicalResult copy(Operation *op);
  LogicalResult writeAttention(nn::AttentionOp op);
  Value takeRows(Value table, int64_t dim, Value rows, Location loc);
  Value takeLast(Value value, int64_t dim, Location loc);
  LogicalResult writeResults();

  const CausalForward &forward;
  const ServingSizes &sizes;
  int64_t tokens;
  std::optional<int64_t> sum;
  OpBuilder builder;
  func::FuncOp entry;
  Inputs inputs;
  /// The positions of all tokens [groups * tokens], and of the last ones [groups * requests].
  Value positions, lastPositions;
  /// The last tokens of the requests [groups, requests], counted within their group.
  Value lastTokens;
  IRMapping known;
  /// Values of all tokens, cut to the last ones; and values of positions, for the rows of tokens.
  ProgramMap<Value, Value> atHead, rowsOf, headRowsOf;
};

} // namespace

//===----------------------------------------------------------------------===//
// Inputs
//===----------------------------------------------------------------------===//

void EntryBuilder::makeFunction() {
  MLIRContext *context = builder.getContext();
  func::FuncOp func = forward.getFunction();
  int64_t groups = sizes.groups, requests = sizes.maxRequests;
  SmallVector<int64_t> tables = {groups, requests, sizes.countBlocks()};
  if (sizes.deal > 1)
    tables = {groups, sizes.deal, requests, sizes.countBlocks() / sizes.deal};
  SmallVector<std::pair<StringRef, SmallVector<int64_t>>> numbers = {
      {nn::kTokensInput, {groups, tokens}}, {nn::kPositionsInput, {groups, tokens}},
      {nn::kSlotsInput, {groups, tokens}}, {"tables", tables},
      {"starts", {groups, requests + 1}}, {"lengths", {groups, requests}}};
  if (sum)
    numbers.push_back({nn::kCountsInput, {groups}});
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attributes;
  for (const auto &[name, shape] : numbers) {
    types.push_back(RankedTensorType::get(shape, builder.getI64Type()));
    NamedAttrList attrs;
    attrs.set(NnDialect::kInputAttr, builder.getStringAttr(name));
    attributes.push_back(attrs.getDictionary(context));
  }
  for (BlockArgument arg : func.getArguments()) {
    if (forward.dependsOnIds(arg))
      continue;
    types.push_back(arg.getType());
    attributes.push_back(func.getArgAttrDict(arg.getArgNumber()));
  }
  std::string name = llvm::formatv("tokens={0}", tokens).str();
  if (sum)
    name += llvm::formatv(",sum={0}", *sum).str();
  entry = func::FuncOp::create(func.getLoc(), name, builder.getFunctionType(types, {}));
  if (sum)
    entry->setAttr(nn::kTokenSumAttr, builder.getI64IntegerAttr(*sum));
  entry.setAllArgAttrs(attributes);
  func->getBlock()->getOperations().insert(Block::iterator(func), entry);
  Block *block = entry.addEntryBlock();
  builder.setInsertionPointToStart(block);
  readInputs(block->getArguments());
}

void EntryBuilder::readInputs(ValueRange arguments) {
  Value *fields[] = {&inputs.tokens, &inputs.positions, &inputs.slots,
                     &inputs.tables, &inputs.starts,    &inputs.lengths};
  for (auto [i, field] : llvm::enumerate(fields))
    *field = arguments[i];
  func::FuncOp func = forward.getFunction();
  Writer w(builder, func.getLoc());
  unsigned next = std::size(fields) + sum.has_value();
  for (BlockArgument arg : func.getArguments())
    known.map(arg, forward.dependsOnIds(arg) ? w.reshape(inputs.tokens, {1, getNumRows(false)})
                                             : arguments[next++]);
  positions = w.reshape(inputs.positions, {getNumRows(false)});
  // The last token of a request is the one before the next begins. A request without tokens has the
  // first row, and no caller reads its result.
  Value ends = w.slice(inputs.starts, 1, 1, sizes.maxRequests + 1);
  lastTokens = w.binary<nn::MaximumOp>(w.addNumber(ends, -1), w.number(0, builder.getI64Type()));
  lastPositions = takeLast(positions, 0, func.getLoc());
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

/// Takes rows of a table of positions.
Value EntryBuilder::takeRows(Value table, int64_t dim, Value rows, Location loc) {
  SmallVector<int64_t> shape(shapeOf(table));
  shape[dim] = shapeOf(rows)[0];
  return nn::GatherOp::create(builder, loc, typeOf(table).clone(shape), table, rows, dim);
}

/// Takes the last token of each request. Each group takes its own, so no group reads another one.
Value EntryBuilder::takeLast(Value value, int64_t dim, Location loc) {
  Writer w(builder, loc);
  int64_t groups = sizes.groups, requests = sizes.maxRequests;
  if (groups == 1)
    return takeRows(value, dim, w.reshape(lastTokens, {requests}), loc);
  SmallVector<int64_t> shape(shapeOf(value)), split(shape), taken, index;
  split[dim] = groups;
  split.insert(split.begin() + dim + 1, tokens);
  taken = split;
  taken[dim + 1] = requests;
  index.assign(split.size(), 1);
  index[dim] = groups;
  index[dim + 1] = requests;
  Value rows = w.broadcast(w.reshape(lastTokens, index), taken);
  Value found = nn::TakeAlongOp::create(builder, loc, typeOf(value).clone(taken),
                                        w.reshape(value, split), rows, dim + 1);
  shape[dim] = groups * requests;
  return w.reshape(found, shape);
}

FailureOr<RankedTensorType> EntryBuilder::getType(Value value, int64_t rows) const {
  FailureOr<int64_t> dim = forward.getTokenDim(value);
  if (failed(dim))
    return failure();
  RankedTensorType type = typeOf(value);
  if (*dim < 0)
    return type;
  SmallVector<int64_t> shape(type.getShape());
  shape[*dim] = rows;
  return type.clone(shape);
}

/// The value that an op reads: rows of the tokens, or of the last tokens for an op of the head.
FailureOr<Value> EntryBuilder::use(Value value, bool isHead, Operation *user) {
  Value own = known.lookup(value);
  FailureOr<int64_t> dim = forward.getTokenDim(value);
  if (failed(dim))
    return LogicalResult(user->emitOpError()
                         << "reads a table of two positions, which serving does not support yet");
  if (*dim < 0)
    return own;
  if (!forward.dependsOnIds(value)) {
    ProgramMap<Value, Value> &found = isHead ? headRowsOf : rowsOf;
    if (Value rows = found.lookup(value))
      return rows;
    auto result = dyn_cast<OpResult>(value);
    FailureOr<Value> rows = result ? useOfPositions(result, *dim, isHead)
                                   : takeRows(own, *dim, isHead ? lastPositions : positions, user->getLoc());
    if (succeeded(rows))
      found[value] = *rows;
    return rows;
  }
  Operation *op = value.getDefiningOp();
  if (!isHead || (op && forward.isHead(op)))
    return own;
  Value &rows = atHead[value];
  if (!rows)
    rows = takeLast(own, *dim, user->getLoc());
  return rows;
}

/// The rows of a value that depends on the position alone. An op that computes each position by itself computes the
/// positions of the tokens. Rows are taken of other values, and where a step has as many tokens as there are positions.
FailureOr<Value> EntryBuilder::useOfPositions(OpResult value, int64_t dim, bool isHead) {
  Operation *op = value.getDefiningOp();
  Value own = isHead ? lastPositions : positions;
  bool isFewer = getNumRows(isHead) / sizes.groups < forward.getLength();
  if (auto iota = dyn_cast<nn::IotaOp>(op); iota && isFewer && iota.getDim() == dim) {
    Writer w(builder, op->getLoc());
    SmallVector<int64_t> column(typeOf(value).getRank(), 1), shape(shapeOf(value));
    column[dim] = shape[dim] = getNumRows(isHead);
    return w.broadcast(w.reshape(w.cast(own, elementOf(value)), column), shape);
  }
  // Blocks of scales are counted from the first row of a stored weight.
  bool isStored = op->hasTrait<dist::Combines>() && op->hasTrait<dist::KeepsWeight>();
  auto hasNoDim = [&](Value one) { return failed(forward.getTokenDim(one)); };
  if (!isFewer || isStored || op->hasTrait<dist::Generates>() || !isMemoryEffectFree(op) || forward.mixesTokens(op) ||
      llvm::any_of(op->getOperands(), hasNoDim) || llvm::any_of(op->getResults(), hasNoDim))
    return takeRows(known.lookup(value), dim, own, op->getLoc());
  FailureOr<Operation *> made = copyRows(op, isHead);
  if (failed(made))
    return failure();
  return Value((*made)->getResult(value.getResultNumber()));
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// Writes an op that computes each token by itself.
LogicalResult EntryBuilder::copy(Operation *op) {
  if (!forward.dependsOnIds(op)) {
    builder.clone(*op, known);
    return success();
  }
  FailureOr<Operation *> made = copyRows(op, forward.isHead(op));
  if (succeeded(made))
    known.map(op->getResults(), (*made)->getResults());
  return LogicalResult(made);
}

FailureOr<Operation *> EntryBuilder::copyRows(Operation *op, bool isHead) {
  OperationState state(op->getLoc(), op->getName());
  for (Value operand : op->getOperands()) {
    FailureOr<Value> own = use(operand, isHead, op);
    if (failed(own))
      return failure();
    state.operands.push_back(*own);
  }
  for (Value result : op->getResults()) {
    FailureOr<RankedTensorType> type = getType(result, getNumRows(isHead));
    if (failed(type))
      return failure();
    state.types.push_back(*type);
  }
  state.attributes.append(op->getAttrs().begin(), op->getAttrs().end());
  Operation *made = builder.create(state);
  // A slice takes all tokens.
  if (auto slice = dyn_cast<nn::SliceOp>(made)) {
    SmallVector<int64_t> limits(slice.getLimits());
    FailureOr<int64_t> dim = forward.getTokenDim(op->getOperand(0));
    if (succeeded(dim) && *dim >= 0)
      limits[*dim] = getNumRows(isHead);
    slice.setLimits(limits);
  }
  return made;
}

LogicalResult EntryBuilder::writeAttention(nn::AttentionOp op) {
  Location loc = op.getLoc();
  Writer w(builder, loc);
  // [batch, heads, tokens, features] becomes [groups, tokens, heads, features].
  Value operands[] = {op.getQuery(), op.getKey(), op.getValue()}, rows[3];
  for (auto [i, operand] : llvm::enumerate(operands)) {
    FailureOr<Value> own = use(operand, false, op);
    if (failed(own))
      return failure();
    ArrayRef<int64_t> shape = shapeOf(*own);
    rows[i] = w.reshape(w.transpose(*own, {2, 0, 1, 3}),
                        {sizes.groups, tokens, shape[0] * shape[1], shape[3]});
  }
  Value values = readsValuesFromKeys(op) ? Value() : rows[2];
  CachedBias bias = forward.getBias(op);
  for (Value *own : {&bias.slopes, &bias.distances})
    *own = *own ? known.lookup(*own) : *own;
  auto [made, lse] =
      writeCachedAttention(w, op, rows[0], rows[1], values, bias, forward.getCacheName(op),
                           {inputs.slots, inputs.tables, inputs.starts, inputs.lengths}, sizes);
  ArrayRef<int64_t> query = shapeOf(op.getQuery());
  int64_t rowsOfAll = getNumRows(false);
  Value result = w.reshape(made, {rowsOfAll, query[0], query[1], shapeOf(made)[3]});
  known.map(op.getResult(), w.transpose(result, {1, 2, 0, 3}));
  if (lse)
    known.map(op.getLse(), w.transpose(w.reshape(lse, {rowsOfAll, query[0], query[1]}), {1, 2, 0}));
  return success();
}

/// The logits of the last tokens, and the token of the largest one.
LogicalResult EntryBuilder::writeResults() {
  Operation *end = forward.getFunction().front().getTerminator();
  FailureOr<Value> rows = use(forward.getLogits(), true, end);
  if (failed(rows))
    return failure();
  Writer w(builder, end->getLoc());
  SmallVector<int64_t> shape = {sizes.groups, sizes.maxRequests, forward.getVocabulary()};
  Value logits = w.reshape(*rows, shape);
  Type number = builder.getI64Type();
  Value largest = w.reduce(nn::ReduceKind::Max, logits, {2});
  // The lowest of equal tokens is the largest number counted from the end. Ranks that share the
  // vocabulary exchange maxima alone.
  Value last = w.number(double(shape.back() - 1), number);
  Value fromEnd = w.sub(last, w.iota(2, RankedTensorType::get({1, 1, shape.back()}, number)));
  Value isLargest = w.compare(nn::CompareKind::Eq, logits, largest);
  Value found = w.select(isLargest, fromEnd, w.number(-1, number));
  Value next = w.sub(last, w.reduce(nn::ReduceKind::Max, found, {2}, /*keepDims=*/false));
  func::ReturnOp::create(builder, end->getLoc(), ValueRange{next, logits});
  entry.setType(
      builder.getFunctionType(entry.getArgumentTypes(), {next.getType(), logits.getType()}));
  entry.setResultAttr(0, NnDialect::kOutputAttr, builder.getStringAttr("next"));
  entry.setResultAttr(1, NnDialect::kOutputAttr, builder.getStringAttr("logits"));
  return success();
}

LogicalResult EntryBuilder::build() {
  makeFunction();
  for (Operation &op : forward.getFunction().front().without_terminator())
    if (failed(forward.getCacheName(&op).empty() ? copy(&op)
                                                 : writeAttention(cast<nn::AttentionOp>(op))))
      return failure();
  if (failed(writeResults()))
    return failure();
  // Biases and positions that became inputs of attention have no user.
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(entry.front())))
    if (isOpTriviallyDead(&op))
      op.erase();
  return success();
}

LogicalResult meshwright::buildEntry(const CausalForward &forward, const ServingSizes &sizes,
                                     int64_t tokens, std::optional<int64_t> sum) {
  return EntryBuilder(forward, sizes, tokens, sum).build();
}
