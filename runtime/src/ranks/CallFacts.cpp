//===- CallFacts.cpp - the work of a call, for traces and checks ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CallFacts.h"
#include "GemmShape.h"

#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>

namespace meshwright::rt {

int64_t RowCount::getPart(const Device &device, int64_t ofAll) const {
  const int64_t *first = number ? number : choices;
  std::optional<int64_t> found = first ? device.read(first) : std::nullopt;
  if (!found || rows == 0)
    return ofAll;
  int64_t exist = number ? *found
                         : std::partition_point(choices, choices + rows, [](int64_t choice) { return choice >= 0; }) -
                               choices;
  return ofAll / rows * exist;
}

/// The type in which numbers of a type are summed.
static DType getSumType(int64_t dtype) {
  return DType(dtype) == DType::F64 ? DType::F64 : DType::F32;
}

/// A call that reads and writes as many elements of one type, and computes nothing.
static CallFacts moveElements(int64_t dtype, int64_t count) {
  CallFacts facts;
  facts.kind = TraceKind::Move;
  facts.dtype = dtype;
  facts.bytes = count * sizeOf(DType(dtype));
  return facts;
}

/// Lets `--check-finite` look at `count` elements.
static CallFacts check(CallFacts facts, const void *values, int64_t dtype, int64_t count) {
  facts.checked = values;
  facts.checkedType = dtype;
  facts.checkedCount = count;
  return facts;
}

/// The first rows exist, as many as the last offset of `experts` experts says.
static CallFacts countRows(CallFacts facts, int64_t rows, const void *offsets, int64_t experts,
                           bool checksRows = true) {
  facts.rowCount.rows = rows;
  facts.rowCount.number = static_cast<const int64_t *>(offsets) + experts;
  facts.checksRows = checksRows;
  return facts;
}

/// A call in which the ranks of a group meet.
static CallFacts exchange(CallFacts facts, const mw_rt_collective &group, int64_t buffers) {
  facts.kind = TraceKind::Collective;
  facts.group = &group;
  facts.exchanged = buffers;
  return facts;
}

static CallFacts getFacts(const mw_rt_gemm &what, void *const *buffers) {
  int64_t results = batchOf(what) * what.m * what.n;
  int64_t elements = matricesOf(what, what.stride_a) * what.m * what.k +
                     matricesOf(what, what.stride_b) * what.k * what.n;
  CallFacts facts;
  facts.kind = TraceKind::Gemm;
  facts.dtype = what.dtype;
  facts.flops = 2 * results * what.k;
  facts.bytes = elements * sizeOf(DType(what.dtype)) + results * sizeOf(DType(what.result));
  if (what.form.kind)
    facts.bytes += countGroups(what.form) * sizeOfGroup(what.form) -
                   what.k * what.n * sizeOf(DType(what.dtype));
  return check(facts, buffers[3], what.result, results);
}

static CallFacts getFacts(const mw_rt_weight_grad &what, void *const *buffers) {
  DType sum = getSumType(what.dtype);
  int64_t results = what.m * what.n;
  CallFacts facts;
  facts.kind = TraceKind::Gemm;
  facts.dtype = what.dtype;
  facts.flops = 2 * results * what.rows;
  facts.bytes = what.rows * (what.m + what.n) * sizeOf(DType(what.dtype)) + results * sizeOf(sum);
  return check(facts, buffers[2], int64_t(sum), results);
}

static CallFacts getFacts(const mw_rt_gather &what, void *const *buffers) {
  int64_t count = what.outer * what.count * what.inner;
  return check(moveElements(what.dtype, 2 * count), buffers[3], what.dtype, count);
}

static CallFacts getFacts(const mw_rt_take_along &what, void *const *buffers) {
  int64_t count = what.outer * what.count * what.inner;
  return check(moveElements(what.dtype, 2 * count), buffers[2], what.dtype, count);
}

static CallFacts getFacts(const mw_rt_index_copy &what, void *const *buffers) {
  const mw_rt_rows &rows = what.rows;
  int64_t count = rows.outer * rows.count * rows.inner, all = rows.outer * rows.size * rows.inner;
  return check(moveElements(rows.dtype, 2 * (all + count)), buffers[3], rows.dtype, all);
}

static CallFacts getFacts(const mw_rt_replace_rows &what, void *const *buffers) {
  const mw_rt_rows &rows = what.rows;
  int64_t count = rows.outer * rows.count * rows.inner;
  bool isLogged = buffers[3];
  CallFacts facts = moveElements(rows.dtype, (isLogged ? 4 : 2) * count);
  facts.logged = isLogged ? 4 : 0;
  return check(facts, buffers[2], rows.dtype, count);
}

static CallFacts getFacts(const mw_rt_scatter_add &what, void *const *buffers) {
  DType sum = getSumType(what.dtype);
  int64_t added = what.outer * what.count * what.inner;
  int64_t results = what.outer * what.size * what.inner;
  CallFacts facts = moveElements(what.dtype, added);
  facts.flops = added;
  facts.bytes += results * sizeOf(sum);
  return check(facts, buffers[3], int64_t(sum), results);
}

static CallFacts getFacts(const mw_rt_top_k &what, void *const *) {
  CallFacts facts = moveElements(what.dtype, what.rows * what.size);
  facts.flops = what.rows * what.size;
  return facts;
}

static CallFacts getFacts(const mw_rt_limit &what, void *const *) {
  return moveElements(what.dtype, 2 * what.choices);
}

static CallFacts getFacts(const mw_rt_route &what, void *const *) {
  return moveElements(MW_I64, 2 * what.tokens * what.choices + what.capacity);
}

static CallFacts getFacts(const mw_rt_note_rows &what, void *const *) {
  return moveElements(MW_I64, 2 * (what.experts + 1));
}

static CallFacts getFacts(const mw_rt_note_dropped &what, void *const *) {
  return moveElements(what.dtype, 2 * what.choices);
}

static CallFacts getFacts(const mw_rt_take_rows &what, void *const *buffers) {
  int64_t count = what.rows * what.inner;
  CallFacts facts = check(moveElements(what.dtype, 2 * count), buffers[2], what.dtype, count);
  facts.rowCount.rows = what.rows;
  facts.rowCount.choices = static_cast<const int64_t *>(buffers[1]);
  facts.checksRows = true;
  return facts;
}

static CallFacts getFacts(const mw_rt_sum_rows &what, void *const *buffers) {
  int64_t results = what.tokens * what.inner;
  CallFacts facts = moveElements(what.dtype, results * (what.choices + 1));
  facts.flops = results * what.choices;
  return check(facts, buffers[2], what.dtype, results);
}

static CallFacts getFacts(const mw_rt_repeat_rows &what, void *const *buffers) {
  int64_t count = what.rows * what.inner;
  return countRows(check(moveElements(what.dtype, 2 * count), buffers[2], what.dtype, count), what.rows,
                   buffers[1], what.experts);
}

static CallFacts getFacts(const mw_rt_sum_groups &what, void *const *buffers) {
  int64_t results = what.experts * what.inner;
  return check(moveElements(what.dtype, results), buffers[2], what.result, results);
}

static CallFacts getFacts(const mw_rt_grouped_product &what, void *const *buffers) {
  CallFacts facts;
  facts.kind = TraceKind::Gemm;
  facts.dtype = what.dtype;
  facts.flops = 2 * what.rows * what.n * what.k;
  facts.bytes = (what.rows + what.experts * what.n) * what.k * sizeOf(DType(what.dtype)) +
                what.rows * what.n * sizeOf(DType(what.result));
  return countRows(check(facts, buffers[3], what.result, what.rows * what.n), what.rows, buffers[2],
                   what.experts);
}

static CallFacts getFacts(const mw_rt_grouped_outer &what, void *const *buffers) {
  DType sum = getSumType(what.dtype);
  int64_t results = what.experts * what.m * what.n;
  CallFacts facts;
  facts.kind = TraceKind::Gemm;
  facts.dtype = what.dtype;
  facts.flops = 2 * what.rows * what.m * what.n;
  facts.bytes = what.rows * (what.m + what.n) * sizeOf(DType(what.dtype)) + results * sizeOf(sum);
  return countRows(check(facts, buffers[3], int64_t(sum), results), what.rows, buffers[2], what.experts,
                   /*checksRows=*/false);
}

static CallFacts getFacts(const mw_rt_send_rows &what, void *const *) {
  return exchange(moveElements(what.what.dtype, 2 * what.what.from_capacity * what.what.inner),
                  what.what.group, /*buffers=*/5);
}

static CallFacts getFacts(const mw_rt_return_rows &what, void *const *) {
  return exchange(moveElements(what.what.dtype, 2 * what.what.to_capacity * what.what.inner),
                  what.what.group, /*buffers=*/4);
}

static CallFacts moveCounted(const mw_rt_counted_rows &what, int64_t all) {
  return moveElements(what.dtype, what.outer * what.inner * (what.replicas * what.capacity + all));
}

static CallFacts getFacts(const mw_rt_compact &what, void *const *) {
  return moveCounted(what.rows, what.rows.replicas * what.rows.groups * what.rows.tokens);
}

static CallFacts getFacts(const mw_rt_expand &what, void *const *) {
  return moveCounted(what.rows, what.rows.replicas * what.rows.groups * what.rows.tokens);
}

static CallFacts getFacts(const mw_rt_all_gather_v &what, void *const *) {
  return exchange(moveCounted(what.what.rows, what.what.own), what.what.group, /*buffers=*/4);
}

static CallFacts getFacts(const mw_rt_reduce_scatter_v &what, void *const *) {
  return exchange(moveCounted(what.what.rows, what.what.own), what.what.group, /*buffers=*/4);
}

static CallFacts getFacts(const mw_rt_mask &what, void *const *) {
  return moveElements(what.dtype, 2 * what.outer * what.rows * what.inner);
}

static CallFacts getFacts(const mw_rt_axis_index &, void *const *) { return {}; }

static CallFacts getFacts(const mw_rt_reorder &what, void *const *) {
  return moveElements(what.dtype, 2 * what.outer * what.padded * what.inner);
}

static CallFacts getFacts(const mw_rt_place &what, void *const *) {
  int64_t rows = what.rows * (what.count + sizeOfGroup(what.axes));
  return moveElements(what.dtype, what.outer * rows * what.inner);
}

static CallFacts getFacts(const mw_rt_positions &, void *const *) { return {}; }

static CallFacts getFacts(const mw_rt_pack &what, void *const *) {
  const mw_rt_packing &packing = what.packing;
  CallFacts facts = moveElements(packing.stored, countMatrices(packing) * packing.k * packing.n);
  if (packing.form) {
    mw_rt_form form{packing.form, packing.along, packing.transposed ? packing.n : packing.k,
                    packing.transposed ? packing.k : packing.n};
    facts.bytes = countGroups(form) * sizeOfGroup(form);
  }
  facts.bytes += sizeOfPacked(packing);
  return facts;
}

static CallFacts getFacts(const mw_rt_largest &what, void *const *) {
  CallFacts facts = moveElements(what.dtype, what.count);
  facts.flops = what.count;
  return facts;
}

/// The bytes of a weight in both forms.
static CallFacts moveForm(int64_t dtype, const mw_rt_form &form) {
  CallFacts facts = moveElements(dtype, form.rows * form.columns);
  facts.flops = form.rows * form.columns;
  facts.bytes += countGroups(form) * sizeOfGroup(form);
  return facts;
}

static CallFacts getFacts(const mw_rt_encode &what, void *const *) {
  return moveForm(what.dtype, what.form);
}

static CallFacts getFacts(const mw_rt_decode &what, void *const *buffers) {
  return check(moveForm(what.dtype, what.form), buffers[1], what.dtype,
               what.form.rows * what.form.columns);
}

static int64_t sizeOfCodes(const mw_rt_codes &codes) {
  int64_t rows = (codes.rows + codes.block_rows - 1) / codes.block_rows;
  int64_t columns = (codes.columns + codes.block_columns - 1) / codes.block_columns;
  return codes.matrices * (codes.rows * codes.columns * sizeOf(DType(codes.codes)) /
                               elementsPerByte(DType(codes.codes)) +
                           rows * columns * sizeOf(DType(codes.scales)));
}

static CallFacts getFacts(const mw_rt_dequantize &what, void *const *buffers) {
  int64_t count = what.codes.matrices * what.codes.rows * what.codes.columns;
  CallFacts facts = moveElements(what.dtype, count);
  facts.bytes += sizeOfCodes(what.codes);
  return check(facts, buffers[2], what.dtype, count);
}

static CallFacts getFacts(const mw_rt_coded_product &what, void *const *buffers) {
  CallFacts facts;
  facts.kind = TraceKind::Gemm;
  facts.dtype = what.dtype;
  facts.flops = 2 * what.count * what.n * what.k;
  facts.bytes = what.count * what.k * sizeOf(DType(what.dtype)) + sizeOfCodes(what.codes) +
                what.count * what.n * sizeOf(DType(what.result));
  facts = check(facts, buffers[5], what.result, what.count * what.n);
  return buffers[4] ? countRows(facts, what.count, buffers[4], what.codes.matrices) : facts;
}

CallFacts getFacts(const mw_rt_call &what, void *const *buffers) {
  switch (what.kind) {
#define MW_RT_KIND(kind, name)                                                                     \
  case MW_RT_CALL_##kind:                                                                          \
    return getFacts(reinterpret_cast<const mw_rt_##name &>(what), buffers);
    MW_RT_CALLS(MW_RT_KIND)
#undef MW_RT_KIND
  }
  return {};
}

} // namespace meshwright::rt
