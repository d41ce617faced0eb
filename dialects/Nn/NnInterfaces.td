//===- NnInterfaces.td - what ops of models can do ----------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNINTERFACES_TD
#define MESHWRIGHT_DIALECTS_NN_NNINTERFACES_TD

include "mlir/IR/OpBase.td"

def Nn_DifferentiableOpInterface : OpInterface<"DifferentiableOpInterface"> {
  let cppNamespace = "::meshwright::nn";
  let description = [{
    How an op differentiates. The models of the ops of this dialect are in
    `passes/differentiate`.
  }];
  let methods = [
    InterfaceMethod<"Returns true if the results do not depend on floats, or are none: a loss does "
                    "not depend on operands through the op.",
                    "bool", "isConstant", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<[{
      Makes the op return all that its product reads. Returns the op, or the one that replaces it
      in all uses: the results of the first one come first.
    }], "::mlir::Operation *", "prepare", (ins), /*methodBody=*/"",
    /*defaultImplementation=*/[{ return $_op; }]>,
    InterfaceMethod<[{
      Writes the vector-Jacobian product of the op, on global types: ops that compute the
      cotangents of operands from those of the results. Fails, after an error that names the
      op, if it has none.
    }], "::llvm::LogicalResult", "buildVjp", (ins "::meshwright::nn::Vjp &":$vjp)>
  ];
}

#endif
