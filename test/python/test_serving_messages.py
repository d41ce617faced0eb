# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Errors of `serve`, of sessions that serve and of sizes that are too large: each is an mw.Error of one message."""
import functools

import meshwright as mw
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

SIZES = {"max_length": 40, "page_size": 4, "max_requests": 2, "buckets": (3, 8)}
IDS = torch.ones(1, 6, dtype=torch.long)


class Decoder(nn.Module):
    def __init__(self, counts=False, width=16, vocabulary=31):
        super().__init__()
        self.table, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.positions = nn.Parameter(torch.randn(50, width))
        self.counts = counts
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, ids):
        if self.counts:
            self.calls += 1
        x = self.table(ids) + self.positions[:ids.shape[1]]
        return self.head(x + F.scaled_dot_product_attention(x, x, x, is_causal=True))


@functools.cache
def model(counts=False):
    torch.manual_seed(1)
    return mw.from_torch(Decoder(counts).eval(), (IDS,))


@pytest.fixture(scope="module")
def plan():
    return model().serve(**SIZES).parallelize(mesh={"tp": 1})


def test_state(tmp_path):
    with pytest.raises(mw.Error, match="messages.py:[0-9]+: state 'calls': expected a model without state"):
        model(True).serve(**SIZES)
    program, weights = tmp_path / "model.mlir", tmp_path / "model.safetensors"
    model(True).save(program, weights)
    with pytest.raises(mw.Error, match="^state 'calls': expected a model without state"):
        mw.load(program, weights).serve(**{**SIZES, "max_length": 6})


@pytest.mark.parametrize("sizes", [{"max_length": 10**12}, {"max_requests": 10**9}, {"buckets": (3, 10**9)}])
def test_more_than_memory_holds(sizes):
    with pytest.raises(mw.Error, match=r"expected at most \d+, for which this machine has memory, got 1000000000"):
        model().serve(**{**SIZES, **sizes})


def test_more_positions_than_a_table_has(capfd):
    with pytest.raises(mw.Error, match="max_length: expected a length that the model takes, got 51: .*50") as error:
        model().serve(**{**SIZES, "max_length": 51})
    assert error.value.diagnostics[0].file == __file__
    assert capfd.readouterr().err == ""


def test_types_of_ids():
    with pytest.raises(mw.Error, match=r"tokens \[1, t\], of type i64, got one of 'ids' i32\[1, 6\]"):
        mw.from_torch(Decoder().eval(), (IDS.int(),)).serve(**SIZES)


@pytest.mark.parametrize(("prompts", "message"), [
    (None, "^prompts: expected a sequence of prompts, each of which is a sequence of tokens, got None"),
    ("text", "^prompts: expected a sequence of prompts"),
    ([[5], [999]], r"^prompts\[1\]: expected tokens of at least 0 and less than 31, got 999"),
    ([[5], [5] * 60], r"^prompts\[1\] and max_new_tokens: expected at most max_length = 40"),
    ([[5], []], r"^prompts\[1\]: expected at least one token"),
    ([IDS], r"^prompts\[0\]: expected a flat sequence of tokens, got one of sequences"),
    ([[2**64]], r"^prompts\[0\]\[0\]: expected an integer from -9223372036854775807 to 9223372036854775807, got 18446"),
])
def test_prompts(plan, prompts, message):
    with plan.start() as session, pytest.raises(mw.InputError, match=message):
        session.generate(prompts)


def test_numbers_of_numpy(plan):
    with plan.start() as session:
        first = session.generate([[5]], max_new_tokens=4)[0]
        stopped = session.generate([np.array([5])], max_new_tokens=4, stop=np.int64(first[1]))
        assert stopped == [first[:first.index(first[1]) + 1]]
        assert session.generate(IDS[:, :1] * 5, max_new_tokens=4) == [first]


def test_calls_of_steps(plan):
    message = "expected requests by `start\\(\\)` and `generate` or `submit`"
    with plan.start() as session, pytest.raises(mw.InputError, match=message):
        session.run(IDS)
    for call in (plan.run, plan.check):
        with pytest.raises(mw.InputError, match=message):
            call(IDS)


@pytest.mark.parametrize(("mesh", "dense"), [({"tp": 2}, 2), ({"dp": 2, "tp": 1}, 1)])
def test_report_without_groups(mesh, dense):
    serving = model().serve(**SIZES).parallelize(mesh=mesh).report(format="json")["serving"]
    assert (serving["dense_tp"], serving["dp_lm_head"]) == (dense, "off")


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


@pytest.mark.parametrize("tokens", [10**9, 10**12])
def test_buckets_above_memory(tokens):
    names = {"x": {0: "batch", 1: "tokens"}}
    with pytest.raises(mw.Error, match="buckets: expected input 'x' to fit the memory of this machine"):
        sizes = {"batch": [4], "tokens": [8, tokens]}
        mw.from_torch(Mean(), (torch.ones(2, 8, 64),), dynamic_shapes=names, buckets=sizes)


def test_names_of_sizes():
    with pytest.raises(mw.Error, match="expected a name of letters, digits and underscores for dimension 0, got 'a b'"):
        mw.from_torch(Mean(), (torch.ones(2, 8),), dynamic_shapes={"x": {0: "a b"}}, buckets={"a b": [4]})
