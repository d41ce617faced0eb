//===- CostModel.cpp - what communication costs ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/CostModel.h"

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Dist/Refine.h"
#include "meshwright/dialects/Nn/MovedRows.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/ADT/SmallBitVector.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>
#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

static int64_t saturate(__int128 value) {
  constexpr __int128 limit = std::numeric_limits<int64_t>::max() / 4;
  return value > limit ? int64_t(limit) : int64_t(value);
}

int64_t meshwright::getBytesSent(CollectiveKind kind, int64_t ranks, int64_t bytes) {
  if (ranks <= 1)
    return 0;
  __int128 part = (__int128(bytes) * (ranks - 1) + ranks - 1) / ranks;
  switch (kind) {
  case CollectiveKind::AllReduce:
    return saturate((__int128(2) * bytes * (ranks - 1) + ranks - 1) / ranks);
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::ReduceScatterV:
  case CollectiveKind::AllGather:
  case CollectiveKind::AllGatherV:
  case CollectiveKind::AllToAll:
    return saturate(part);
  case CollectiveKind::Permute:
  case CollectiveKind::Redistribute:
    return bytes;
  case CollectiveKind::Slice:
  case CollectiveKind::Partial:
    return 0;
  }
  return 0;
}

int64_t meshwright::getSteps(CollectiveKind kind, int64_t ranks) {
  if (ranks <= 1)
    return 0;
  switch (kind) {
  case CollectiveKind::AllReduce:
    return 2 * (ranks - 1);
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::ReduceScatterV:
  case CollectiveKind::AllGather:
  case CollectiveKind::AllGatherV:
  case CollectiveKind::AllToAll:
  case CollectiveKind::Redistribute:
    return ranks - 1;
  case CollectiveKind::Permute:
    return 1;
  case CollectiveKind::Slice:
  case CollectiveKind::Partial:
    return 0;
  }
  return 0;
}

/// Returns true if ranks of a group wait for each other's messages.
static bool isLaunch(CollectiveKind kind) { return getSteps(kind, /*ranks=*/2) > 0; }

int64_t meshwright::getElementBytes(Type elementType) {
  if (elementType.isIndex())
    return 8;
  if (!elementType.isIntOrFloat())
    return 1;
  return llvm::divideCeil(elementType.getIntOrFloatBitWidth(), 8);
}

int64_t meshwright::getTensorBytes(Type tensorType) {
  auto tensor = dyn_cast<RankedTensorType>(tensorType);
  if (!tensor || !tensor.hasStaticShape())
    return 0;
  bool isShared = getElementsPerByte(tensor.getElementType()) > 1;
  return isShared || getForm(tensor)
             ? getStoredBytes(tensor)
             : getStoredElements(tensor) * getElementBytes(tensor.getElementType());
}

//===----------------------------------------------------------------------===//
// Time
//===----------------------------------------------------------------------===//

static int64_t toPicoseconds(double seconds) { return std::llround(seconds * 1e12); }

/// bytes / bandwidth in picoseconds, rounded up.
static int64_t divideBandwidth(int64_t bytes, double bandwidth) {
  if (bandwidth <= 0)
    return bytes;
  // Below 2^53 bytes the quotient is exact enough to round the same way
  // everywhere; whole numbers of bytes a second keep ties ties.
  __int128 perSecond = std::max<int64_t>(1, std::llround(bandwidth));
  __int128 picoseconds = (__int128(bytes) * 1'000'000'000'000 + perSecond - 1) / perSecond;
  return saturate(picoseconds);
}

CostModel::CostModel(MeshAttr mesh) : mesh(mesh) {
  if (std::optional<Device> known = meshwright::getDevice(mesh.getDevice()))
    device = *known;
  launch = toPicoseconds(device.launch);
  for (MeshAxisAttr axis : mesh.getAxes()) {
    bool isNetwork = axis.getName() == "host";
    Link link;
    link.bandwidth = isNetwork ? device.networkBandwidth : device.linkBandwidth;
    link.latency = toPicoseconds(isNetwork ? device.networkLatency : device.linkLatency);
    // A link that the mesh states is no part of the device's memory.
    link.overlaps =
        isNetwork || device.overlap != 0 || axis.getBandwidth() > 0 || axis.getLatency() > 0;
    if (axis.getBandwidth() > 0)
      link.bandwidth = axis.getBandwidth();
    if (axis.getLatency() > 0)
      link.latency = toPicoseconds(axis.getLatency());
    link.isCalibrated = device.rates && !isNetwork && axis.getBandwidth() <= 0;
    links.push_back(link);
  }
}

int64_t CostModel::getTime(ArrayRef<Axis> axes, int64_t bytes, int64_t steps) const {
  int64_t transfer = 0, latency = 0;
  for (const Axis &axis : axes) {
    const Link &link = links[axis.axis];
    transfer = std::max(transfer, divideBandwidth(bytes, link.bandwidth));
    latency = std::max(latency, link.latency);
  }
  return saturate(__int128(launch) + __int128(steps) * latency + transfer);
}

static const RateTable &getRates(const Rates &rates, CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllReduce:
    return rates.allReduce;
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::ReduceScatterV:
    return rates.reduceScatter;
  case CollectiveKind::AllGather:
  case CollectiveKind::AllGatherV:
    return rates.allGather;
  case CollectiveKind::AllToAll:
    return rates.allToAll;
  case CollectiveKind::Permute:
    return rates.permute;
  case CollectiveKind::Redistribute:
  case CollectiveKind::Slice:
  case CollectiveKind::Partial:
    break;
  }
  return rates.redistribute;
}

int64_t CostModel::getTime(CollectiveKind kind, ArrayRef<Axis> axes, int64_t bytes, int64_t steps) const {
  bool isCalibrated = !axes.empty() && bytes > 0 &&
                      llvm::all_of(axes, [&](const Axis &axis) { return links[axis.axis].isCalibrated; });
  if (!isCalibrated || getRates(*device.rates, kind).empty())
    return getTime(axes, bytes, steps);
  return saturate(__int128(getTime(axes, 0, steps)) +
                  divideBandwidth(bytes, getRates(*device.rates, kind).getRate(double(bytes))));
}

bool CostModel::runsBeside(ArrayRef<Axis> axes) const {
  return llvm::any_of(axes, [&](const Axis &axis) { return links[axis.axis].overlaps; });
}

int64_t CostModel::getLeastTime(int64_t bytes) const {
  int64_t transfer = std::numeric_limits<int64_t>::max() / 4;
  for (const Link &link : links)
    transfer = std::min(transfer, divideBandwidth(bytes, link.bandwidth));
  if (llvm::any_of(links, [](const Link &link) { return link.isCalibrated; }))
    for (CollectiveKind kind : {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather,
                                CollectiveKind::AllToAll, CollectiveKind::Permute, CollectiveKind::Redistribute})
      if (const RateTable &table = getRates(*device.rates, kind); !table.empty())
        transfer = std::min(transfer, divideBandwidth(bytes, table.getLargestRate()));
  return launch + transfer;
}

int64_t CostModel::getMemoryTime(int64_t bytes) const {
  return device.memoryBandwidth > 0 ? divideBandwidth(bytes, device.memoryBandwidth) : 0;
}

int64_t CostModel::getComputeTime(double flops, Type elementType) const {
  double perSecond = device.getFlops(elementType);
  if (perSecond <= 0)
    return 0;
  return saturate(__int128(std::ceil(flops / perSecond * 1e12)));
}

Cost CostModel::getCost(CollectiveKind kind, ArrayRef<Axis> axes, int64_t bytes,
                        int packedSides) const {
  Cost cost;
  if (!isLaunch(kind)) {
    cost.localSteps = 1;
    return cost;
  }
  int64_t ranks = getNumShards(axes);
  cost.bytes = getBytesSent(kind, ranks, bytes);
  cost.launches = 1;
  // A packed side is read and written once more.
  cost.time = getTime(kind, axes, cost.bytes, getSteps(kind, ranks)) +
              getMemoryTime(saturate(__int128(2) * packedSides * bytes));
  return cost;
}

Cost CostModel::getRedistributeCost(ArrayRef<Axis> axes, int64_t bytes, int64_t peers) const {
  Cost cost;
  cost.bytes = bytes;
  cost.launches = 1;
  cost.redistributes = 1;
  // Boxes are packed into messages and unpacked from them.
  cost.time = getTime(CollectiveKind::Redistribute, axes, bytes, peers) + getMemoryTime(saturate(__int128(4) * bytes));
  return cost;
}

//===----------------------------------------------------------------------===//
// Redistribution
//===----------------------------------------------------------------------===//

RedistributeCost meshwright::getRedistributeCost(ArrayRef<RedistributeFactor> factors,
                                                 int64_t elementBytes) {
  // A rank holds one box of the value's rows and needs another.
  // - If, for each factor, one list of axes begins with the other, the two intervals are
  //   nested, with the same overlap on all ranks.
  // - Else coordinates along the first axes that differ are independent, so that some rank
  //   holds no row that it needs.
  // - No rank sends more than the rank that receives most. A group of replicas shares its
  //   sends, and in the nested case both are equal.
  RedistributeCost result;
  __int128 needed = elementBytes, held = elementBytes, peers = 1;
  bool nested = true;
  for (const RedistributeFactor &factor : factors) {
    int64_t fromChunk = factor.padded / getNumShards(factor.from);
    int64_t toChunk = factor.padded / getNumShards(factor.to);
    needed *= toChunk;
    held *= std::min(fromChunk, toChunk);
    size_t common = 0;
    while (common < factor.from.size() && common < factor.to.size() &&
           factor.from[common] == factor.to[common])
      ++common;
    ArrayRef<Axis> from = factor.from.drop_front(common), to = factor.to.drop_front(common);
    nested &= from.empty() || to.empty();
    result.axes.append(from.begin(), from.end());
    // The most chunks of the source that overlap one chunk of the target.
    if (fromChunk > 0) {
      int64_t divisor = std::gcd(fromChunk, toChunk);
      peers *= llvm::divideCeil(toChunk - divisor, fromChunk) + 1;
    }
  }
  // Ranks that hold the same rows share the sends. Ranks that differ only along other axes
  // do not exchange anything.
  int64_t replicas = 1;
  size_t dropped = result.axes.size();
  for (const RedistributeFactor &factor : factors)
    for (const Axis &axis : factor.to) {
      // Common axes stay in place: they are in the source's factor as well.
      if (contains(factor.from, axis) && !contains(result.axes, axis))
        continue;
      if (contains(ArrayRef<Axis>(result.axes).take_front(dropped), axis))
        continue;
      replicas *= axis.size;
      result.axes.push_back(axis);
    }
  llvm::sort(result.axes);
  peers *= replicas;
  if (nested)
    peers -= replicas;
  result.peers = std::min<int64_t>(saturate(peers), getNumShards(result.axes) - 1);
  result.bytes = saturate(nested ? needed - held : needed);
  return result;
}

/// The largest group for which crossing cuts are counted rank by rank.
static constexpr int64_t kMaxCountedRanks = 256;

RedistributeCost meshwright::getCrossingCost(ArrayRef<RedistributeFactor> factors,
                                             int64_t elementBytes, MeshAttr mesh) {
  RedistributeCost result;
  llvm::SmallBitVector touched(mesh.getAxes().size());
  __int128 needed = elementBytes;
  for (const RedistributeFactor &factor : factors) {
    needed *= factor.paddedTo / getNumShards(factor.to);
    // Chunks of different padded sizes share no rows that axes can name.
    size_t common = 0;
    while (factor.padded == factor.paddedTo && common < factor.from.size() &&
           common < factor.to.size() && factor.from[common] == factor.to[common])
      ++common;
    for (ArrayRef<Axis> axes : {factor.from.drop_front(common), factor.to.drop_front(common)})
      for (const Axis &axis : axes) {
        touched.set(axis.axis);
        if (!contains(result.axes, axis))
          result.axes.push_back(axis);
      }
  }
  llvm::sort(result.axes);
  AxisList group;
  for (int axis : touched.set_bits())
    group.push_back({axis, 1, mesh.getAxes()[axis].getSize()});
  int64_t ranks = getNumShards(group);
  if (ranks > kMaxCountedRanks) {
    result.bytes = saturate(needed);
    result.peers = ranks - 1;
    return result;
  }
  // All groups are alike, so only the group of rank 0 is counted.
  struct Box {
    SmallVector<std::pair<int64_t, int64_t>, 8> rows;
  };
  SmallVector<Box> held(ranks), wanted(ranks);
  for (auto [i, rank] : llvm::enumerate(getGroup(0, group, mesh)))
    for (const RedistributeFactor &factor : factors) {
      int64_t from = factor.padded / getNumShards(factor.from);
      int64_t to = factor.paddedTo / getNumShards(factor.to);
      int64_t own = getCoordinate(rank, factor.from, mesh) * from;
      int64_t next = getCoordinate(rank, factor.to, mesh) * to;
      held[i].rows.push_back({own, own + from});
      wanted[i].rows.push_back({next, next + to});
    }
  auto countCommon = [](const Box &a, const Box &b) {
    int64_t rows = 1;
    for (auto [x, y] : llvm::zip_equal(a.rows, b.rows))
      rows *= std::max<int64_t>(0, std::min(x.second, y.second) - std::max(x.first, y.first));
    return rows;
  };
  SmallVector<int64_t> replicas(ranks, 0), outPeers(ranks, 0);
  for (int64_t i = 0; i < ranks; ++i)
    for (int64_t j = 0; j < ranks; ++j)
      replicas[i] += held[i].rows == held[j].rows;
  // Each row comes in equal parts from all ranks that hold it.
  SmallVector<double> sent(ranks, 0);
  double most = 0;
  for (int64_t to = 0; to < ranks; ++to) {
    double received = 0;
    int64_t inPeers = 0;
    for (int64_t from = 0; from < ranks; ++from) {
      if (held[from].rows == held[to].rows)
        continue;
      int64_t rows = countCommon(held[from], wanted[to]);
      if (rows == 0)
        continue;
      sent[from] += double(rows) / replicas[from];
      received += double(rows) / replicas[from];
      ++outPeers[from];
      ++inPeers;
    }
    most = std::max(most, received);
    result.peers = std::max(result.peers, inPeers);
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    most = std::max(most, sent[rank]);
    result.peers = std::max(result.peers, outPeers[rank]);
  }
  // Sums of thirds may be slightly more or less than a whole number.
  result.bytes = int64_t(std::ceil(most * elementBytes - 1e-6));
  return result;
}

/// Cuts axes so that any two of both layouts are equal or do not overlap. Returns false if
/// two parts overlap without a common part.
static bool splitAxes(AxisList &axes, ArrayRef<Axis> others) {
  AxisList result;
  for (Axis axis : axes) {
    SmallVector<int64_t> cuts{axis.pre, axis.pre * axis.size};
    for (const Axis &other : others) {
      if (!axis.overlaps(other))
        continue;
      for (int64_t cut : {other.pre, other.pre * other.size})
        if (cut > axis.pre && cut < axis.pre * axis.size)
          cuts.push_back(cut);
    }
    llvm::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      if (cuts[i + 1] % cuts[i] != 0)
        return false;
      result.push_back({axis.axis, cuts[i], cuts[i + 1] / cuts[i]});
    }
  }
  axes = std::move(result);
  return true;
}

RedistributeCost meshwright::getRedistributeCost(const Layout &from, const Layout &to,
                                                 int64_t elementBytes, MeshAttr mesh) {
  auto wholeTarget = [&] {
    RedistributeCost result;
    __int128 bytes = elementBytes;
    for (int64_t size : to.getLocalShape())
      bytes *= size;
    result.bytes = saturate(bytes);
    for (const Axis &axis : from.getShardedAxes())
      result.axes.push_back(axis);
    for (const Axis &axis : to.getShardedAxes())
      if (!contains(result.axes, axis))
        result.axes.push_back(axis);
    result.peers = mesh.getNumRanks() - 1;
    return result;
  };
  AxisList all = from.getShardedAxes();
  all.append(to.getShardedAxes());
  SmallVector<std::pair<AxisList, AxisList>> lists;
  SmallVector<std::pair<int64_t, int64_t>> sizes;
  bool crosses = false;
  if (from.getRank() != to.getRank())
    return wholeTarget();
  for (auto [a, b] : llvm::zip_equal(from.dims, to.dims)) {
    SmallVector<FactorPair, 2> pairs;
    if (a.factors.size() == 1 && b.factors.size() == 1) {
      // The two sides may have different padded sizes.
      pairs.push_back({a.factors[0], b.factors[0]});
    } else if (auto refined = refine(a, b, mesh)) {
      pairs = std::move(*refined);
    } else {
      return wholeTarget();
    }
    for (auto &[x, y] : pairs) {
      crosses |= x.padded != y.padded || !splitAxes(x.axes, all) || !splitAxes(y.axes, all);
      lists.push_back({x.axes, y.axes});
      sizes.push_back({x.padded, y.padded});
    }
  }
  SmallVector<RedistributeFactor> factors;
  for (auto [list, size] : llvm::zip_equal(lists, sizes))
    factors.push_back({size.first, list.first, list.second, size.second});
  return crosses ? getCrossingCost(factors, elementBytes, mesh)
                 : getRedistributeCost(factors, elementBytes);
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// The padded shape of the value that `localType` is a part of.
static SmallVector<int64_t> getPaddedShape(RankedTensorType localType, ShardingAttr sharding,
                                           MeshAttr mesh) {
  SmallVector<int64_t> shape;
  for (auto [size, dim] : llvm::zip_equal(localType.getShape(), sharding.getDims())) {
    int64_t shards = 1;
    for (FactorShardingAttr factor : dim.getFactors())
      for (AxisRefAttr axis : factor.getAxes())
        shards *= getAxis(axis, mesh).size;
    shape.push_back(size * shards);
  }
  return shape;
}

/// The layout of one side of a redistribute. Sizes that the attribute does not state are the
/// padded ones, because padding is sent, too.
static Layout getSideLayout(RankedTensorType localType, ShardingAttr sharding,
                            MeshAttr mesh) {
  Layout layout;
  SmallVector<int64_t> padded = getPaddedShape(localType, sharding, mesh);
  for (auto [size, dim] : llvm::zip_equal(padded, sharding.getDims())) {
    DimLayout result;
    bool spelled = dim.getFactors().size() > 1 ||
                   (dim.getFactors().size() == 1 && dim.getFactors()[0].getSize() != 0);
    for (FactorShardingAttr factor : dim.getFactors()) {
      LayoutFactor entry;
      for (AxisRefAttr axis : factor.getAxes())
        entry.axes.push_back(getAxis(axis, mesh));
      entry.size = entry.padded = size;
      if (spelled)
        entry = getFactor(factor, mesh);
      result.factors.push_back(std::move(entry));
    }
    if (result.factors.empty()) {
      LayoutFactor entry;
      entry.size = entry.padded = size;
      result.factors.push_back(std::move(entry));
    }
    layout.dims.push_back(std::move(result));
  }
  return layout;
}

/// The bytes and peers of operand `i` of a collective that states layouts.
static RedistributeCost getRedistributeCost(CollectiveOpInterface op, unsigned i, MeshAttr mesh) {
  auto in = cast<RankedTensorType>(op->getOperand(i).getType());
  auto out = cast<RankedTensorType>(op->getResult(i).getType());
  auto [source, target] = *op.getShardings(i);
  Layout from = getSideLayout(in, source, mesh), to = getSideLayout(out, target, mesh);
  return getRedistributeCost(from, to, getElementBytes(in.getElementType()), mesh);
}

AxisList meshwright::getCollectiveAxes(Operation *op, MeshAttr mesh) {
  AxisList axes;
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  ArrayAttr named = collective ? collective.getAxes() : op->getAttrOfType<ArrayAttr>("axes");
  if (named) {
    axes = getAxes(named, mesh);
    llvm::erase_if(axes, [](const Axis &axis) { return axis.size == 1; });
    return axes;
  }
  for (unsigned i = 0; collective && i < op->getNumOperands(); ++i)
    for (const Axis &axis : ::getRedistributeCost(collective, i, mesh).axes)
      if (!contains(axes, axis))
        axes.push_back(axis);
  return axes;
}

SmallVector<int64_t> meshwright::getNumReceivers(CollectiveOpInterface op, MeshAttr mesh) {
  if (!op.movesChunks() || !op.getAxes())
    return {};
  SmallVector<int64_t> receivers(getNumShards(getAxes(op.getAxes(), mesh)));
  for (auto [rank, source] : llvm::enumerate(op.getChunkSources(receivers.size())))
    if (source >= 0 && source != int64_t(rank))
      ++receivers[source];
  return receivers;
}

/// Returns true if the rows of `dim` are outermost in memory, so that messages of them
/// are in one piece.
static bool isOutermost(Type type, int64_t dim) {
  return llvm::all_of(cast<RankedTensorType>(type).getShape().take_front(dim),
                      [](int64_t size) { return size == 1; });
}

bool meshwright::movesRows(CollectiveOpInterface op, unsigned i) {
  auto type = cast<RankedTensorType>(op->getOperand(i).getType());
  return isa_and_nonnull<CompactAttrInterface>(type.getEncoding()) &&
         (op.getShardings(i) || (op.getLostDim(i) && op.getGainedDim(i)));
}

std::optional<Cost> CostModel::getCost(Operation *op) const {
  if (auto collective = dyn_cast<CollectiveOpInterface>(op))
    return getCost(collective);
  return std::nullopt;
}

Cost CostModel::getCost(CollectiveOpInterface op) const {
  Cost total;
  if (!op.communicates()) {
    total.localSteps = 1;
    return total;
  }
  AxisList axes = getCollectiveAxes(op, mesh);
  int64_t ranks = getNumShards(axes), steps = getSteps(op.getKind(), ranks);
  if (std::optional<int64_t> rows = nn::getExpectedRows(op)) {
    auto type = cast<RankedTensorType>(op->getOperand(0).getType());
    int64_t features = 1;
    for (int64_t size : type.getShape().drop_front())
      features *= size;
    int64_t bytes = *rows * features * getElementBytes(type.getElementType());
    total.bytes = getBytesSent(op.getKind(), ranks, bytes);
    total.launches = 1;
    // Numbers go before the rows that they count. Rows return without.
    bool sendsNumbers = op->getNumResults() > 1;
    total.time = getTime(op.getKind(), axes, total.bytes, sendsNumbers ? 2 * steps : steps);
    return total;
  }
  int64_t packed = 0;
  // Each rank knows the numbers of counted rows.
  unsigned stride = op.countsRows() ? 2 : 1;
  for (unsigned i = 0; i < op->getNumOperands(); i += stride) {
    if (movesRows(op, i)) {
      // Each row is sent once.
      int64_t bytes = getMovedElements(op, i) * getElementBytes(getElementTypeOrSelf(op->getOperand(i).getType()));
      total.bytes += getBytesSent(CollectiveKind::AllToAll, ranks, bytes);
      // Numbers go before the rows that they count, from tokens to experts.
      bool sendsNumbers = shapeOf(op->getOperand(i)).front() > shapeOf(op->getResult(i)).front();
      steps = sendsNumbers ? 2 * (ranks - 1) : ranks - 1;
      continue;
    }
    if (op.getShardings(i)) {
      RedistributeCost part = ::getRedistributeCost(op, i, mesh);
      total.bytes += part.bytes;
      steps = i == 0 ? part.peers : std::max(steps, part.peers);
      packed += 4 * part.bytes;
      total.redistributes = 1;
      continue;
    }
    Type in = op->getOperand(i).getType(), out = op->getResult(i).getType();
    int64_t bytes = std::max(getTensorBytes(in), getTensorBytes(out));
    if (SmallVector<int64_t> receivers = getNumReceivers(op, mesh); !receivers.empty())
      bytes *= *llvm::max_element(receivers);
    total.bytes += getBytesSent(op.getKind(), ranks, bytes);
    if (std::optional<int64_t> dim = op.getGainedDim(i))
      packed += isOutermost(in, *dim) ? 0 : 2 * bytes;
    if (std::optional<int64_t> dim = op.getLostDim(i))
      packed += isOutermost(out, *dim) ? 0 : 2 * bytes;
  }
  total.launches = 1;
  total.time = getTime(op.getKind(), axes, total.bytes, steps) + getMemoryTime(packed);
  return total;
}
