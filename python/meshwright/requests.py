# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Requests of sessions that serve: prompts, and the tokens that a model continues them with."""

from numbers import Integral, Real

from . import _core, arguments
from .errors import Error, InputError, unwrap
from .tensors import ELEMENT_TYPES, empty, finished, is_torch


class Request:
    """A prompt and its new tokens: what `Session.submit` returns. Its values are those of the moment."""

    def __init__(self, served, logits_type, vocabulary, kind, server):
        self._served = served
        self._logits_form = logits_type, vocabulary, kind
        #: The server that it belongs to.
        self._server = server

    @property
    def prompt(self) -> list[int]:
        return self._served.prompt

    @property
    def tokens(self) -> list[int]:
        """The new tokens so far."""
        return self._served.tokens

    @property
    def logits(self):
        """The logits [n, vocabulary] of the new tokens that this session chose, in the model's type; None
        if they were not asked for. A copy."""
        size = self._served.logits_bytes
        if size is None:
            return None
        dtype, vocabulary, kind = self._logits_form
        row = vocabulary * ELEMENT_TYPES[dtype].bits // 8
        array = empty(dtype, (size // row, vocabulary), kind)
        self._served.copy_logits(array.data_ptr() if is_torch(array) else array.ctypes.data)
        return finished(array, kind)

    @property
    def done(self) -> bool:
        return self._served.done

    @property
    def reason(self) -> str | None:
        """Why it is done: "length", "stop" or "cancelled"; None before."""
        return self._served.reason

    @property
    def group(self) -> int | None:
        """The group of ranks that computes it; None until one is chosen."""
        return self._served.group

    @property
    def pages(self) -> list[int]:
        """Its pages in the caches of its group, in order; none unless it runs."""
        return self._served.pages

    @property
    def length(self) -> int:
        """How many tokens of the prompt and the new ones are in the cache."""
        return self._served.length

    def __repr__(self):
        state = self.reason or ("runs" if self.pages else "waits")
        return f"<meshwright.Request {self._served.id}, {state}, {len(self.tokens)} tokens>"


class Serving:
    """The calls of a session whose program serves requests, those of `Model.serve`."""

    #: The compiler's server, from the first call on.
    _opened = None

    @property
    def _server(self):
        session = self._session
        if self._opened is None:
            self._opened = unwrap(_core.Server.open(session))
        return self._opened

    def submit(
        self,
        prompt,
        max_new_tokens: int = 32,
        stop=(),
        temperature: float = 0.0,
        seed: int = 0,
        logits: bool = False,
        group: int | None = None,
    ) -> Request:
        """Adds a request, which joins the batches of the next calls of `step`.

        prompt: its tokens, at least one.
        max_new_tokens: how many tokens are computed, at most.
        stop: tokens that end the request; the one that does is its last.
        temperature: 0 takes the token of the largest logit (of equals the lowest); above 0 draws from
            softmax(logits / temperature). The draw depends on the seed and the position alone.
        logits: keep the logits of the new tokens (`Request.logits`).
        group: the group of ranks to compute it; without one the least busy group does.

        An InputError names the argument that does not fit.
        """
        return self._submit("prompt", prompt, max_new_tokens, stop, temperature, seed, logits, group)

    def _submit(self, name, prompt, max_new_tokens, stop, temperature, seed, logits=False, group=None) -> Request:
        """As `submit`, with the name of the prompt in errors."""
        server = self._server
        options = _core.RequestOptions()
        tokens = _tokens(name, prompt)
        options.max_new_tokens = arguments.integer("max_new_tokens", max_new_tokens, error=InputError)
        options.stop = _tokens("stop", [stop] if isinstance(stop, Integral) else stop)
        arguments.instance("temperature", temperature, Real, "a number", InputError)
        options.temperature = float(temperature)
        options.seed = arguments.integer("seed", seed, error=InputError)
        options.logits = arguments.flag("logits", logits, InputError)
        if group is not None:
            options.group = arguments.integer("group", group, error=InputError)
        try:
            return self._request(unwrap(server.submit(tokens, options)))
        except Error as error:
            raise InputError([
                d._replace(message=name + d.message.removeprefix("prompt")) if d.message.startswith("prompt") else d
                for d in error.diagnostics
            ]) from None

    def generate(
        self,
        prompts,
        max_new_tokens: int = 32,
        stop=(),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[list[int]]:
        """The new tokens of each prompt, in the order of the prompts. Arguments are as in `submit`.

        Requests that were submitted before go on meanwhile. If a call fails, the requests of these prompts
        are cancelled.
        """
        if isinstance(prompts, str | bytes) or not hasattr(prompts, "__iter__"):
            expected = "a sequence of prompts, each of which is a sequence of tokens"
            arguments.fail("prompts", prompts, expected, InputError)
        requests = []
        try:
            for i, prompt in enumerate(prompts):
                requests.append(self._submit(f"prompts[{i}]", prompt, max_new_tokens, stop, temperature, seed))
            while not all(request.done for request in requests):
                self.step()
        except BaseException:
            for request in requests:
                self.cancel(request)
            raise
        return [request.tokens for request in requests]

    def step(self) -> int:
        """Computes one batch. Returns how many tokens of prompts and requests it processed: 0 if no request
        waits or runs. A step that fails changes no request."""
        return unwrap(self._server.step())

    def cancel(self, request: Request) -> None:
        """Ends a request, whose tokens stay as they are. One that is done is left alone."""
        server = self._server
        arguments.instance("request", request, Request, "a request of this session")
        if request._server is not server:
            raise Error("request: expected one of this session, got one of another session")
        unwrap(server.cancel(request._served))

    @property
    def requests(self) -> list[Request]:
        """The requests that wait or run, in the order of submission. A session that starts from a saved
        state has those of the session that saved it."""
        return [self._request(served) for served in self._server.requests]

    def stats(self) -> dict:
        """Numbers since the session began: its steps, the tokens of prompts that it computed, the tokens
        that it generated, calls by entry, pages of all groups (those of shared beginnings that no
        request uses are free), requests that wait and run, and how often a request lost its pages."""
        stats = self._server.stats
        return {
            "steps": stats.steps,
            "prompt_tokens": stats.prompt_tokens,
            "generated": stats.generated,
            "entries": dict(zip(self._server.entries, stats.calls, strict=True)),
            "pages": {"total": stats.pages, "free": stats.free_pages},
            "waiting": stats.waiting,
            "running": stats.running,
            "preempted": stats.preempted,
        }

    def warm_up(self) -> None:
        """Runs each entry once without requests: the first steps then take no longer than others."""
        unwrap(self._server.warm_up())

    def _request(self, served) -> Request:
        server = self._server
        return Request(served, server.logits_type, server.sizes.vocabulary, self._kind, server)


def _tokens(name, value) -> list[int]:
    """Tokens in a sequence, or in an array of one dimension."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        arguments.fail(name, value, "a sequence of tokens", InputError)
    value = list(value)
    if value and hasattr(value[0], "__iter__") and getattr(value[0], "ndim", 1):
        raise InputError(f"{name}: expected a flat sequence of tokens, got one of sequences")
    return [arguments.integer(f"{name}[{i}]", token, error=InputError) for i, token in enumerate(value)]
