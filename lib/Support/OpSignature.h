//===- OpSignature.h - ops that compute the same of other values -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_OPSIGNATURE_H
#define MESHWRIGHT_LIB_SUPPORT_OPSIGNATURE_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMapInfo.h"
#include "llvm/ADT/Hashing.h"

namespace meshwright {

/// Makes ops equal, as keys of a DenseMap, that have the same name, properties,
/// operand types and result types. The layers of a model repeat a few signatures, so
/// an answer that depends on nothing else is computed once for each of them.
///
/// - The identity of the operands, discardable attributes (`nn.id`, `dist.sharding`)
///   and locations do not count.
/// - Keys have no regions, and must outlive the map.
struct OpSignature : llvm::DenseMapInfo<mlir::Operation *> {
  static unsigned getHashValue(mlir::Operation *op) {
    llvm::hash_code hash =
        llvm::hash_combine(op->getName().getAsOpaquePointer(), op->hashProperties());
    for (mlir::Type type : op->getOperandTypes())
      hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
    for (mlir::Type type : op->getResultTypes())
      hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
    return hash;
  }
  static bool isEqual(mlir::Operation *a, mlir::Operation *b) {
    if (a == b)
      return true;
    for (mlir::Operation *special : {getEmptyKey(), getTombstoneKey()})
      if (a == special || b == special)
        return false;
    return a->getName() == b->getName() && a->getOperandTypes() == b->getOperandTypes() &&
           a->getResultTypes() == b->getResultTypes() &&
           a->getName().compareOpProperties(a->getPropertiesStorage(), b->getPropertiesStorage());
  }
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_OPSIGNATURE_H
