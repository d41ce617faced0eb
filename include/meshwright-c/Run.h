/*===- Run.h - the C interface of the tools ----------------------*- C -*-===*\
|*                                                                         *|
|* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.  *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                  *|
|*                                                                         *|
|*===---------------------------------------------------------------------===*|
|* The tools link the runtime only. For programs in MLIR they open the       *|
|* compiler library (libMeshwright.so) by name and call these functions.     *|
|* C programs link that library and the runtime.                             *|
\*===-----------------------------------------------------------------------===*/

#ifndef MESHWRIGHT_C_RUN_H
#define MESHWRIGHT_C_RUN_H

#include "meshwright-c/Session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mw_program mw_program;

/* Checks options as far as that needs no program: for tools that tell wrong usage from an error.
 * Null stands for an option that is not given. Returns 0, or 1 after an error. */
int32_t mw_check_options(const char *parallelize, const char *target, mw_say say, void *user);

/* Reads a program. With `parallelize` (the options of sharding-opt) it is rewritten for the
 * ranks of a mesh. With null it runs as it is: an SPMD program on its ranks, a global one on
 * one rank. Returns null after an error. */
mw_program *mw_program_open(const char *path, const char *parallelize, mw_say say, void *user);
void mw_program_close(mw_program *program);

/* Selects the entry whose inputs and outputs the functions below describe, and which they run and
 * check. Null: the default entry, which is selected at first. Returns 0, or 1 after an error. */
int32_t mw_program_select(mw_program *program, const char *entry);
/* The inputs (MW_INPUT), outputs (MW_OUTPUT) and parameters (MW_PARAMETER). An unknown kind, and the
 * number of a port that there is none of, is an error: these then return -1 and null. */
int64_t mw_program_count(const mw_program *program, int32_t kind);
const mw_port *mw_program_port(const mw_program *program, int32_t kind, int64_t index);

/* These return 0, or 1 after an error. */

/* Takes the parameters from a safetensors file, which may have more tensors. The file must
 * stay unchanged until the program is closed. */
int32_t mw_program_load_weights(mw_program *program, const char *path);
/* Draws the parameters at random. A parameter's values depend on the seed and its name
 * only. They are scaled so that activations stay finite. */
int32_t mw_program_random_weights(mw_program *program, uint64_t seed);
/* Runs on all ranks, and compiles before if necessary. `inputs` and `outputs` are in the
 * order of the ports; the outputs are filled. */
int32_t mw_program_run(mw_program *program, const mw_tensor *inputs, void *const *outputs,
                       const mw_run_options *options);
/* Returns 1 if a rank has not come back from a run that failed, else 0. It may still read
 * the inputs and the weights, which must stay as long as the process. */
int32_t mw_program_is_stuck(const mw_program *program);
/* Compiles for a target, as in `mw_run_options`, and writes a bundle, which runs without the
 * compiler; see docs/bundles.md. */
int32_t mw_program_compile(mw_program *program, const char *bundle, const char *target);
/* The same without weights: none need to be loaded, and a session of the bundle is given some. */
int32_t mw_program_compile_without_weights(mw_program *program, const char *bundle,
                                           const char *target);
/* Runs the program, runs it as it was before it was rewritten, and compares the outputs. A
 * negative tolerance stands for that of the types. Returns 3 if they differ; the error names
 * the first value that differs. */
int32_t mw_program_check(mw_program *program, const mw_tensor *inputs, double tolerance);
/* Returns the report as text (0), as JSON (1), or as JSON with the launches and buffers that a page shows
 * (2): the bytes that the program sends and holds, and the figures of the last measured run. The text stays until the next call. Returns null after an
 * error. */
const char *mw_program_report(mw_program *program, int32_t json);

/* Measures this machine for the cost model, and writes a device file; see docs/devices.md. An empty
 * path is where plans look for the calibration. Of the options, `backend`, `target` and
 * `threads_per_rank` count. */
int32_t mw_calibrate(const char *path, const mw_run_options *options, mw_say say, void *user);

/* Starts a session of a program, with the weights that are loaded: they must stay as long as the
 * session. Of the options, `backend`, `threads_per_rank`, `timeout`, `target`, `state`,
 * `no_recover` and `graphs` count. Returns null after an error. */
mw_session *mw_program_start(mw_program *program, const mw_run_options *options);

#ifdef __cplusplus
}
#endif

#endif /* MESHWRIGHT_C_RUN_H */
