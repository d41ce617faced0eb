#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much communication hides behind arithmetic on slow links?

Uses two ranks, one core each, on links so slow that communication takes a quarter of the compute
time:

1. Measure the compute time at full speed, with collectives that block.
2. Compute the bandwidth of the links from it and from the bytes that a rank sends. The cost model
   gets the same numbers.
3. Run the model on slow links with blocking collectives, and with overlap=auto (an order that hides
   collectives; with products, in chunks).

--case tp: a tensor-parallel Llama, with and without sequence parallelism. --case ring: a layer of
attention with its projections, whose sequence is sharded around a ring, without a mask, and with a
causal one in zigzag order. --case ulysses: the same layer with all-to-alls between sequence and
heads. --case train: steps of AdamW on a stack of layers without embedding, on dp = 2 with one row of
the batch each and microbatch; the gradients are all-reduced, or scattered to shards of the optimizer.

The exposed time of a plan is the time that slow links add to it. The hidden time is the exposed
time of the blocking plan minus that of the overlapping plan. Plans run in turn, each at full speed
and directly afterwards on slow links. The difference within such a pair is what counts, because
slow changes of the machine affect both runs of a pair. The results are medians and quartiles.

    PATH=build/bin:$PATH PYTHONPATH=build/python python bench/overlap.py
        [--case tp|ring|ulysses|train] [--backend local|mpi] [--tokens 512] [--hidden 1024] [--layers 4]
        [--share 0.25] [--microbatches 1] [--runs 41] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

RANKS = 2
LATENCY = 20e-6


def build_llama(options):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = options.hidden // 128
    config = LlamaConfig(
        hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers, num_attention_heads=heads,
        num_key_value_heads=max(RANKS, heads // 2), vocab_size=4096,
        max_position_embeddings=options.tokens, use_cache=False, tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval(), torch.zeros(1, options.tokens, dtype=torch.long)


def build_attention(options):
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.out = (
                nn.Linear(options.hidden, options.hidden, bias=False) for _ in range(4))

        def forward(self, x):
            parts = (p(x).view(1, options.tokens, -1, 128).transpose(1, 2)
                     for p in (self.query, self.key, self.value))
            y = F.scaled_dot_product_attention(*parts, is_causal=options.causal)
            return self.out(y.transpose(1, 2).reshape(1, options.tokens, options.hidden))

    return Layer().eval(), torch.randn(1, options.tokens, options.hidden)


def build_stack(options):
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            width, inner = options.hidden, options.hidden * 11 // 4
            self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x):
            split = self.qkv(self.attention_norm(x)).unflatten(-1, (3, -1, 64))
            q, k, v = (split[:, :, i].transpose(1, 2) for i in range(3))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            y = self.mlp_norm(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(options.layers))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x.square().mean()

    return Stack().train(), torch.randn(options.microbatches * RANKS, options.tokens, options.hidden)


BUILDERS = {"tp": build_llama, "ring": build_attention, "ulysses": build_attention, "train": build_stack}
AXES = {"tp": "tp", "ring": "ring", "ulysses": "ulysses", "train": "dp"}


def build(options):
    import meshwright as mw
    import torch

    torch.manual_seed(0)
    module, x = BUILDERS[options.case](options)
    if options.case == "train":
        model = mw.from_torch(module, (x,), training=True)
        return model.train(mw.AdamW(lr=1e-4), microbatches=options.microbatches), x
    return mw.from_torch(module, (x,)), x


def count_flops(options):
    """The floating-point operations of a rank's products."""
    if options.case == "train":
        layer = options.hidden**2 * (4 + 3 * 11 / 4)
        # The rows of the batch, and a backward pass of twice the forward pass.
        flops = 3 * options.microbatches * RANKS * 2 * options.layers * layer * options.tokens
    elif options.case != "tp":
        pairs = options.tokens / (2 if options.causal else 1)
        flops = 4 * options.tokens * options.hidden * (2 * options.hidden + pairs)
    else:
        layer = options.hidden**2 * (3 + 3 * 11 / 4)
        flops = 2 * (options.layers * layer + 4096 * options.hidden) * options.tokens
    return flops / RANKS


def work(options):
    """Runs plans in turn, each on the link it is given; prints seconds of each and bytes sent."""
    model, x = build(options)
    plans, sessions = [], []
    with contextlib.ExitStack() as stack:
        for job in json.loads(options.job):
            link = job.pop("link", None)
            # Read when a session starts.
            os.environ.pop("MESHWRIGHT_LINK", None)
            if link:
                os.environ["MESHWRIGHT_LINK"] = (
                    f"latency={LATENCY * 1e6:g}us,bandwidth={link / 1e9:.6g}GB/s")
            plans.append(model.parallelize(mesh={AXES[options.case]: RANKS}, **job))
            sessions.append(stack.enter_context(plans[-1].start(backend=options.backend)))
            sessions[-1].run(x)
        seconds = [[] for _ in plans]
        for _ in range(options.runs):
            for session, own in zip(sessions, seconds):
                begin = time.perf_counter()
                session.run(x)
                own.append(time.perf_counter() - begin)
    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        sent = plans[0].report(format="json")["bytes_per_rank"]
        print(json.dumps({"seconds": seconds, "sent": sent}))


def measure(options, jobs):
    """Seconds of each plan's runs, and the bytes that a rank sends in one."""
    command = [sys.executable, __file__, f"--case={options.case}", f"--backend={options.backend}",
               *(["--causal"] if options.causal else []),
               f"--tokens={options.tokens}", f"--hidden={options.hidden}",
               f"--layers={options.layers}", f"--microbatches={options.microbatches}",
               f"--runs={options.runs}", f"--job={json.dumps(jobs)}"]
    if options.backend == "mpi":
        command = ["meshwright-mpirun", "-np", str(RANKS), *command]
    environment = {**os.environ, "MESHWRIGHT_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return result["seconds"], result["sent"]


def subtract(slow, fast):
    """The time that slow links add, pair by pair: the median and the quartiles."""
    low, median, high = statistics.quantiles([s - f for s, f in zip(slow, fast)], n=4)
    return median, (low, high)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="tp", choices=list(BUILDERS))
    parser.add_argument("--backend", default="local")
    parser.add_argument("--tokens", type=int, help="512, of one layer of attention 4096")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.25, help="communication / compute time")
    parser.add_argument("--microbatches", type=int, default=1, help="of --case train")
    parser.add_argument("--runs", type=int, default=41)
    parser.add_argument("--json")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--causal", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.tokens = options.tokens or (512 if options.case in ("tp", "train") else 4096)
    if options.job:
        work(options)
        return

    rows = []
    print(f"{'plan':<22}{'full speed':>12}{'slow links':>12}{'added (quartiles)':>27}{'hidden':>9}"
          f"{'exposed':>9}{'link':>13}")
    if options.case == "train":
        variants = {name: (False, {"shard_optimizer": shards})
                    for name, shards in (("dp", "off"), ("shards", "on"))}
    elif options.case == "tp":
        variants = {f"sp={sp}": (False, {"sequence_parallel": sp}) for sp in ("off", "on")}
    elif options.case == "ulysses":
        variants = {name: (causal, {"context_parallel": {"ulysses": "ulysses"}})
                    for name, causal in (("full", False), ("causal", True))}
    else:
        variants = {name: (causal, {"context_parallel": {"ring": "ring", "order": order}})
                    for name, causal, order in (("full", False, "contiguous"),
                                                ("causal", True, "zigzag"))}
    for variant, (options.causal, how) in variants.items():
        plain = {**how, "device": "cpu", "overlap": "off"}
        [own], sent = measure(options, [plain])
        compute = statistics.median(own)
        bandwidth = sent / (options.share * compute)
        # The operations per second of a rank's products, for the cost model.
        flops = count_flops(options) / compute
        hides = {**how, "overlap": "auto",
                 "device": f"cpu flops_f32={flops:.4g} link_bandwidth={bandwidth:.6g} "
                           f"link_latency={LATENCY:g} overlap=1"}
        (plain_fast, plain_slow, fast, slow), _ = measure(
            options, [plain, {**plain, "link": bandwidth}, hides, {**hides, "link": bandwidth}])
        blocked, _ = subtract(plain_slow, plain_fast)
        for name, pair in (("off", (plain_slow, plain_fast)), ("auto", (slow, fast))):
            added, quartiles = subtract(*pair)
            row = {"variant": variant, "overlap": name,
                   "slow_links_seconds": statistics.median(pair[0]),
                   "full_speed_seconds": statistics.median(pair[1]),
                   "added_seconds": added, "added_quartiles": quartiles,
                   "hidden_share": 1 - added / blocked,
                   "exposed_share": added / (options.share * compute),
                   "bytes_sent": sent, "link_bytes_per_second": bandwidth}
            rows.append(row)
            spread = " to ".join(f"{value * 1e3:.1f}" for value in quartiles)
            print(f"{variant:<7}overlap={name:<7}{row['full_speed_seconds'] * 1e3:>10.1f}ms"
                  f"{row['slow_links_seconds'] * 1e3:>10.1f}ms{added * 1e3:>9.1f} ({spread}) ms".ljust(70)
                  + f"{row['hidden_share']:>7.1%}{row['exposed_share']:>9.1%}{bandwidth / 1e6:>8.0f} MB/s", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"bench": "overlap", "options": vars(options), "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
