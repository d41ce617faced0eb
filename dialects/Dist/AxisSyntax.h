//===- AxisSyntax.h - how attributes and ops spell an axis ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_AXISSYNTAX_H
#define MESHWRIGHT_DIALECTS_DIST_AXISSYNTAX_H

#include "meshwright/dialects/Dist/Dist.h"

#include "mlir/IR/OpImplementation.h"

namespace meshwright::dist {

/// axis-ref ::= string (`:` `(` integer `)` integer)?
mlir::FailureOr<AxisRefAttr> parseAxisRef(mlir::AsmParser &parser);
void printAxisRef(mlir::AsmPrinter &printer, AxisRefAttr axis);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_AXISSYNTAX_H
