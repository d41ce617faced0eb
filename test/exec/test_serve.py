# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`--serve`: steps over paged caches give the tokens of greedy decoding without a cache."""
import random
import subprocess

import meshwright as mw
import numpy as np
import pytest
import torch
import transformers as tf

LENGTH, SIZE, REQUESTS = 32, 4, 3


def config(cls, **more):
    common = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, vocab_size=101, max_position_embeddings=64, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2)
    return cls(**{**common, **more})


MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(config(tf.LlamaConfig)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(config(tf.Qwen3Config, head_dim=24)),
    "windows, caps": lambda: tf.Gemma2ForCausalLM(config(tf.Gemma2Config, head_dim=16, sliding_window=6)),
    "learned positions": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=101,
                                                                  n_positions=64)),
}


def make(name):
    torch.manual_seed(3)
    net = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.3 * parameter.shape[-1] ** -0.5)
    return net


class Logits(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids):
        return self.net(ids, use_cache=False).logits


def serve(folder, net, buckets, pages, groups=1):
    program, weights, served = (folder / n for n in ("model.mlir", "model.safetensors", "served.mlir"))
    mw.from_torch(Logits(net), (torch.ones(1, LENGTH, dtype=torch.long),)).save(program, weights)
    options = f"page-size={SIZE} pages={pages} requests={REQUESTS} buckets={','.join(map(str, buckets))} groups={groups}"
    subprocess.run(["sharding-opt", program, f"--serve={options}", "-o", served], check=True)
    return mw.load(served, weights)


class Request:
    def __init__(self, prompt, pages):
        self.tokens, self.pages, self.computed, self.prompt = list(prompt), pages, 0, len(prompt)


def step(session, buckets, groups):
    """One step: of each group as many tokens of its requests as the largest bucket takes."""
    taken = [take(buckets[-1], requests) for requests in groups]
    rows = next(b for b in buckets if b >= max(map(sum, taken)))
    g = len(groups)
    arrays = {name: np.zeros((g, rows), np.int64) for name in ("tokens", "positions")}
    arrays["slots"] = np.full((g, rows), -1)
    arrays["tables"] = np.zeros((g, REQUESTS, -(-LENGTH // SIZE)), np.int64)
    arrays["starts"], arrays["lengths"] = np.zeros((g, REQUESTS + 1), np.int64), np.zeros((g, REQUESTS), np.int64)
    for n, requests in enumerate(groups):
        fill({name: array[n] for name, array in arrays.items()}, requests, taken[n])
    chosen, logits = session.run(**{k: v.astype(np.int64) for k, v in arrays.items()}, entry=f"tokens={rows}")
    for n, requests in enumerate(groups):
        for r, (request, count) in enumerate(zip(requests, taken[n], strict=True)):
            if count and request.computed == len(request.tokens):
                assert np.argmax(logits[n, r]) == chosen[n, r]
                request.tokens.append(int(chosen[n, r]))


def take(room, requests):
    taken = []
    for request in requests:
        taken.append(min(len(request.tokens) - request.computed, room))
        room -= taken[-1]
    return taken


def fill(arrays, requests, taken):
    """The inputs of one group."""
    at = 0
    for r, (request, count) in enumerate(zip(requests, taken, strict=True)):
        arrays["tables"][r, : len(request.pages)] = request.pages
        for _ in range(count):
            position = request.computed
            arrays["tokens"][at], arrays["positions"][at] = request.tokens[position], position
            arrays["slots"][at] = request.pages[position // SIZE] * SIZE + position % SIZE
            request.computed, at = position + 1, at + 1
        arrays["starts"][r + 1], arrays["lengths"][r] = at, request.computed
    arrays["starts"][len(requests) + 1 :] = at


def greedy(net, prompt, new):
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(new):
            ids.append(int(net(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids


def draw_pages(draw, count):
    """The pages of so many requests of a group, in any order."""
    each = -(-LENGTH // SIZE)
    pages = list(range(count * each))
    draw.shuffle(pages)
    return [pages[i * each : (i + 1) * each] for i in range(count)]


def run(session, buckets, groups, new):
    # The last request of a group joins later, and prompts come in chunks.
    for _ in range(4):
        step(session, buckets, [requests[:2] for requests in groups])
    while any(len(r.tokens) < r.prompt + new for requests in groups for r in requests):
        step(session, buckets, groups)


@pytest.mark.parametrize("mesh", [{"tp": 1}, {"tp": 2}, {"tp": 4}], ids=lambda m: f"tp={m['tp']}")
@pytest.mark.parametrize("name", MODELS)
def test_tokens(tmp_path, name, mesh):
    net, buckets, draw = make(name), (2, 5, 16), random.Random(5)
    prompts = [[draw.randrange(3, 101) for _ in range(n)] for n in (9, 1, 14)]
    requests = [Request(p, pages) for p, pages in zip(prompts, draw_pages(draw, 3), strict=True)]
    with serve(tmp_path, net, buckets, 3 * -(-LENGTH // SIZE)).parallelize(mesh=mesh).start() as session:
        run(session, buckets, [requests], 6)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.tokens == greedy(net, prompt, len(request.tokens) - len(prompt))
