//===- DistInterfaces.td - what ops say of themselves -------*- tablegen -*-===//
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
    States how an op shards: a factor rule ties dimensions of operands and results,
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
    How an op maps the contents of its operands to that of its results, and the content that it
    needs padding to have where it reads it. `padding::Operands` has the contents of the
    operands in one region of one result: its true elements, the tail of one factor, or
    corners where tails of two factors meet. Each result has bounds of its own. An op with
    several results asks for the number of the result by `getResult`.
  }];
  let methods = [
    InterfaceMethod<"A bound on the elements of the result in the region.",
                    "::meshwright::padding::Padding", "getResultPadding",
                    (ins "const ::meshwright::padding::Operands &":$in)>,
    InterfaceMethod<"The content that the op needs padding to have in dimensions that it contracts "
                    "or reads whole; none if any will do, or if more than the content decides.",
                    "std::optional<::meshwright::padding::Need>", "getPaddingNeed", (ins),
                    /*methodBody=*/"", /*defaultImplementation=*/[{ return std::nullopt; }]>,
    InterfaceMethod<"Returns true if the op sums more than products of two operands, and states by "
                    "`getSummedNeed` which padding adds zero.",
                    "bool", "statesSummedNeeds", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<[{
      A bound that the elements of an operand need to have in the padding of a factor that the op
      contracts. None if any will do.
    }], "std::optional<::meshwright::padding::Padding>", "getSummedNeed",
        (ins "unsigned":$operand, "unsigned":$factor), /*methodBody=*/"",
        /*defaultImplementation=*/[{ return std::nullopt; }]>
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
    Takes, replaces or sums elements of a table by index along one dimension of it.
  }];
  let methods = [
    InterfaceMethod<"The number of the operand that is indexed. None if the first result is the "
                    "table.",
                    "std::optional<unsigned>", "getTableOperand">,
    InterfaceMethod<"The number of the operand of indices.", "unsigned", "getIndexOperand">,
    InterfaceMethod<"The dimension of the table that the indices count along.", "int64_t",
                    "getTableDim">,
    InterfaceMethod<"Returns true if the op can have one more operand: the number of the first row "
                    "of the local table in the whole table. Rows of other ranks are left out then.",
                    "bool", "takesOffset", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>,
    InterfaceMethod<"The number of that operand, if the op has it.",
                    "std::optional<unsigned>", "getOffsetOperand", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return std::nullopt; }]>,
    InterfaceMethod<"Returns true if index -1 names no row. Padding of the indices must be -1 then.",
                    "bool", "skipsMinusOne", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>
  ];
  let extraClassDeclaration = [{
    ::mlir::Value getTable() {
      std::optional<unsigned> operand = getTableOperand();
      return operand ? (*this)->getOperand(*operand) : ::mlir::Value((*this)->getResult(0));
    }
    /// Null if the op has none.
    ::mlir::Value getTableOffset() {
      std::optional<unsigned> operand = getOffsetOperand();
      return operand ? (*this)->getOperand(*operand) : ::mlir::Value();
    }
  }];
}

def Dist_ExpandOpInterface : OpInterface<"ExpandOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    Reads a dimension whole, and can be computed by other ops from maxima and sums over this
    dimension. Where the dimension is sharded, the partitioner replaces the op by these
    ops, and only the maxima and sums are communicated.
  }];
  let methods = [
    InterfaceMethod<[{
      Writes ops that compute the result at the builder's insertion point. They read the
      expanded dimensions by elementwise ops and by reductions of kind `max` and `sum` alone.
      Null if the op has no such form.
    }], "::mlir::Value", "expand", (ins "::mlir::OpBuilder &":$builder)>,
    InterfaceMethod<"The dimensions of the first operand that the op reads whole.",
                    "::llvm::SmallVector<int64_t, 2>", "getExpandedDims">,
    InterfaceMethod<"The number of maxima and sums that the expansion takes of a row.",
                    "int64_t", "getNumStatistics">,
    InterfaceMethod<"Returns true if no target has a kernel for the op, so that the schedule "
                    "expands it where the partitioner did not.",
                    "bool", "needsExpansion", (ins), /*methodBody=*/"",
                    /*defaultImplementation=*/[{ return false; }]>
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

def Dist_MemoryOpInterface : OpInterface<"MemoryOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    Declares memory of a module that outlives a call. Its `dist.sharding` is the layout of
    the memory on the ranks.
  }];
  let methods = [
    InterfaceMethod<"The global type of the memory.", "::mlir::RankedTensorType",
                    "getMemoryType">
  ];
}

def Dist_CollectiveOpInterface : OpInterface<"CollectiveOpInterface"> {
  let cppNamespace = "::meshwright::dist";
  let description = [{
    An op that takes local tensors from one layout to another. Result i is made of
    operand i. `Dist_CollectiveOp` implements all of it from its template arguments.
    A collective that has a factor rule (`nn.send_rows`, dialects/Nn/MovedRows.h) has operands and
    results as its rule says, and verifies itself.

    A collective without a reduction moves rows and computes nothing. It folds to its
    operand where another one made that operand in the opposite way: over the same axes,
    with lost and gained dimensions, layouts and sources of chunks swapped. Two collectives
    with equal attributes and operands are one, which MLIR's CSE finds.

    Verified for every collective:
    - the function names a mesh, which has the axes; no axis occurs twice;
    - there are as many results as operands, of equal rank and element type;
    - partial values are no codes (f8E4M3FN, i8, ...), which programs only store and move;
    - per-operand attributes that list dimensions have one entry for each operand, in
      range;
    - a dimension that loses axes grows by the size of the group, one that gains them
      shrinks by it; all others keep their size.
  }];
  let methods = [
    StaticInterfaceMethod<"The kind of the collective.",
                          "::meshwright::dist::CollectiveKind", "getKind">,
    StaticInterfaceMethod<[{
      Returns true if ranks exchange data, which takes a launch. The other collectives
      work on the rank's own data.
    }], "bool", "communicates">,
    StaticInterfaceMethod<[{
      Returns true if a rank may end up with another rank's chunk, as it is. The other
      collectives join or cut chunks where they are.
    }], "bool", "movesChunks">,
    StaticInterfaceMethod<[{
      Returns true if the dimension that gains axes is padded with zeros where the axes
      do not divide it.
    }], "bool", "padsChunks">,
    StaticInterfaceMethod<[{
      Returns true if ranks exchange the true rows of groups alone. Operands are then rows and the
      numbers of true rows of the groups, in turns. The numbers stay as they are.
    }], "bool", "countsRows">,
    StaticInterfaceMethod<[{
      The names of the attributes that have one entry for each operand. All other
      attributes hold for the whole launch.
    }], "::llvm::ArrayRef<::llvm::StringRef>", "getPerOperandAttributes">,
    InterfaceMethod<[{
      The axes along which the ranks of a group differ, in the order of their chunks.
      Null for a collective that states whole layouts (`getShardings`).
    }], "::mlir::ArrayAttr", "getAxes", (ins), "", [{ return nullptr; }]>,
    InterfaceMethod<"The dimension of operand `i` that loses the axes, if one does.",
                    "std::optional<int64_t>", "getLostDim", (ins "unsigned":$i)>,
    InterfaceMethod<"The dimension of operand `i` that gains the axes, if one does.",
                    "std::optional<int64_t>", "getGainedDim", (ins "unsigned":$i)>,
    InterfaceMethod<"How partial values combine, if they do.",
                    "std::optional<::meshwright::dist::ReductionKind>", "getReduction", (ins), "",
                    [{ return std::nullopt; }]>,
    InterfaceMethod<"The kind of value that it moves, which with its axes decides its stream.",
                    "::meshwright::dist::CollectiveRole", "getRole", (ins), "",
                    [{ return ::meshwright::dist::CollectiveRole::Data; }]>,
    InterfaceMethod<[{
      The layouts of operand `i` and of result `i`, if the op states them instead of axes
      and dimensions.
    }], "std::optional<std::pair<::meshwright::dist::ShardingAttr, ::meshwright::dist::ShardingAttr>>",
        "getShardings", (ins "unsigned":$i), "", [{ return std::nullopt; }]>,
    InterfaceMethod<[{
      For each of the `ranks` of a group, by coordinate, the coordinate whose chunk it ends
      up with, or -1 if it has none. Empty if each rank's chunk is in its place.
    }], "::llvm::SmallVector<int64_t>", "getChunkSources", (ins "int64_t":$ranks), "",
        [{ return {}; }]>,
    InterfaceMethod<"Changes the role, of an op that has one.", "void", "setRole",
                    (ins "::meshwright::dist::CollectiveRole":$role), "", [{ (void)role; }]>
  ];
  let extraClassDeclaration = [{
    /// The axes along which the ranks of a group differ: those that the op names, or all
    /// axes that its layouts use (all of the mesh where these are of other meshes). Two
    /// collectives have groups that share two or more ranks exactly where these overlap.
    ::meshwright::dist::AxisList getGroupAxes(::meshwright::dist::MeshAttr mesh);

    /// The attributes that hold for the whole launch. Collectives of one kind for which
    /// these are equal can share a launch.
    ::mlir::DictionaryAttr getSharedAttributes();
  }];
  let verify = [{ return ::meshwright::dist::detail::verifyCollective($_op); }];
}

#endif
