# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Masks that models compute from positions, ids and padding, and masks that are given, on one rank and
on sequences that are sharded: results beside PyTorch's in f64, and the memory that masks take."""

import copy
import functools
import re

import meshwright as mw
import pytest
import torch
import transformers as tf
from torch.nn.functional import scaled_dot_product_attention

# Mesh, options of context parallelism.
PLANS = {
    "one": ({"tp": 1}, {}),
    "ulysses": ({"ulysses": 2}, {"ulysses": "ulysses"}),
    "ring": ({"ring": 2}, {"ring": "ring"}),
    "both": ({"ring": 2, "ulysses": 2}, {"ring": "ring", "ulysses": "ulysses"}),
}


def llama(implementation="sdpa", layers=2):
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        hidden_size=64, num_hidden_layers=layers, intermediate_size=96, vocab_size=101,
        max_position_embeddings=16384, use_cache=False, num_attention_heads=8,
        num_key_value_heads=2, attn_implementation=implementation,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config).eval()


def packed(batch, length, parts=3):
    """Positions that begin again at each sequence that is packed."""
    rows = []
    for seed in range(batch):
        random = torch.Generator().manual_seed(seed)
        cuts = (torch.randperm(length - 1, generator=random)[: parts - 1] + 1).sort().values.tolist()
        ends = list(zip([0, *cuts], [*cuts, length]))
        rows.append(torch.cat([torch.arange(end - begin) for begin, end in ends]))
    return torch.stack(rows)


def parallelize(imported, plan):
    mesh, context = PLANS[plan] if isinstance(plan, str) else plan
    options = {"context_parallel": context} if context else {}
    return imported.parallelize(mesh=mesh, **options)


class Case:
    """A model with its arguments, imported once for all plans; what PyTorch makes of it, also in f64."""

    def __init__(self, model, args, kwargs):
        def call(model, cast):
            wide = {k: cast(v) if v.is_floating_point() else v for k, v in kwargs.items()}
            with torch.no_grad():
                got = model(*(cast(x) if x.is_floating_point() else x for x in args), **wide)
            return (got if isinstance(got, torch.Tensor) else got[0]).double()

        self.args, self.kwargs = args, kwargs
        self.dtype = next((p.dtype for p in model.parameters()), torch.float32)
        self.want = call(copy.deepcopy(model).double(), torch.Tensor.double)
        self.theirs = call(model, lambda x: x)
        self.imported = mw.from_torch(model, args, kwargs)

    def compare(self, plan, valid=None):
        """`valid` says whose results count: what stands at padding means nothing."""
        want, theirs = self.want, self.theirs
        plan = parallelize(self.imported, plan)
        got = plan.run(*self.args, **self.kwargs)
        got = (got if isinstance(got, torch.Tensor) else got[0]).double()
        if valid is not None:
            want, theirs, got = want[valid], theirs[valid], got[valid]
        bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[self.dtype] * want.abs().max()
        assert (got - want).abs().max() <= max(bound, 1.25 * (theirs - want).abs().max())
        return plan


def masks_in_memory(plan):
    """Sizes of values of queries by keys that some launch gives."""
    yields = re.findall(r"rt\.yield [^:]*: (.*)", plan.ir("rt"))
    shapes = [tuple(map(int, s.split("x")[:-1])) for y in yields for s in re.findall(r"tensor<(\S+?)>", y)]
    return [s for s in shapes if len(s) == 4 and s[2] > 4 and s[3] > 8]


@functools.cache
def restarting(batch, length, implementation="sdpa", dtype=torch.float32):
    ids = torch.randint(0, 101, (batch, length))
    model = llama(implementation).to(dtype)
    return Case(model, (ids,), {"position_ids": packed(batch, length)})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "batch, length, implementation", [(1, 64, "eager"), (2, 33, "sdpa"), (1, 200, "sdpa")]
)
def test_positions_that_begin_again(plan, batch, length, implementation):
    done = restarting(batch, length, implementation).compare(plan)
    assert not masks_in_memory(done)


@pytest.mark.parametrize("plan", PLANS)
def test_bf16(plan):
    done = restarting(1, 150, dtype=torch.bfloat16).compare(plan)
    assert not masks_in_memory(done)


@functools.cache
def padded(side):
    ids = torch.randint(0, 101, (3, 45))
    mask = torch.ones(3, 45, dtype=torch.long)
    for i in range(3):
        mask[i, slice(0, 7 * i) if side == "left" else slice(45 - 7 * i, 45)] = 0
    return Case(llama(), (ids,), {"attention_mask": mask})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(plan, side):
    case = padded(side)
    case.compare(plan, case.kwargs["attention_mask"].bool())


@functools.cache
def masked(dtype):
    length = 50
    ids = torch.randint(0, 101, (2, length))
    seen = torch.ones(length, length, dtype=torch.bool).tril() & (torch.rand(2, 1, length, length) > 0.3)
    seen |= torch.eye(length, dtype=torch.bool)
    mask = seen if dtype == torch.bool else torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    return Case(llama(), (ids,), {"attention_mask": mask})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_masks_that_are_given(plan, dtype):
    """They are loaded, wherever they come from."""
    masked(dtype).compare(plan)


class Segments(torch.nn.Module):
    """Causal attention, so that a ring's order is not the contiguous one, and one within segments, some of
    whose queries see nothing."""

    def forward(self, x, segments):
        q = x.unflatten(-1, (4, -1)).transpose(1, 2)
        y = scaled_dot_product_attention(q, q, q, is_causal=True)
        of_query, of_key = segments[:, None, :, None], segments[:, None, None, :]
        same = (of_query == of_key) & (of_key >= 0)
        bias = torch.where(same, 0.0, -torch.inf).to(x.dtype)
        z = scaled_dot_product_attention(q + y, q, q, attn_mask=bias)
        return z.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("ring, ulysses, length", [(2, 1, 64), (2, 2, 41), (4, 1, 75)])
def test_orders(order, ring, ulysses, length):
    segments = (torch.arange(length) * 5 // length)[None].repeat(2, 1)
    segments[1] = segments[1].flip(0)
    segments[:, length // 3 : length // 3 + 5] = -1
    x = torch.randn(2, length, 32, generator=torch.Generator().manual_seed(3))
    plan = ({"ring": ring, "ulysses": ulysses}, {"ring": "ring", "ulysses": "ulysses", "order": order})
    done = parallelize(mw.from_torch(Segments(), (x, segments)), plan)
    want = Segments()(x.double(), segments).nan_to_num(0)
    assert not want[:, length // 3 : length // 3 + 5].any()
    got = done.run(x, segments)
    got = (got if isinstance(got, torch.Tensor) else got[0]).double()
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert ("zigzag" in done.ir("spmd")) == (order == "zigzag")
    assert not masks_in_memory(done)


def arena(plan):
    return int(re.search(r"rt\.arena = (\d+)", plan.ir("rt")).group(1))


@functools.cache
def long(length):
    """Its import, and what it is called with."""
    ids = torch.zeros(1, length, dtype=torch.long)
    kwargs = {"position_ids": packed(1, length, 4)}
    return mw.from_torch(llama(layers=1), (ids,), kwargs), ids, kwargs


@pytest.mark.parametrize("plan", ["one", "ulysses", "ring"])
def test_memory_is_linear_in_the_sequence(plan):
    sizes = [arena(parallelize(long(length)[0], plan)) for length in (2048, 4096, 8192)]
    assert sizes[1] <= 2.01 * sizes[0] and sizes[2] <= 2.01 * sizes[1], sizes


@pytest.mark.parametrize("plan", PLANS)
def test_reported_memory_is_that_of_the_schedule(plan):
    """A report counts what is in memory, and a ceiling refuses nothing that fits."""
    model, ids, kwargs = long(1024)
    ids = torch.randint_like(ids, 0, 101)
    mesh, context = PLANS[plan]
    options = {"mesh": mesh, **({"context_parallel": context} if context else {})}
    done = model.parallelize(**options)
    memory = done.report(format="json")["memory_per_rank"]
    assert arena(done) <= memory["activations_peak"] <= arena(done) + 2 * 1024 * 8
    mask = 1024 * 1024 * 4
    assert memory["activations_peak"] < mask
    ceiling = sum(memory.values())
    fitting = model.parallelize(**options, memory_ceiling=ceiling)
    assert torch.equal(fitting.run(ids, **kwargs)[0], done.run(ids, **kwargs)[0])
    with pytest.raises(mw.Error, match="most frugal order: expected at most .*, the memory ceiling"):
        model.parallelize(**options, memory_ceiling=ceiling // 4)
