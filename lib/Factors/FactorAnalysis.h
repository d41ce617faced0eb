//===- FactorAnalysis.h - the factors of a program's dimensions -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ties the dimensions of all values of a global program through the factor
// rules of its ops. A dimension that a reshape somewhere takes apart becomes a
// product of factors everywhere: the output features of a query projection are
// (heads, head size) because attention reads them so. Policies choose axes for
// factors; padding is chosen once per class of tied factors.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACTORS_FACTORANALYSIS_H
#define MESHWRIGHT_LIB_FACTORS_FACTORANALYSIS_H

#include "meshwright/dialects/Dist/Layout.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"

#include <deque>
#include <memory>

namespace meshwright {

/// Leaf factors, major to minor. Factors of size 1 are left out.
using FactorLeaves = mlir::SmallVector<int, 2>;

/// Axes for each leaf of each dimension of a value.
struct ValueSharding {
  mlir::SmallVector<mlir::SmallVector<dist::AxisList, 2>, 4> dims;

  /// No axes, for a value with these leaves.
  static ValueSharding getReplicated(mlir::ArrayRef<FactorLeaves> leaves);

  dist::AxisList getAxes() const;
  bool isReplicated() const;
  bool operator==(const ValueSharding &other) const { return dims == other.dims; }
};

/// Classes of tied factors, identified by small integers. Not safe for use from several
/// threads: it remembers the shardings that it has read and written.
class FactorAnalysis {
public:
  using Leaves = FactorLeaves;

  struct OpFactors {
    /// Shared by all ops of the same signature.
    const dist::FactorRule &rule;
    /// For each factor of the rule its leaves.
    mlir::SmallVector<Leaves, 8> leaves;
  };

  /// Analyses a function of one block. Fails, with an error, on an op without a
  /// factor rule.
  static mlir::FailureOr<FactorAnalysis> run(mlir::func::FuncOp func);

  /// The leaves of each dimension of a value.
  mlir::ArrayRef<Leaves> getLeaves(mlir::Value value) const { return values.find(value)->second; }
  const OpFactors &getFactors(mlir::Operation *op) const { return opFactors[ops.find(op)->second]; }
  int64_t getSize(int leaf) const { return sizes[leaf]; }
  /// The order of a leaf's elements where it is sharded, and for how many ranks.
  /// Read from shardings that spell one; a policy may set it before it writes some.
  struct Order {
    TokenOrder order = TokenOrder::Natural;
    int64_t ranks = 1;
    bool operator==(const Order &other) const {
      return order == other.order && ranks == other.ranks;
    }
  };
  Order getOrder(int leaf) const { return orders.lookup(leaf); }
  void setOrder(int leaf, Order order) { orders[leaf] = order; }
  /// A layout factor for a leaf over these axes: padded to the smallest size that
  /// fits where `padded` is 0, in the leaf's order where it is sharded.
  dist::LayoutFactor getFactor(int leaf, mlir::ArrayRef<dist::Axis> axes, int64_t padded = 0) const;

  /// Classes are numbered below this.
  int getNumClasses() const { return sizes.size(); }

private:
  /// Shardings read and written so far, by the bytes of all that they depend on.
  struct Memo {
    llvm::StringMap<ValueSharding> read;
    llvm::StringMap<dist::ShardingAttr> written;
  };
  friend mlir::FailureOr<ValueSharding>
  readSharding(dist::ShardingAttr, mlir::Value, const FactorAnalysis &, dist::MeshAttr,
               mlir::function_ref<mlir::InFlightDiagnostic()>);
  friend dist::ShardingAttr writeSharding(const ValueSharding &, mlir::Value,
                                          const FactorAnalysis &, dist::MeshAttr,
                                          mlir::FlatSymbolRefAttr);

  class Classes;
  mlir::LogicalResult addValue(mlir::Value value, Classes &classes);
  void addOp(mlir::Operation *op, const dist::FactorRule &rule, Classes &classes);
  void numberLeaves(Classes &classes);
  mlir::LogicalResult readOrders(mlir::Value value, dist::ShardingAttr attr);

  /// By leaf.
  std::vector<int64_t> sizes;
  llvm::DenseMap<mlir::Value, mlir::SmallVector<Leaves, 4>> values;
  std::deque<dist::FactorRule> rules;
  std::vector<OpFactors> opFactors;
  /// Indices in `opFactors`.
  llvm::DenseMap<mlir::Operation *, unsigned> ops;
  llvm::SmallDenseMap<int, Order> orders;
  std::unique_ptr<Memo> memo;
};

/// The analysis as passes share it. It holds as long as only attributes change:
/// passes that write shardings preserve it.
struct SharedFactorAnalysis {
  explicit SharedFactorAnalysis(mlir::Operation *func)
      : factors(FactorAnalysis::run(mlir::cast<mlir::func::FuncOp>(func))) {}
  mlir::FailureOr<FactorAnalysis> factors;
};

/// Reads a sharding attribute in terms of a value's leaves.
mlir::FailureOr<ValueSharding>
readSharding(dist::ShardingAttr attr, mlir::Value value, const FactorAnalysis &factors,
             dist::MeshAttr mesh, mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// Spells a value's sharding as an attribute.
dist::ShardingAttr writeSharding(const ValueSharding &sharding, mlir::Value value,
                                 const FactorAnalysis &factors, dist::MeshAttr mesh,
                                 mlir::FlatSymbolRefAttr symbol);

/// The functions of a module that are global programs: those that policies
/// annotate and the partitioner rewrites.
mlir::SmallVector<mlir::func::FuncOp> getGlobalFunctions(mlir::ModuleOp module);

/// The `dist.sharding` of a value (on its defining op or as argument attribute),
/// or null.
dist::ShardingAttr getShardingAttr(mlir::Value value);
void setShardingAttr(mlir::Value value, dist::ShardingAttr attr);

/// Sets an attribute of each argument for which there is one, all at once: a
/// function's argument attributes are one list, made anew with every change.
void setArgumentAttrs(mlir::func::FuncOp func, llvm::StringRef name,
                      mlir::ArrayRef<mlir::Attribute> attrs);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACTORS_FACTORANALYSIS_H
