//===- Serve.cpp - steps of serving from a causal forward pass ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/serve/CachedValues.h"
#include "meshwright/passes/serve/Passes.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

namespace meshwright {
#define GEN_PASS_DEF_SERVEPASS
#include "meshwright/passes/serve/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;
using nn::Writer;

namespace {

/// The causal forward pass, and facts about it.
struct Forward {
  func::FuncOp func;
  FactorAnalysis factors;
  /// The class of the tokens, and the number of positions.
  int tokens = -1;
  int64_t length = 0;
  /// Values that depend on the tokens' ids.
  DenseSet<Value> dependent;
  /// Attention, in the order of the program.
  SmallVector<nn::AttentionOp> attentions;
  /// The ops whose results are computed for the last token of each request alone.
  DenseSet<Operation *> head;

  static FailureOr<Forward> read(func::FuncOp func);
  LogicalResult check();
  void findHead();
  LogicalResult checkAttention(nn::AttentionOp op);
  LogicalResult checkParallel(Operation *op);
  /// The dimension of a value that is the tokens; -1 if it has none.
  FailureOr<int64_t> getTokenDim(Value value) const;
};

/// Writes the entry of one bucket.
class EntryBuilder {
public:
  EntryBuilder(Forward &forward, const ServePassOptions &options, int64_t pages, int64_t tokens)
      : forward(forward), options(options), pages(pages), tokens(tokens),
        builder(forward.func.getContext()) {}

  LogicalResult build();

private:
  struct Inputs {
    Value tokens, positions, slots, tables, starts, lengths;
  };

  void makeFunction();
  FailureOr<RankedTensorType> getType(Value value, int64_t rows) const;
  FailureOr<Value> use(Value value, bool isHead, Operation *user);
  LogicalResult copy(Operation *op);
  LogicalResult writeAttention(nn::AttentionOp op, size_t number);
  Value takeRows(Value value, int64_t dim, Value rows, Location loc);
  LogicalResult writeResults();

  Forward &forward;
  const ServePassOptions &options;
  int64_t pages, tokens;
  OpBuilder builder;
  func::FuncOp entry;
  Inputs inputs;
  /// The rows of the last tokens of the requests, and their positions [requests].
  Value lastRows, lastPositions;
  IRMapping known;
  /// Values of all tokens, cut to the last ones; and tables, cut to the rows of tokens.
  DenseMap<Value, Value> atHead, rowsOf, headRowsOf;
};

} // namespace

//===----------------------------------------------------------------------===//
// The forward pass
//===----------------------------------------------------------------------===//

FailureOr<int64_t> Forward::getTokenDim(Value value) const {
  int64_t found = -1;
  for (auto [d, classes] : llvm::enumerate(factors.getClasses(value))) {
    if (!llvm::is_contained(classes, tokens))
      continue;
    if (found >= 0 || classes.size() != 1)
      return failure();
    found = d;
  }
  return found;
}

FailureOr<Forward> Forward::read(func::FuncOp func) {
  FailureOr<FactorAnalysis> factors = FactorAnalysis::run(func);
  if (failed(factors))
    return failure();
  Forward forward{func, std::move(*factors), -1, 0, {}, {}, {}};
  BlockArgument ids;
  for (BlockArgument arg : func.getArguments()) {
    if (!func.getArgAttr(arg.getArgNumber(), NnDialect::kInputAttr))
      continue;
    if (ids)
      return LogicalResult(emitError(arg.getLoc())
                           << "expected one input, the ids of tokens [1, length], got a second one, "
                           << func.getArgAttr(arg.getArgNumber(), NnDialect::kInputAttr));
    ids = arg;
  }
  auto type = ids ? cast<RankedTensorType>(ids.getType()) : RankedTensorType();
  if (!type || type.getRank() != 2 || type.getDimSize(0) != 1 || !type.getElementType().isInteger(64)) {
    InFlightDiagnostic error = emitError(ids ? ids.getLoc() : func.getLoc())
                               << "expected ids of tokens of type tensor<1xLENGTHxi64> as input";
    if (type)
      error << ", got " << type;
    return LogicalResult(error);
  }
  ArrayRef<int> classes = forward.factors.getClasses(ids)[1];
  forward.length = type.getDimSize(1);
  if (classes.size() != 1)
    return LogicalResult(emitError(ids.getLoc())
                         << "expected a program that leaves the dimension of the tokens whole");
  forward.tokens = classes.front();
  forward.dependent.insert(ids);
  for (Operation &op : func.front().without_terminator()) {
    auto depends = [&](Value operand) { return forward.dependent.contains(operand); };
    if (llvm::any_of(op.getOperands(), depends))
      forward.dependent.insert(op.result_begin(), op.result_end());
    if (auto attention = dyn_cast<nn::AttentionOp>(op); attention && depends(attention.getKey()))
      forward.attentions.push_back(attention);
  }
  if (failed(forward.check()))
    return failure();
  forward.findHead();
  return forward;
}

/// Checks that an op computes each token by itself.
LogicalResult Forward::checkParallel(Operation *op) {
  const FactorAnalysis::OpFactors &own = factors.getFactors(op);
  for (auto [i, factor] : llvm::enumerate(own.rule.factors))
    if (llvm::is_contained(own.classes[i], tokens) && factor.kind != dist::FactorKind::Parallel)
      return op->emitOpError() << "mixes tokens: a model that serves does so in causal attention only";
  for (Value value : op->getResults())
    if (failed(getTokenDim(value)))
      return op->emitOpError() << "has a result whose dimension of tokens is taken apart, or twice";
  return success();
}

/// Checks that the mask is one that positions decide: causal, with a window or without.
LogicalResult Forward::checkAttention(nn::AttentionOp op) {
  auto refuse = [&](StringRef what) { return op.emitOpError() << what; };
  if (!op.getCausal())
    return refuse("sees later tokens: a model that serves has causal attention");
  if (op.getKeyPadding() || op.getKvLengths() || op.getKvLength() || op.getQPositions())
    return refuse("has a mask other than a causal one and a window, which a model that serves may have");
  if (op.getWindowRight() || op.getBias() || op.getDropRows() || op.getLse())
    return refuse("has a bias, a window to the right, dropout or a log-sum-exp, which serving does "
                  "not support yet");
  FailureOr<int64_t> queries = getTokenDim(op.getQuery()), keys = getTokenDim(op.getKey());
  if (failed(queries) || *queries != 2 || failed(keys) || *keys != 2)
    return refuse("has queries and keys that are not the tokens");
  return success();
}

LogicalResult Forward::check() {
  for (Operation &op : func.front().without_terminator()) {
    if (!llvm::any_of(op.getOperands(), [&](Value v) { return dependent.contains(v); }))
      continue;
    auto attention = dyn_cast<nn::AttentionOp>(op);
    if (failed(attention ? checkAttention(attention) : checkParallel(&op)))
      return failure();
  }
  Value logits = func.front().getTerminator()->getOperand(0);
  FailureOr<int64_t> dim = getTokenDim(logits);
  if (!dependent.contains(logits) || failed(dim) || *dim != 1 || typeOf(logits).getRank() != 3)
    return emitError(logits.getLoc())
           << "expected logits [1, length, vocabulary] as the first output, got " << logits.getType();
  return success();
}

/// The ops that only the logits read, back to the first that reads two values of tokens.
void Forward::findHead() {
  Value value = func.front().getTerminator()->getOperand(0);
  while (Operation *op = value.getDefiningOp()) {
    SmallVector<Value> read;
    for (Value operand : op->getOperands())
      if (dependent.contains(operand) && !llvm::is_contained(read, operand))
        read.push_back(operand);
    if (read.size() != 1 || isa<nn::AttentionOp>(op) || op->getNumResults() != 1 ||
        !llvm::all_of(value.getUsers(), [&](Operation *user) {
          return user == func.front().getTerminator() || head.contains(user);
        }))
      return;
    head.insert(op);
    value = read.front();
  }
}

//===----------------------------------------------------------------------===//
// Entries
//===----------------------------------------------------------------------===//

void EntryBuilder::makeFunction() {
  MLIRContext *context = builder.getContext();
  int64_t requests = options.requests, blocks = llvm::divideCeil(forward.length, options.pageSize);
  Type number = builder.getI64Type();
  std::pair<StringRef, RankedTensorType> numbers[] = {
      {"tokens", RankedTensorType::get({1, tokens}, number)},
      {"positions", RankedTensorType::get({1, tokens}, number)},
      {"slots", RankedTensorType::get({1, tokens}, number)},
      {"tables", RankedTensorType::get({1, requests, blocks}, number)},
      {"starts", RankedTensorType::get({1, requests + 1}, number)},
      {"lengths", RankedTensorType::get({1, requests}, number)}};
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attributes;
  for (auto [name, type] : numbers) {
    types.push_back(type);
    NamedAttrList attrs;
    attrs.set(NnDialect::kInputAttr, builder.getStringAttr(name));
    attributes.push_back(attrs.getDictionary(context));
  }
  func::FuncOp func = forward.func;
  for (BlockArgument arg : func.getArguments()) {
    if (forward.dependent.contains(arg))
      continue;
    types.push_back(arg.getType());
    attributes.push_back(func.getArgAttrDict(arg.getArgNumber()));
  }
  entry = func::FuncOp::create(func.getLoc(), llvm::formatv("tokens={0}", tokens).str(),
                               builder.getFunctionType(types, {}));
  entry.setAllArgAttrs(attributes);
  func->getBlock()->getOperations().insert(Block::iterator(func), entry);
  Block *block = entry.addEntryBlock();
  builder.setInsertionPointToStart(block);
  Value *fields[] = {&inputs.tokens, &inputs.positions, &inputs.slots,
                     &inputs.tables, &inputs.starts,    &inputs.lengths};
  for (auto [i, field] : llvm::enumerate(fields))
    *field = block->getArgument(i);
  unsigned next = std::size(fields);
  for (BlockArgument arg : func.getArguments())
    known.map(arg, forward.dependent.contains(arg) ? inputs.tokens : Value(block->getArgument(next++)));
  // The last token of a request is the one before the next begins. A request without tokens has the
  // first row, and no caller reads its result.
  Writer w(builder, func.getLoc());
  Value ends = w.slice(w.reshape(inputs.starts, {requests + 1}), 0, 1, requests + 1);
  lastRows = w.binary<nn::MaximumOp>(w.addNumber(ends, -1), w.number(0, number));
  lastPositions = takeRows(w.reshape(inputs.positions, {tokens}), 0, lastRows, func.getLoc());
}

Value EntryBuilder::takeRows(Value value, int64_t dim, Value rows, Location loc) {
  SmallVector<int64_t> shape(shapeOf(value));
  shape[dim] = shapeOf(rows)[0];
  return nn::GatherOp::create(builder, loc, typeOf(value).clone(shape), value, rows, dim);
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
  Writer w(builder, user->getLoc());
  if (!forward.dependent.contains(value)) {
    Value &rows = (isHead ? headRowsOf : rowsOf)[value];
    if (!rows)
      rows = takeRows(own, *dim, isHead ? lastPositions : w.reshape(inputs.positions, {tokens}),
                      user->getLoc());
    return rows;
  }
  Operation *op = value.getDefiningOp();
  if (!isHead || (op && forward.head.contains(op)))
    return own;
  Value &rows = atHead[value];
  if (!rows)
    rows = takeRows(own, *dim, lastRows, user->getLoc());
  return rows;
}

/// Writes an op that computes each token by itself.
LogicalResult EntryBuilder::copy(Operation *op) {
  bool isDependent = llvm::any_of(op->getOperands(), [&](Value v) { return forward.dependent.contains(v); });
  if (!isDependent) {
    builder.clone(*op, known);
    return success();
  }
  bool isHead = forward.head.contains(op);
  int64_t rows = isHead ? options.requests : tokens;
  OperationState state(op->getLoc(), op->getName());
  for (Value operand : op->getOperands()) {
    FailureOr<Value> own = use(operand, isHead, op);
    if (failed(own))
      return failure();
    state.operands.push_back(*own);
  }
  for (Value result : op->getResults()) {
    FailureOr<RankedTensorType> type = getType(result, rows);
    if (failed(type))
      return failure();
    state.types.push_back(*type);
  }
  state.attributes.append(op->getAttrs().begin(), op->getAttrs().end());
  Operation *made = builder.create(state);
  // A slice takes all tokens.
  if (auto slice = dyn_cast<nn::SliceOp>(made)) {
    SmallVector<int64_t> limits(slice.getLimits());
    if (FailureOr<int64_t> dim = forward.getTokenDim(op->getOperand(0)); succeeded(dim) && *dim >= 0)
      limits[*dim] = rows;
    slice.setLimits(limits);
  }
  known.map(op->getResults(), made->getResults());
  return success();
}

LogicalResult EntryBuilder::writeAttention(nn::AttentionOp op, size_t number) {
  Writer w(builder, op.getLoc());
  auto module = entry->getParentOfType<ModuleOp>();
  auto writePages = [&](Value value, StringRef role) -> FailureOr<Value> {
    FailureOr<Value> rows = use(value, false, op);
    if (failed(rows))
      return failure();
    ArrayRef<int64_t> shape = shapeOf(*rows);
    RankedTensorType type = typeOf(*rows).clone({1, pages, int64_t(options.pageSize), shape[1], shape[3]});
    std::string name = llvm::formatv("cache.{0}.{1}", number, role).str();
    if (!module.lookupSymbol(name)) {
      OpBuilder outside(entry);
      nn::StateOp::create(outside, op.getLoc(), name, type, StringAttr(),
                          outside.getFloatAttr(type.getElementType(), 0), outside.getStringAttr("cache"));
    }
    Value before = nn::ReadOp::create(builder, op.getLoc(), type, name);
    Value after = nn::PageWriteOp::create(builder, op.getLoc(), type, before, w.transpose(*rows, {0, 2, 1, 3}),
                                          inputs.slots);
    nn::WriteOp::create(builder, op.getLoc(), name, after);
    return after;
  };
  FailureOr<Value> query = use(op.getQuery(), false, op);
  bool areColumns = readsValuesFromKeys(op);
  FailureOr<Value> keys = writePages(op.getKey(), areColumns ? "latent" : "keys");
  if (failed(keys))
    return failure();
  FailureOr<Value> values = areColumns ? w.slice(*keys, 4, 0, shapeOf(op.getValue())[3]) : writePages(op.getValue(), "values");
  if (failed(query) || failed(keys) || failed(values))
    return failure();
  Value rows = w.transpose(*query, {0, 2, 1, 3});
  SmallVector<int64_t> shape(shapeOf(rows));
  shape[3] = shapeOf(op.getValue())[3];
  auto made = nn::PagedAttentionOp::create(
      builder, op.getLoc(), typeOf(rows).clone(shape), /*lse=*/Type(), rows, *keys, *values, inputs.tables,
      inputs.starts, inputs.lengths, /*deals=*/Value(), /*slopes=*/Value(), /*sinks=*/Value(), op.getScaleAttr(),
      op.getWindowLeftAttr(), op.getSoftCapAttr(), /*deal=*/IntegerAttr(), /*parts=*/IntegerAttr());
  if (Attribute id = op->getAttr(NnDialect::kIdAttr))
    made->setAttr(NnDialect::kIdAttr, id);
  known.map(op.getResult(), w.transpose(made.getResult(), {0, 2, 1, 3}));
  return success();
}

/// The logits of the last tokens, and the token of the largest one.
LogicalResult EntryBuilder::writeResults() {
  Operation *end = forward.func.front().getTerminator();
  FailureOr<Value> logits = use(end->getOperand(0), true, end);
  if (failed(logits))
    return failure();
  Writer w(builder, end->getLoc());
  int64_t requests = options.requests, vocabulary = shapeOf(*logits)[2];
  Type number = builder.getI64Type();
  Value largest = w.reduce(nn::ReduceKind::Max, *logits, {2});
  Value at = w.iota(2, RankedTensorType::get({1, requests, vocabulary}, number));
  Value found = w.select(w.compare(nn::CompareKind::Eq, *logits, largest), at, w.number(double(vocabulary), number));
  Value next = w.reduce(nn::ReduceKind::Min, found, {2}, /*keepDims=*/false);
  func::ReturnOp::create(builder, end->getLoc(), ValueRange{next, *logits});
  entry.setType(builder.getFunctionType(entry.getArgumentTypes(), {next.getType(), logits->getType()}));
  entry.setResultAttr(0, NnDialect::kOutputAttr, builder.getStringAttr("next"));
  entry.setResultAttr(1, NnDialect::kOutputAttr, builder.getStringAttr("logits"));
  return success();
}

LogicalResult EntryBuilder::build() {
  makeFunction();
  size_t number = 0;
  for (Operation &op : forward.func.front().without_terminator()) {
    auto attention = dyn_cast<nn::AttentionOp>(op);
    bool isCached = attention && llvm::is_contained(forward.attentions, attention);
    if (failed(isCached ? writeAttention(attention, number++) : copy(&op)))
      return failure();
  }
  return writeResults();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
struct ServePass : meshwright::impl::ServePassBase<ServePass> {
  using ServePassBase::ServePassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
    ServePassOptions options;
    options.pageSize = pageSize;
    options.pages = pages;
    options.requests = requests;
    options.buckets.assign(buckets.begin(), buckets.end());
    if (functions.size() != 1 || failed(check(module, options)))
      return signalPassFailure();
    FailureOr<Forward> forward = Forward::read(functions.front());
    if (failed(forward))
      return signalPassFailure();
    int64_t vocabulary = shapeOf(forward->func.front().getTerminator()->getOperand(0))[2];
    int64_t each = llvm::divideCeil(forward->length, options.pageSize);
    int64_t count = options.pages ? options.pages : each * options.requests;
    if (count < each) {
      emitError(module.getLoc()) << "expected at least the " << each << " pages of one request of " << forward->length
                                 << " tokens, got " << count;
      return signalPassFailure();
    }
    for (int64_t tokens : options.buckets)
      if (failed(EntryBuilder(*forward, options, count, tokens).build()))
        return signalPassFailure();
    forward->func.erase();
    ServingSizes sizes;
    sizes.maxLength = forward->length;
    sizes.pageSize = options.pageSize;
    sizes.pages = count;
    sizes.maxRequests = options.requests;
    sizes.vocabulary = vocabulary;
    sizes.sharesBeginnings = prefixCache;
    nn::setServingSizes(module, sizes);
  }

private:
  static LogicalResult check(ModuleOp module, const ServePassOptions &options) {
    auto refuse = [&] { return emitError(module.getLoc()); };
    if (options.pageSize < 1)
      return refuse() << "page-size: expected at least 1, got " << options.pageSize;
    if (options.requests < 1)
      return refuse() << "requests: expected at least 1, got " << options.requests;
    if (options.buckets.empty())
      return refuse() << "buckets: expected at least one number of tokens";
    int64_t last = 0;
    for (int64_t tokens : options.buckets) {
      if (tokens <= last)
        return refuse() << "buckets: expected ascending numbers from 1 on, got " << tokens << " behind " << last;
      last = tokens;
    }
    return success();
  }
};
} // namespace
