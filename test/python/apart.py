# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls a function in a process of its own, which may crash or hang."""
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


class Ended(Exception):
    """A process gave no result: it crashed, or it hung."""

    def __init__(self, kind, detail):
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


def call_apart(work, timeout=TIMEOUT):
    """The result of work() in a process of its own. Raises Ended without one, and an Error of ours as it is."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            try:
                result = work()
            except Error as error:
                result = error
            with os.fdopen(send, "wb") as pipe:
                pipe.write(pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(send)
    parts, deadline = [], time.monotonic() + timeout
    while True:
        ready, _, _ = select.select([receive], [], [], max(0, deadline - time.monotonic()))
        part = os.read(receive, 1 << 16) if ready else None
        if not part:
            break
        parts.append(part)
    os.close(receive)
    if part is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if part is None:
        raise Ended("hang", f"more than {timeout} s")
    if not parts:
        raise Ended("crash", f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no result")
    result = pickle.loads(b"".join(parts))
    if isinstance(result, Error):
        raise result
    return result


def run_apart(run, program) -> Outcome:
    """The outcome of run(program); an Error of ours that it raises is the outcome "error"."""
    try:
        return call_apart(lambda: run(program))
    except Error as error:
        return Outcome("error", str(error))
    except Ended as ended:
        return Outcome(ended.kind, ended.detail)
