//===- PartitionInterfaces.td - how an op becomes local ------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_PARTITIONINTERFACES_TD
#define MESHWRIGHT_PASSES_PARTITION_PARTITIONINTERFACES_TD

include "mlir/IR/OpBase.td"

def Partition_LocalOpInterface : OpInterface<"LocalOpInterface"> {
  let cppNamespace = "::meshwright";
  let description = [{
    How a global op becomes local, where its factor rule does not say it. The models are external
    (`passes/partition/*Models.cpp`). An op without a model becomes its copy on local operands: the
    rule says which axes shard its factors, and the partitioner reshards the operands to them.
  }];
  let methods = [
    //===------------------------------------------------------------------===//
    // The whole op
    //===------------------------------------------------------------------===//

    InterfaceMethod<"Writes the local form of the op, and defines its results. Returns false for an "
                    "op that becomes local by its rule.",
                    "::mlir::FailureOr<bool>", "partition",
                    (ins "::meshwright::Partitioner &":$partitioner), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"The part of an op without operands that a rank holds, if it needs no other "
                    "part: a constant of the local type. Null if the op is made whole, and sliced.",
                    "::mlir::Value", "generate",
                    (ins "::mlir::OpBuilder &":$builder, "::mlir::RankedTensorType":$type),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return {}; }]>,
    InterfaceMethod<"Returns true if an op without operands makes elements that are equal along a "
                    "dimension of its result.",
                    "bool", "hasEqualElements", (ins "unsigned":$dim), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,

    //===------------------------------------------------------------------===//
    // Parts of values
    //===------------------------------------------------------------------===//

    InterfaceMethod<"How parts combine of which the op makes parts of its result: a sum of parts of "
                    "sums, or the larger one of parts of maxima. None for most ops.",
                    "std::optional<::meshwright::dist::ReductionKind>", "getJoinedParts", (ins),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return std::nullopt; }]>,
    InterfaceMethod<"Writes the op on such parts, and defines its result. Returns false if no "
                    "operand is parts.",
                    "::mlir::FailureOr<bool>", "joinParts",
                    (ins "::meshwright::Partitioner &":$partitioner), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"Returns true if the op is cheap and linear in an operand, so that it may stand "
                    "between a partial sum and the sum that takes it.",
                    "bool", "passesPart", (ins "unsigned":$operand), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"Returns true if it is best to pass a part also where the result is reduced at once: ranks "
                    "keep fewer of its rows than of the operand's.",
                    "bool", "passesAtOnce", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"Returns true if such an op may overflow on one part of a sum where it does not "
                    "on the sum.",
                    "bool", "mayOverflow", (ins "unsigned":$operand), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,

    InterfaceMethod<"Returns true if the local form of the op reduces parts of a sum itself.", "bool",
                    "reducesParts", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,

    //===------------------------------------------------------------------===//
    // The copy on local operands
    //===------------------------------------------------------------------===//

    InterfaceMethod<"Returns true if the op may compute over axes that shard a class of a factor of "
                    "its rule.",
                    "bool", "mayShard",
                    (ins "const ::meshwright::Partitioner &":$partitioner, "int":$factor,
                         "size_t":$cls),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return true; }]>,
    InterfaceMethod<"Overwrites padding that the op, or its only user, would count.",
                    "::mlir::LogicalResult", "maskOperands",
                    (ins "::meshwright::Partitioner &":$partitioner,
                         "const ::meshwright::Assignment &":$assignment,
                         "::mlir::MutableArrayRef<::mlir::Value>":$operands),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return ::mlir::success(); }]>,
    InterfaceMethod<"Appends operands that the local op needs to know which part of a value it has. "
                    "`types` are those of its results.",
                    "void", "addOperands",
                    (ins "::meshwright::Partitioner &":$partitioner,
                         "const ::meshwright::Assignment &":$assignment,
                         "::mlir::ArrayRef<::mlir::Type>":$types,
                         "::mlir::SmallVectorImpl<::mlir::Value> &":$operands),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return; }]>,
    InterfaceMethod<"Changes attributes of the local op that count elements of its operands.",
                    "void", "fitAttributes", (ins "::mlir::Operation *":$local), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return; }]>,
    InterfaceMethod<"Changes attributes of the local op that state facts of the whole values.",
                    "void", "fitFacts",
                    (ins "::meshwright::Partitioner &":$partitioner,
                         "const ::meshwright::Assignment &":$assignment,
                         "::mlir::Operation *":$local),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return; }]>,
    InterfaceMethod<"Of a local op: returns true if its types do not show which dimension of its "
                    "result is sharded. It then states the dimensions that have one element on a "
                    "rank.",
                    "bool", "hidesDims", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>
  ];
}

#endif
