# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Mixtures of experts that split rows by the numbers of tokens, and join the parts again."""
import linecache

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from import_checks import count
from meshwright.importer.torch import import_module
from test_import_experts import EXPERTS, FEATURES, Experts, assert_lifted, randn, same
from torch import nn
from torch.utils.checkpoint import checkpoint

# The numbers of tokens of each expert.

def scattered(m, i):
    return torch.zeros(len(i), m.experts).scatter(1, i, 1).long().sum(0).tolist()


def one_hot(m, i):
    return F.one_hot(i, m.experts).sum((0, 1)).tolist()


def one_hot_twice(m, i):
    return F.one_hot(i, m.experts).sum(1).sum(0).tolist()


def compared(m, i):
    return [(i == e).sum().item() for e in range(m.experts)]


def compared_at_once(m, i):
    counts = (i.flatten()[:, None] == torch.arange(m.experts)).int().sum(0)
    return [counts[e].item() for e in range(m.experts)]


def histogram(m, i):
    return torch.histc(i.float(), m.experts, 0, m.experts - 1).int().tolist()


def added(m, i):
    return torch.zeros(m.experts).scatter_add(0, i.flatten(), torch.ones(i.numel())).int().tolist()


def added_by_index(m, i):
    ones = torch.ones(i.numel(), dtype=torch.int64)
    return torch.zeros(m.experts, dtype=torch.int64).index_add(0, i.flatten(), ones).tolist()


COUNTS = [scattered, one_hot, one_hot_twice, compared, compared_at_once, histogram, added, added_by_index]


# Functions of the rows of each expert, [rows, features] and their weights.

def linear(m, rows, sizes):
    """As JetMoE does it: a concatenation behind each product."""
    def product(x, weight, bias):
        return torch.cat([F.linear(p, weight[e], bias[e] if m.bias else None)
                          for e, p in enumerate(x.split(sizes))])
    return product(m.act(product(rows, m.up, m.up_bias)), m.down, m.down_bias)


def listed(m, rows, sizes):
    return torch.cat([f(p) for f, p in zip(m.list, rows.split(sizes), strict=True)])


def sliced(m, rows, sizes):
    results, start = [], 0
    for f, size in zip(m.list, sizes, strict=True):
        results.append(f(rows[start:start + size]))
        start += size
    return torch.cat(results)


def chained(m, rows, sizes):
    """Views and products in several spellings, and values of fixed shape."""
    parts = [F.layer_norm(p, (FEATURES,)) for p in rows.split(sizes)]
    parts = [torch.cat([p @ m.up[e].T, p[:, :2].softmax(-1)], -1)[:, :8] for e, p in enumerate(parts)]
    parts = [torch.addmm(m.down_bias[e], m.act(p), m.down[e].t()) for e, p in enumerate(parts)]
    h = torch.cat([p * m.up_bias[e].sum() + 1 for e, p in enumerate(parts)])
    return h.view(h.shape[0], 2, -1).mul(2).flatten(1)


def joined_twice(m, rows, sizes):
    """Parts that are joined in two places."""
    parts = [F.linear(p, m.up[e], m.up_bias[e]) for e, p in enumerate(rows.split(sizes))]
    gate = torch.cat([torch.sigmoid(p).sum(-1, keepdim=True) for p in parts])
    h = torch.cat([F.linear(m.act(p), m.down[e]) for e, p in enumerate(parts)])
    return h * gate


PARTS = [linear, listed, sliced, chained, joined_twice]


def split(counts=scattered, parts=linear):
    def form(m, y, w, i):
        order = i.flatten().sort()[1]
        token = order.div(m.k, rounding_mode="trunc")
        rows = parts(m, y[token], counts(m, i))
        return torch.zeros_like(y).index_add(0, token, rows * w.flatten()[order][:, None])
    return form


def model(counts=scattered, parts=linear, **more):
    return Experts(split(counts, parts), parts in (listed, sliced), **more)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("k", [2, 1])
def test_counts(counts, k):
    assert_lifted(same(model(counts, k=k), (randn(3, 7, FEATURES),)), left=["take_along"])


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("k", [2, 1])
def test_parts(parts, k):
    imported = same(model(one_hot, parts, k=k, bias=True), (randn(3, 7, FEATURES),))
    assert_lifted(imported, left=["take_along", "gather"])


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("counts", [scattered, compared])
def test_training(counts, parts):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = model(counts, parts, bias=True)

        def forward(self, x):
            return self.experts(x).square().mean()

    module, x = Loss(), randn(2, 5, FEATURES)
    module(x).backward()
    imported = import_module(module, (x,), training=True)
    assert (count(imported)["grouped_linear"], count(imported)["combine"]) == (2, 1)
    gradients = mw.from_torch(module, (x,), training=True).differentiate()
    names = [name.removeprefix("grad.") for name in gradients.outputs[1:]]
    assert {n for n, p in module.named_parameters() if p.grad is not None} == set(names)
    results = gradients.parallelize(mesh={"dp": 2} if parts in (listed, sliced) else {"ep": 2}).run(x)
    wanted = [module.get_parameter(name).grad for name in names]
    largest = max(want.abs().max().item() for want in wanted)
    for got, want in zip(results[1:], wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-6 * largest)


def without_gradients(m, rows, sizes):
    with torch.no_grad():
        return linear(m, rows, sizes)


def detached(m, rows, sizes):
    parts = [F.linear(p.detach(), m.up[e].detach()) for e, p in enumerate(rows.split(sizes))]
    return torch.cat(parts)[:, :1].expand_as(rows)


def checkpointed(m, rows, sizes):
    return checkpoint(lambda x: linear(m, x, sizes), rows, use_reentrant=False)


@pytest.mark.parametrize("parts", [linear, without_gradients, detached, checkpointed])
def test_regions(parts):
    """Numbers and rows in regions without gradients, and in a checkpoint."""
    def counts(m, i):
        with torch.no_grad():
            return one_hot(m, i)

    module, x = model(counts, parts), randn(2, 5, FEATURES)
    imported = same(module, (x,), training=True)
    assert count(imported)["grouped_linear"] and same(module, (x,)).mlir
    assert (parts in (without_gradients, detached)) == ("stop_gradient" in imported.mlir)


def test_autocast():
    class Cast(Experts):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    form = split(one_hot, lambda *args: linear(*args).float())
    module, x = Cast(form), randn(3, 7, FEATURES)
    imported = import_module(module, (x,))
    assert_lifted(imported, left=["take_along"])
    assert "5x3x7x12xbf16, #nn.routed<" in imported.mlir
    (got,) = mw.from_torch(module, (x,)).parallelize(mesh={"ep": 2}).run(x)
    torch.testing.assert_close(got, module(x), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("experts", [1, 2])
def test_few_experts(experts):
    for parts in (linear, listed):
        same(model(one_hot, parts, k=experts, experts=experts), (randn(7, FEATURES),))


ROUTINGS = {"one expert": lambda e: e == 3, "an expert without tokens": lambda e: e != 2,
            "two experts": lambda e: e in (0, 4)}


@pytest.mark.parametrize("mesh,options", [
    ({"tp": 2}, {"sequence_parallel": "on"}), ({"ep": 2}, {}), ({"ep": 2, "tp": 2}, {}),
    ({"dp": 3, "ep": 2}, {})], ids=str)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_routings(routing, mesh, options):
    class Chosen(Experts):
        def route(self, y):
            w, i = (self.router(y) + self.bonus).topk(self.k)
            return w.softmax(-1), i

    for k in (1, 2):
        if k == 2 and routing == "one expert":
            continue
        module = Chosen(split(), k=k)
        module.bonus = torch.tensor([0.0 if ROUTINGS[routing](e) else -1e6 for e in range(EXPERTS)])
        x = randn(3, 8, FEATURES)
        plan = mw.from_torch(module, (x,)).parallelize(mesh=mesh, **options)
        torch.testing.assert_close(plan.run(x)[0], module(x), rtol=2e-5, atol=2e-5)
        rows = plan.report(format="json")["experts"]
        assert len(rows) == 1 and not rows[0]["dropped_tokens"]


# Attention whose heads are those of the chosen experts has a result for each choice.

class Heads(nn.Module):
    def __init__(self, k=2):
        super().__init__()
        self.k, self.router = k, nn.Linear(FEATURES, EXPERTS, bias=False)
        self.query = nn.Parameter(randn(EXPERTS, 8, FEATURES, seed=1))
        self.out = nn.Parameter(randn(EXPERTS, FEATURES, 8, seed=2))
        self.key = nn.Linear(FEATURES, 16)

    def forward(self, x):
        y = x.flatten(0, -2)
        w, i = self.router(y).topk(self.k)
        sizes, order = F.one_hot(i, EXPERTS).sum((0, 1)).tolist(), i.flatten().argsort()
        token = order // self.k
        q = torch.cat([F.linear(p, m) for p, m in zip(y[token].split(sizes), self.query.unbind())])
        q = q[order.argsort()] if self.k == 3 else torch.zeros_like(q).index_add(0, order, q)
        q = q.view(*x.shape[:2], self.k, 8).transpose(1, 2)
        k, v = (a[:, None].expand_as(q) for a in self.key(x).chunk(2, -1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, -2)
        z = torch.cat([F.linear(p, m) for p, m in zip(z[order].split(sizes), self.out.unbind())])
        z = z * w.softmax(-1).flatten()[order][:, None]
        return x + torch.zeros_like(y).index_add(0, token, z).view(x.shape)


@pytest.mark.parametrize("k", [3, 2, 1])
def test_heads_of_experts(k):
    module, x = Heads(k), randn(2, 6, FEATURES)
    imported = same(module, (x,))
    ops = count(imported)
    assert (ops["grouped_linear"], ops["combine"]) == (2, 2) and not imported.remarks
    assert not ops["index_copy"] and not ops["cumsum"]
    for mesh in ({"ep": 2}, {"tp": 2}):
        plan = mw.from_torch(module, (x,)).parallelize(mesh=mesh, sequence_parallel="on")
        torch.testing.assert_close(plan.run(x)[0], module(x), rtol=2e-5, atol=2e-5)


def test_jetmoe():
    tf = pytest.importorskip("transformers")
    config = tf.JetMoeConfig(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_key_value_heads=2, kv_channels=8,
        vocab_size=61, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
        use_cache=False)
    torch.manual_seed(0)
    module, ids = tf.JetMoeForCausalLM(config).eval(), torch.randint(0, 61, (2, 7))
    imported = same(module, (), {"input_ids": ids})
    for imported in (imported, import_module(module.bfloat16(), (), {"input_ids": ids})):
        ops = count(imported)
        assert (ops["grouped_linear"], ops["combine"]) == (8, 6) and not imported.remarks


# Programs of which the numbers of rows are no choices of tokens.

class Product(nn.Module):
    def forward(self, x, weight, counts):
        return torch.cat([p @ w for p, w in zip(x.split(counts.tolist()), weight.unbind())])


def test_numbers_of_the_caller():
    args = randn(7, 4), randn(3, 4, 6), torch.tensor([4, 0, 3])
    imported = same(Product(), args)
    assert count(imported)["grouped_linear"] == 1
    assert [r.message for r in imported.remarks] == [
        "a product of experts stays as it is: the numbers of its rows count no choices of tokens"]
    for mesh in ({"ep": 3}, {"tp": 2}, {"tp": 1}):
        plan = mw.from_torch(Product(), args).parallelize(mesh=mesh)
        torch.testing.assert_close(plan.run(*args)[0], Product()(*args))
    for wrong in ([4, 0, 2], [4, 1, 3], [5, -1, 3]):
        with pytest.raises(mw.Error, match="out of range"):
            plan.run(*args[:2], torch.tensor(wrong))
    args = *args[:2], torch.tensor([0, 0, 7])
    torch.testing.assert_close(plan.run(*args)[0], Product()(*args))


def test_other_numbers():
    """The parts of experts are not those of the choices."""
    def form(m, y, w, i):
        order = i.flatten().sort(stable=True)[1]
        rows = linear(m, y[order // m.k], one_hot(m, i)[::-1])
        return torch.zeros_like(y).index_add(0, order // m.k, rows)

    imported = same(Experts(form), (randn(3, 7, FEATURES),))
    assert "other rows than those of the routing's experts" in imported.remarks[0].message


def test_choices_that_repeat():
    """An expert that a token chooses twice counts once in `scattered`, so the rows do not add up."""
    class Given(Experts):
        def forward(self, x, i, w):
            return self.form(self, x, w, i)

    i = torch.tensor([[0, 1], [2, 4], [3, 1]])
    args = randn(3, FEATURES), i, randn(3, 2)
    module = Given(split())
    plan = mw.from_torch(module, args).parallelize(mesh={"tp": 1})
    torch.testing.assert_close(plan.run(*args)[0], module(*args), rtol=2e-5, atol=2e-5)
    i[0, 0] = 1
    with pytest.raises(mw.Error, match="out of range"):
        plan.run(*args)


def reversed_parts(m, rows, sizes):
    return torch.cat([p @ m.up[e].T for e, p in reversed(list(enumerate(rows.split(sizes))))])


def mean_of_part(m, rows, sizes):
    return torch.cat([(p - p.mean(0)) @ m.up[e].T for e, p in enumerate(rows.split(sizes))])


def other_factors(m, rows, sizes):
    return torch.cat([p @ m.up[e].T * (e + 1) for e, p in enumerate(rows.split(sizes))])


def other_functions(m, rows, sizes):
    return torch.cat([(F.silu if e else F.relu)(p @ m.up[e].T) for e, p in enumerate(rows.split(sizes))])


def sizes_as_factors(m, rows, sizes):
    return torch.cat([p @ m.up[e].T * sizes[e] for e, p in enumerate(rows.split(sizes))])


def written_rows(m, rows, sizes):
    parts = [p @ m.up[e].T for e, p in enumerate(rows.split(sizes))]
    rows.mul_(2)
    return torch.cat(parts)


def random_numbers(m, rows, sizes):
    return torch.cat([F.dropout(p @ m.up[e].T) for e, p in enumerate(rows.split(sizes))])


def other_types(m, rows, sizes):
    factors = m.up_bias.double().sum(1)
    return torch.cat([p @ m.up[e].T * factors[e] for e, p in enumerate(rows.split(sizes))])


def sizes_alone(m, rows, sizes):
    return rows * sizes[0]


@pytest.mark.parametrize("parts,reason", [
    (reversed_parts, "the parts are joined in another order"),
    (mean_of_part, "mean.dim may mix rows"),
    (other_factors, "functions with different numbers"),
    (other_functions, "different functions"),
    (sizes_as_factors, "numbers of rows are used as numbers"),
    (written_rows, "a write in place changes"),
    (random_numbers, "dropout.default draws random numbers"),
    (other_types, "mul gives another type"),
    (sizes_alone, "depends on values: it is not covered. Such numbers")])
def test_refused(parts, reason):
    class Rows(Experts):
        def forward(self, x):
            _, i = self.route(x)
            return parts(self, x[i.flatten().argsort() // self.k], scattered(self, i))

    with pytest.raises(mw.Error, match="torch.cat joins them") as error:
        mw.from_torch(Rows(None), (randn(7, FEATURES),), training=parts is random_numbers)
    (place,) = error.value.diagnostics
    assert reason in place.message and "aten.item.default" in place.message
    assert "tolist()" in linecache.getline(place.file, place.line)


# The operations that such programs have, alone.

class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def test_sums_of_an_order():
    """`index_add` of rows whose positions are an order of them needs no comparisons."""
    def functions(x, scores):
        order, start = scores.argsort(), torch.full((4, 6), 0.5)
        return (torch.zeros(8, 6).index_add(0, order, x), start.index_add(0, order // 2, x),
                torch.zeros(2, 6).index_add(0, order.div(4, rounding_mode="trunc"), x),
                torch.zeros(5, 6).index_add(0, order // 2, x))

    args = randn(8, 6), torch.tensor([3, 1, 4, 0, 5, 9, 2, 6])
    same(Call(functions), args)
    imported = same(Call(lambda *args: functions(*args)[:3]), args)
    assert count(imported)["index_copy"] == 1 and not count(imported)["compare"]


def test_repeats_of_known_size():
    def functions(x, counts):
        return (torch.repeat_interleave(counts, output_size=9),
                x.repeat_interleave(counts, 0, output_size=9),
                x.flatten()[:3].repeat_interleave(counts, output_size=9))

    args = randn(3, 4), torch.tensor([2, 0, 7])
    same(Call(functions), args)
    plan = mw.from_torch(Call(functions), args).parallelize(mesh={"tp": 1})
    with pytest.raises(mw.Error, match="out of range"):
        plan.run(args[0], torch.tensor([2, 0, 8]))
