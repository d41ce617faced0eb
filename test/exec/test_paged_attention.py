# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nn.paged_attention and nn.merge_parts on random caches, against PyTorch in f64."""
import math
import random

import pytest
import torch
from harness import ELEMENT, assert_close, run_module, type_of

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-13}
FLOATS = list(TOLERANCE)


class Case:
    """A random step over caches. Pages that no request owns, and rows behind a length, are NaN."""

    def __init__(self, seed, **fixed):
        draw = random.Random(seed)
        def pick(name, *values):
            return fixed.get(name, draw.choice(values))
        self.dtype = pick("dtype", torch.float32, torch.bfloat16)
        self.groups, self.deal = pick("groups", 1, 1, 2), pick("deal", 1, 1, 1, 2, 3)
        self.size, self.requests = pick("size", 1, 3, 4, 16, 40), pick("requests", 1, 3, 5)
        self.kv, self.shared = pick("kv", 1, 2, 3), pick("shared", 1, 2, 3, 5, 16)
        self.features, self.value_features = pick("features", 7, 16, 40, 128), pick("value_features", 5, 16, 64)
        self.latent = pick("latent", False, False, True)
        if self.latent:
            self.value_features = min(self.value_features, self.features)
        self.window, self.cap = pick("window", None, 0, 5, 70), pick("cap", None, None, 2.5)
        self.slopes, self.sinks = pick("slopes", False, False, True), pick("sinks", False, False, True)
        self.parts = pick("parts", None, None, 3)
        # A table of numbers by distance [q_heads, n], or by position [q_heads, 1, n].
        self.distances = fixed.get("distances")
        partial = self.deal > 1 or self.parts
        self.lse = bool(partial) or pick("lse", False, True)
        self.scale = self.features**-0.5
        longest = pick("longest", 3, 40, 300, 700)
        few = fixed.get("counts", (0, 1, 1, 1, 2, 7, 70))
        counts = [[pick("count", *few) for _ in range(self.requests)] for _ in range(self.groups)]
        lengths = [[max(c, draw.randint(0, longest)) if c else 0 for c in row] for row in counts]
        self.tokens = max(1, max(map(sum, counts)) + draw.randint(0, 3))
        self.blocks = max(1, -(-max(map(max, lengths)) // (self.size * self.deal))) + draw.randint(0, 1)
        self.pages = self.requests * self.blocks + 2
        self.counts, self.lengths = counts, lengths
        self.fill(torch.Generator().manual_seed(seed), draw)

    def fill(self, generator, draw):
        def randn(*shape):
            return torch.randn(*shape, generator=generator).to(self.dtype)
        heads, rows = self.kv * self.shared, self.deal * self.pages
        q = randn(self.groups, self.tokens, heads, self.features)
        shape = (self.groups, rows, self.size, self.kv)
        k, v = (torch.full((*shape, n), math.nan, dtype=self.dtype) for n in (self.features, self.value_features))
        tables = torch.full((self.groups, self.deal, self.requests, self.blocks), -1)
        self.histories = {}
        for g in range(self.groups):
            free = [draw.sample(range(self.pages), self.pages) for _ in range(self.deal)]
            for r, length in enumerate(self.lengths[g]):
                own = randn(length, self.kv, self.features), randn(length, self.kv, self.value_features)
                if self.latent:
                    own = own[0], own[0][..., : self.value_features]
                self.histories[g, r] = own
                for start in range(0, length, self.size):
                    block = start // self.size
                    rank, place = block % self.deal, block // self.deal
                    page = tables[g, rank, r, place] = free[rank].pop()
                    end = min(length, start + self.size)
                    for cache, rows_of in zip((k, v), own, strict=True):
                        cache[g, rank * self.pages + page, : end - start] = rows_of[start:end]
        starts = torch.tensor([[sum(row[:r]) for r in range(self.requests + 1)] for row in self.counts])
        self.inputs = {"q": q, "k": k, "v": v, "tables": tables if self.deal > 1 else tables[:, 0],
                       "starts": starts, "lengths": torch.tensor(self.lengths)}
        if self.latent:
            del self.inputs["v"]
        if self.deal > 1:
            self.inputs["deals"] = torch.arange(self.deal)
        for name, present in (("slopes", self.slopes), ("sinks", self.sinks)):
            if present:
                self.inputs[name] = randn(heads)

        if self.distances:
            wide = torch.float64 if self.dtype == torch.float64 else torch.float32
            shape = (heads, 9) if self.distances == "distance" else (heads, 1, 9)
            self.inputs["distances"] = torch.randn(*shape, generator=generator, dtype=wide)

    def text(self):
        partial = self.deal > 1 or self.parts
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        ranks, heads = self.deal * (self.parts or 1), self.kv * self.shared
        rows = torch.empty(self.groups, self.tokens, heads, self.value_features, dtype=self.dtype)
        lse = torch.empty(rows.shape[:3], dtype=wide)
        made = torch.empty(self.groups, ranks, *rows.shape[1:], dtype=wide) if partial else rows
        made_lse = torch.empty(made.shape[:-1], dtype=wide)
        names = ["q", "k", "k" if self.latent else "v", "tables", "starts", "lengths"]
        words = "".join(f" {n} %{n}" for n in ("deals", "slopes", "sinks", "distances")
                        if n in self.inputs and not (partial and n == "sinks"))
        names += [n for n in ("deals", "slopes", "sinks", "distances") if n in self.inputs and not (partial and n == "sinks")]
        attributes = [f"window_left = {self.window}"] if self.window is not None else []
        attributes += [f"soft_cap = {self.cap}"] if self.cap else []
        attributes += [f"deal = {self.deal}"] if self.deal > 1 else []
        attributes += [f"parts = {self.parts}"] if self.parts else []
        results = [made, made_lse] if self.lse else [made]
        types = ", ".join(map(type_of, results))
        values = f"%{names[2]}"
        lines = [f"%o{':2' if self.lse else ''} = nn.paged_attention %q, %k, {values} tables %tables starts %starts "
                 f"lengths %lengths{words} scale {self.scale!r} {{{', '.join(attributes)}}} : "
                 f"({', '.join(type_of(self.inputs[n]) for n in names)}) -> ({types})"]
        out = ["%o#0", "%o#1"] if self.lse else ["%o"]
        if partial:
            sinks, more = (" sinks %sinks", f", {type_of(self.inputs['sinks'])}") if self.sinks else ("", "")
            lines.append(f"%m:2 = nn.merge_parts %o#0, %o#1{sinks} : ({types}{more}) -> ({type_of(rows)}, {type_of(lse)})")
            out = ["%m#0", "%m#1"]
        returned = ", ".join(map(type_of, [rows, lse][: len(out)]))
        arguments = ", ".join(f'%{n}: {type_of(x)} {{nn.input = "{n}"}}' for n, x in self.inputs.items())
        outputs = ", ".join(f'{type_of(x)} {{nn.output = "r{i}"}}' for i, x in enumerate([rows, lse][: len(out)]))
        body = "\n  ".join(lines)
        return f"func.func @main({arguments}) -> ({outputs}) {{\n  {body}\n  return {', '.join(out)} : {returned}\n}}\n"

    def want(self):
        heads = self.kv * self.shared
        out = torch.zeros(self.groups, self.tokens, heads, self.value_features, dtype=torch.float64)
        lse = torch.full(out.shape[:3], -math.inf, dtype=torch.float64)
        for (g, r), (k, v) in self.histories.items():
            start, count, length = sum(self.counts[g][:r]), self.counts[g][r], self.lengths[g][r]
            if not count:
                continue
            q = self.inputs["q"][g, start : start + count].double()
            k, v = (x.double().repeat_interleave(self.shared, 1) for x in (k, v))
            scores = torch.einsum("thd,khd->htk", q, k) * self.scale
            if self.cap:
                scores = self.cap * torch.tanh(scores / self.cap)
            position, place = torch.arange(length - count, length)[:, None], torch.arange(length)
            if self.slopes:
                scores = scores + self.inputs["slopes"].double()[:, None, None] * (place - position)
            if self.distances:
                entry = place - position + 8 if self.distances == "distance" else place.expand(count, length)
                scores = scores + self.inputs["distances"].double().reshape(heads, 9)[:, entry.clamp(0, 8)]
            seen = place <= position
            if self.window is not None:
                seen &= place >= position - self.window
            scores = scores.masked_fill(~seen, -math.inf)
            sums = torch.logsumexp(scores, -1)
            total = sums
            if self.sinks:
                total = torch.logaddexp(sums, self.inputs["sinks"].double()[:, None].expand_as(sums))
            weights = torch.exp(scores - total[..., None]).nan_to_num(0)
            out[g, start : start + count] = torch.einsum("htk,khd->thd", weights, v)
            lse[g, start : start + count] = sums.T
        return out, lse

    def check(self, folder, threads=(1,)):
        runs = [run_module(folder, self.text(), self.inputs, arguments=[f"--threads-per-rank={n}"]) for n in threads]
        want, lse = self.want()
        assert_close(runs[0]["r0"], want.to(self.dtype), TOLERANCE[self.dtype] * (4 if self.slopes else 1), self.text())
        if self.lse:
            assert_close(runs[0]["r1"], lse.to(runs[0]["r1"].dtype), TOLERANCE[self.dtype] * 8, self.text())
        for run in runs[1:]:
            for name, got in run.items():
                assert torch.equal(got.view(torch.uint8), runs[0][name].view(torch.uint8)), f"{name}\n{self.text()}"


@pytest.mark.parametrize("seed", range(24))
def test_random(tmp_path, seed):
    Case(seed).check(tmp_path, threads=(1, 2, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_decoding(tmp_path, dtype):
    """One token a request, of caches long enough for parts."""
    for seed, shared in ((0, 1), (1, 2), (2, 4)):
        Case(seed, dtype=dtype, count=1, requests=2, kv=1, shared=shared, longest=1100, window=None, groups=1, deal=1,
             parts=None, latent=False).check(tmp_path, threads=(1, 3))


@pytest.mark.parametrize("seed", range(8))
def test_many_heads(tmp_path, seed):
    """Many key heads and about one token for each request: a unit of work has several heads."""
    case = Case(seed, requests=24, counts=(0, 0, 0, 1, 1, 2), kv=(4, 6, 8, 10)[seed % 4], shared=1 + seed % 3,
                features=(7, 16, 40, 64)[seed // 2])
    assert case.groups * case.tokens * case.kv * case.deal * (case.parts or 1) >= 64 and case.tokens <= case.requests
    case.check(tmp_path, threads=(1, 2, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=ELEMENT.get)
def test_prompts(tmp_path, dtype):
    for seed, size in ((3, 16), (4, 5)):
        Case(seed, dtype=dtype, count=150, requests=2, kv=2, shared=2, size=size, longest=400, groups=1, deal=1,
             parts=None).check(tmp_path, threads=(1, 2))


@pytest.mark.parametrize("distances", ["distance", "position"])
def test_distances(tmp_path, distances):
    """Numbers of a table, in rows and in blocks of tokens."""
    for seed, dtype in ((20, torch.float32), (21, torch.bfloat16)):
        Case(seed, dtype=dtype, distances=distances, kv=2, shared=2, features=16, longest=300).check(tmp_path)


def test_latent(tmp_path):
    """Keys and values of all heads in one row."""
    for dtype in (torch.float32, torch.bfloat16):
        Case(5, dtype=dtype, latent=True, kv=1, shared=16, features=72, value_features=64, longest=600,
             window=None).check(tmp_path, threads=(1, 2))


def test_neighbours(tmp_path):
    """Bits do not depend on the contents of other requests."""
    case = Case(6, requests=3, count=1, longest=300, groups=1, deal=1, dtype=torch.float32)
    first = run_module(tmp_path, case.text(), case.inputs)["r0"]
    changed = {name: x.clone() for name, x in case.inputs.items()}
    owned = case.inputs["tables"][0, 1]
    others = [p for p in range(case.pages) if p not in owned]
    for name in ("k", "v"):
        if name in changed:
            changed[name][:, others] = changed[name][:, others] * 3 - 1
    second = run_module(tmp_path, case.text(), changed)["r0"]
    assert torch.equal(first[0, 1], second[0, 1])


def test_page_out_of_range(tmp_path):
    case = Case(7, requests=2, count=1, longest=40, groups=1, deal=1)
    case.inputs["tables"][0, 1, 0] = case.pages
    said = run_module(tmp_path, case.text(), case.inputs, status=1)
    assert f"index {case.pages}" in said and "out of range" in said, said
