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

def Nn_ScoresOpInterface : OpInterface<"ScoresOpInterface"> {
  let cppNamespace = "::meshwright::nn";
  let description = [{
    Computes the scores of attention, which are products of queries and keys under a mask,
    block by block. `Nn_ScoresOp` declares the operands and attributes, so the mask, the
    factors of a rule, the bounds of padding and the kernels' handling of scores are written
    once. The operands of the interface come first, in this order.
  }];
  let methods = [
    InterfaceMethod<"[batch, q_heads, q_len, d].", "::mlir::Value", "getQuery">,
    InterfaceMethod<"[batch, kv_heads, kv_len, d].", "::mlir::Value", "getKey">,
    InterfaceMethod<"[batch, kv_heads, kv_len, dv].", "::mlir::Value", "getValue">,
    InterfaceMethod<"True where a key may be seen. Null if there is none.", "::mlir::Value",
                    "getKeyPadding">,
    InterfaceMethod<"Added to the scores. Null if there is none.", "::mlir::Value", "getBias">,
    InterfaceMethod<"Null if there are none.", "::mlir::Value", "getQPositions">,
    InterfaceMethod<"Null if there are none.", "::mlir::Value", "getKvPositions">,
    InterfaceMethod<"Null if there are none.", "::mlir::Value", "getKvLengths">,
    InterfaceMethod<"The factor of products.", "::llvm::APFloat", "getScale">,
    InterfaceMethod<"Whether a query sees no later key.", "bool", "getCausal">,
    InterfaceMethod<"Keys before a query that it sees, if bounded.", "std::optional<uint64_t>",
                    "getWindowLeft">,
    InterfaceMethod<"Keys behind a query that it sees, if bounded.", "std::optional<uint64_t>",
                    "getWindowRight">,
    InterfaceMethod<"The number of keys that are no padding, by index.",
                    "std::optional<uint64_t>", "getKvLength">,
    InterfaceMethod<"The bound of scores, if there is one.", "std::optional<::llvm::APFloat>",
                    "getSoftCap">,
    InterfaceMethod<"The first term of an index of a score, for each query [batch, q_heads, q_len]. "
                    "Null if no weight is dropped.", "::mlir::Value", "getDropRows">,
    InterfaceMethod<"The second term, for each key. Null if no weight is dropped.",
                    "::mlir::Value", "getDropKeys">,
    InterfaceMethod<"Null if no weight is dropped.", "::mlir::Value", "getSeed">,
    InterfaceMethod<"Null if no weight is dropped.", "::mlir::Value", "getStep">,
    InterfaceMethod<"The probability that a weight is dropped.", "std::optional<::llvm::APFloat>",
                    "getDropout">,
    InterfaceMethod<"The number of the op's random numbers.", "std::optional<uint64_t>", "getStream">
  ];
}

def Nn_RoutedOpInterface : OpInterface<"RoutedOpInterface"> {
  let cppNamespace = "::meshwright::nn";
  let description = [{
    Goes between tokens, experts and the rows of a routing. All its operands that are of a routing are of
    one, which `verifyRoutings` (lib/Placement) proves. Other ops treat rows one by one, and their types
    and factor rules tell which operands and results are rows.
  }];
  let methods = [
    InterfaceMethod<"The operands and results that are of the routing.",
                    "::meshwright::nn::RoutingUse", "getRoutingUse">
  ];
}

def Nn_CountedRowsOpInterface : OpInterface<"CountedRowsOpInterface"> {
  let cppNamespace = "::meshwright::nn";
  let description = [{
    Gives the rows of a routing in a tensor with room for more, or sums such rows. The rows that exist come first. Ops
    that treat rows one by one keep their number.
  }];
  let methods = [
    InterfaceMethod<"The offsets, of which the last one is the number of rows that exist: those of the op's first "
                    "result, or of its first operand if it sums rows. Null if the function does not have them.",
                    "::mlir::Value", "getOffsetsOfRows">,
    InterfaceMethod<"Whether the rows are those of the first result.", "bool", "givesRows", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return true; }]>
  ];
}

def Nn_DropoutOpInterface : OpInterface<"DropoutOpInterface"> {
  let cppNamespace = "::meshwright::nn";
  let description = [{
    Drops elements by random numbers: functions of a seed, the number of a step, the `stream` of the
    op, and the index of the element. An op that can drop elements may drop none.
  }];
  let methods = [
    InterfaceMethod<"The seed. Null if nothing is dropped.", "::mlir::Value", "getSeed">,
    InterfaceMethod<"The number of the step. Null if nothing is dropped.", "::mlir::Value", "getStep">,
    InterfaceMethod<"Makes the op drop nothing. It may be erased.", "void", "removeDropout">
  ];
}

#endif
