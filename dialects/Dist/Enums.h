//===- Enums.h - the enums of the dist dialect ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_ENUMS_H
#define MESHWRIGHT_DIALECTS_DIST_ENUMS_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/DenseMapInfo.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

#include <optional>
#include <string>

#include "meshwright/dialects/Dist/DistEnums.h.inc"

#endif // MESHWRIGHT_DIALECTS_DIST_ENUMS_H
