//===- Fault.cpp - fault injection ----------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Fault.h"

#include "meshwright/runtime/src/ranks/Context.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

namespace meshwright::rt {

std::unique_ptr<Fault> Fault::fromEnvironment() {
  const char *text = std::getenv("MESHWRIGHT_FAULT");
  if (!text)
    return nullptr;
  auto fault = std::make_unique<Fault>();
  const char *const names[] = {"throw", "stall", "kill", "memory"};
  std::istringstream words(text);
  std::string kind;
  if (words >> kind >> fault->rank >> fault->op)
    for (size_t i = 0; i < std::size(names); ++i)
      if (kind == names[i]) {
        fault->kind = Kind(i);
        return fault;
      }
  std::fprintf(stderr,
               "warning: MESHWRIGHT_FAULT: expected throw, stall, kill or memory, a rank and a "
               "part of an op's name, got '%s'\n",
               text);
  return nullptr;
}

void Fault::strike(const mw_rt_context &context, int64_t at) const {
  if (context.rank != rank || context.world->getOpName(at).find(op) == std::string::npos)
    return;
  switch (kind) {
  case Throw:
    throw std::runtime_error("a fault was asked for");
  case Stall:
    while (true)
      ::pause();
  case Kill:
    ::kill(::getpid(), SIGKILL);
    return;
  case Memory:
    throw std::bad_alloc();
  }
}

} // namespace meshwright::rt
