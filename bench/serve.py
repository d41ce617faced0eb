#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How fast does a Llama serve requests, beside PyTorch, and on two ranks beside one?

Runs a Llama of transformers with random weights (hidden 2048, 8 layers, 16 heads, 8 kv heads, inner
5632, vocabulary 32000) in f32 and bf16:

- decode: a step of one request at 512 keys, and of 8 requests at 2,000 keys, with two threads, beside
  PyTorch eager and `torch.compile` with a StaticCache of the same lengths; and the share of the bandwidth
  of two cores that read an array at which a step reads its weights and its cache;
- requests: 64 requests with prompts of 16 to 512 tokens and 16 to 128 new ones, all at once, beside
  `net.generate` with left padding in batches of 8; tokens a second;
- ranks: a prompt of 512 tokens and a step of 8 requests, on tp = 2 beside one rank, a thread each; and
  the bandwidth of copies of two cores beside one;
- host: a step of 8 requests of a model of one layer of width 512, beside a bare call of its entry.

Two cores are meant: run it under `taskset -c 0,1` on a larger machine. Runs take turns. The results are
medians of the times, and of the ratios within a turn. A ratio above 1 means that ours is faster.

    PYTHONPATH=build/python python bench/serve.py [--only decode,requests,ranks,host] [--dtypes f32,bf16]
        [--layers 8] [--repeats 9] [--requests 64] [--no-compile] [--json FILE]
"""

import argparse
import json
import os
import random
import statistics
import threading

import meshwright as mw
import numpy as np
import torch
from forward import DTYPES, medians, ratio, spell, take_turns
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

VOCABULARY = 32000


def build(layers, dtype, width=2048, heads=16):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, vocab_size=VOCABULARY,
        max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(dtype)


def serving(net, length, requests, buckets):
    ids = torch.ones(1, 8, dtype=torch.long)
    return mw.from_torch(net, (ids,)).serve(max_length=length, page_size=16, max_requests=requests, buckets=buckets)


def prompts(count, length, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(3, VOCABULARY) for _ in range(length)] for _ in range(count)]


def decoding(session, count, keys, new):
    """A session in which so many requests decode behind `keys` tokens."""
    requests = [session.submit(prompt, max_new_tokens=new) for prompt in prompts(count, keys)]
    while not all(request.tokens for request in requests):
        session.step()
    return session


def in_pytorch(net, forward, count, keys, length):
    """A step of PyTorch's with a static cache that has `keys` tokens of each row."""
    cache = StaticCache(config=net.config, max_cache_len=length)
    ids = torch.tensor(prompts(count, keys))
    net(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = torch.ones(count, 1, dtype=torch.long)
    position = torch.tensor([keys])

    def step():
        logits = forward(token, past_key_values=cache, use_cache=True, cache_position=position,
                         position_ids=position[None], logits_to_keep=1).logits
        return logits[:, -1].argmax(-1)

    return step


def reader():
    """A call by which two cores read an array, as fast as they can, and its bytes."""
    halves = [np.ones(1 << 26, np.float32) for _ in range(2)]

    def read():
        threads = [threading.Thread(target=np.dot, args=(half, half)) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return read, sum(half.nbytes for half in halves)


def bytes_of_step(net, count, keys):
    """The bytes of the weights and of the keys and values that a step reads."""
    config, embedding = net.config, net.get_input_embeddings().weight
    weights = sum(p.nbytes for p in net.parameters() if p is not embedding)
    of_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * embedding.element_size()
    return weights + count * keys * of_token


def decode(net, dtype, options):
    rows = []
    read, size = reader()
    for count, keys in ((1, 512), (8, 2000)):
        length = keys + 64
        plan = serving(net, length, count, (count, 512)).parallelize(mesh={"tp": 1}, device="cpu", overlap="off")
        with plan.start(threads_per_rank=2) as session, torch.inference_mode():
            decoding(session, count, keys, 64)
            runs = {"ours": session.step, "eager": in_pytorch(net, net, count, keys, length), "read": read}
            if options.compile:
                runs["compile"] = in_pytorch(net, torch.compile(net, dynamic=False), count, keys, length)
            seconds = take_turns(runs, min(3 * options.repeats, 48))
        reads, times = seconds.pop("read"), medians(seconds)
        best = min((name for name in times if name != "ours"), key=times.get)
        own = bytes_of_step(net, count, keys)
        row = {"dtype": dtype, "rows": count, "keys": keys, "ratio": ratio(seconds, best, "ours"), **times,
               "bandwidth": size / statistics.median(reads),
               "share": statistics.median(own / a / (size / b) for a, b in zip(seconds["ours"], reads, strict=True))}
        print(f"{dtype:<5} {count} rows at {keys} keys  {spell(times)}  ratio {row['ratio']:.2f}, at {row['share']:.0%} of "
              f"the {row['bandwidth'] / 1e9:.0f} GB/s that two cores read", flush=True)
        rows.append(row)
    return rows


def requests(net, dtype, options):
    draw = random.Random(1)
    lengths = [(draw.randint(16, 512), draw.randint(16, 128)) for _ in range(options.requests)]
    given = [prompts(1, length, seed=n)[0] for n, (length, _) in enumerate(lengths)]
    plan = serving(net, 640, 64, None).parallelize(mesh={"tp": 1}, device="cpu", overlap="off")

    def ours():
        for prompt, (_, new) in zip(given, lengths, strict=True):
            session.submit(prompt, max_new_tokens=new)
        while session.step():
            pass

    def theirs():
        for first in range(0, len(given), 8):
            part, want = given[first : first + 8], lengths[first : first + 8]
            longest = max(map(len, part))
            ids = torch.tensor([[0] * (longest - len(p)) + p for p in part])
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in part])
            net.generate(ids, attention_mask=mask, do_sample=False, eos_token_id=None,
                         max_new_tokens=max(new for _, new in want))

    with plan.start(threads_per_rank=2) as session, torch.inference_mode():
        session.warm_up()
        seconds = take_turns({"ours": ours, "generate": theirs}, 1)
    new, times = sum(new for _, new in lengths), medians(seconds)
    row = {"dtype": dtype, "requests": len(given), "tokens": new, "ratio": ratio(seconds, "generate", "ours"), **times}
    rates = "  ".join(f"{name} {new / value:.1f} tokens/s" for name, value in times.items())
    print(f"{dtype:<5} {len(given)} requests, {new} new tokens  {rates}  ratio {row['ratio']:.2f}", flush=True)
    return [row]


def bandwidths():
    """How many times the copy bandwidth of one core two cores have."""
    arrays = [(np.zeros(1 << 25, np.float32), np.ones(1 << 25, np.float32)) for _ in range(2)]

    def copy(count):
        threads = [threading.Thread(target=np.copyto, args=pair) for pair in arrays[:count]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    seconds = take_turns({"one": lambda: copy(1), "two": lambda: copy(2)}, 9)
    return 2 * ratio(seconds, "one", "two")


def ranks(net, dtype, options):
    rows = []
    model = serving(net, 640, 8, (8, 512))
    plans = [model.parallelize(mesh={"tp": n}, device="cpu", overlap="off") for n in (1, 2)]
    with plans[0].start(threads_per_rank=1) as one, plans[1].start(threads_per_rank=1) as two:
        sessions = {"one rank": one, "tp=2": two}

        def read(session):
            session.submit(prompts(1, 512)[0], max_new_tokens=1)
            return session.step()

        seconds = take_turns({name: lambda s=s: read(s) for name, s in sessions.items()}, options.repeats)
        rows.append({"dtype": dtype, "what": "prompt", "ratio": ratio(seconds, "one rank", "tp=2"), **medians(seconds)})
        for session in sessions.values():
            decoding(session, 8, 512, 64)
        seconds = take_turns({name: s.step for name, s in sessions.items()}, min(3 * options.repeats, 48))
        most = bandwidths()
        rows.append({"dtype": dtype, "what": "decode", "ratio": ratio(seconds, "one rank", "tp=2"),
                     "copies": most, **medians(seconds)})
    print(f"{dtype:<5} tp=2 over one rank: prompts {rows[0]['ratio']:.2f}, decoding {rows[1]['ratio']:.2f} "
          f"of {most:.2f}, the copies of two cores over one", flush=True)
    return rows


def host(options):
    net = build(1, torch.float32, width=512, heads=8)
    plan = serving(net, 256, 8, (8,)).parallelize(mesh={"tp": 1}, device="cpu", overlap="off")
    with plan.start() as session, plan.start() as bare:
        decoding(session, 8, 8, 240)
        entry = bare._session.entries[0]
        inputs = {port.name: np.zeros(tuple(port.shape), np.int64) for port in entry.inputs}
        inputs["slots"] -= 1
        seconds = take_turns({"step": session.step, "call": lambda: bare.run(**inputs)}, 100)
    over = statistics.median(a - b for a, b in zip(seconds["step"], seconds["call"], strict=True))
    row = {"what": "host", "share": over / medians(seconds)["step"], **medians(seconds)}
    print(f"one layer of 512, 8 requests: {spell(medians(seconds))}; a step takes {row['share']:.1%} more", flush=True)
    return [row]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="decode,requests,ranks,host")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(2)
    only, rows = options.only.split(","), []
    for dtype in options.dtypes.split(","):
        net = build(options.layers, DTYPES[dtype])
        for part in (decode, requests, ranks):
            if part.__name__ in only:
                rows += part(net, dtype, options)
    if "host" in only:
        rows += host(options)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"processors": os.cpu_count(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
