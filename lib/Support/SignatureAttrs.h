//===- SignatureAttrs.h - attributes of arguments and results ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_SIGNATUREATTRS_H
#define MESHWRIGHT_LIB_SUPPORT_SIGNATUREATTRS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"

namespace meshwright {

/// Changes attributes of the arguments and results of functions, all of a function at once.
///
/// A function holds them as one list. MLIR builds this list anew for each change, and keeps each list
/// as long as the context lives. A step has thousands of arguments, so single changes take time and
/// memory that grow with the square of their number.
///
/// Until `apply`, or the end of life, functions have the old attributes. They may not gain or lose
/// arguments and results meanwhile.
class SignatureAttrs {
public:
  SignatureAttrs() = default;
  SignatureAttrs(const SignatureAttrs &) = delete;
  SignatureAttrs &operator=(const SignatureAttrs &) = delete;
  ~SignatureAttrs() { apply(); }

  /// Null removes the attribute.
  void setArgument(mlir::func::FuncOp func, unsigned i, llvm::StringRef name, mlir::Attribute attr);
  void setResult(mlir::func::FuncOp func, unsigned i, llvm::StringRef name, mlir::Attribute attr);

  /// Writes the changes.
  void apply();

private:
  using Changed = llvm::DenseMap<unsigned, mlir::NamedAttrList>;
  struct Changes {
    Changed arguments, results;
  };
  llvm::MapVector<mlir::Operation *, Changes> changes;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_SIGNATUREATTRS_H
