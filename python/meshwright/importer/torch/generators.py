# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random generators of Python, NumPy and PyTorch: their states."""
import contextlib
import functools
import random

import numpy as np
import torch

from .patches import patched

GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)
GLOBAL_GENERATORS = {
    "Python's generator (random)": random._inst,
    "NumPy's generator (numpy.random)": np.random.mtrand._rand,
    "PyTorch's generator on the CPU": torch.default_generator,
}


#: Of the system's generator, which has no state: how often it was asked for numbers.
_asked = [0]


@contextlib.contextmanager
def counting_draws():
    def counted(kept):
        def call(self, *args):
            _asked[0] += 1
            return kept(self, *args)

        return call

    with patched() as patch:
        for name in ("random", "getrandbits", "randbytes"):
            patch(random.SystemRandom, name, counted(vars(random.SystemRandom)[name]))
        yield


def state_of_generator(generator):
    if isinstance(generator, random.SystemRandom):
        return _asked[0]
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().numpy()) if generator.device.type == "cpu" else None
    state = generator.get_state(legacy=False) if isinstance(generator, np.random.RandomState) else \
        generator.bit_generator.state
    return repr({k: v.tobytes() if isinstance(v, np.ndarray) else v
                 for k, v in _flat(state)})


def _flat(state, prefix=""):
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def put_back(generator):
    if isinstance(generator, random.SystemRandom):
        return lambda: None
    if isinstance(generator, random.Random):
        return functools.partial(generator.setstate, generator.getstate())
    if isinstance(generator, torch.Generator):
        return functools.partial(generator.set_state, generator.get_state())
    if isinstance(generator, np.random.RandomState):
        return functools.partial(generator.set_state, generator.get_state(legacy=False))
    source = generator.bit_generator
    return functools.partial(setattr, source, "state", source.state)


def reseed(generator, seed: int):
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


@contextlib.contextmanager
def extreme(high: bool):
    """Lets numbers drawn uniformly be the least ones, or the largest ones: where they are compared
    with a probability, one of both decides otherwise."""
    share = 1 - 2.0 ** -20 if high else 2.0 ** -20
    between = lambda low=0.0, high=1.0, size=None: _filled(low + (high - low) * share, size)
    with patched() as patch:
        patch(random, "random", lambda: share)
        patch(random.SystemRandom, "random", lambda self: share)
        patch(random, "uniform", lambda low, high: low + (high - low) * share)
        for name in ("random", "random_sample", "ranf", "sample"):
            patch(np.random, name, lambda size=None: _filled(share, size))
        patch(np.random, "rand", lambda *shape: _filled(share, shape or None))
        patch(np.random, "uniform", between)
        yield


def _filled(value, size):
    return value if size is None else np.full(size, value)
