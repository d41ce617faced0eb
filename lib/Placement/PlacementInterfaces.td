//===- PlacementInterfaces.td - how layouts pass an op -------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_PLACEMENTINTERFACES_TD
#define MESHWRIGHT_LIB_PLACEMENT_PLACEMENTINTERFACES_TD

include "mlir/IR/OpBase.td"

def Placement_LayoutOpInterface : OpInterface<"LayoutOpInterface"> {
  let cppNamespace = "::meshwright";
  let description = [{
    How layouts pass an op, where its factor rule does not say it. The models are external
    (`lib/Placement/*Models.cpp`). An op without a model follows its rule, and reads no part of
    attention.
  }];
  let methods = [
    InterfaceMethod<"Derives the layouts of the op's results, as `meshwright::transfer` does.",
                    "::mlir::FailureOr<::meshwright::ResultLayouts>", "transfer",
                    (ins "const ::meshwright::TransferContext &":$context,
                         "::mlir::SmallVectorImpl<::meshwright::dist::Layout> *":$alternatives),
                    /*methodBody=*/"", /*defaultImplementation=*/[{
      return ::meshwright::layout_transfer::transferByRule(context);
    }]>,
    InterfaceMethod<"Returns true if a result may have several candidate layouts. The op's rule "
                    "then does not tell which candidates of operands fit.",
                    "bool", "hasCandidates", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"Returns true if the op may read blocks (Layout::isBlockwise) as an operand, "
                    "although blocks of operands do not give blocks of its result.",
                    "bool", "takesBlocks", (ins "unsigned":$operand), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"Returns true if the op may read parts of attention that cover these keys. "
                    "`transfer` then checks how they join.",
                    "bool", "joinsParts", (ins "const ::meshwright::dist::KeyCover &":$cover),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"Returns true if a permute may have left an operand out on some ranks. "
                    "`transfer` then checks that these ranks do not read it.",
                    "bool", "mayMiss", (ins "unsigned":$operand), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>
  ];
}

#endif
