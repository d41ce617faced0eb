//===- DistInterfaces.td - how an op shards -----------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_DISTINTERFACES_TD
#define MESHWRIGHT_DIALECTS_DIST_DISTINTERFACES_TD

include "mlir/IR/OpBase.td"

def Dist_ShardingRuleOpInterface : OpInterface<"ShardingRuleOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    How an op shards: a factor rule ties dimensions of operands and results,
    as in an einsum. The same rule serves global and local types.
  }];
  let methods = [
    InterfaceMethod<"The factor rule for the op's present types.",
                    "::meshwright::dist::FactorRule", "getFactorRule">
  ];
}

#endif
