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
  static unsigned getHashValue(const mlir::Operation *key) {
    auto *op = const_cast<mlir::Operation *>(key);
    llvm::hash_code hash =
        llvm::hash_combine(op->getName().getAsOpaquePointer(), op->hashProperties());
    for (mlir::Type type : op->getOperandTypes())
      hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
    for (mlir::Type type : op->getResultTypes())
      hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
    return hash;
  }
  static bool isEqual(const mlir::Operation *left, const mlir::Operation *right) {
    if (left == right)
      return true;
    for (const mlir::Operation *special : {getEmptyKey(), getTombstoneKey()})
      if (left == special || right == special)
        return false;
    auto *a = const_cast<mlir::Operation *>(left), *b = const_cast<mlir::Operation *>(right);
    return a->getName() == b->getName() && a->getOperandTypes() == b->getOperandTypes() &&
           a->getResultTypes() == b->getResultTypes() &&
           a->getName().compareOpProperties(a->getPropertiesStorage(), b->getPropertiesStorage());
  }
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_OPSIGNATURE_H
