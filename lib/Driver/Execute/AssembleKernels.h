//===- AssembleKernels.h - PTX to machine code ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_ASSEMBLEKERNELS_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_ASSEMBLEKERNELS_H

#include "meshwright/runtime/include/Program.h"

#include "llvm/Support/Error.h"

namespace meshwright {

/// Gives each kernel of a program for GPUs its machine code, by `ptxas` on the path or of the CUDA
/// toolkit. Does nothing if there is none or it does not know the chip: the driver of the machine
/// that runs the program then assembles the PTX. Fails if `ptxas` refuses a kernel.
llvm::Error assembleKernels(rt::ProgramDescription &description);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_ASSEMBLEKERNELS_H
