# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random causal models serve the tokens of greedy decoding without a cache, whenever requests come.

`python test_random_serving.py FIRST LAST` tries other seeds."""

import random
import sys

import meshwright as mw
import numpy as np
import pytest
import random_serving
import torch

LENGTH = 24
PLANS = (
    {"mesh": {"tp": 1}},
    {"mesh": {"tp": 2}},
    {"mesh": {"dp": 2}},
    {"mesh": {"dp": 2, "tp": 2}},
    {"mesh": {"tp": 2}, "data_parallel_attention": 2},
    {"mesh": {"tp": 4}, "data_parallel_attention": 2},
    {"mesh": {"tp": 2}, "cache_sharding": "sequence"},
    {"mesh": {"tp": 3}, "cache_sharding": "heads"},
)


def draw_service(seed):
    """The options of a plan, and of each of four requests its prompt's length and the step before which it comes."""
    r = random.Random(-1 - seed)
    return r.choice(PLANS), [(length, r.choice((0, 0, 1, 4))) for length in r.sample((1, 2, 5, 9, 13), 4)]


def check(seed):
    options, requests = draw_service(seed)
    net = random_serving.build(random_serving.draw(seed), LENGTH, seed)
    wanted = random_serving.prompts(net, [length for length, _ in requests], 6, seed)
    arrivals = [at for _, at in requests]
    model = mw.from_torch(net, (torch.ones(1, 5, dtype=torch.long),))
    served = model.serve(max_length=LENGTH, page_size=4, max_requests=2, buckets=(3, 8))
    found = [None] * len(wanted)
    with served.parallelize(**options).start() as session:
        for step in range(200):
            for i, (prompt, _, _) in enumerate(wanted):
                if arrivals[i] == step:
                    found[i] = session.submit(prompt, max_new_tokens=6, logits=True)
            if not session.step() and step >= max(arrivals):
                break
    for request, (_, tokens, rows) in zip(found, wanted, strict=True):
        assert list(request.tokens) == tokens
        error = np.abs(np.asarray(request.logits) - rows.numpy()).max() / rows.abs().max()
        assert error < 2e-5, error


@pytest.mark.parametrize("seed", [*range(8), 306])
def test_random(seed):
    check(seed)


@pytest.mark.parametrize("seed", [222])
def test_dealt_pages_are_proved(seed):
    """Rows of values whose features are sharded go to all ranges of pages."""
    net = random_serving.build(random_serving.draw(seed), LENGTH, seed)
    model = mw.from_torch(net, (torch.ones(1, 5, dtype=torch.long),))
    served = model.serve(max_length=LENGTH, page_size=4, max_requests=2, buckets=(3,))
    plan = served.parallelize(mesh={"tp": 4}, cache_sharding="sequence")
    assert plan.report(format="json")["serving"]["cache"] == "sequence"


def main():
    first, last = map(int, sys.argv[1:])
    for seed in range(first, last):
        try:
            check(seed)
        except Exception as failure:
            print(seed, draw_service(seed), random_serving.draw(seed), repr(failure)[:500], flush=True)


if __name__ == "__main__":
    main()
