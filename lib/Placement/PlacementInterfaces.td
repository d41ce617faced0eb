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
    (`lib/Placement/*Models.cpp`). An op without a model follows its rule, and takes the parts that
    its rule and its traits say.
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
    InterfaceMethod<"The operand that is the number of the rank's first expert, which `transfer` checks "
                    "to be a coordinate. Null if there is none.",
                    "::mlir::Value", "getCheckedOffset", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return {}; }]>,
    InterfaceMethod<"Returns true if the op may read a value that is this part of a whole as an "
                    "operand. `transfer` then checks how the parts of its operands combine.",
                    "bool", "takesPart",
                    (ins "const ::meshwright::TransferContext &":$context, "unsigned":$operand,
                         "const ::meshwright::dist::Part &":$part), /*methodBody=*/"",
                    /*defaultImplementation=*/[{
      return ::meshwright::layout_transfer::takesPartByRule(context, operand, part);
    }]>
  ];
}

#endif
