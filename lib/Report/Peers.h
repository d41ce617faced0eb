//===- Peers.h - bytes from rank to rank ------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_PEERS_H
#define MESHWRIGHT_LIB_REPORT_PEERS_H

#include "meshwright/lib/Report/ProgramFacts.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

namespace meshwright {

/// The bytes that ranks send one another in a call of an SPMD entry, with all of its steps, by the bytes of
/// the cost model: a permute sends a chunk to its new rank; sums, gathers and scatters travel on a ring,
/// to the next rank of their group; other collectives send equal parts to all ranks of the group. Pairs
/// come in order, without pairs that send nothing. Cost: ranks times the kinds of groups.
std::vector<ProgramFacts::Sent> countPeers(mlir::FunctionOpInterface entry);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_PEERS_H
