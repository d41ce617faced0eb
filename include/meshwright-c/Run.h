/*===- Run.h - the C interface of the tools ----------------------*- C -*-===*\
|*                                                                         *|
|* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.  *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                  *|
|*                                                                         *|
|*===---------------------------------------------------------------------===*|
|* The tools link the runtime only. For programs in MLIR they open the       *|
|* compiler library (libMeshwright.so) by name and call these functions.     *|
|* C programs link that library.                                             *|
\*===-----------------------------------------------------------------------===*/

#ifndef MESHWRIGHT_C_RUN_H
#define MESHWRIGHT_C_RUN_H

#include "meshwright-c/Runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mw_program mw_program;

enum { MW_NOTE = 0, MW_REMARK = 1, MW_WARNING = 2, MW_ERROR = 3 };
/* Receives a diagnostic: its place ("file:line", or empty) and its text. */
typedef void (*mw_say)(void *user, int32_t severity, const char *where, const char *what);

/* A tensor in memory, dense and row-major; types are those of Runtime.h. */
typedef struct mw_tensor {
  int64_t dtype, rank;
  const int64_t *shape;
  const void *data;
} mw_tensor;

enum { MW_INPUT = 0, MW_PARAMETER = 1, MW_OUTPUT = 2, MW_STATE = 3 };

/* An argument, a result or a state of a program, with its global type. */
typedef struct mw_port {
  const char *name;
  int64_t dtype, rank;
  const int64_t *shape;
  /* Other names of the same weight. */
  int64_t num_aliases;
  const char *const *aliases;
  /* Inputs and parameters that are read as indices: their exclusive upper bound; 0 for
   * others. */
  int64_t index_bound;
  /* Inputs that a call may leave out, as a tensor without data: one element of the value that they
   * then have. Null for others. */
  const void *default_element;
} mw_port;

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
int64_t mw_program_count(const mw_program *program, int32_t kind);
const mw_port *mw_program_port(const mw_program *program, int32_t kind, int64_t index);

/* Options of a run. Zeros stand for the defaults. */
typedef struct mw_run_options {
  /* The backend, or null for `local`. */
  const char *backend;
  /* Threads that a rank computes with. 0 stands for MESHWRIGHT_THREADS, or 1. */
  int64_t threads_per_rank;
  /* Seconds that a rank may wait in one collective. 0 stands for MESHWRIGHT_TIMEOUT, or
   * 30. */
  double timeout;
  /* Fail if an op produces NaN or infinity, and name the first such op. */
  int32_t check_finite;
  /* Measure time and memory, and add them to the report. */
  int32_t measure;
  /* The file for a trace of all ranks and streams, in the Chrome trace format, or null. */
  const char *trace;
  /* The target to compile for: `cpu` (this machine's processor) or `cpu:NAME` (a processor by
   * LLVM's name). Null: the target of `parallelize`, or `cpu`. */
  const char *target;
  /* The folder of a saved state to start from; null: the initial state. */
  const char *state;
  /* The folder to save the state to after the run, or null. */
  const char *save_state;
  /* Calls that fail may leave the state unknown, and need no memory to undo what they wrote. */
  int32_t no_recover;
} mw_run_options;

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
/* Runs the program, runs it as it was before it was rewritten, and compares the outputs. A
 * negative tolerance stands for that of the types. Returns 3 if they differ; the error names
 * the first value that differs. */
int32_t mw_program_check(mw_program *program, const mw_tensor *inputs, double tolerance);
/* Returns the report as text or JSON: the bytes that the program sends and holds, and the
 * figures of the last measured run. The text stays until the next call. Returns null after an
 * error. */
const char *mw_program_report(mw_program *program, int32_t json);

/* A running program: its ranks, weights and state, which stay from call to call. Any thread may
 * call a session; calls wait for one another. */
typedef struct mw_session mw_session;

/* Starts a session of a program, with the weights that are loaded: they must stay as long as the
 * session. Of the options, `backend`, `threads_per_rank`, `timeout`, `target`, `state` and
 * `no_recover` count. Returns null after an error. */
mw_session *mw_program_start(mw_program *program, const mw_run_options *options);
/* The same of a bundle. `target` must be null. */
mw_session *mw_bundle_start(const char *path, const mw_run_options *options, mw_say say,
                            void *user);
/* Ends a session. */
void mw_session_close(mw_session *session);

int64_t mw_session_count_entries(const mw_session *session);
const char *mw_session_entry(const mw_session *session, int64_t index);
/* The inputs (MW_INPUT), outputs (MW_OUTPUT) and states (MW_STATE) of an entry, by its index.
 * All entries have the same states. */
int64_t mw_session_count(const mw_session *session, int64_t entry, int32_t kind);
const mw_port *mw_session_port(const mw_session *session, int64_t entry, int32_t kind,
                               int64_t index);

/* These return 0, or 1 after an error. */

/* Runs an entry on all ranks. Its writes of state are committed if it succeeds on all ranks;
 * otherwise the state stays as it was, unless the session does not recover. */
int32_t mw_session_run(mw_session *session, int64_t entry, const mw_tensor *inputs,
                       void *const *outputs, int32_t check_finite);
/* Copies the global tensors of all states to `arrays`, in the order of the ports. */
int32_t mw_session_get_state(mw_session *session, void *const *arrays);
/* Sets states by name: all of them or, after an error, none. */
int32_t mw_session_set_state(mw_session *session, int64_t count, const char *const *names,
                             const mw_tensor *tensors);
/* Writes the state to a folder, whole or not at all. */
int32_t mw_session_save(mw_session *session, const char *folder);
/* As mw_program_is_stuck. */
int32_t mw_session_is_stuck(const mw_session *session);

#ifdef __cplusplus
}
#endif

#endif /* MESHWRIGHT_C_RUN_H */
