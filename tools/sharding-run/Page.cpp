//===- Page.cpp - pages of sharding-run -----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Page.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <spawn.h>
#include <sys/wait.h>
#include <vector>

extern char **environ;

using namespace meshwright;
using namespace meshwright::run;

bool run::isPage(const std::string &path) {
  auto endsWith = [&](const std::string &end) {
    return path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
  };
  return endsWith(".html") || endsWith(".htm");
}

/// Runs `python3 -m meshwright.pages` with a text as standard input. Returns true if it succeeds; it has
/// printed its errors otherwise.
static bool runPython(const std::vector<std::string> &arguments, const std::string &input,
                      std::string &error) {
  std::FILE *file = std::tmpfile();
  if (!file || std::fwrite(input.data(), 1, input.size(), file) != input.size() || std::fflush(file) != 0) {
    error = std::string("cannot write a temporary file: ") + std::strerror(errno);
    if (file)
      std::fclose(file);
    return false;
  }
  std::rewind(file);
  std::vector<std::string> words{"python3", "-m", "meshwright.pages"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char *> argv;
  for (std::string &word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(file), 0);
  pid_t child;
  int failed = posix_spawnp(&child, "python3", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  std::fclose(file);
  if (failed) {
    error = std::string("cannot run 'python3': ") + std::strerror(failed);
    return false;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) {
      error = std::string("cannot wait for 'python3': ") + std::strerror(errno);
      return false;
    }
  error = "'python3 -m meshwright.pages' failed";
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static Status failPage(const std::string &path, const std::string &error) {
  return fail("cannot write page '" + path + "': " + error +
              "; a page needs the Python package 'meshwright[report]', found by the python3 of the PATH");
}

Status run::checkPages(const std::string &path) {
  std::string error;
  return runPython({"--check"}, "", error) ? Fine : failPage(path, error);
}

Status run::writePage(const std::string &facts, const std::string &path, const std::string &trace) {
  std::vector<std::string> arguments{path};
  if (!trace.empty())
    arguments.push_back(trace);
  std::string error;
  return runPython(arguments, facts, error) ? Fine : failPage(path, error);
}
