//===- Forms.h - weights in the forms in which they travel ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Codes and scales of a block are stored together, a group of rows after the other (`mw_rt_form`).
// The formulas are those of dist.encode and dist.decode; each operation is one of f32.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_FORMS_H
#define MESHWRIGHT_RUNTIME_INCLUDE_FORMS_H

#include "meshwright-c/Runtime.h"
#include "meshwright/runtime/include/Types.h"

#include <cstdint>

namespace meshwright::rt {

/// The quotient of two positive numbers, rounded up: the blocks that cover `x` elements.
inline int64_t divideCeil(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// The rows and columns of a block.
int64_t getBlockRows(const mw_rt_form &form);
int64_t getBlockColumns(const mw_rt_form &form);
/// The bytes of the codes of a group, which its scales follow, and the number of these.
int64_t sizeOfCodes(const mw_rt_form &form);
int64_t countScales(const mw_rt_form &form);
/// The groups of rows of a weight in a form, and the bytes of each.
int64_t countGroups(const mw_rt_form &form);
int64_t sizeOfGroup(const mw_rt_form &form);
/// "mxfp8".
const char *nameOfForm(int64_t kind);

/// The largest magnitude of `count` floats: infinity or NaN if one is not finite.
float findLargest(DType type, const void *data, int64_t count);

/// Encodes the groups [first, last) of a dense matrix into `to`, which has room for all groups.
/// `largest` is the largest magnitude of the whole weight, for a form that needs it. Returns false
/// if an element is not finite.
bool encodeGroups(const mw_rt_form &form, DType type, const void *from, float largest, void *to,
                  int64_t first, int64_t last);
/// Rows [row, row + rows) and columns [column, column + columns) of a weight.
struct FormBlock {
  int64_t row, rows, column, columns;
};
/// Decodes a block into a dense matrix of it.
void decodeBlock(const mw_rt_form &form, DType type, const void *from, const FormBlock &block,
                 void *to);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_FORMS_H
