# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Mixtures of experts: ordering functions, and the spellings that become rows of experts."""
import linecache

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from import_checks import count, tensors, verify
from meshwright.importer.torch import ImportFailed, import_module
from torch import nn

tf = pytest.importorskip("transformers")
pytest.importorskip("transformers.integrations.moe")  # registers grouped products

EXPERTS, CHOICES, FEATURES = 5, 2, 12


def same(module, args, kwargs=None, training=False):
    """Imports the module, runs it and compares with PyTorch; returns the import."""
    imported = import_module(module, args, kwargs, training=training)
    verify(imported.mlir)
    plan = mw.from_torch(module, args, kwargs, training=training).parallelize(mesh={"tp": 1})
    with torch.no_grad():
        want = tensors(module(*args, **(kwargs or {})))
    for got, value in zip(plan.run(*args, **(kwargs or {})), want, strict=True):
        assert got.dtype == value.dtype
        torch.testing.assert_close(got, value, rtol=2e-5, atol=2e-5)
    return imported


def assert_lifted(imported, layers=1, products=2, left=()):
    ops = count(imported)
    assert (ops["grouped_linear"], ops["combine"]) == (products * layers, layers)
    assert layers <= ops["dispatch"] <= 2 * layers
    for op in {"index_copy", "cumsum", "gather", "embedding", "take_along"} - set(left):
        assert not ops[op], f"nn.{op} is left"


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Ordering.

class Call(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, *args):
        return tuple(f(*args) for f in self.functions)


def flat(f):
    return lambda *args: torch.cat([y.double().flatten() for y in f(*args)])


def test_order():
    x = randn(3, 7, 4)
    same(Call(flat(lambda x: x.topk(3)), flat(lambda x: x.topk(2, dim=1, largest=False)),
              flat(lambda x: x.sort(1)), flat(lambda x: x.sort(descending=True)),
              lambda x: x.argsort(0), lambda x: x.argsort(-1, True), lambda x: x.msort(),
              lambda x: torch.argsort(x, dim=1, stable=True),
              flat(lambda x: torch.sort(x, stable=True, dim=1)),
              flat(lambda x: x.kthvalue(2)), flat(lambda x: x.kthvalue(3, 1, True)),
              flat(lambda x: x[0, 0, 0].sort()), flat(lambda x: x.bfloat16().topk(2))), (x,))


def test_order_of_integers_and_nan():
    i = torch.randperm(24, generator=torch.Generator().manual_seed(1)).view(4, 6) - 9
    same(Call(flat(lambda i: i.topk(3)), flat(lambda i: i.sort()), lambda i: i.int().argsort(0),
              lambda i: (i > 0).sort()[0]), (i,))
    x = randn(4, 6)
    x[1, 2] = torch.nan
    same(Call(lambda x: x.sort()[1], lambda x: x.topk(2)[1]), (x,))


def test_histograms():
    x = torch.tensor([-1.0, 0, 0.4, 0.5, 0.99, 1, 2.5, 3, 3.5, torch.nan])
    same(Call(lambda x: x.histc(4, 0, 3), lambda x: x.histc(3, 0, 3),
              lambda x: x.histc(5, -1, 1)), (x,))
    i = torch.tensor([[0, 3, 3], [4, 1, 0]])
    same(Call(lambda i: i.float().histc(5, 0, 4), lambda i: i.float().histc(5, 0, 5),
              lambda i: i.float().histc(1)), (i,))


def test_histogram_without_range():
    with pytest.raises(ImportFailed, match="histc whose range depends on values"):
        import_module(Call(lambda x: x.histc(4)), (randn(5),))


# Spellings.

class Experts(nn.Module):
    """x + experts(x), in the spelling of the function `form(self, x, weights, indices)`."""

    def __init__(self, form, listed=False, bias=False, act=F.silu, k=CHOICES, experts=EXPERTS):
        super().__init__()
        self.form, self.act, self.k, self.experts, self.bias = form, act, k, experts, bias
        hidden = 8
        self.router = nn.Linear(FEATURES, experts, bias=False)
        self.other = nn.Parameter(randn(FEATURES, experts, seed=9))
        nn.init.normal_(self.router.weight)
        if listed:
            self.list = nn.ModuleList(nn.Sequential(
                nn.Linear(FEATURES, hidden, bias), Activation(act),
                nn.Linear(hidden, FEATURES, bias))
                for _ in range(experts))
        else:
            self.up = nn.Parameter(randn(experts, hidden, FEATURES, seed=1))
            self.down = nn.Parameter(randn(experts, FEATURES, hidden, seed=2))
            self.up_bias = nn.Parameter(randn(experts, hidden, seed=3))
            self.down_bias = nn.Parameter(randn(experts, FEATURES, seed=4))

    def route(self, y):
        w, i = self.router(y).softmax(-1).topk(self.k)
        return w / w.sum(-1, keepdim=True), i

    def dense(self, y):
        """All experts' results, [experts, tokens, features]."""
        h = y @ self.up.mT
        h = self.act(h + self.up_bias[:, None] if self.bias else h) @ self.down.mT
        return h + self.down_bias[:, None] if self.bias else h

    def forward(self, x):
        y = x.flatten(0, -2)
        return x + self.form(self, y, *self.route(y)).view(x.shape)


class Activation(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def masked(m, y, w, i):
    return sum(f(y) * (w * (i == e)).sum(-1, keepdim=True) for e, f in enumerate(m.list))


def selected(m, y, w, i):
    out = torch.zeros_like(y)
    for e, f in enumerate(m.list):
        out += torch.where(i == e, w, 0.0).sum(-1)[:, None] * f(y)
    return out


def gathered(m, y, w, i):
    h = torch.einsum("td,tkfd->tkf", y, m.up[i])
    h = m.act(h + m.up_bias[i] if m.bias else h)
    h = torch.einsum("tkf,tkdf->tkd", h, m.down[i])
    return ((h + m.down_bias[i] if m.bias else h) * w[..., None]).sum(1)


def weighed_by_product(m, y, w, i):
    h = m.act(torch.einsum("td,tkfd->tkf", y, m.up[i]))
    return torch.einsum("tk,tkd->td", w, torch.einsum("tkf,tkdf->tkd", h, m.down[i]))


def batched(m, y, w, i):
    x = y.repeat_interleave(m.k, 0)
    e = i.flatten()
    h = torch.bmm(m.up[e], x.unsqueeze(-1)).squeeze(-1)
    h = m.act(h + m.up_bias[e] if m.bias else h)
    h = torch.bmm(m.down[e], h.unsqueeze(-1)).squeeze(-1)
    h = h + m.down_bias[e] if m.bias else h
    return (h * w.flatten()[:, None]).view(len(y), m.k, -1).sum(1)


def one_hot(m, y, w, i):
    hot = F.one_hot(i, m.experts).to(y.dtype)
    return torch.einsum("etd,tke,tk->td", m.dense(y), hot, w)


def weighed_one_hot(m, y, w, i):
    scale = (F.one_hot(i, m.experts) * w[..., None]).sum(1)
    return (m.dense(y) * scale.T[..., None]).sum(0)


def compared(m, y, w, i):
    hot = (i[..., None] == torch.arange(m.experts)).to(y.dtype)
    return torch.einsum("te,etd->td", torch.einsum("tk,tke->te", w, hot), m.dense(y))


def taken(m, y, w, i):
    every = m.dense(y).transpose(0, 1)
    return (every.gather(1, i[..., None].expand(-1, -1, y.shape[-1])) * w[..., None]).sum(1)


def scaled_input(m, y, w, i):
    """As Llama 4 does it: experts see the token times its weight, which is zero for most."""
    scale = torch.full((len(y), m.experts), -torch.inf).scatter(1, i, w).T.sigmoid()
    return m.dense(y.repeat(m.experts, 1).view(m.experts, *y.shape) * scale[..., None]).sum(0)


def slots(m, y, w, i):
    hot = F.one_hot(i, m.experts)
    to = hot.sum(1)
    place = F.one_hot((to.cumsum(0) - 1) * to, len(y)).to(y.dtype) * to[..., None]
    every = m.dense(torch.einsum("tec,td->ecd", place, y))
    return torch.einsum("tec,ecd,te->td", place, every, (hot * w[..., None]).sum(1))


def grouped_mm(rows, weight, ends):
    return torch.ops.transformers.grouped_mm_fallback(rows, weight, ends)


def ordered(m, y, w, i):
    """As transformers do it."""
    e, order = torch.sort(i.flatten())
    ends = torch.histc(e.float(), m.experts, 0, m.experts - 1).cumsum(0, dtype=torch.int32)
    h = grouped_mm(y[order // m.k], m.up.transpose(1, 2), ends)
    h = m.act(h + m.up_bias[e] if m.bias else h)
    h = grouped_mm(h, m.down.transpose(1, 2), ends)
    h = (h + m.down_bias[e] if m.bias else h) * w.flatten()[order][:, None]
    return h[order.argsort()].view(len(y), m.k, -1).sum(1)


FORMS = [(form, form in (masked, selected)) for form in (
    masked, selected, gathered, weighed_by_product, batched, one_hot, weighed_one_hot, compared,
    taken, scaled_input, slots, ordered)]


@pytest.mark.parametrize("form,listed", FORMS, ids=lambda f: getattr(f, "__name__", None))
@pytest.mark.parametrize("k", [2, 1])
def test_forms(form, listed, k):
    imported = same(Experts(form, listed, k=k), (randn(3, 7, FEATURES),))
    assert_lifted(imported, left=["take_along"] + ["gather"] * (form is scaled_input))
    assert "5x3x7x12xf32, #nn.routed<" in imported.mlir and "repeats" not in imported.mlir


@pytest.mark.parametrize("form,listed", FORMS, ids=lambda f: getattr(f, "__name__", None))
@pytest.mark.parametrize("k", [2, 1])
def test_one_token(form, listed, k):
    imported = same(Experts(form, listed, k=k), (randn(1, 1, FEATURES),))
    # One row has no order, and fills one slot: such programs run as they are written.
    if form not in (scaled_input, slots) and (form, k) != (ordered, 1):
        assert_lifted(imported, left=["take_along"])


@pytest.mark.parametrize("form,listed", FORMS, ids=lambda f: getattr(f, "__name__", None))
def test_biases(form, listed):
    if form is scaled_input:  # then the experts of other tokens' rows are not zero
        assert not count(same(Experts(form, bias=True), (randn(2, 5, FEATURES),)))["dispatch"]
    elif form is not weighed_by_product:
        imported = same(Experts(form, listed, bias=True, act=F.gelu, k=3), (randn(2, 5, FEATURES),))
        assert_lifted(imported, left=["take_along"])


@pytest.mark.parametrize("form,listed", FORMS, ids=lambda f: getattr(f, "__name__", None))
def test_training(form, listed):
    assert_lifted(same(Experts(form, listed), (randn(2, 5, FEATURES),), training=True),
                  left=["take_along"] + ["gather"] * (form is scaled_input))


@pytest.mark.parametrize("shape", [(1, 1, FEATURES), (3, 1, FEATURES), (9, FEATURES)])
@pytest.mark.parametrize("form", [gathered, one_hot, taken])
def test_few_tokens(form, shape):
    assert_lifted(same(Experts(form), (randn(*shape),)), left=["take_along"])


@pytest.mark.parametrize("form", [gathered, one_hot, taken, ordered])
def test_a_single_expert(form):
    assert_lifted(same(Experts(form, k=1, experts=1), (randn(3, 7, FEATURES),)),
                  left=["take_along", "gather"])


class Twice(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.first, self.second = layers[0], layers[-1]

    def forward(self, x):
        return self.second(x + torch.tanh(self.first(x)))


def test_layers_with_the_same_experts():
    module = Twice(Experts(gathered))
    assert_lifted(same(module, (randn(2, 5, FEATURES),)), layers=2, left=["take_along"])


@pytest.mark.parametrize("form,listed", FORMS, ids=lambda f: getattr(f, "__name__", None))
def test_two_layers(form, listed):
    class Stream(Twice):
        def forward(self, x):
            return self.second(self.first(x))

    imported = same(Stream(Experts(form, listed), Experts(form, listed)), (randn(2, 5, FEATURES),))
    assert_lifted(imported, layers=2, left=["take_along"] + ["gather"] * (form is scaled_input))
    assert count(imported)["linear"] == 2 and not count(imported)["matmul"]


def test_indices_of_the_caller():
    """They may be negative, and repeat an expert."""
    class Given(Experts):
        def forward(self, x, i, w):
            return self.form(self, x, w, i)

    i = torch.tensor([[0, 4], [1, 1], [-1, 2], [-5, 3]])
    imported = same(Given(gathered), (randn(4, FEATURES), i, randn(4, 2)))
    assert_lifted(imported)
    assert "#nn.routed<2, repeats>" in imported.mlir


def test_gate_and_norm():
    """Slices, joins and reductions of features are row-wise."""
    def form(m, y, w, i):
        h = torch.einsum("td,tkfd->tkf", y, m.up[i])
        gate, up = h.chunk(2, -1)
        h = torch.cat([gate.clamp(max=3) * up.sigmoid(), h[..., ::2]], -1)
        h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)
        h = F.layer_norm(h.softmax(-1), (8,))
        return (torch.einsum("tkf,tkdf->tkd", h, m.down[i]) * w[..., None]).sum(1)

    assert_lifted(same(Experts(form), (randn(3, 7, FEATURES),)), left=["take_along"])


# What breaks a condition stays as it is.

def mixes_rows(m, y, w, i):
    h = torch.einsum("td,tkfd->tkf", y, m.up[i])
    h = m.act(h - h.mean(0))
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i]) * w[..., None]).sum(1)


def mixes_choices(m, y, w, i):
    h = m.act(torch.einsum("td,tkfd->tkf", y, m.up[i])).cumsum(1)
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i]) * w[..., None]).sum(1)


def another_expert(m, y, w, i):
    h = m.act(torch.einsum("td,tkfd->tkf", y, m.up[i]))
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i.flip(1)]) * w[..., None]).sum(1)


def another_bias(m, y, w, i):
    h = m.act(torch.einsum("td,tkfd->tkf", y, m.up[i]) + m.up_bias[(i + 1) % m.experts])
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[i]) * w[..., None]).sum(1)


def another_router(m, y, w, i):
    other = (y @ m.other).topk(m.k).indices
    h = m.act(torch.einsum("td,tkfd->tkf", y, m.up[i]))
    return (torch.einsum("tkf,tkdf->tkd", h, m.down[other]) * w[..., None]).sum(1)


def counts_twice(m, y, w, i):
    hot = F.one_hot(i, m.experts).sum(1) + F.one_hot(i[:, 0], m.experts)
    return (m.dense(y) * hot.T[..., None]).sum(0)


def not_zero_elsewhere(m, y, w, i):
    scale = (F.one_hot(i, m.experts) * w[..., None]).sum(1) + 0.01
    return (m.dense(y) * scale.T[..., None]).sum(0)


def other_slots(m, y, w, i):
    hot = F.one_hot(i, m.experts)
    to = hot.sum(1)
    place = F.one_hot(to.cumsum(0) * to // 2, len(y)).to(y.dtype) * to[..., None]
    every = m.dense(torch.einsum("tec,td->ecd", place, y))
    return torch.einsum("tec,ecd,te->td", place, every, (hot * w[..., None]).sum(1))


def other_order(m, y, w, i):
    e, order = torch.sort(i.flatten())
    ends = torch.histc(e.float(), m.experts, 0, m.experts - 1).cumsum(0, dtype=torch.int32)
    h = m.act(grouped_mm(y[order % len(y)], m.up.transpose(1, 2), ends))
    h = grouped_mm(h, m.down.transpose(1, 2), ends) * w.flatten()[order][:, None]
    return h[order.argsort()].view(len(y), m.k, -1).sum(1)


@pytest.mark.parametrize("form", [mixes_rows, mixes_choices, another_expert, another_bias,
                                  another_router, counts_twice, not_zero_elsewhere, other_slots])
def test_is_not_lifted(form):
    ops = count(same(Experts(form), (randn(3, 7, FEATURES),)))
    assert not ops["dispatch"] and not ops["combine"]


def test_products_in_another_order():
    """Rows go to experts by their offsets, each with a choice of its own."""
    imported = same(Experts(other_order), (randn(3, 7, FEATURES),))
    ops = count(imported)
    assert (ops["dispatch"], ops["grouped_linear"], ops["combine"]) == (2, 2, 2)
    assert "#nn.routed<1>" in imported.mlir


def test_an_expert_left_out():
    """A loop over four of five experts drops choices, which indices do not say."""
    def form(m, y, w, i):
        return sum(f(y) * (w * (i == e)).sum(-1, keepdim=True) for e, f in enumerate(m.list[:4]))

    assert not count(same(Experts(form, True), (randn(3, 7, FEATURES),)))["dispatch"]


def test_rows_behind_the_last_offset():
    class Product(nn.Module):
        def forward(self, x, w, ends):
            return grouped_mm(x, w, ends)

    same(Product(), (randn(7, 4), randn(3, 4, 6), torch.tensor([2, 2, 5], dtype=torch.int32)))


def test_a_loop_of_lengths_that_depend_on_values():
    def form(m, y, w, i):
        out = torch.zeros_like(y)
        for e, f in enumerate(m.list):
            t, c = torch.where(i == e)
            out = out.index_add(0, t, f(y[t]) * w[t, c, None])
        return out

    with pytest.raises(mw.Error, match="(?s)experts.py.*set_experts_implementation") as error:
        mw.from_torch(Experts(form, True), (randn(3, 7, FEATURES),))
    place = error.value.diagnostics[0]
    assert linecache.getline(place.file, place.line).strip() == "t, c = torch.where(i == e)"


# Models of transformers.

def mixtral(implementation="grouped_mm", **more):
    config = tf.MixtralConfig(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=61, max_position_embeddings=64, num_local_experts=4,
        num_experts_per_tok=2, use_cache=False, **more)
    torch.manual_seed(0)
    model = tf.MixtralForCausalLM(config).eval()
    model.set_experts_implementation(implementation)
    return model


IDS = (torch.arange(14).view(2, 7) * 5 % 61,)


def test_llama4():
    config = tf.Llama4TextConfig(
        hidden_size=32, intermediate_size=24, intermediate_size_mlp=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=61,
        num_local_experts=4, max_position_embeddings=64, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model = tf.Llama4ForCausalLM(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    assert_lifted(same(model, IDS), layers=2, left=["take_along", "embedding", "gather"])


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm", "eager"])
def test_transformers(implementation):
    model = mixtral(implementation)
    imported = same(model, IDS)
    assert model.config._experts_implementation == implementation
    assert_lifted(imported, layers=2, left=["take_along", "embedding"])
    assert count(imported)["top_k"] == 2


def rounded_one_hot(m, y, w, i):
    scale = (F.one_hot(i, m.experts) * w[..., None]).sum(1).to(y.dtype)
    return (m.dense(y) * scale.T[..., None]).sum(0)


@pytest.mark.parametrize("form", [gathered, weighed_one_hot, rounded_one_hot])
def test_bf16_with_a_router_in_f32(form):
    class Fine(Experts):
        def route(self, y):
            return F.linear(y.float(), self.router.weight.float()).softmax(-1).topk(self.k)

    module = Fine(lambda *args: form(*args).bfloat16()).bfloat16()
    x = randn(3, 7, FEATURES).bfloat16()
    assert_lifted(import_module(module, (x,)), left=["take_along"])
    got, = mw.from_torch(module, (x,)).parallelize(mesh={"tp": 1}).run(x)
    torch.testing.assert_close(got, module(x), rtol=3e-2, atol=3e-2)


def test_transformers_in_bf16():
    imported = import_module(mixtral().bfloat16(), IDS)
    verify(imported.mlir)
    assert_lifted(imported, layers=2, left=["take_along", "embedding"])
    assert count(imported)["top_k"] == 2


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_auxiliary_loss(device):
    """It computes the choices again: they are one value."""
    model = mixtral(output_router_logits=True).train().to(device)
    imported = import_module(model, IDS, {"labels": IDS[0]}, training=True)
    verify(imported.mlir)
    assert_lifted(imported, layers=2, left=["take_along", "embedding"])
    assert count(imported)["top_k"] == 2
