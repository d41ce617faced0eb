/*===- Session.h - the C interface of sessions -------------------*- C -*-===*\
|*                                                                         *|
|* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.  *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                  *|
|*                                                                         *|
|*===---------------------------------------------------------------------===*|
|* Compiled programs that run again and again. These functions are part of   *|
|* the runtime (libMeshwrightRuntime.so), which needs no compiler.           *|
\*===-----------------------------------------------------------------------===*/

#ifndef MESHWRIGHT_C_SESSION_H
#define MESHWRIGHT_C_SESSION_H

#include "meshwright-c/Runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

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
  /* Sessions of a bundle without weights: a safetensors file, or the seed of random weights; one of
   * them is null. Others take neither. */
  const char *weights;
  const uint64_t *random_weights;
  /* Sessions: whether calls run as captured graphs of a GPU, which later calls repeat: "on", "off"
   * or "auto", the default. "on" is an error if nothing can be captured. */
  const char *graphs;
} mw_run_options;

/* A running program: its ranks, weights and state, which stay from call to call. Any thread may
 * call a session; calls wait for one another. */
typedef struct mw_session mw_session;

/* Starts a session of a bundle. Of the options, `backend`, `threads_per_rank`, `timeout`, `trace`,
 * `state`, `no_recover`, `graphs`, `weights` and `random_weights` count, and `target` must be null.
 * With `trace` each call writes the file, and captures and repeats nothing. Returns null after an
 * error. */
mw_session *mw_bundle_start(const char *path, const mw_run_options *options, mw_say say,
                            void *user);
/* Ends a session. */
void mw_session_close(mw_session *session);

/* A number of an entry or of a port that there is none of, and an unknown kind, is an error: these
 * then return null, or -1 for a count. */
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
/* The same with all inputs and outputs in the memory of the GPU of that number, on a backend whose
 * devices are GPUs. The inputs must be there when the function is called, and the outputs are there
 * when it returns. */
int32_t mw_session_run_on_gpu(mw_session *session, int64_t entry, const mw_tensor *inputs,
                              void *const *outputs, int64_t gpu, int32_t check_finite);
/* Copies the global tensors of all states to `arrays`, in the order of the ports. */
int32_t mw_session_get_state(mw_session *session, void *const *arrays);
/* Sets states by name: all of them or, after an error, none. */
int32_t mw_session_set_state(mw_session *session, int64_t count, const char *const *names,
                             const mw_tensor *tensors);
/* Writes the state to a folder, whole or not at all. */
int32_t mw_session_save(mw_session *session, const char *folder);
/* As mw_program_is_stuck. */
int32_t mw_session_is_stuck(const mw_session *session);

/* Requests of a session whose program serves: steps compute the next tokens of several at once. The
 * session writes requests, too, and goes on with those of a saved state. */

/* How a prompt is served. Zeros stand for the defaults. */
typedef struct mw_request_options {
  /* How many new tokens there are, at most; 0 stands for 32. */
  int64_t max_new_tokens;
  /* Tokens that end the request; each is its last one. */
  int64_t num_stop;
  const int64_t *stop;
  /* 0 takes the token of the largest logit; above 0 draws one from softmax(logits / temperature),
   * which depends on the seed and the position alone. */
  double temperature;
  int64_t seed;
  /* The number of the group that computes the request, from 1 on; 0: any. */
  int64_t group;
} mw_request_options;

typedef struct mw_request mw_request;

enum { MW_REQUEST_LIVE = 0, MW_REQUEST_LENGTH = 1, MW_REQUEST_STOP = 2, MW_REQUEST_CANCELLED = 3 };

/* Adds a request. Returns null after an error. */
mw_request *mw_serve_submit(mw_session *session, const int64_t *prompt, int64_t length,
                            const mw_request_options *options);
/* Runs one batch. Returns the tokens that it computed, 0 if no request waits or runs, or -1 after an
 * error, which changes no request. */
int64_t mw_serve_step(mw_session *session);
/* Ends a request; one that is done stays as it is. Returns 0, or 1 after an error. */
int32_t mw_serve_cancel(mw_session *session, mw_request *request);
/* The new tokens so far, and their number. They stay until the next step. */
const int64_t *mw_serve_tokens(const mw_request *request, int64_t *count);
/* Whether the request waits or runs (MW_REQUEST_LIVE), or else why it is done. */
int32_t mw_serve_state(const mw_request *request);
/* Frees the handle. The request itself goes on. */
void mw_serve_free(mw_request *request);

#ifdef __cplusplus
}
#endif

#endif /* MESHWRIGHT_C_SESSION_H */
