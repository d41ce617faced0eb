//===- NnBase.td - types, enums and classes of ops ----------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNBASE_TD
#define MESHWRIGHT_DIALECTS_NN_NNBASE_TD

include "meshwright/dialects/Nn/NnDialect.td"
include "meshwright/dialects/Dist/DistInterfaces.td"
include "meshwright/dialects/Dist/OpTraits.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

//===----------------------------------------------------------------------===//
// Types and enums
//===----------------------------------------------------------------------===//

def Nn_Float : AnyTypeOf<[F32, BF16, F16, F64]>;
def Nn_Element : AnyTypeOf<[F32, BF16, F16, F64, I64, I32, I1]>;
/// Elements that are stored and moved. Nothing computes on them.
def Nn_Code : AnyTypeOf<[I8, F8E4M3FN, F8E5M2, F8E8M0FNU, F4E2M1FN]>;
def Nn_Tensor : StaticShapeTensorOf<[Nn_Element]>;
/// Operands and results of ops that only move elements.
def Nn_MovedTensor : StaticShapeTensorOf<[Nn_Element, Nn_Code]>;
def Nn_FloatTensor : StaticShapeTensorOf<[Nn_Float]>;
def Nn_NumberTensor : StaticShapeTensorOf<[Nn_Float, I64, I32]>;
def Nn_IntTensor : StaticShapeTensorOf<[I64, I32]>;
def Nn_I64Tensor : StaticShapeTensorOf<[I64]>;
def Nn_BoolTensor : StaticShapeTensorOf<[I1]>;
def Nn_BitTensor : StaticShapeTensorOf<[I64, I32, I1]>;

class Nn_Enum<string name, string summary, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::meshwright::nn";
  let genSpecializedAttr = 0;
}
def Nn_CompareKind : Nn_Enum<"CompareKind", "a comparison", [
    I32EnumAttrCase<"Eq", 0, "eq">, I32EnumAttrCase<"Ne", 1, "ne">,
    I32EnumAttrCase<"Lt", 2, "lt">, I32EnumAttrCase<"Le", 3, "le">,
    I32EnumAttrCase<"Gt", 4, "gt">, I32EnumAttrCase<"Ge", 5, "ge">]>;
def Nn_CompareKindAttr : EnumAttr<Nn_Dialect, Nn_CompareKind, "compare_kind"> {
  let assemblyFormat = "$value";
}
def Nn_ReduceKind : Nn_Enum<"ReduceKind", "a reduction", [
    I32EnumAttrCase<"Sum", 0, "sum">, I32EnumAttrCase<"Mean", 1, "mean">,
    I32EnumAttrCase<"Max", 2, "max">, I32EnumAttrCase<"Min", 3, "min">]>;
def Nn_ReduceKindAttr : EnumAttr<Nn_Dialect, Nn_ReduceKind, "reduce_kind"> {
  let assemblyFormat = "$value";
}

/// Verifies that an op with routed operands treats their rows one by one (Routed.h).
def Nn_KeepsRows : NativeOpTrait<"KeepsRows"> {
  let cppNamespace = "::meshwright::nn";
}

/// An op. Its traits include one of the kinds of OpTraits.td. `own` lists the methods of
/// its interfaces that it defines instead of their defaults.
class Nn_AnyOp<string mnemonic, list<Trait> traits, list<string> own = ["getFactorRule"]>
    : Op<Nn_Dialect, mnemonic, !listconcat([
        DeclareOpInterfaceMethods<Dist_ShardingRuleOpInterface, own>,
        DeclareOpInterfaceMethods<Dist_PaddingOpInterface, own>,
        DeclareOpInterfaceMethods<Dist_WorkOpInterface, own>, Nn_KeepsRows], traits)>;

/// An op without side effects.
class Nn_Op<string mnemonic, list<Trait> traits, list<string> own = ["getFactorRule"]>
    : Nn_AnyOp<mnemonic, !listconcat([Pure], traits), own>;

/// Its factor rule follows from the trait. An op that is linear in an operand says so
/// in a rule of its own.
class Nn_ElementwiseOp<string mnemonic, list<Trait> traits = [], list<string> own = []>
    : Nn_Op<mnemonic, !listconcat([Dist_Elementwise], traits), own>;

#endif
