#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How much do weights in shards cost a training step, and how much of their way does it hide?

Steps of AdamW on a Llama of transformers (width 1024) over 512 tokens a rank, on two ranks, one core
each:

1. Weights in shards (gtp = 2) beside whole ones (dp = 2), at full speed: the ratio of their rates.
2. On links so slow that gathers and scatters take half of the compute time: the part of that time
   that a step shows. With gtp_prefetch=0 each gather waits; auto plans without a ceiling; and with a
   ceiling that leaves two of the largest weights more than the least that a plan needs.

The cost model gets the numbers of the links, and the operations per second of a rank. A plan runs in
turns at full speed and on slow links. In each run a rank waits while its thread neither computes nor
waits for a core; by so much longer as it waits on slow links, the link shows. (The times of whole steps
differ by more from run to run, since other work slows the arithmetic.) The results are medians and
quartiles.

    PYTHONPATH=build/python python bench/gtp.py [--layers 16] [--runs 9] [--share 0.5] [--json FILE]
"""

import argparse
import contextlib
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import time

from overlap import LATENCY, subtract

RANKS = 2


def build(options):
    import meshwright as mw
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=options.layers,
        num_attention_heads=8, num_key_value_heads=4, vocab_size=4096,
        max_position_embeddings=options.tokens, use_cache=False, tie_word_embeddings=False,
    )
    ids = torch.randint(0, 4096, (RANKS, options.tokens))
    batch = dict(input_ids=ids, labels=ids)
    model = mw.from_torch(LlamaForCausalLM(config).train(), (), batch, training=True)
    return model.train(mw.AdamW(lr=1e-4)), batch


def find_ceiling(train, **how):
    """The least bytes that a plan needs, and two of the largest weights more."""
    import meshwright as mw

    try:
        train.parallelize(memory_ceiling="1M", **how)
    except mw.Error as error:
        least = int(re.search(r"needs (\d+) bytes", str(error))[1])
    return least + 2 * 1024 * 4096 * 4


def busy_seconds():
    """For each thread, the seconds in which it ran or waited for a core."""
    seconds = {}
    for path in glob.glob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(OSError), open(path) as file:
            ran, queued = file.read().split()[:2]
            seconds[path] = (int(ran) + int(queued)) * 1e-9
    return seconds


def time_run(session, batch):
    """The seconds of a run, and those in which a rank waits: the mean of the ranks. The busiest threads
    compute."""
    before, begin = busy_seconds(), time.perf_counter()
    session.run(**batch)
    seconds = time.perf_counter() - begin
    busy = sorted(now - before.get(thread, 0) for thread, now in busy_seconds().items())
    return seconds, seconds - statistics.mean(busy[-RANKS:])


def work(options):
    """Runs plans in turn, each on the link it is given; prints seconds of each and what they send."""
    train, batch = build(options)
    with contextlib.ExitStack() as stack:
        sessions, sent = [], []
        for job in json.loads(options.job):
            link = job.pop("link", None)
            if job.pop("ceiling", False):
                job["memory_ceiling"] = find_ceiling(train, **job)
            # Read when a session starts.
            os.environ.pop("MESHWRIGHT_LINK", None)
            if link:
                os.environ["MESHWRIGHT_LINK"] = (
                    f"latency={LATENCY * 1e6:g}us,bandwidth={link / 1e9:.6g}GB/s")
            plan = train.parallelize(**job)
            report = plan.report(format="json")
            sent.append(sum(c["bytes_per_rank"] for c in report["collectives"] if c["role"] != "data"))
            sessions.append(stack.enter_context(plan.start(recover=False)))
            sessions[-1].run(**batch)
        seconds, waits = [[] for _ in sessions], [[] for _ in sessions]
        for _ in range(options.runs):
            for i, session in enumerate(sessions):
                whole, waiting = time_run(session, batch)
                seconds[i].append(whole)
                waits[i].append(waiting)
    print(json.dumps({"seconds": seconds, "waits": waits, "sent": sent}))


def measure(options, *jobs):
    command = [sys.executable, __file__, f"--layers={options.layers}", f"--tokens={options.tokens}",
               f"--runs={options.runs}", f"--job={json.dumps(jobs)}"]
    environment = {**os.environ, "MESHWRIGHT_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512, help="of a rank")
    parser.add_argument("--share", type=float, default=0.5, help="gathers and scatters / compute time")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        work(options)
        return

    plain = {"device": "cpu", "overlap": "off"}
    dp = {"mesh": {"dp": RANKS}, "shard_optimizer": "on", **plain}
    gtp = {"mesh": {"gtp": RANKS}, **plain}
    result = measure(options, dp, gtp)
    whole, shards = result["seconds"]
    rate = statistics.median(a / b for a, b in zip(whole, shards, strict=True))
    print(f"rate of gtp={RANKS} beside dp={RANKS}, at full speed: {rate:.3f}", flush=True)
    compute, sent = statistics.median(shards), result["sent"][1]
    link = sent / (options.share * compute)
    # Products of a weight with a row: two operations forward, four backward.
    weights = options.layers * 1024 * (1024 * 3 + 2816 * 3) + 4096 * 1024
    flops = 6 * weights * options.tokens / compute
    hides = {"mesh": {"gtp": RANKS}, "overlap": "on",
             "device": f"cpu flops_f32={flops:.4g} link_bandwidth={link:.6g} "
                       f"link_latency={LATENCY:g} overlap=1"}
    rows = []
    for name, how in (("each gather waits", {"gtp_prefetch": 0, **gtp}), ("auto", hides),
                      ("two weights above the least", {**hides, "ceiling": True})):
        fast, slow = measure(options, how, {**how, "link": link})["waits"]
        added, quartiles = subtract(slow, fast)
        shown = added / (options.share * compute)
        rows.append({"plan": name, "shown": shown, "added_seconds": added, "added_quartiles": quartiles})
        low, high = (value / (options.share * compute) for value in quartiles)
        print(f"{name:<28}{shown:>7.1%} of the link's time shows ({low:.1%} to {high:.1%})", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"bench": "gtp", "options": vars(options), "rate": rate, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
