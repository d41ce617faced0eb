//===- TableRows.h - the rows of a table that is in parts -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_TABLEROWS_H
#define MESHWRIGHT_DIALECTS_NN_TABLEROWS_H

#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright::nn {

/// The rows of the whole table of which an op has all or a part (`nn.table_rows`). None where
/// that is not known.
std::optional<int64_t> getTableRows(dist::LookupOpInterface lookup);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_TABLEROWS_H
