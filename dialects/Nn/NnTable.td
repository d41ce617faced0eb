//===- NnTable.td - all ops, for the importer's table -------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

include "meshwright/dialects/Nn/NnOps.td"
include "meshwright/dialects/Nn/NnDerivativeOps.td"
include "meshwright/dialects/Nn/NnRandomOps.td"
