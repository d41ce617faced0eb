//===- CachePasses.td - policies for caches ----------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_CACHEPASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_CACHEPASSES_TD

include "meshwright/passes/annotate/AnnotatePass.td"

def AnnotateDealtPagesPass : AnnotatePass<"annotate-dealt-pages"> {
  let summary = "shard dealt pages over the ranks of attention";
  let description = [{
    TODO
  }];
}

#endif
