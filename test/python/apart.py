# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs a function in a process of its own, which may crash or hang."""
import dataclasses
import os
import pickle
import re
import select
import signal
import time

from meshwright import Error

TIMEOUT = 300


@dataclasses.dataclass
class Outcome:
    #: "equal", "refused", or what went wrong: "error", "differs", "not reproducible", "crash", "hang".
    kind: str
    detail: str = ""
    #: What the run met on its way, such as the ops of its programs.
    met: frozenset = frozenset()

    @property
    def is_bug(self):
        return self.kind not in ("equal", "refused")

    @property
    def signature(self):
        """A key that two failures for one reason mostly share."""
        if self.kind != "error":
            return self.kind
        first = self.detail.splitlines()[0] if self.detail else ""
        return re.sub(r"^\S*:\d+: |[\[({].*?[\])}]|\d+", "", first)[:60]


def run_apart(run, program) -> Outcome:
    """The outcome of run(program); an Error of ours that it raises is the outcome "error"."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            try:
                outcome = run(program)
            except Error as error:
                outcome = Outcome("error", str(error))
            with os.fdopen(send, "wb") as pipe:
                pipe.write(pickle.dumps(outcome))
        finally:
            os._exit(0)
    os.close(send)
    parts, deadline = [], time.monotonic() + TIMEOUT
    while True:
        ready, _, _ = select.select([receive], [], [], max(0, deadline - time.monotonic()))
        part = os.read(receive, 1 << 16) if ready else None
        if not part:
            break
        parts.append(part)
    os.close(receive)
    if part is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Outcome("hang", f"more than {TIMEOUT} s")
    _, status = os.waitpid(child, 0)
    if parts:
        return pickle.loads(b"".join(parts))
    return Outcome("crash", f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no result")
