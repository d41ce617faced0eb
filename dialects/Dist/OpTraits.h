//===- OpTraits.h - properties of many ops ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Facts about an op that several phases ask for. An op's definition (.td) states
// them; a pass composes them into its own question and keeps no list of ops.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_OPTRAITS_H
#define MESHWRIGHT_DIALECTS_DIST_OPTRAITS_H

#include "mlir/IR/OpDefinition.h"

namespace meshwright::dist {

#define MESHWRIGHT_OP_TRAIT(Name)                                                                  \
  template <typename ConcreteOp>                                                                   \
  class Name : public mlir::OpTrait::TraitBase<ConcreteOp, Name> {}

//===----------------------------------------------------------------------===//
// Kinds. An op has exactly one of them, unless it is a collective.
//===----------------------------------------------------------------------===//

/// An element of the result is a function of the elements at the same index of the
/// operands, which broadcast as NumPy's do. The sharding rule follows from this.
MESHWRIGHT_OP_TRAIT(Elementwise);
/// An element of a result is an element of an operand, or a constant. Nothing is
/// computed, and any reduction may come later.
MESHWRIGHT_OP_TRAIT(MovesOnly);
/// The results depend on no tensor: constants, indices, coordinates of the rank.
MESHWRIGHT_OP_TRAIT(Generates);
/// An element of a result depends on several elements of one operand.
MESHWRIGHT_OP_TRAIT(Combines);
/// Declares a symbol, or orders and groups the work of other ops.
MESHWRIGHT_OP_TRAIT(Structural);

//===----------------------------------------------------------------------===//
// Ops that move elements
//===----------------------------------------------------------------------===//

/// The element at an index of the result is the element of the only operand at a
/// linear function of that index. A loop over the result can read the operand in
/// place.
MESHWRIGHT_OP_TRAIT(Reindexes);
/// The result has the first operand's elements in the same row-major order: the same
/// buffer, seen in another shape or at a later time.
MESHWRIGHT_OP_TRAIT(View);
/// The result has some of the operand's elements and the op reads no others.
MESHWRIGHT_OP_TRAIT(TakesPart);
/// The result is an operand in another form: seen otherwise, of another element type, on other
/// ranks, or a part of it. It is that of the same number, or the first. If it is a weight, so is
/// the result (lib/Weights).
MESHWRIGHT_OP_TRAIT(KeepsWeight);
/// The only result is the table (`LookupOpInterface`) with other rows at the indices, which
/// are a vector. The other rows stay, so a launch may write over the table.
MESHWRIGHT_OP_TRAIT(ReplacesRows);

//===----------------------------------------------------------------------===//
// Ops that treat padding apart from true elements
//===----------------------------------------------------------------------===//

/// Adds padding, overwrites it, or gives it another value or place than true elements. A
/// function without such ops, and without padded arguments, results and chunks, has no
/// padding.
MESHWRIGHT_OP_TRAIT(TouchesPadding);

//===----------------------------------------------------------------------===//
// Ops that compute
//===----------------------------------------------------------------------===//

/// An elementwise op of about one instruction for each element on any target. To
/// compute it again costs less than to store the result and load it.
MESHWRIGHT_OP_TRAIT(Cheap);
/// Sums products over a dimension. Arithmetic, not memory, may bound its time, and
/// it leads the kernel that it is in.
MESHWRIGHT_OP_TRAIT(Product);
/// Scales each row, along the last dimension, by a statistic of the row. A sum over
/// ranks of partial statistics is enough to compute it on sharded rows.
MESHWRIGHT_OP_TRAIT(RowNorm);
/// The index of an element matters in the dimensions that the op reads whole: they
/// must be in contiguous order.
MESHWRIGHT_OP_TRAIT(CountsElements);

//===----------------------------------------------------------------------===//
// Ops that touch memory
//===----------------------------------------------------------------------===//

/// Reads or writes memory of the module (`MemoryOpInterface`) by its name. `bind-state`
/// turns such an op into an argument or a result of its function; the phases after it know
/// values only.
MESHWRIGHT_OP_TRAIT(NamesMemory);

#undef MESHWRIGHT_OP_TRAIT

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_OPTRAITS_H
