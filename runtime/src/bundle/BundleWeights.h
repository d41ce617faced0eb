//===- BundleWeights.h - weights that a bundle lacks ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_BUNDLE_BUNDLEWEIGHTS_H
#define MESHWRIGHT_RUNTIME_SRC_BUNDLE_BUNDLEWEIGHTS_H

#include "Manifest.h"

#include "meshwright/runtime/include/Bundle.h"

namespace meshwright::rt {

/// Returns an error if a session of the bundle is not given the weights that it needs, or is given
/// weights that it has.
std::string checkWeights(const Manifest &manifest, const BundleWeights &weights);

/// Gives the ranks of this process their parts of the parameters, packed parameters and states of a
/// session that begin with the program's tensors. The tensors are read or drawn one after another,
/// so that the host holds one of them, beside the parts of ranks in its memory.
bool giveWeights(Session &session, const BundleWeights &weights, std::string &error);

/// Writes a rank's part of a packed parameter, from the stored tensor. Returns false if there is no
/// memory.
bool packPart(const PreparedWeight &prepared, const ProgramValue &value, int64_t rank,
              const HostTensor &tensor, float largest, char *to);

/// Finds the largest magnitude of a tensor for packings that need it. Returns an error if an element is
/// not finite; else "".
std::string measureParameter(const PreparedWeight &prepared, const ProgramValue &value,
                             const HostTensor &tensor, float &largest);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_BUNDLE_BUNDLEWEIGHTS_H
