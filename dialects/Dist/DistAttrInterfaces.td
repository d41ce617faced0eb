//===- DistAttrInterfaces.td - what types of tensors say ----*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_DISTATTRINTERFACES_TD
#define MESHWRIGHT_DIALECTS_DIST_DISTATTRINTERFACES_TD

include "mlir/IR/OpBase.td"

def Dist_CompactAttrInterface : AttrInterface<"CompactAttrInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    The encoding of a tensor that stores fewer elements than its shape has.
  }];
  let methods = [
    InterfaceMethod<"The most elements that a tensor of this shape stores.", "int64_t",
                    "getCapacity", (ins "::llvm::ArrayRef<int64_t>":$shape)>,
    InterfaceMethod<"The elements that a tensor of this shape stores at balanced load, where it has "
                    "all of dimension 0.", "int64_t",
                    "getExpected", (ins "::llvm::ArrayRef<int64_t>":$shape)>
  ];
}

#endif
