//===- Weights.h - which values are weights ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A weight is a parameter of the program or the state that holds a trained one, in its stored form
// or in one that readers use: seen otherwise, cast, cut, or gathered from other ranks. A chain of ops
// leads from the stored form to the used one, through launches and waits too. This is the one place
// that answers whether a value is a weight, and of what.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_WEIGHTS_WEIGHTS_H
#define MESHWRIGHT_LIB_WEIGHTS_WEIGHTS_H

#include "meshwright/dialects/Nn/Nn.h"

#include "llvm/ADT/SmallVector.h"

#include <optional>

namespace meshwright {

/// A weight, by the parameter that it is a form of.
struct Weight {
  /// The stored form: an argument of the function.
  mlir::BlockArgument stored;
  /// The name of the parameter or of the state.
  mlir::StringAttr name;
  /// Where the argument begins in the stored tensor of this name, if it is a part of one.
  mlir::DenseI64ArrayAttr offsets;
  /// The ops that lead from the stored form to the value, in their order. Each one keeps weights
  /// (`dist::KeepsWeight`).
  llvm::SmallVector<mlir::Operation *, 2> links;
  /// The value has all elements of the stored tensor, though perhaps not on this rank.
  bool isWhole = true;
  /// The stored form is a state, to which entries may give other values.
  bool isState = false;

  /// The name, and other names of the parameter in the module that it comes from.
  llvm::SmallVector<mlir::StringAttr, 1> getNames() const;
  /// Returns true if the value is the stored form.
  bool isStored() const { return links.empty(); }
};

/// The weight that a value is. Nothing for a value that is computed otherwise, for an input, and for
/// a state that is no trained parameter.
std::optional<Weight> getWeight(mlir::Value value);

/// Finds the weights that many values are: it reads the states of the program once.
class WeightFinder {
public:
  /// `from` is the module or an op in it.
  explicit WeightFinder(mlir::Operation *from) : states(nn::getStates(from)) {}
  /// As `getWeight`.
  std::optional<Weight> find(mlir::Value value) const;

private:
  llvm::DenseMap<mlir::StringAttr, nn::StateOp> states;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_WEIGHTS_WEIGHTS_H
