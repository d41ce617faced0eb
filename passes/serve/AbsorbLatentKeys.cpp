//===- AbsorbLatentKeys.cpp - the narrowest cache of attention ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Outline, for each attention:
// - `TokenFeatures` says for each column of each head's keys and values which feature of which op
// it
//   is. Some of these ops are products of a token's features and a matrix.
// - `layOut` replaces the columns of some products by the features that the products read. The rest
//   are copies. The columns of a cache are the features, each once.
// - Of all choices of products the one of the least `CacheCost` wins, if it is below that of the kv
//   heads.
// - `Absorber` writes it: queries times matrices, attention to one kv head, results times matrices.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/passes/serve/CachedValues.h"
#include "meshwright/passes/serve/Passes.h"
#include "meshwright/passes/serve/TokenFeatures.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_ABSORBLATENTKEYSPASS
#include "meshwright/passes/serve/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::Writer;

namespace {

/// A decision tries all subsets of so many products, at most.
constexpr unsigned kProducts = 8;

/// Columns of the keys or values that follow in one way from columns of the cache, in all heads.
struct Part {
  /// Columns begin .. end of each head.
  int64_t begin = 0, end = 0;
  /// The first column of the cache. A copy has end - begin of them, a product has `inner`.
  int64_t cached = 0;
  const TokenProduct *product = nullptr;
  /// Rows of the product's matrix, by head and column.
  SmallVector<SmallVector<int64_t>> rows;

  int64_t size() const { return end - begin; }
  int64_t cachedSize() const { return product ? product->inner : size(); }
};

/// The columns of a cache with one kv head, and how keys and values follow from them.
struct Layout {
  std::vector<Feature> columns;
  SmallVector<Part> keys, values;
  /// The values follow from so many first columns.
  int64_t valueColumns = 0;
};

/// The cost of a cached key for a decoded token, by the columns of the cache.
struct CacheCost {
  /// Elements that a rank stores and reads.
  int64_t elements = 0;
  /// Products of numbers that a query head adds: for the score, and for the result.
  int64_t operations = 0;

  static CacheCost ofHeads(nn::AttentionOp op, int64_t ranks) {
    return {getCachedElements(op, ranks), shapeOf(op.getKey())[3] + shapeOf(op.getValue())[3]};
  }
  static CacheCost of(const Layout &layout) {
    int64_t columns = layout.columns.size();
    return {columns, columns + layout.valueColumns};
  }
  /// Lower if elements fall by a larger factor than operations grow. So no device and no mesh decides.
  double getProduct() const { return double(elements) * operations; }
  bool operator<(const CacheCost &other) const { return getProduct() < other.getProduct(); }
};

/// The features of keys or values, by head and column.
using HeadFeatures = SmallVector<ArrayRef<Feature>>;

/// Chooses the columns of the cache of one attention.
class Chooser {
public:
  Chooser(nn::AttentionOp op, TokenFeatures &features) : op(op), features(features) {}

  /// The layout of the least cost that absorbs a product. Nothing if there is none.
  std::optional<Layout> choose();

private:
  using Products = SmallVector<const TokenProduct *>;

  HeadFeatures getHeads(Value value);
  std::optional<Layout> layOut(ArrayRef<const TokenProduct *> products);
  bool addParts(const HeadFeatures &heads, ArrayRef<const TokenProduct *> products,
                SmallVector<Part> &parts);
  bool addColumns(Layout &layout, SmallVector<Part> &parts, const HeadFeatures &heads,
                  bool ofProducts);

  nn::AttentionOp op;
  TokenFeatures &features;
};

/// Writes attention with another layout of the cache.
class Absorber {
public:
  Absorber(nn::AttentionOp op, const Layout &layout, const TokenFeatures &features)
      : op(op), layout(layout), features(features), builder(op), w(builder, op.getLoc()) {}

  void write();

private:
  Value takeRows(const Part &part);
  Value takeBias(const Part &part);
  Value takeRows(Value matrix, const SmallVector<SmallVector<int64_t>> &rows);
  Value takeColumns(Value value, int64_t begin, int64_t end);
  Value multiply(Value rows, Value matrix, bool transposed);
  Value writeKeys();
  Value writeQueries();
  Value writeResults(Value result);

  nn::AttentionOp op;
  const Layout &layout;
  const TokenFeatures &features;
  OpBuilder builder;
  Writer w;
};

} // namespace

//===----------------------------------------------------------------------===//
// The columns of the cache
//===----------------------------------------------------------------------===//

/// Keys and values are [1, heads, tokens, columns].
HeadFeatures Chooser::getHeads(Value value) {
  ArrayRef<Feature> all = features.resolve(value);
  HeadFeatures heads;
  for (int64_t h = 0, columns = shapeOf(value)[3]; h < shapeOf(value)[1]; ++h)
    heads.push_back(all.slice(h * columns, columns));
  return heads;
}

/// Groups columns that all heads have from the same product of the same features, or copy from the
/// same features. Returns false if there are others.
bool Chooser::addParts(const HeadFeatures &heads, ArrayRef<const TokenProduct *> products,
                       SmallVector<Part> &parts) {
  int64_t columns = heads.front().size();
  auto productOf = [&](const Feature &feature) -> const TokenProduct * {
    const TokenProduct *product = features.getProduct(feature.value.getDefiningOp());
    return llvm::is_contained(products, product) ? product : nullptr;
  };
  Feature last;
  for (int64_t j = 0; j < columns; ++j) {
    Feature own = heads.front()[j];
    const TokenProduct *product = productOf(own);
    Part *open = parts.empty() || !j || parts.back().product != product ? nullptr : &parts.back();
    if (product && open && product->first[own.index] != product->first[last.index])
      open = nullptr;
    if (!product && open && (own.value != last.value || own.index != last.index + 1))
      open = nullptr;
    if (!open) {
      open = &parts.emplace_back();
      open->begin = j;
      open->product = product;
      open->rows.resize(product ? heads.size() : 0);
    }
    open->end = j + 1;
    for (auto [h, head] : llvm::enumerate(heads)) {
      if (!product && head[j] != own)
        return false;
      if (!product)
        continue;
      if (head[j].value != own.value || product->first[head[j].index] != product->first[own.index])
        return false;
      open->rows[h].push_back(product->row[head[j].index]);
    }
    last = own;
  }
  return true;
}

/// Gives columns of the cache to parts. Returns false if a part has some of its features in columns
/// that are not side by side.
bool Chooser::addColumns(Layout &layout, SmallVector<Part> &parts, const HeadFeatures &heads,
                         bool ofProducts) {
  for (Part &part : parts) {
    if (bool(part.product) != ofProducts)
      continue;
    std::vector<Feature> needed;
    if (part.product) {
      const std::vector<Feature> &input = features.resolve(part.product->input);
      int64_t first = part.product->first[heads.front()[part.begin].index];
      for (int64_t k = 0; k < part.product->inner; ++k)
        needed.push_back(input[first + k * part.product->stride]);
    } else {
      ArrayRef<Feature> own = heads.front().slice(part.begin, part.size());
      needed.assign(own.begin(), own.end());
    }
    auto it = llvm::find(layout.columns, needed.front());
    part.cached = it - layout.columns.begin();
    for (auto [k, feature] : llvm::enumerate(needed)) {
      size_t at = part.cached + k;
      if (at < layout.columns.size() && layout.columns[at] != feature)
        return false;
      if (at < layout.columns.size())
        continue;
      if (llvm::is_contained(layout.columns, feature))
        return false;
      layout.columns.push_back(feature);
    }
  }
  return true;
}

std::optional<Layout> Chooser::layOut(ArrayRef<const TokenProduct *> products) {
  Layout layout;
  HeadFeatures keys = getHeads(op.getKey()), values = getHeads(op.getValue());
  if (!addParts(keys, products, layout.keys) || !addParts(values, products, layout.values))
    return std::nullopt;
  // A bias of the keys adds the same number to all scores of a query, which the softmax takes out.
  // A soft cap does not.
  if (op.getSoftCap() && llvm::any_of(layout.keys, [](const Part &part) {
        return part.product && part.product->bias;
      }))
    return std::nullopt;
  for (bool ofProducts : {true, false})
    if (!addColumns(layout, layout.values, values, ofProducts))
      return std::nullopt;
  layout.valueColumns = layout.columns.size();
  for (bool ofProducts : {true, false})
    if (!addColumns(layout, layout.keys, keys, ofProducts))
      return std::nullopt;
  return layout;
}

std::optional<Layout> Chooser::choose() {
  llvm::SetVector<const TokenProduct *> found;
  for (Value value : {op.getKey(), op.getValue()})
    for (const Feature &feature : features.resolve(value))
      if (const TokenProduct *product = features.getProduct(feature.value.getDefiningOp()))
        found.insert(product);
  std::optional<Layout> best;
  if (found.size() > kProducts)
    return best;
  for (unsigned chosen = 1; chosen < 1u << found.size(); ++chosen) {
    Products products;
    for (auto [i, product] : llvm::enumerate(found))
      if (chosen >> i & 1)
        products.push_back(product);
    std::optional<Layout> layout = layOut(products);
    if (layout && (!best || CacheCost::of(*layout) < CacheCost::of(*best)))
      best = std::move(layout);
  }
  return best;
}

//===----------------------------------------------------------------------===//
// The new attention
//===----------------------------------------------------------------------===//

/// Rows of a matrix [rows, ...] for each head: [heads, columns, ...]. A reshape and a slice where
/// the rows of the heads are evenly spaced, else a lookup.
Value Absorber::takeRows(Value matrix, const SmallVector<SmallVector<int64_t>> &rows) {
  int64_t heads = rows.size(), columns = rows.front().size(), all = shapeOf(matrix)[0];
  int64_t first = rows[0][0], byHead = heads > 1 ? rows[1][0] - first : all;
  int64_t byColumn = columns > 1 ? rows[0][1] - first : 1;
  bool isEven = true;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t j = 0; j < columns; ++j)
      isEven &= rows[h][j] == first + h * byHead + j * byColumn;
  SmallVector<int64_t> shape(shapeOf(matrix));
  auto split = [&](int64_t outer, int64_t inner) {
    shape[0] = inner;
    shape.insert(shape.begin(), outer);
    return w.reshape(matrix, shape);
  };
  if (isEven && byColumn == 1 && byHead > 0 && all % byHead == 0 &&
      first % byHead + columns <= byHead) {
    Value groups = split(all / byHead, byHead);
    Value part = w.slice(groups, 0, first / byHead, first / byHead + heads);
    return w.slice(part, 1, first % byHead, first % byHead + columns);
  }
  if (isEven && byHead == 1 && byColumn > 0 && all % byColumn == 0 &&
      first % byColumn + heads <= byColumn) {
    Value groups = split(all / byColumn, byColumn);
    Value part = w.slice(groups, 0, first / byColumn, first / byColumn + columns);
    part = w.slice(part, 1, first % byColumn, first % byColumn + heads);
    SmallVector<int64_t> order = llvm::to_vector(llvm::seq<int64_t>(0, shapeOf(part).size()));
    std::swap(order[0], order[1]);
    return w.transpose(part, order);
  }
  SmallVector<int64_t> numbers;
  for (const SmallVector<int64_t> &own : rows)
    numbers.append(own);
  int64_t count = numbers.size();
  auto type = RankedTensorType::get({count}, builder.getI64Type());
  Value indices = nn::ConstantOp::create(builder, w.getLoc(), type,
                                         DenseElementsAttr::get(type, ArrayRef<int64_t>(numbers)));
  shape[0] = count;
  Value taken =
      nn::GatherOp::create(builder, w.getLoc(), typeOf(matrix).clone(shape), matrix, indices, 0);
  shape[0] = columns;
  shape.insert(shape.begin(), heads);
  return w.reshape(taken, shape);
}

/// The matrix of each head [heads, columns, inner].
Value Absorber::takeRows(const Part &part) {
  const TokenProduct &product = *part.product;
  SmallVector<int64_t> order;
  for (int64_t d = 0, rank = shapeOf(product.matrix).size(); d < rank; ++d)
    if (d != product.innerDim)
      order.push_back(d);
  order.push_back(product.innerDim);
  Value matrix = llvm::is_sorted(order) ? product.matrix : w.transpose(product.matrix, order);
  return takeRows(w.reshape(matrix, {product.rows, product.inner}), part.rows);
}

/// The bias of each head [heads, 1, columns].
Value Absorber::takeBias(const Part &part) {
  Value bias = takeRows(part.product->bias, part.rows);
  return w.reshape(bias, {int64_t(part.rows.size()), 1, part.size()});
}

/// Rows of query heads [1, heads, tokens, ...] times the matrix of their kv head.
Value Absorber::multiply(Value rows, Value matrix, bool transposed) {
  ArrayRef<int64_t> shape = shapeOf(rows), own = shapeOf(matrix);
  if (own[0] == shape[1] || own[0] == 1)
    return w.matmul(rows, matrix, false, transposed);
  int64_t heads = shape[1], tokens = shape[2];
  Value grouped = w.reshape(rows, {1, own[0], heads / own[0], tokens, shape[3]});
  Value product =
      w.matmul(grouped, w.reshape(matrix, {own[0], 1, own[1], own[2]}), false, transposed);
  return w.reshape(product, {1, heads, tokens, shapeOf(product).back()});
}

/// The features of the cache as keys of one head [1, 1, tokens, columns].
Value Absorber::writeKeys() {
  int64_t tokens = shapeOf(op.getKey())[2];
  SmallVector<Value> parts;
  for (size_t i = 0, end = 0; i < layout.columns.size(); i = end) {
    // Neighbours of one value.
    Feature first = layout.columns[i];
    for (end = i + 1; end < layout.columns.size() &&
                      layout.columns[end] == Feature{first.value, first.index + int64_t(end - i)};)
      ++end;
    ArrayRef<int64_t> shape = shapeOf(first.value);
    int64_t dim = *features.getTokenDim(first.value);
    SmallVector<int64_t> order{dim};
    for (int64_t d = 0; d < int64_t(shape.size()); ++d)
      if (d != dim)
        order.push_back(d);
    // Dimensions of size 1 in front need no transpose.
    bool isMajor = llvm::all_of(shape.take_front(dim), [](int64_t size) { return size == 1; });
    Value value = isMajor ? first.value : w.transpose(first.value, order);
    int64_t all = typeOf(value).getNumElements() / tokens;
    value = w.reshape(value, {1, 1, tokens, all});
    parts.push_back(w.slice(value, 3, first.index, first.index + int64_t(end - i)));
  }
  return w.concat(parts, 3);
}

/// Columns of a value. The part itself where the columns are one part of a concatenation.
Value Absorber::takeColumns(Value value, int64_t begin, int64_t end) {
  int64_t last = shapeOf(value).size() - 1;
  auto concat = value.getDefiningOp<nn::ConcatOp>();
  if (!concat || int64_t(concat.getDim()) != last)
    return w.slice(value, last, begin, end);
  int64_t at = 0;
  for (Value input : concat.getInputs()) {
    int64_t size = shapeOf(input)[last];
    if (begin >= at && end <= at + size)
      return takeColumns(input, begin - at, end - at);
    at += size;
  }
  return w.slice(value, last, begin, end);
}

/// Queries for the columns of the cache: those of a product times its matrix.
Value Absorber::writeQueries() {
  Value query = op.getQuery();
  SmallVector<std::pair<Part, Value>> known;
  llvm::SmallSetVector<int64_t, 8> bounds;
  for (int64_t bound : {int64_t(0), int64_t(layout.columns.size())})
    bounds.insert(bound);
  for (const Part &part : layout.keys) {
    Value own = takeColumns(query, part.begin, part.end);
    known.push_back({part, part.product ? multiply(own, takeRows(part), false) : own});
    bounds.insert(part.cached);
    bounds.insert(part.cached + part.cachedSize());
  }
  SmallVector<int64_t> sorted = bounds.takeVector();
  llvm::sort(sorted);
  SmallVector<Value> columns;
  for (auto [begin, end] : llvm::zip(sorted, ArrayRef(sorted).drop_front())) {
    Value sum;
    for (auto &[part, value] : known) {
      if (begin < part.cached || end > part.cached + part.cachedSize())
        continue;
      Value own = w.slice(value, 3, begin - part.cached, end - part.cached);
      sum = sum ? w.add(sum, own) : own;
    }
    if (!sum) {
      // No key reads these columns; values do.
      SmallVector<int64_t> shape(shapeOf(query));
      shape[3] = end - begin;
      sum = w.broadcast(w.fill(0, typeOf(query).clone({1, 1, 1, end - begin})), shape);
    }
    columns.push_back(sum);
  }
  return w.concat(columns, 3);
}

/// The results from sums of the cache's first columns.
Value Absorber::writeResults(Value result) {
  SmallVector<Value> columns;
  for (const Part &part : layout.values) {
    Value own = w.slice(result, 3, part.cached, part.cached + part.cachedSize());
    if (!part.product) {
      columns.push_back(own);
      continue;
    }
    own = multiply(own, takeRows(part), true);
    if (part.product->bias) {
      // The weights of the softmax sum to 1.
      Value bias = takeBias(part);
      bias = w.repeat(bias, 0, shapeOf(own)[1] / shapeOf(bias)[0], shapeOf(own)[1]);
      own = w.add(own, bias);
    }
    columns.push_back(own);
  }
  return w.concat(columns, 3);
}

void Absorber::write() {
  Value keys = writeKeys(), values = w.slice(keys, 3, 0, layout.valueColumns);
  Value query = writeQueries();
  auto made = cast<nn::AttentionOp>(builder.clone(*op));
  made.getQueryMutable().assign(query);
  made.getKeyMutable().assign(keys);
  made.getValueMutable().assign(values);
  SmallVector<int64_t> shape(shapeOf(query));
  shape[3] = layout.valueColumns;
  made.getResult().setType(typeOf(op.getResult()).clone(shape));
  op.getResult().replaceAllUsesWith(writeResults(made.getResult()));
  op.erase();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
struct AbsorbLatentKeysPass : meshwright::impl::AbsorbLatentKeysPassBase<AbsorbLatentKeysPass> {
  using AbsorbLatentKeysPassBase::AbsorbLatentKeysPassBase;

  void runOnOperation() override {
    if (ranks < 1) {
      emitError(getOperation().getLoc()) << "ranks: expected at least 1, got " << int64_t(ranks);
      return signalPassFailure();
    }
    for (func::FuncOp func : getGlobalFunctions(getOperation()))
      for (bool isFirst = true, changed = true; changed; isFirst = false) {
        // Features may be products themselves, so a changed program is read again.
        FailureOr<bool> absorbed = absorb(func, isFirst);
        if (failed(absorbed))
          return signalPassFailure();
        changed = *absorbed;
      }
  }

private:
  /// Returns true if an attention was changed.
  FailureOr<bool> absorb(func::FuncOp func, bool isFirst);
  void logChoice(nn::AttentionOp op, const CacheCost &heads, const CacheCost &latent, bool wins);
};
} // namespace

/// Returns true if queries see the keys of earlier tokens of the same sequence alone.
static bool isCausalSelfAttention(nn::AttentionOp op, const FactorAnalysis &factors) {
  const FactorClasses &queries = factors.getClasses(op.getQuery())[2],
                      &keys = factors.getClasses(op.getKey())[2];
  return op.getCausal() && !op.getLse() && !op.getDropRows() && !op.getQPositions() &&
         shapeOf(op.getKey())[0] == 1 && keys.size() == 1 && queries == keys;
}

void AbsorbLatentKeysPass::logChoice(nn::AttentionOp op, const CacheCost &heads,
                                     const CacheCost &latent, bool wins) {
  int64_t numHeads = shapeOf(op.getKey())[1];
  using Numbers = std::vector<std::pair<std::string, double>>;
  auto numbersOf = [](const CacheCost &cost) -> Numbers {
    return {{"cached_elements", double(cost.elements)}, {"operations", double(cost.operations)}};
  };
  std::string message =
      llvm::formatv(wins ? "{0} columns are cached for a token in place of {1} kv heads"
                         : "{0} columns for a token would be cached in place of {1} kv heads",
                    latent.elements, numHeads)
          .str();
  message += llvm::formatv(": {0:f2} times the elements, {1:f2} times the arithmetic",
                           double(latent.elements) / heads.elements,
                           double(latent.operations) / heads.operations)
                 .str();
  dist::DistDialect::getDecisionLog(&getContext())
      .add("absorb-latent-keys", wins ? Outcome::Applied : Outcome::Declined, op.getLoc(), message,
           {{"kv_heads", double(numHeads)}, {"ranks", double(ranks)}},
           {{"heads", numbersOf(heads), "", !wins}, {"latent", numbersOf(latent), "", wins}});
}

FailureOr<bool> AbsorbLatentKeysPass::absorb(func::FuncOp func, bool isFirst) {
  FailureOr<FactorAnalysis> factors = FactorAnalysis::run(func);
  if (failed(factors))
    return failure();
  bool changed = false;
  for (auto op : llvm::to_vector(func.getOps<nn::AttentionOp>())) {
    if (!isCausalSelfAttention(op, *factors))
      continue;
    TokenFeatures features(*factors, factors->getClasses(op.getKey())[2].front());
    if (features.getTokenDim(op.getKey()) != 2 || features.getTokenDim(op.getValue()) != 2)
      continue;
    std::optional<Layout> layout = Chooser(op, features).choose();
    if (!layout)
      continue;
    CacheCost before = CacheCost::ofHeads(op, ranks), after = CacheCost::of(*layout);
    bool wins = after < before;
    if (wins || isFirst)
      logChoice(op, before, after, wins);
    if (!wins)
      continue;
    Absorber(op, *layout, features).write();
    changed = true;
  }
  if (changed)
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(func.front())))
      if (isOpTriviallyDead(&op))
        op.erase();
  return changed;
}
