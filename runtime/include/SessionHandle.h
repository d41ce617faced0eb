//===- SessionHandle.h - sessions for the C interface -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_SESSIONHANDLE_H
#define MESHWRIGHT_RUNTIME_INCLUDE_SESSIONHANDLE_H

#include "meshwright-c/Session.h"
#include "meshwright/runtime/include/Session.h"

namespace meshwright::rt {

/// How a session starts.
struct SessionStart {
  /// The folder of a saved state; empty: the initial state.
  std::string state;
  /// True if a call that fails leaves the state as it was.
  bool recovers = true;
  /// "on", "off" or "auto".
  std::string graphs = "auto";
};

/// The error of a state to start from that is given and empty.
inline constexpr const char *kEmptyState =
    "state: expected a folder that a session saved to, got ''";

/// Prepares a new session for its calls, and `options` for each of them. Returns false after an
/// error.
bool startSession(Session &session, const SessionStart &start, RunOptions &options,
                  std::string &error);

/// Makes a handle of a session that has started. `options` are those of its calls.
mw_session *openHandle(std::shared_ptr<Session> session, const RunOptions &options, mw_say say,
                       void *user);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_SESSIONHANDLE_H
