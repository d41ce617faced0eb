//===- OpTraits.td - properties of many ops -----------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// OpTraits.h says what each trait promises.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_OPTRAITS_TD
#define MESHWRIGHT_DIALECTS_DIST_OPTRAITS_TD

include "mlir/IR/OpBase.td"

class Dist_Trait<string name> : NativeOpTrait<name> {
  let cppNamespace = "::meshwright::dist";
}

// Kinds: every op has exactly one of these, or communicates.
def Dist_Elementwise : Dist_Trait<"Elementwise">;
def Dist_MovesOnly : Dist_Trait<"MovesOnly">;
def Dist_Generates : Dist_Trait<"Generates">;
def Dist_Combines : Dist_Trait<"Combines">;
def Dist_Structural : Dist_Trait<"Structural">;

// Ops that move elements.
def Dist_ReindexesTrait : Dist_Trait<"Reindexes">;
def Dist_Reindexes : TraitList<[Dist_MovesOnly, Dist_ReindexesTrait]>;
def Dist_ViewTrait : Dist_Trait<"View">;
def Dist_View : TraitList<[Dist_Reindexes, Dist_ViewTrait]>;
def Dist_TakesPart : Dist_Trait<"TakesPart">;
def Dist_KeepsWeight : Dist_Trait<"KeepsWeight">;
def Dist_ReplacesRows : Dist_Trait<"ReplacesRows">;

// Ops that treat padding apart from true elements.
def Dist_TouchesPadding : Dist_Trait<"TouchesPadding">;

// Ops that compute.
def Dist_Cheap : Dist_Trait<"Cheap">;
def Dist_Product : Dist_Trait<"Product">;
def Dist_RowNorm : Dist_Trait<"RowNorm">;
def Dist_CountsElements : Dist_Trait<"CountsElements">;

// Ops that touch memory.
def Dist_NamesMemory : Dist_Trait<"NamesMemory">;

#endif
