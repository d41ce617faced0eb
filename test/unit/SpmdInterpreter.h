//===- SpmdInterpreter.h - collectives on arrays ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Executes what a resharding writes on one array for each rank, straight from
// the definitions of the ops.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TEST_UNIT_SPMDINTERPRETER_H
#define MESHWRIGHT_TEST_UNIT_SPMDINTERPRETER_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"

#include "llvm/ADT/DenseMap.h"

#include <functional>

namespace meshwright::test {

struct Array {
  std::vector<int64_t> shape;
  std::vector<int64_t> data;

  explicit Array(llvm::ArrayRef<int64_t> shape = {}) : shape(shape.begin(), shape.end()) {
    int64_t size = 1;
    for (int64_t extent : shape)
      size *= extent;
    data.assign(size, 0);
  }
  int64_t &at(llvm::ArrayRef<int64_t> index) {
    int64_t linear = 0;
    for (size_t d = 0; d < shape.size(); ++d)
      linear = linear * shape[d] + index[d];
    return data[linear];
  }
};

inline void forEachIndex(llvm::ArrayRef<int64_t> shape,
                         llvm::function_ref<void(llvm::ArrayRef<int64_t>)> callback) {
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t extent : shape)
    if (extent == 0)
      return;
  while (true) {
    callback(index);
    size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1])
      index[--d] = 0;
    if (d == 0)
      return;
  }
}

/// One local array for each rank.
using Ranks = std::vector<Array>;

/// Whole-value index of a rank's element, row-major over true factors; -1 for
/// padding.
inline int64_t getGlobalIndex(const dist::Layout &layout, dist::MeshAttr mesh, int64_t rank,
                              llvm::ArrayRef<int64_t> index) {
  int64_t global = 0;
  for (auto [dim, position] : llvm::zip_equal(layout.dims, index)) {
    int64_t rest = position, below = 1, dimIndex = 0;
    for (const dist::LayoutFactor &factor : llvm::reverse(dim.factors)) {
      int64_t chunk = factor.getLocalSize();
      int64_t row = dist::getCoordinate(rank, factor.axes, mesh) * chunk + rest % chunk;
      rest /= chunk;
      if (row >= factor.size)
        return -1;
      dimIndex += row * below;
      below *= factor.size;
    }
    global = global * dim.getGlobalSize() + dimIndex;
  }
  return global;
}

inline int64_t getElement(int64_t globalIndex, unsigned seed) {
  return (globalIndex * 7919 + seed) % 100003 + 1;
}

/// A value in a layout; its unreduced parts add up to it. Padding is zero in
/// sum, as programs have it.
inline Ranks makeValue(const dist::Layout &layout, dist::MeshAttr mesh, unsigned seed) {
  Ranks result;
  for (int64_t rank = 0; rank < mesh.getNumRanks(); ++rank) {
    Array array(layout.getLocalShape());
    int64_t parts = dist::getNumShards(layout.getUnreduced());
    int64_t part = dist::getCoordinate(rank, layout.getUnreduced(), mesh);
    forEachIndex(array.shape, [&](llvm::ArrayRef<int64_t> index) {
      int64_t global = getGlobalIndex(layout, mesh, rank, index);
      int64_t element = global < 0 ? 0 : getElement(global, seed);
      // part, part, ..., and the rest on the last one.
      array.at(index) = part + 1 < parts
                            ? part * 13 + 5
                            : element - (parts - 1) * 5 - 13 * (parts - 1) * (parts - 2) / 2;
    });
    result.push_back(std::move(array));
  }
  return result;
}

inline std::string compare(Ranks &actual, const dist::Layout &layout, dist::MeshAttr mesh,
                           unsigned seed) {
  if (int64_t(actual.size()) != mesh.getNumRanks())
    return "no value";
  std::string wrong;
  for (int64_t rank = 0; rank < mesh.getNumRanks() && wrong.empty(); ++rank) {
    if (llvm::ArrayRef<int64_t>(actual[rank].shape) !=
        llvm::ArrayRef<int64_t>(layout.getLocalShape()))
      return "wrong shape";
    llvm::SmallVector<int64_t> group = dist::getGroup(rank, layout.getUnreduced(), mesh);
    forEachIndex(actual[rank].shape, [&](llvm::ArrayRef<int64_t> index) {
      int64_t global = getGlobalIndex(layout, mesh, rank, index), sum = 0;
      for (int64_t other : group)
        sum += actual[other].at(index);
      if (global >= 0 && sum != getElement(global, seed) && wrong.empty())
        wrong = "rank " + std::to_string(rank) + ", element " + std::to_string(global);
    });
  }
  return wrong;
}

class Interpreter {
public:
  explicit Interpreter(dist::MeshAttr mesh) : mesh(mesh) {}

  llvm::DenseMap<mlir::Value, Ranks> values;

  bool run(mlir::Operation *op) {
    int64_t ranks = mesh.getNumRanks();
    dist::AxisList axes;
    if (auto attr = op->getAttrOfType<mlir::ArrayAttr>("axes"))
      axes = dist::getAxes(attr, mesh);
    for (auto [operand, result] : llvm::zip_equal(op->getOperands(), op->getResults())) {
      Ranks &in = values[operand];
      Ranks out(ranks, Array(mlir::cast<mlir::RankedTensorType>(result.getType()).getShape()));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        llvm::SmallVector<int64_t> group = dist::getGroup(rank, axes, mesh);
        int64_t own = dist::getCoordinate(rank, axes, mesh);
        if (!runOn(op, in, out[rank], rank, group, own))
          return false;
      }
      values[result] = std::move(out);
    }
    return true;
  }

private:
  bool runOn(mlir::Operation *op, Ranks &in, Array &out, int64_t rank,
             llvm::ArrayRef<int64_t> group, int64_t own) {
    using Index = llvm::ArrayRef<int64_t>;
    auto fill = [&](llvm::function_ref<int64_t(Index)> element) {
      forEachIndex(out.shape, [&](Index index) { out.at(index) = element(index); });
    };
    auto moved = [](Index index, int64_t dim, int64_t to) {
      std::vector<int64_t> result(index.begin(), index.end());
      result[dim] = to;
      return result;
    };
    auto sum = [&](Index index) {
      int64_t total = 0;
      for (int64_t other : group)
        total += in[other].at(index);
      return total;
    };
    if (auto reshape = mlir::dyn_cast<nn::ReshapeOp>(op)) {
      out.data = in[rank].data;
    } else if (auto slice = mlir::dyn_cast<nn::SliceOp>(op)) {
      fill([&](Index index) { return in[rank].at(index); });
    } else if (auto pad = mlir::dyn_cast<dist::PadOp>(op)) {
      fill([&](Index index) {
        for (size_t d = 0; d < index.size(); ++d)
          if (index[d] >= in[rank].shape[d])
            return int64_t(0);
        return in[rank].at(index);
      });
    } else if (mlir::isa<dist::AllReduceOp>(op)) {
      fill(sum);
    } else if (mlir::isa<dist::PartialOp>(op)) {
      fill([&](Index index) { return own == 0 ? in[rank].at(index) : 0; });
    } else if (auto scatter = mlir::dyn_cast<dist::ReduceScatterOp>(op)) {
      int64_t dim = scatter.getDims()[0], chunk = out.shape[dim];
      fill([&](Index index) { return sum(moved(index, dim, own * chunk + index[dim])); });
    } else if (auto gather = mlir::dyn_cast<dist::AllGatherOp>(op)) {
      int64_t dim = gather.getDims()[0], chunk = in[rank].shape[dim];
      fill([&](Index index) {
        return in[group[index[dim] / chunk]].at(moved(index, dim, index[dim] % chunk));
      });
    } else if (auto exchange = mlir::dyn_cast<dist::AllToAllOp>(op)) {
      int64_t from = exchange.getFrom()[0], to = exchange.getTo()[0];
      int64_t chunk = in[rank].shape[from];
      fill([&](Index index) {
        std::vector<int64_t> source = moved(index, from, index[from] % chunk);
        source[to] += own * out.shape[to];
        return in[group[index[from] / chunk]].at(source);
      });
    } else if (auto cut = mlir::dyn_cast<dist::SliceOp>(op)) {
      int64_t dim = cut.getDims()[0], chunk = out.shape[dim];
      fill([&](Index index) {
        int64_t row = own * chunk + index[dim];
        return row < in[rank].shape[dim] ? in[rank].at(moved(index, dim, row)) : 0;
      });
    } else if (auto permute = mlir::dyn_cast<dist::PermuteOp>(op)) {
      llvm::ArrayRef<int64_t> pairs = *permute.getPairs();
      for (size_t i = 0; i < pairs.size(); i += 2)
        if (pairs[i + 1] == own)
          out.data = in[group[pairs[i]]].data;
    } else if (auto redistribute = mlir::dyn_cast<dist::RedistributeOp>(op)) {
      return redistributeOn(redistribute, in, out, rank);
    } else {
      return false;
    }
    return true;
  }

  /// Both sides' elements by their place in the padded value.
  bool redistributeOn(dist::RedistributeOp op, Ranks &in, Array &out, int64_t rank) {
    auto from = getSide(op.getFrom()[0], in[0].shape), to = getSide(op.getTo()[0], out.shape);
    if (!from || !to)
      return false;
    if (rank == 0) {
      held.clear();
      for (int64_t other = 0; other < mesh.getNumRanks(); ++other)
        forEachIndex(in[other].shape, [&](llvm::ArrayRef<int64_t> index) {
          held[getGlobalIndex(*from, mesh, other, index)] = in[other].at(index);
        });
    }
    forEachIndex(out.shape, [&](llvm::ArrayRef<int64_t> index) {
      out.at(index) = held.lookup(getGlobalIndex(*to, mesh, rank, index));
    });
    return true;
  }

  /// More than any factor has.
  static constexpr int64_t kRows = 1 << 10;

  std::optional<dist::Layout> getSide(mlir::Attribute attr, llvm::ArrayRef<int64_t> local) {
    auto sharding = mlir::cast<dist::ShardingAttr>(attr);
    dist::Layout layout;
    for (auto [dimAttr, extent] : llvm::zip_equal(sharding.getDims(), local)) {
      dist::DimLayout dim;
      for (dist::FactorShardingAttr factorAttr : dimAttr.getFactors()) {
        dist::LayoutFactor factor;
        for (dist::AxisRefAttr axis : factorAttr.getAxes())
          factor.axes.push_back(dist::getAxis(axis, mesh));
        int64_t shards = dist::getNumShards(factor.axes);
        int64_t padded = factorAttr.getSize() == 0 ? extent * shards
                         : factorAttr.getPadded()
                             ? factorAttr.getPadded()
                             : (factorAttr.getSize() + shards - 1) / shards * shards;
        factor.padded = padded;
        // Sides may be padded differently: rows have the same number on both.
        factor.size = kRows;
        dim.factors.push_back(factor);
      }
      if (dim.factors.empty()) {
        dist::LayoutFactor factor;
        factor.size = kRows;
        factor.padded = extent;
        dim.factors.push_back(factor);
      }
      if (dim.getLocalSize() != extent)
        return std::nullopt;
      layout.dims.push_back(dim);
    }
    return layout;
  }

  dist::MeshAttr mesh;
  llvm::DenseMap<int64_t, int64_t> held;
};

} // namespace meshwright::test

#endif // MESHWRIGHT_TEST_UNIT_SPMDINTERPRETER_H
