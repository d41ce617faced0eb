# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random causal models serve the tokens of greedy decoding without a cache."""

import meshwright as mw
import numpy as np
import pytest
import random_serving
import torch

LENGTH = 24
MESHES = ({"tp": 1}, {"tp": 2})


def check(seed):
    net = random_serving.build(random_serving.draw(seed), LENGTH, seed)
    wanted = random_serving.prompts(net, (9, 1, 13), 6, seed)
    model = mw.from_torch(net, (torch.ones(1, 5, dtype=torch.long),))
    served = model.serve(max_length=LENGTH, page_size=4, max_requests=2, buckets=(3, 8))
    with served.parallelize(mesh=MESHES[seed % len(MESHES)]).start() as session:
        requests = [session.submit(prompt, max_new_tokens=6, logits=True) for prompt, _, _ in wanted]
        while session.step():
            pass
    for request, (_, tokens, rows) in zip(requests, wanted, strict=True):
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
