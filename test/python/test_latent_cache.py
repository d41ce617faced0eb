# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models with latent keys cache the latent, and give the tokens of PyTorch.

A longer run draws more models: `python test/python/test_latent_cache.py --long 200`.
"""

import sys

import latent_modules
import meshwright as mw
import numpy as np
import pytest
import torch

PAGE, LENGTH, REQUESTS, NEW = 4, 24, 2, 4


def greedy(net, prompt):
    """The logits of the new tokens, in f64, and the tokens."""
    ids, logits = torch.tensor([prompt]), []
    with torch.no_grad():
        for _ in range(NEW):
            logits.append(net(ids)[0, -1])
            ids = torch.cat([ids, logits[-1].argmax()[None, None]], 1)
    return ids[0, len(prompt) :].tolist(), torch.stack(logits).numpy()


def check(seed, mesh, sharding="heads"):
    choice, net = latent_modules.make(seed)
    prompts = [
        torch.randint(choice.vocabulary, (n,), generator=torch.Generator().manual_seed(seed + n)).tolist()
        for n in (7, 3)
    ]
    model = mw.from_torch(net, (torch.zeros(1, 8, dtype=torch.long),))
    served = model.serve(max_length=LENGTH, page_size=PAGE, max_requests=REQUESTS, buckets=(2, 16))
    with served.parallelize(mesh=mesh, cache_sharding=sharding).start() as session:
        requests = [session.submit(prompt, max_new_tokens=NEW, logits=True) for prompt in prompts]
        while session.step():
            pass
        caches = {name: np.shape(value) for name, value in session.state().items() if name.startswith("cache.")}
    double = net.double()
    for prompt, request in zip(prompts, requests, strict=True):
        tokens, logits = greedy(double, prompt)
        scale = np.abs(logits).max()
        for own, at in zip(np.asarray(request.logits, np.float64), range(NEW), strict=True):
            assert np.abs(own - logits[at]).max() / scale < 2e-5, (seed, choice)
            if request.tokens[at] != tokens[at]:
                # Rounding chose between two equal logits.
                assert np.ptp(np.sort(logits[at])[-2:]) / scale < 1e-4, (seed, choice)
                break
    dealt = mesh["tp"] if sharding == "sequence" else 1
    pages = -(-LENGTH // (PAGE * dealt)) * dealt * REQUESTS
    elements = sum(np.prod(shape[3:]) for shape in caches.values())
    assert elements == choice.layers * choice.cached, (seed, choice, caches)
    assert all(shape[:3] == (1, pages, PAGE) for shape in caches.values()), caches


@pytest.mark.parametrize("seed", range(8))
def test_drawn_models_cache_the_latent(seed):
    check(seed, {"tp": 1 + seed % 2})


@pytest.mark.parametrize("seed", range(8, 12))
def test_ranks_hold_pages_of_the_latent(seed):
    check(seed, {"tp": 2 + seed % 3}, "sequence")


if __name__ == "__main__":
    for seed in range(int(sys.argv[sys.argv.index("--long") + 1])):
        check(seed, {"tp": 1 + seed % 3}, ("heads", "sequence")[seed % 2])
    print("equal")
