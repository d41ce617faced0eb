//===- FactorAnalysis.h - the factors of a program's dimensions -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ties the dimensions of all values of a global program through the factor rules of its
// ops. If a reshape takes a dimension apart, the dimension is a product of factors
// everywhere. For example, the output features of a query projection are (heads, head
// size), because attention reads them so. Policies choose axes for factors. The partitioner
// chooses padding once for each class of tied factors.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACTORS_FACTORANALYSIS_H
#define MESHWRIGHT_LIB_FACTORS_FACTORANALYSIS_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Factors/SharedValues.h"
#include "meshwright/lib/Support/OpSignature.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/AnalysisManager.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringMap.h"

#include <deque>
#include <memory>

namespace meshwright {

/// Classes of tied factors (see FactorAnalysis): those of a dimension or of a factor, major to
/// minor, without those of size 1.
using FactorClasses = mlir::SmallVector<int, 2>;

/// Axes for each class of each dimension of a value.
struct ValueSharding {
  /// Most dimensions have one class. Programs have many of these, so they are kept small.
  using Dim = mlir::SmallVector<dist::AxisList, 1>;
  mlir::SmallVector<Dim, 4> dims;

  /// No axes, for a value with these classes.
  static ValueSharding getReplicated(mlir::ArrayRef<FactorClasses> classes);

  dist::AxisList getAxes() const;
  bool isReplicated() const;
  bool operator==(const ValueSharding &other) const { return dims == other.dims; }
};

/// Classes of tied factors. Small integers identify them.
/// - Each dimension of each value, and each factor of each op's rule, is a list of classes.
/// - Tied dimensions have the same classes. Sizes that do not divide leave a rest untied, which
///   the op reads and writes whole.
/// - All places of a parameter or a state have the same classes, in all functions.
/// - A class has the run-time size that an argument or `nn.cut` names for a dimension of it.
/// - Classes are numbered densely, in the order in which the program mentions them.
///
/// Linear in the program. Ops of the same signature (see OpSignature) share one rule. Not
/// safe for use from several threads, since it remembers the shardings that it has read and
/// written.
class FactorAnalysis {
public:
  struct OpFactors {
    /// Shared by all ops of the same signature, unless a dimension of a value cuts its factors
    /// in another way than the op does (see UntiedFactors.cpp).
    const dist::FactorRule &rule;
    /// The classes of each factor of the rule.
    mlir::SmallVector<FactorClasses, 4> classes;
  };

  /// Analyses functions of one block each. Fails with an error on an op without a factor rule.
  static mlir::FailureOr<FactorAnalysis> run(mlir::ArrayRef<mlir::func::FuncOp> functions);

  /// The states of the functions, and the parameters that several of them read.
  mlir::ArrayRef<SharedValue> getSharedValues() const { return shared; }

  /// The classes of each dimension of a value.
  mlir::ArrayRef<FactorClasses> getClasses(mlir::Value value) const {
    return getDims(values.find(value)->second);
  }
  const OpFactors &getFactors(mlir::Operation *op) const { return opFactors[ops.find(op)->second]; }
  int64_t getSize(int cls) const { return sizes[cls]; }
  /// The order of a class's elements where it is sharded, and the number of ranks that the
  /// order is for. Read from the shardings of values. A policy may set it before it writes
  /// shardings.
  struct Order {
    TokenOrder order = TokenOrder::Contiguous;
    int64_t ranks = 1;
    bool operator==(const Order &other) const {
      return order == other.order && ranks == other.ranks;
    }
  };
  Order getOrder(int cls) const { return orders.lookup(cls); }
  void setOrder(int cls, Order order) { orders[cls] = order; }
  /// The name of the run-time size of a class; null if its size is the one that the program states.
  mlir::FlatSymbolRefAttr getRuntimeSize(int cls) const { return runtimeSizes.lookup(cls); }
  /// The number that divides the padded size of a class where these axes, one at least, shard it.
  int64_t getMultiple(int cls, mlir::ArrayRef<dist::Axis> axes) const;
  /// A layout factor for a class over these axes, in the class's order if there are axes. It
  /// is padded to `padded`, or to the smallest size that the axes divide if that is 0.
  dist::LayoutFactor getFactor(int cls, mlir::ArrayRef<dist::Axis> axes, int64_t padded = 0) const;

  /// The number of classes.
  int getNumClasses() const { return sizes.size(); }

private:
  /// Shardings read and written so far. A key is the bytes of all that the result depends on.
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

  mlir::ArrayRef<FactorClasses> getDims(unsigned index) const {
    unsigned first = firstDims[index];
    unsigned behind = index + 1 < firstDims.size() ? firstDims[index + 1] : dims.size();
    return mlir::ArrayRef(dims).slice(first, behind - first);
  }

  class Ties;
  mlir::LogicalResult addValue(mlir::Value value, Ties &ties);
  mlir::LogicalResult addShared(Ties &ties);
  mlir::LogicalResult
  addFunction(mlir::func::FuncOp func, Ties &ties,
              llvm::DenseMap<mlir::Operation *, const dist::FactorRule *, OpSignature> &rulesByOp);
  void addOp(mlir::Operation *op, const dist::FactorRule &rule, Ties &ties);
  void numberClasses(Ties &ties);
  class Separation;
  void separateUntied();
  mlir::LogicalResult readSizes(mlir::Value value, mlir::ArrayAttr names);
  mlir::LogicalResult readOrders(mlir::Value value, dist::ShardingAttr attr);

  std::vector<SharedValue> shared;
  /// The size of each class.
  std::vector<int64_t> sizes;
  /// The classes of the dimensions of all values, one value behind the other, and the first dimension of each. In
  /// large programs they have to fit in caches.
  std::vector<FactorClasses> dims;
  std::vector<unsigned> firstDims;
  /// Indices in `firstDims`.
  ProgramMap<mlir::Value, unsigned> values;
  std::deque<dist::FactorRule> rules;
  std::vector<OpFactors> opFactors;
  /// Indices in `opFactors`.
  ProgramMap<mlir::Operation *, unsigned> ops;
  /// Ops for which some dimension of a value is not tied to all of its factors.
  llvm::SetVector<mlir::Operation *> untied;
  llvm::SmallDenseMap<int, Order> orders;
  llvm::SmallDenseMap<int, mlir::FlatSymbolRefAttr> runtimeSizes;
  /// The number of elements of which a shard of a class has a multiple, where it is not 1.
  llvm::SmallDenseMap<int, int64_t> alignments;
  std::unique_ptr<Memo> memo;
};

/// The analysis of one function, or of all global functions of a module, as passes share it.
/// A change of attributes leaves it valid, so passes that only write shardings preserve it.
struct SharedFactorAnalysis {
  explicit SharedFactorAnalysis(mlir::Operation *functionOrModule);

  /// The factors of all global functions of the module that the manager is of. Those of an only
  /// function are kept with this function, because policies ask for them there.
  static const mlir::FailureOr<FactorAnalysis> &get(mlir::AnalysisManager manager,
                                                    llvm::ArrayRef<mlir::func::FuncOp> functions);

  mlir::FailureOr<FactorAnalysis> factors;
};

/// Reads a sharding attribute in terms of a value's classes.
mlir::FailureOr<ValueSharding>
readSharding(dist::ShardingAttr attr, mlir::Value value, const FactorAnalysis &factors,
             dist::MeshAttr mesh, mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// Spells a value's sharding as an attribute.
dist::ShardingAttr writeSharding(const ValueSharding &sharding, mlir::Value value,
                                 const FactorAnalysis &factors, dist::MeshAttr mesh,
                                 mlir::FlatSymbolRefAttr symbol);

/// The functions of a module that are global programs. Policies annotate them, and the
/// partitioner rewrites them.
mlir::SmallVector<mlir::func::FuncOp> getGlobalFunctions(mlir::ModuleOp module);

/// The `dist.sharding` of a value, on its defining op or as an argument attribute. Null if it
/// has none.
dist::ShardingAttr getShardingAttr(mlir::Value value);
void setShardingAttr(mlir::Value value, dist::ShardingAttr attr);

/// Sets an attribute on each argument for which `attrs` has one.
void setArgumentAttrs(mlir::func::FuncOp func, llvm::StringRef name,
                      mlir::ArrayRef<mlir::Attribute> attrs);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACTORS_FACTORANALYSIS_H
