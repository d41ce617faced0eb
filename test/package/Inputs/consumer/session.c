/*===- session.c - a bundle through the C interface -----------------------===*\
|*                                                                         *|
|* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.  *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                  *|
|*                                                                         *|
\*===-----------------------------------------------------------------------===*/

#include "meshwright-c/Session.h"

#include <stdio.h>
#include <stdlib.h>

static void say(void *user, int32_t severity, const char *where, const char *what) {
  (void)user, (void)severity, (void)where;
  fprintf(stderr, "error: %s\n", what);
}

static int64_t count_bytes(const mw_port *port) {
  int64_t bytes = 4;
  for (int64_t i = 0; i < port->rank; ++i)
    bytes *= port->shape[i];
  return bytes;
}

/* usage: session BUNDLE; runs a program of one input and one output in f32 on zeros. */
int main(int argc, char **argv) {
  uint64_t seed = 1;
  mw_run_options options = {0};
  options.random_weights = &seed;
  mw_session *session = argc == 2 ? mw_bundle_start(argv[1], &options, say, NULL) : NULL;
  if (!session)
    return 1;
  const mw_port *in = mw_session_port(session, 0, MW_INPUT, 0);
  const mw_port *out = mw_session_port(session, 0, MW_OUTPUT, 0);
  mw_tensor input = {MW_F32, in->rank, in->shape, calloc(1, count_bytes(in))};
  void *outputs[] = {malloc(count_bytes(out))};
  int32_t failed = mw_session_run(session, 0, &input, outputs, 1);
  if (!failed)
    printf("%s of %s: %g\n", out->name, in->name, *(float *)outputs[0]);
  free((void *)input.data);
  free(outputs[0]);
  mw_session_close(session);
  return failed;
}
