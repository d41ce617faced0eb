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

    The rule of an elementwise op follows from its trait. An op that is linear in some
    operand, or not elementwise, defines its own.
  }];
  let methods = [
    InterfaceMethod<"The factor rule for the op's present types.",
                    "::meshwright::dist::FactorRule", "getFactorRule", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{
      static_assert(ConcreteOp::template hasTrait<::meshwright::dist::Elementwise>(),
                    "an op that is not elementwise defines its factor rule");
      return ::meshwright::dist::getElementwiseRule($_op);
    }]>,
    InterfaceMethod<"Returns true if dimension `dim` of operand `operand` may be of size 1 where "
                    "the dimension that it is tied to is not.",
                    "bool", "mayBroadcast", (ins "unsigned":$operand, "unsigned":$dim),
                    /*methodBody=*/"", /*defaultImplementation=*/[{
      return ConcreteOp::template hasTrait<::meshwright::dist::Elementwise>();
    }]>
  ];
}

def Dist_PaddingOpInterface : OpInterface<"PaddingOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    How an op maps the padding of its operands to that of its results, and the state
    that it needs padding to have where it reads it. `padding::Operands` has the states of the operands at the indices of one
    region of padding of the results.
  }];
  let methods = [
    InterfaceMethod<"The state of the tail of a dimension of the results.",
                    "::meshwright::padding::Padding", "getResultPadding",
                    (ins "const ::meshwright::padding::Operands &":$in)>,
    InterfaceMethod<"A bound on the corners of the results, where tails of several "
                    "dimensions meet.",
                    "::meshwright::padding::Padding", "getCornerPadding",
                    (ins "const ::meshwright::padding::Operands &":$in), /*methodBody=*/"",
                    /*defaultImplementation=*/[{
      if constexpr (ConcreteOp::template hasTrait<::meshwright::dist::Elementwise>() ||
                    ConcreteOp::template hasTrait<::meshwright::dist::Reindexes>())
        return $_op.getResultPadding(in);
      else
        return ::meshwright::padding::getFiniteCorner($_op, in);
    }]>,
    InterfaceMethod<"The state that the op needs padding to have in dimensions that it contracts "
                    "or reads whole; none if any will do, or if more than the state decides.",
                    "std::optional<::meshwright::padding::Need>", "getPaddingNeed", (ins),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return std::nullopt; }]>
  ];
}

def Dist_WorkOpInterface : OpInterface<"WorkOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    The arithmetic of an op on its present types. The cost model, the schedule and the
    traces count by it.
  }];
  let methods = [
    InterfaceMethod<"Additions, multiplications and the like. Unless the op states otherwise: "
                    "none for an op that moves or generates elements, else one for each element of "
                    "its largest operand or first result.",
                    "double", "getFlops", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{
      static_assert(!ConcreteOp::template hasTrait<::meshwright::dist::Product>(),
                    "a product states its flops");
      if constexpr (ConcreteOp::template hasTrait<::meshwright::dist::MovesOnly>() ||
                    ConcreteOp::template hasTrait<::meshwright::dist::Generates>())
        return 0;
      else
        return ::meshwright::dist::countElements($_op);
    }]>
  ];
}

def Dist_MatrixOpInterface : OpInterface<"MatrixOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    Rows of the result are combinations of the rows of a matrix: a product, or a lookup of
    rows, which is a product with rows of a one and zeros. The operands other than the
    matrix and the bias select or weigh its rows.
  }];
  let methods = [
    InterfaceMethod<"The number of the matrix operand: a weight in most programs.", "unsigned",
                    "getMatrixOperand", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return 1; }]>,
    InterfaceMethod<"The number of the operand that is added to every row, if there is one.",
                    "std::optional<unsigned>", "getBiasOperand", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return std::nullopt; }]>
  ];
}

def Dist_LookupOpInterface : OpInterface<"LookupOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    Takes elements of a table by index along one dimension of it.
  }];
  let methods = [
    InterfaceMethod<"The number of the operand that is indexed.", "unsigned", "getTableOperand">,
    InterfaceMethod<"The number of the operand of indices.", "unsigned", "getIndexOperand">,
    InterfaceMethod<"The dimension of the table that the indices count along.", "int64_t",
                    "getTableDim">
  ];
}

def Dist_LogSumExpOpInterface : OpInterface<"LogSumExpOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    Attention over some of the keys, which its log-sum-exp makes part of attention over
    more of them.
  }];
  let methods = [
    InterfaceMethod<"The result that holds the log-sum-exp of each query: minus infinity where it "
                    "sees no key. Null if the op has none.",
                    "::mlir::Value", "getLogSumExp">
  ];
}

#endif
