#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does a layer of experts take, beside PyTorch, a dense layer, and itself on other ranks?

The block of Mixtral of transformers with random weights: 8 experts of 1024 x 3584, of which a token
has two.

- beside: one rank with two threads, beside PyTorch eager and `torch.compile` with two threads, each with
  the faster of transformers' implementations (a loop, `grouped_mm`, `batched_mm`); 512 tokens, and one.
- dense: the same layer on 512 tokens beside a dense one of 1024, which has products of as many rows.
- skewed: all tokens on two of the experts, beside even loads.
- ranks: ep = 2 with a thread per rank, beside one rank on one thread.
- step: a training step of four such layers with AdamW, beside PyTorch's.

The runs of a group take turns. The results are medians of the ratios within a turn; above 1 ours is
faster, the even load is the slower one, or ep = 2 is.

    PYTHONPATH=build/python python bench/experts.py [--repeats 9] [--no-compile]
        [--only beside|dense|skewed|ranks|step] [--dtypes f32,bf16]
"""

import argparse
import contextlib
import copy

import meshwright as mw
import torch
from forward import DTYPES, medians, ratio, spell, take_turns
from torch import nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

WIDTH, INNER, EXPERTS, CHOSEN, TOKENS = 1024, 3584, 8, 2, 512


class Layers(nn.Module):
    """x + experts(x), several times."""

    def __init__(self, layers, implementation):
        super().__init__()
        config = MixtralConfig(hidden_size=WIDTH, intermediate_size=INNER, num_local_experts=EXPERTS,
                               num_experts_per_tok=CHOSEN)
        config._experts_implementation = implementation
        self.blocks = nn.ModuleList(MixtralSparseMoeBlock(config) for _ in range(layers))
        for p in self.parameters():
            nn.init.normal_(p, std=p.shape[-1] ** -0.5)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).float().square().mean()


class Dense(nn.Module):
    """The same products of a layer whose tokens all have one expert."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


def build(dtype, implementation="grouped_mm", layers=1):
    torch.manual_seed(0)
    return Layers(layers, implementation).to(dtype)


def tokens_of(dtype, count=TOKENS):
    return torch.randn(1, count, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def start(stack, net, x, threads, **options):
    plan = mw.from_torch(net.eval(), (x,)).parallelize(device="cpu", **options)
    session = stack.enter_context(plan.start(threads_per_rank=threads))
    session.run(x)
    return lambda: session.run(x)


def in_pytorch(dtype, x, compiled):
    """A run of each of transformers' implementations that PyTorch has for this type."""
    runs = {}
    for name in ("eager", "grouped_mm", "batched_mm"):
        if name == "batched_mm" and x.shape[1] > EXPERTS:
            continue  # it copies the weights of each token's experts
        net = build(dtype, name).eval()
        forward = torch.compile(net) if compiled else net

        def run(forward=forward):
            with torch.no_grad():
                return forward(x)

        with contextlib.suppress(RuntimeError):
            run()
            runs[("compiled " if compiled else "") + name] = run
    return runs


def beside_pytorch(name, options):
    dtype = DTYPES[name]
    for count in (TOKENS, 1):
        x = tokens_of(dtype, count)
        with contextlib.ExitStack() as stack:
            runs = {"ours": start(stack, build(dtype), x, 2, mesh={"dp": 1})} | in_pytorch(dtype, x, False)
            if options.compile:
                runs |= in_pytorch(dtype, x, True)
            seconds = take_turns(runs, options.repeats)
        times = medians(seconds)
        best = min((run for run in runs if run != "ours"), key=times.get)
        print(f"beside  {name:<5} {count:>3} tokens  ratio {ratio(seconds, best, 'ours'):.2f} ({best})  {spell(times)}", flush=True)


def beside_dense(name, options):
    dtype = DTYPES[name]
    wide = tokens_of(dtype, CHOSEN * TOKENS)
    with contextlib.ExitStack() as stack:
        runs = {"dense": start(stack, Dense().to(dtype), wide, 2, mesh={"dp": 1}),
                "experts": start(stack, build(dtype), tokens_of(dtype), 2, mesh={"dp": 1})}
        seconds = take_turns(runs, options.repeats)
    print(f"dense   {name:<5} ratio {ratio(seconds, 'dense', 'experts'):.2f}  {spell(medians(seconds))}", flush=True)


def skewed(name, options):
    """The router of the other layer has a constant feature for two of the experts."""
    dtype = DTYPES[name]
    x = tokens_of(dtype)
    x[..., 0] = 1
    even, odd = build(dtype), build(dtype)
    with torch.no_grad():
        odd.blocks[0].gate.weight[:2, 0] += 100
    with contextlib.ExitStack() as stack:
        runs = {"even": start(stack, even, x, 2, mesh={"dp": 1}), "skewed": start(stack, odd, x, 2, mesh={"dp": 1})}
        seconds = take_turns(runs, options.repeats)
    print(f"skewed  {name:<5} ratio {ratio(seconds, 'skewed', 'even'):.2f}  {spell(medians(seconds))}", flush=True)


def on_ranks(name, options):
    dtype = DTYPES[name]
    x = tokens_of(dtype)
    with contextlib.ExitStack() as stack:
        runs = {"one rank": start(stack, build(dtype), x, 1, mesh={"dp": 1}),
                "ep=2": start(stack, build(dtype), x, 1, mesh={"ep": 2})}
        seconds = take_turns(runs, options.repeats)
    print(f"ranks   {name:<5} ratio {ratio(seconds, 'one rank', 'ep=2'):.2f}  {spell(medians(seconds))}", flush=True)


def step(name, options):
    dtype = DTYPES[name]
    net, x = build(dtype, layers=4).train(), tokens_of(dtype)
    with contextlib.ExitStack() as stack:
        plan = mw.from_torch(Loss(net), (x,), training=True).train(mw.AdamW(lr=1e-4)).parallelize(
            mesh={"dp": 1}, device="cpu")
        session = stack.enter_context(plan.start(threads_per_rank=2))
        runs = {"ours": lambda: session.run(x)}
        for compiled in (False, True) if options.compile else (False,):
            own = Loss(copy.deepcopy(net))
            runs["compile" if compiled else "eager"] = training(own, x, compiled)
        seconds = take_turns(runs, options.repeats)
    times = medians(seconds)
    best = min((run for run in runs if run != "ours"), key=times.get)
    print(f"step    {name:<5} ratio {ratio(seconds, best, 'ours'):.2f} ({best})  {spell(times)}", flush=True)


def training(net, x, compiled):
    own = list(net.parameters())
    masters = own if own[0].dtype == torch.float32 else [p.detach().float() for p in own]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    forward = torch.compile(net) if compiled else net

    def run():
        forward(x).backward()
        for master, p in zip(masters, own, strict=True):
            if master is not p:
                master.grad, p.grad = p.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        if masters is not own:
            with torch.no_grad():
                torch._foreach_copy_(own, masters)

    return run


GROUPS = {"beside": beside_pytorch, "dense": beside_dense, "skewed": skewed, "ranks": on_ranks, "step": step}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--only", choices=GROUPS)
    parser.add_argument("--dtypes", default="f32,bf16")
    options = parser.parse_args()
    torch.set_num_threads(2)
    for group, run in GROUPS.items():
        for dtype in options.dtypes.split(","):
            if options.only in (None, group):
                run(dtype, options)


if __name__ == "__main__":
    main()
