//===- SharedValues.h - values that all functions share ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACTORS_SHAREDVALUES_H
#define MESHWRIGHT_LIB_FACTORS_SHAREDVALUES_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/SignatureAttrs.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// A parameter or a state of a module, which its functions share. All of its places have one
/// global type and one layout.
struct SharedValue {
  mlir::StringAttr name;
  /// Its declaration, if it is a state.
  nn::StateOp state;
  /// Its argument in each function that reads it, in the order of the functions.
  mlir::SmallVector<mlir::BlockArgument, 1> arguments;
  /// The operands of returns that give a state its new value.
  mlir::SmallVector<mlir::OpOperand *, 1> written;

  /// The first place of the value in the program. Not null.
  mlir::Value getFirst() const {
    return arguments.empty() ? written.front()->get() : mlir::Value(arguments.front());
  }
  /// "parameter 'w'", "state 'steps'".
  std::string describe() const;
};

/// The states of these functions, which are bound (see `bind-state`), and the parameters that
/// several of them read. Parts of one stored tensor are values of their own. Fails with an
/// error that names both places if two have different types.
mlir::FailureOr<std::vector<SharedValue>>
getSharedValues(mlir::ArrayRef<mlir::func::FuncOp> functions);

/// A sharding that a place of a value carries.
struct StatedSharding {
  mlir::Attribute attr;
  mlir::Location place;
};
/// The shardings of all places: of the `nn.state`, then of arguments, then of results.
mlir::SmallVector<StatedSharding> getStatedShardings(const SharedValue &value);

/// The sharding that the program states for the value, if it does. Fails with an error that names
/// both places if two places state different ones.
mlir::FailureOr<std::optional<StatedSharding>> getStatedSharding(const SharedValue &value);

/// States a sharding at all places of the value. `signatures` writes it to functions.
void setSharding(const SharedValue &value, mlir::Attribute attr, SignatureAttrs &signatures);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACTORS_SHAREDVALUES_H
