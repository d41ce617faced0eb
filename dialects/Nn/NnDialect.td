//===- NnDialect.td - the nn dialect ------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNDIALECT_TD
#define MESHWRIGHT_DIALECTS_NN_NNDIALECT_TD

include "mlir/IR/OpBase.td"

def Nn_Dialect : Dialect {
  let name = "nn";
  let cppNamespace = "::meshwright::nn";
  let summary = "the operations of models";
  let description = [{
    The operations of transformers on ranked tensors of static shape. The same
    ops serve the global program and the local (SPMD) one.
  }];
  let hasConstantMaterializer = 1;
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
  let extraClassDeclaration = [{
    /// On an argument of the entry: the input's name.
    static constexpr llvm::StringLiteral kInputAttr = "nn.input";
    /// On an input: the number that each element has in a call that leaves the input out
    /// (a typed attribute of the element type).
    static constexpr llvm::StringLiteral kDefaultAttr = "nn.default";
    /// On an input: for each dimension the name of its run-time size (array of strings, "" for a
    /// dimension whose size is the type's). Elements behind that size are padding.
    static constexpr llvm::StringLiteral kSizesAttr = "nn.sizes";
    /// On an input of type tensor<i64>: it is the run-time size of this name, from 1 to the
    /// largest size that a dimension of the name has in the function (string).
    static constexpr llvm::StringLiteral kSizeAttr = "nn.size";
    /// On an argument of the entry: the parameter's key in the weights file.
    static constexpr llvm::StringLiteral kParameterAttr = "nn.parameter";
    /// On a parameter: its other names.
    static constexpr llvm::StringLiteral kAliasesAttr = "nn.aliases";
    /// On a parameter that is a part of a stored tensor: for each dimension of
    /// that tensor the first index (array<i64>); the sizes are the type's.
    static constexpr llvm::StringLiteral kParameterOffsetsAttr = "nn.parameter_offsets";
    /// On a parameter of float type: no entry is larger (f64). Infinity for a parameter with
    /// an entry that is not finite. Without it, `kParameterMagnitude`.
    static constexpr llvm::StringLiteral kMagnitudeAttr = "nn.magnitude";
    static constexpr double kParameterMagnitude = 1024;
    /// On a result of the entry: the output's name.
    static constexpr llvm::StringLiteral kOutputAttr = "nn.output";
    /// On an argument or a result of the entry: the state whose value before the call
    /// it is, or after it.
    static constexpr llvm::StringLiteral kStateAttr = "nn.state";
    /// On an op: the identity of its value, kept from import to the last pass
    /// (i64).
    static constexpr llvm::StringLiteral kIdAttr = "nn.id";
    /// On an op of a composed program: the model that the op comes from (string).
    static constexpr llvm::StringLiteral kStageAttr = "nn.stage";
    /// On an op of a backward pass, until `recompute` has run (unit).
    static constexpr llvm::StringLiteral kBackwardAttr = "nn.backward";
    /// On an op with an offset in a table (LookupOpInterface): the rows of the whole table,
    /// without padding (i64). An id at or above this number is in no part of the table,
    /// and is an error.
    static constexpr llvm::StringLiteral kTableRowsAttr = "nn.table_rows";
    /// On an nn.attention over the shorter of joined sequences (a prompt's tokens
    /// beside an image's): the keys are few and every rank has all of them (unit).
    static constexpr llvm::StringLiteral kWholeKeysAttr = "nn.whole_keys";
  }];
}

#endif
