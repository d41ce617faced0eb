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

def Placement_PagesOpInterface : OpInterface<"PagesOpInterface"> {
  let cppNamespace = "::meshwright";
  let description = [{
    What an op does with caches in pages, or with attention over parts of the keys. `verifyPages` proves that the
    rows of a step are written before an op reads them, and that each part is merged once. The models are external
    (`lib/Placement/PagesModels.cpp`).
  }];
  let methods = [
    InterfaceMethod<"The operand of which the only result has other rows. None if there is none.",
                    "std::optional<unsigned>", "getWritten", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return std::nullopt; }]>,
    InterfaceMethod<"The operands that are caches. The op reads rows of its step, too, which the function writes "
                    "before.",
                    "::llvm::SmallVector<unsigned, 2>", "getCaches", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return {}; }]>,
    InterfaceMethod<"The number of each range of pages among those of all ranks: no two have one number. Null if "
                    "pages have no ranges.",
                    "::mlir::Value", "getRangeNumbers", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return {}; }]>,
    InterfaceMethod<"The dimension of the results that has one for each part of the keys. The second result is the "
                    "log-sum-exp of the first one. None if results are those of all keys.",
                    "std::optional<int64_t>", "getPartsDim", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return std::nullopt; }]>,
    InterfaceMethod<"The dimension of parts that the op merges. The first operands are those results. None if the "
                    "op merges none.",
                    "std::optional<int64_t>", "getMergedDim", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return std::nullopt; }]>
  ];
}

#endif
