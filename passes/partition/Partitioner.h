//===- Partitioner.h - from global to local ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_PARTITIONER_H
#define MESHWRIGHT_PASSES_PARTITION_PARTITIONER_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Placement/TransferMemo.h"
#include "meshwright/lib/Reshard/Reshard.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/partition/Models.h"

#include <deque>

namespace meshwright {

/// The padded sizes of classes, which all functions of a module share.
struct PaddedSizes {
  explicit PaddedSizes(int numClasses) : multiple(numClasses, 1) {}
  /// Every number of shards of a class divides its multiple, so that chunks nest.
  mlir::SmallVector<int64_t> multiple;
  /// Classes whose padding the decision log has.
  llvm::SmallDenseSet<int> reported;
};

/// Visits the axes of each class of each factor in the dimensions of a value. `cls` counts the
/// classes of one factor.
void forEachClass(
    const dist::FactorRule::ValueFactors &dims, const ValueSharding &sharding,
    const FactorAnalysis::OpFactors &opFactors,
    mlir::function_ref<void(int factor, size_t cls, const dist::AxisList &axes)> visit);

/// Returns true for cheap ops that are linear in an operand and may stand between a partial sum
/// and the sum that takes it. A constraint may not: it asks for a layout.
bool passesPartial(mlir::Operation *op, unsigned operand);

/// How parts combine of which the op makes parts of its result (see LocalOpInterface). None for most
/// ops.
std::optional<dist::ReductionKind> getJoinedParts(mlir::Operation *op);

/// Returns true for ops whose result is a partial sum if all operands are: sums, and ops that move
/// several values at once.
bool joinsPartials(mlir::Operation *op, const dist::FactorRule &rule);

/// Writes the SPMD program of one global function.
///
/// - Each global value has one target: the sharding that propagation gave it. The local value
///   has that sharding, or is a partial sum that is deferred to its only user.
/// - An op becomes local by its model (Models.h) or by its factor rule: `assign` chooses the axes
///   over which it computes. Operands are resharded to them, and results to their targets. A
///   partial sum is resharded once, to the layout that its only user asks for.
/// - Copies of a value in other shardings are made once.
/// - Padded sizes are the same for all values of a class of tied factors.
///
/// The first half of the class serves the models, too. Linear in the program: the resharder
/// remembers its plans.
class Partitioner {
public:
  Partitioner(mlir::func::FuncOp func, dist::MeshAttr mesh, mlir::FlatSymbolRefAttr symbol,
              const FactorAnalysis &factors)
      : func(func), mesh(mesh), symbol(symbol), factors(factors), resharder(mesh, symbol),
        builder(func.getContext()), memo(mesh, layouts) {}

  /// Reads the shardings of all values, and adds their numbers of shards to `sizes`. Comes
  /// first, for all functions of the module.
  mlir::LogicalResult prepare(PaddedSizes &sizes);
  /// Replaces the function's body and signature.
  mlir::LogicalResult run(PaddedSizes &sizes);

  /// A local value and its layout. `unreduced` is a part across ranks, or empty.
  struct Local {
    mlir::Value value;
    ValueSharding sharding;
    dist::Part unreduced;
  };

  /// The local form of a global value: a value in its target sharding, or a deferred partial sum
  /// with the values that are to be added after its reduction.
  struct LocalForm {
    /// The sharding that the program gives the value. Of arguments and constraints, the axes
    /// over which it declares the value unreduced. Of other values, those over which their only
    /// user reads them unreduced.
    ValueSharding target;
    dist::Part unreduced;
    Local local;
    bool isDeferred = false;
    /// The form before its reduction of a value that was deferred, for users that read it
    /// unreduced.
    std::unique_ptr<Local> partial;
    /// Global values that are to be added to a deferred sum.
    mlir::SmallVector<mlir::Value, 2> rest;
    /// Copies in other shardings.
    std::vector<std::pair<ValueSharding, mlir::Value>> copies;
  };

  /// Gives collectives a role as long as it lives.
  class RoleScope {
  public:
    RoleScope(Partitioner &partitioner, dist::CollectiveRole role)
        : partitioner(partitioner), before(std::exchange(partitioner.role, role)) {}
    ~RoleScope() { partitioner.role = before; }

  private:
    Partitioner &partitioner;
    dist::CollectiveRole before;
  };

  dist::MeshAttr getMesh() const { return mesh; }
  mlir::FlatSymbolRefAttr getSymbol() const { return symbol; }
  mlir::OpBuilder &getBuilder() { return builder; }
  const FactorAnalysis &getFactors() const { return factors; }
  /// The factor of a layout that a class with these axes is.
  dist::LayoutFactor getFactor(int cls, const dist::AxisList &axes) const {
    return factors.getFactor(cls, axes, padded[cls]);
  }
  /// Returns true if a class has padding where these axes shard it.
  bool isPadded(int cls, const dist::AxisList &axes) const {
    return factors.getRuntimeSize(cls) || (!axes.empty() && padded[cls] != factors.getSize(cls));
  }
  /// The number of true elements of a factor with a run-time size; null for another factor.
  mlir::Value getSize(const dist::LayoutFactor &factor);

  LocalForm &getForm(mlir::Value value) { return forms[formIndices.find(value)->second]; }
  const LocalForm &getForm(mlir::Value value) const {
    return forms[formIndices.find(value)->second];
  }
  mlir::RankedTensorType getLocalType(mlir::Value global, const ValueSharding &sharding) const;

  /// The layout of a global value in a sharding.
  dist::Layout getLayout(mlir::Value global, const ValueSharding &sharding,
                         const dist::Part &unreduced) const;
  dist::Layout getLayout(mlir::Value global, const ValueSharding &sharding) const {
    return getLayout(global, sharding, dist::Part());
  }

  /// Chooses the axes over which an op computes.
  Assignment assign(mlir::Operation *op);
  /// The sharding of a value of an op that computes over these axes.
  ValueSharding project(mlir::Value value, const dist::FactorRule::ValueFactors &dims,
                        const FactorAnalysis::OpFactors &opFactors,
                        const Assignment &assignment) const;
  /// The sharding of `value`, which broadcasts against `target`, that fits `sharding` of the
  /// target.
  ValueSharding projectBroadcast(mlir::Value value, mlir::Value target,
                                 const ValueSharding &sharding) const;
  dist::AxisList getContractedAxes(const dist::FactorRule &rule, const Assignment &assignment,
                                   unsigned result) const;
  /// How the parts of a result combine that an op leaves by contracting factors.
  static dist::ReductionKind getReduction(const dist::FactorRule &rule, unsigned result);

  /// The local form of a global value in a sharding.
  mlir::FailureOr<mlir::Value> use(mlir::Value value, const ValueSharding &sharding,
                                   mlir::Location loc);
  /// The local form of a global value in a sharding, or parts of it if it is a sum that may wait.
  mlir::FailureOr<Local> usePart(mlir::Value value, const ValueSharding &sharding,
                                 mlir::Location loc);
  /// A local form of a global value in another sharding. It stays a part over the axes of
  /// `unreduced`.
  mlir::FailureOr<mlir::Value> reshard(mlir::Value global, const Local &from,
                                       const ValueSharding &to, mlir::Location loc,
                                       const dist::Part &unreduced);
  /// Moves a local value that no global one stands for.
  mlir::FailureOr<mlir::Value> reshard(mlir::Value local, dist::Layout from, dist::Layout to,
                                       mlir::Location loc);
  /// States the local form of a global value, with values that are to be added to it if it is a
  /// partial sum.
  mlir::LogicalResult define(mlir::Value value, Local local,
                             mlir::SmallVector<mlir::Value, 2> rest = {});
  /// Writes an op that computes over these axes.
  mlir::LogicalResult partitionByRule(mlir::Operation *op, const Assignment &assignment);
  /// Writes a copy of the op on local operands.
  mlir::Operation *emit(mlir::Operation *op, mlir::ArrayRef<mlir::Value> operands,
                        mlir::ArrayRef<mlir::Type> types);
  /// The rows that have gone from tokens to experts of a routing.
  struct SentRows {
    /// The axes of the ranks.
    dist::AxisList axes;
    /// The local form of the choices, which go with rows that the experts of a rank share. Null if there are
    /// no such rows.
    mlir::Value choices;
    /// True if rows of each choice have gone.
    bool perChoice = false;
  };
  SentRows &getSentRows(mlir::Value choices, const dist::AxisList &axes);
  void widenPartial(Local &local, mlir::ArrayRef<dist::Axis> axes, mlir::Location loc);

  /// The layout of a local value with the content of its padding. Null, after an error, if the
  /// program so far is wrong.
  const dist::Layout *derive(mlir::Value local);
  /// Overwrites the padding of a dimension by a number.
  mlir::Value mask(mlir::Value local, const dist::Layout &layout, int dim, mlir::Location loc,
                   double number = 0);
  /// Zeroes padding that an op sums over `summed`, factors of its rule, and that has not the bounds
  /// which the op states. `getSharding` says how it reads an operand.
  mlir::LogicalResult maskSums(mlir::Operation *op, mlir::ArrayRef<int> summed,
                               llvm::function_ref<ValueSharding(unsigned)> getSharding,
                               mlir::MutableArrayRef<mlir::Value> operands);
  /// Overwrites padding that an op would read as indices.
  mlir::LogicalResult maskIndices(mlir::Operation *op, const Assignment &assignment,
                                  mlir::MutableArrayRef<mlir::Value> operands);

private:
  void addForm(mlir::Value value, LocalForm form) {
    formIndices.try_emplace(value, forms.size());
    forms.push_back(std::move(form));
  }

  mlir::LogicalResult readTargets();
  mlir::LogicalResult checkSizes();
  mlir::FailureOr<dist::Part>
  readUnreduced(dist::ShardingAttr attr, mlir::Type type,
                mlir::function_ref<mlir::InFlightDiagnostic()> emitError) const;
  void readDemands();
  void addShards(PaddedSizes &sizes);
  void choosePadding(PaddedSizes &sizes);
  dist::Layout getLayout(mlir::Value global, const Local &local) const {
    return getLayout(global, local.sharding, local.unreduced);
  }

  mlir::LogicalResult partition(mlir::Operation *op);
  /// Partitions an op. The ops that it becomes at the end of `local`, collectives included, belong to
  /// the backward pass if the op does.
  mlir::LogicalResult partitionInto(mlir::Operation *op, mlir::Block &local);
  mlir::FailureOr<mlir::Value> generate(mlir::Operation *op, const ValueSharding &sharding);
  mlir::FailureOr<bool> moveParts(mlir::Operation *op);
  /// Writes an op on partial values whose reduction can wait. Returns false for other ops.
  mlir::FailureOr<bool> passPartials(mlir::Operation *op);
  mlir::FailureOr<bool> passPartialThrough(mlir::Operation *op);
  /// Notes that an op on parts keeps them parts of a stated sum, if one of its operands is.
  void keepStated(mlir::Operation *op);
  /// Returns true if the op may overflow on one part of a stated sum where it does not on the sum.
  bool mayOverflow(mlir::Operation *op, unsigned operand) const;

  /// True if the op contracts a factor: its result may be a partial value.
  static bool contracts(const dist::FactorRule &rule);
  std::optional<dist::AxisList> getTokenAxes(mlir::Operation *op, int factor, size_t cls) const;
  bool mayShard(mlir::Operation *op, int factor, size_t cls) const;
  Assignment assignInOrder(mlir::Operation *op);
  class AssignmentSearch;

  mlir::LogicalResult deriveOp(mlir::Operation *op);
  /// Zeroes padding that the local op would sum or read as indices, and what its model names.
  mlir::LogicalResult maskOperands(mlir::Operation *op, const Assignment &assignment,
                                   mlir::MutableArrayRef<mlir::Value> operands);
  /// Zeroes padding that a contraction over a padded factor would add.
  mlir::LogicalResult maskContraction(mlir::Operation *op, const Assignment &assignment,
                                      mlir::MutableArrayRef<mlir::Value> operands);
  /// Zeroes the padding of the new value of a state, which the next call reads.
  mlir::FailureOr<mlir::Value> maskState(mlir::Value local, const dist::Layout &layout,
                                         mlir::Location loc);
  mlir::Value getTruth(const dist::LayoutFactor &factor, mlir::Location loc);
  mlir::LogicalResult maskMaximum(mlir::Operation *op,
                                  mlir::MutableArrayRef<mlir::Value> operands);

  llvm::SmallBitVector getEqualFactors(mlir::Operation *op) const;
  /// Notes the dimensions along which the elements of a global op's results are equal.
  void noteEqualElements(mlir::Operation *op);
  /// Lets a local op state the layout of equal elements of which it depends on the number.
  void stateEqual(mlir::Operation *op, mlir::Operation *local, const Assignment &assignment);
  /// Lets the masks between two local values state the layout of equal elements of which a rank has
  /// one. A mask broadcasts along their dimension.
  void stateMasked(mlir::Value global, const ValueSharding &sharding, mlir::Value from,
                   mlir::Value to);
  /// The types of a local reshape, and of a broadcast to the type of its input, hide which dimensions
  /// of the result have one element on a rank. The op states their layouts.
  void stateSplit(mlir::Value global, mlir::Operation *local, const ValueSharding &sharding);
  /// Lets the ops behind `before`, which gather equal elements, state the layout that these have.
  void stateGathered(mlir::Value global, const Local &from, const ValueSharding &to,
                     mlir::Operation *before);

  /// Returns true if a partial sum may be reduced later, because its only user adds it to
  /// other values or asks for a layout.
  bool canWait(mlir::Value value, dist::ReductionKind reduction) const;
  /// Returns true if ops that pass partial sums on lead from a value to a use that reads the sum
  /// unreduced.
  bool isReadOpen(mlir::Value value) const;
  /// The axes over which a use reads its value unreduced. None for most uses.
  dist::Part getDemand(mlir::OpOperand &use) const;
  mlir::LogicalResult materialize(mlir::Value value);
  mlir::FailureOr<mlir::Value> use(mlir::Value value, const ValueSharding &sharding,
                                   mlir::Location loc, const dist::Part &unreduced);
  mlir::FailureOr<mlir::Value> useUnreduced(mlir::Value value, const ValueSharding &sharding,
                                            mlir::Location loc, const dist::Part &unreduced);
  mlir::FailureOr<mlir::Value> reshard(mlir::Value global, const Local &from,
                                       const ValueSharding &to, mlir::Location loc) {
    return reshard(global, from, to, loc, dist::Part());
  }
  bool changesOrder(mlir::Value global, const ValueSharding &from, const ValueSharding &to) const;
  mlir::FailureOr<mlir::Value> reshardByClasses(mlir::Value global, const Local &from,
                                               const ValueSharding &to, mlir::Location loc,
                                               const dist::Part &unreduced);

  mlir::func::FuncOp func;
  dist::MeshAttr mesh;
  mlir::FlatSymbolRefAttr symbol;
  const FactorAnalysis &factors;
  Resharder resharder;
  mlir::OpBuilder builder;
  /// The role of collectives that are written now.
  dist::CollectiveRole role = dist::CollectiveRole::Data;
  /// One for each global value.
  std::deque<LocalForm> forms;
  ProgramMap<mlir::Value, unsigned> formIndices;
  /// Candidate layouts of local values, up to the op `derivedTo`. Derived only if the program
  /// has padding that matters.
  ProgramMap<mlir::Value, Candidates> derived;
  std::deque<dist::Layout> layouts;
  TransferMemo memo;
  mlir::Operation *derivedTo = nullptr;
  /// The intended layouts of local reshapes and reshards, in a program with padding.
  ProgramMap<mlir::Value, dist::Layout> known;
  /// The layout that the signature promises of a result.
  struct ResultTarget {
    ValueSharding sharding;
    dist::Part unreduced;
  };
  mlir::SmallVector<ResultTarget, 2> resultTargets;
  /// The keys are the choices of routings.
  ProgramMap<mlir::Value, std::deque<SentRows>> sentRows;
  /// The results of `getTruth`.
  std::vector<std::pair<dist::LayoutFactor, mlir::Value>> truths;
  /// Global values that are parts of a sum as the program states, and not because an op left a sum
  /// open. The parts may be any.
  ProgramSet<mlir::Value> statedParts;
  /// The dimensions of global values along which all elements are equal; none for most values.
  ProgramMap<mlir::Value, llvm::SmallBitVector> equalDims;
  /// The padded size of each class where it is sharded.
  mlir::SmallVector<int64_t> padded;
  /// True if any of them is padded. If none is, layouts of local values are not derived.
  bool hasPadding = false;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PARTITION_PARTITIONER_H
