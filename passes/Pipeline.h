//===- Pipeline.h - from imported IR to launches ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PIPELINE_H
#define MESHWRIGHT_PASSES_PIPELINE_H

#include "meshwright/Serving.h"
#include "meshwright/Training.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"
#include "meshwright/passes/schedule/Pipeline.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

namespace meshwright {

/// The phases of the pipeline, in order. Optimised ends with a proof of the placement. Spmd
/// adds the requests to the schedule, which depend on the target.
enum class Phase { Annotated, Propagated, Partitioned, Optimised, Stored, Spmd, Rt };

/// Reads the options of `--parallelize`, and checks all that needs no program: beside the syntax,
/// the names of devices and targets.
mlir::FailureOr<ParallelizeOptions> readParallelizeOptions(llvm::StringRef text,
                                                           OptionErrorHandler error);

/// Returns true if sequence parallelism may scatter tokens of an annotated program, because ranks of
/// some stage share its products. If not, the program is the same with any option of sequence
/// parallelism.
bool mayScatterTokens(mlir::ModuleOp annotated);

/// Adds the passes from a global program up to and including a phase.
/// Functions that are SPMD already are changed by Optimised, Spmd and Rt only.
void buildParallelizePipeline(mlir::OpPassManager &pm, const ParallelizeOptions &options,
                              Phase to = Phase::Spmd);

/// Turns reads and writes of state into arguments and results (see `bind-state`), and replaces
/// gradients (see `differentiate-gradients`). For global programs that run as they are. Fails
/// after an error.
mlir::LogicalResult prepareAsIs(mlir::ModuleOp module);

/// Makes gradients of a loss results of the default entry (see `request-gradients`). All
/// parameters of float type have one if there are no patterns. Fails after an error.
mlir::LogicalResult requestGradients(mlir::ModuleOp module, llvm::StringRef loss,
                                     llvm::ArrayRef<std::string> parameters,
                                     llvm::ArrayRef<std::string> frozen);

/// Turns the only entry of a module into training steps (see `build-steps`). Fails after an error.
mlir::LogicalResult buildSteps(mlir::ModuleOp module, const TrainOptions &options);

/// Turns the only entry of a module, a causal forward pass, into steps of serving (see `serve`). Fails
/// after an error.
mlir::LogicalResult buildServing(mlir::ModuleOp module, const ServeOptions &options);

/// Adds the schedule phase, and the proof of its result if `options` ask for it: from an
/// SPMD program, or a global one for one rank, to planned launches.
void buildSchedulePhase(mlir::OpPassManager &pm, const ScheduleOptions &options = {});

/// Adds the passes of one phase alone.
void buildPhase(mlir::OpPassManager &pm, const ParallelizeOptions &options, Phase phase);

/// Adds a pass that writes the report on an SPMD program, with the times and the memory of its
/// schedule.
void addReport(mlir::OpPassManager &pm, llvm::StringRef file);

/// Registers the passes of all phases.
void registerPasses();

/// Gives ops the external models of all phases when their dialect is loaded: how they differentiate,
/// and how they become local.
void registerModels(mlir::DialectRegistry &registry);

/// Registers `--parallelize` and `--schedule`.
void registerPipelines();

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PIPELINE_H
