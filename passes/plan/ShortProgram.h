//===- ShortProgram.h - a program with fewer of its equal layers -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLAN_SHORTPROGRAM_H
#define MESHWRIGHT_PASSES_PLAN_SHORTPROGRAM_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <optional>

namespace meshwright {

/// Two programs that have the ends of a program and some of its equal layers. The time, the bytes and the
/// memory of the whole follow from theirs, as each layer adds the same.
struct ShortPrograms {
  mlir::OwningOpRef<mlir::ModuleOp> few, more;
  int64_t numFew = 0, numMore = 0, numAll = 0;

  /// A number of the whole, of those of the short programs.
  template <typename T> T extend(T few, T more) const {
    return T(double(more) + (double(more) - double(few)) / double(numMore - numFew) * double(numAll - numMore));
  }
};

/// Leaves out the layers in the middle of a global program, their weights, and the updates of these.
///
/// Layers are parts of a function's forward pass that follow each other: their ops are alike, use
/// values of the same layer and the one before, values that all layers use alike, and weights of their
/// own. Behind the layers, an op that uses a value of a layer that is left out is left out as well; of
/// one that adds a number of a layer to numbers of others, as a norm of all gradients does, these are
/// left.
///
/// The program of few layers has `end` of them at each end of the program, the one of more twice as many.
/// Returns nothing if the program has fewer equal layers in a row than 8 times `end`, or uses a layer's value in
/// another way.
std::optional<ShortPrograms> shortenProgram(mlir::ModuleOp program, int64_t end = 1);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLAN_SHORTPROGRAM_H
