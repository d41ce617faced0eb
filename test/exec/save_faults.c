/* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
 * SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
 *
 * Interrupts one system call of a program, for test_saves.py: LD_PRELOAD puts these functions before
 * those of the C library. SAVE_FAULT is "FOLDER NUMBER KIND": the call of that number, from 1 on, that
 * concerns a path in the folder.
 * - eio, enospc, enolck: it does nothing and returns the error.
 * - before, after: the process ends there, as by SIGKILL.
 * - half: a write writes half of its bytes, and the process ends.
 * A call that is struck is named on standard error.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { FILES = 4096 };
static char folder[4096], kind[16];
static int number;
static atomic_int calls;
static atomic_char watched[FILES];

__attribute__((constructor)) static void start(void) {
  const char *text = getenv("SAVE_FAULT");
  if (text)
    sscanf(text, "%4095s %d %15s", folder, &number, kind);
}

static int concerns(const char *path) {
  return number > 0 && path && strncmp(path, folder, strlen(folder)) == 0;
}
static int concerns_file(int file) { return file >= 0 && file < FILES && watched[file]; }

/* Whether the call is the one to strike. */
static int strikes(const char *name, const char *path) {
  if (atomic_fetch_add(&calls, 1) + 1 != number)
    return 0;
  dprintf(2, "struck %d %s %s\n", number, name, path);
  if (!strcmp(kind, "before"))
    _exit(99);
  errno = !strcmp(kind, "eio") ? EIO : !strcmp(kind, "enospc") ? ENOSPC : ENOLCK;
  return 1;
}
/* Whether a struck call fails. Others are done. */
static int fails(void) { return kind[0] == 'e'; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
/* The result of the call, or -1; ends the process where it was struck. */
#define STRIKE(relevant, name, path, call)                                                         \
  if (!(relevant))                                                                                 \
    return call;                                                                                   \
  int struck = strikes(name, path);                                                                \
  if (struck && fails())                                                                           \
    return -1;                                                                                     \
  __typeof__(call) result = call;                                                                  \
  if (struck)                                                                                      \
    _exit(99);                                                                                     \
  return result

static int open_watched(const char *path, int flags, mode_t mode) {
  int file = REAL(open)(path, flags, mode);
  if (file >= 0 && file < FILES)
    watched[file] = concerns(path);
  return file;
}

int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  STRIKE(concerns(path), "open", path, open_watched(path, flags, mode));
}

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  STRIKE(concerns(path), "open", path, open_watched(path, flags, mode));
}

ssize_t write(int file, const void *data, size_t bytes) {
  size_t given = bytes;
  if (concerns_file(file) && !strcmp(kind, "half") && atomic_load(&calls) + 1 == number)
    given = bytes / 2;
  STRIKE(concerns_file(file), "write", "", REAL(write)(file, data, given));
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) {
  STRIKE(concerns_file(file), "pwrite", "", REAL(pwrite)(file, data, bytes, offset));
}

int ftruncate(int file, off_t size) {
  STRIKE(concerns_file(file), "ftruncate", "", REAL(ftruncate)(file, size));
}

int fsync(int file) { STRIKE(concerns_file(file), "fsync", "", REAL(fsync)(file)); }

int close(int file) {
  int relevant = concerns_file(file);
  if (relevant)
    watched[file] = 0;
  STRIKE(relevant, "close", "", REAL(close)(file));
}

int fcntl(int file, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  STRIKE(concerns_file(file) && command == F_SETLK, "fcntl", "",
         REAL(fcntl)(file, command, argument));
}

int rename(const char *from, const char *to) {
  STRIKE(concerns(to), "rename", to, REAL(rename)(from, to));
}

int unlink(const char *path) { STRIKE(concerns(path), "unlink", path, REAL(unlink)(path)); }

int unlinkat(int at, const char *path, int flags) {
  STRIKE(concerns(path), "unlinkat", path, REAL(unlinkat)(at, path, flags));
}

int mkdir(const char *path, mode_t mode) {
  STRIKE(concerns(path), "mkdir", path, REAL(mkdir)(path, mode));
}

int rmdir(const char *path) { STRIKE(concerns(path), "rmdir", path, REAL(rmdir)(path)); }
