# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes that change from call to call: the program of a bucket, read at the sizes of calls."""

import re

import nn_reference
import pytest
import torch
import torch.nn.functional as F
from import_checks import tensors
from meshwright.importer.torch import ImportFailed, import_module
from meshwright.importer.torch.dynamic import Dynamic, entry_name
from torch import nn
from torch.export import Dim

NAMES, BUCKETS = {0: "batch", 1: "tokens"}, {"batch": [1, 4], "tokens": [8, 24]}
SIZES = [(3, 20), (4, 24), (2, 9), (4, 1), (1, 5), (1, 24)]


class Calls(nn.Module):
    """A function of the inputs and of parameters."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.w, self.table = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(64, 16))
        self.register_buffer("places", torch.arange(64)[None], persistent=False)

    def forward(self, *args):
        return self.function(self, *args)


def programs(module, args, shapes, buckets=BUCKETS, **options):
    """The program of each bucket, by its name."""
    dynamic, found, constants = Dynamic(module, args, {}, shapes, buckets), {}, {}
    for capacities in dynamic.capacities():
        found[entry_name(capacities)] = program = import_module(
            module, args, dynamic=dynamic, capacities=capacities, constants=constants, **options
        )
        constants = program.graph.constants
    return found


def compare(module, calls, shapes, buckets=BUCKETS):
    """Reads the program of each bucket that holds a call at the call's sizes, and compares with the module."""
    module = module.eval()
    found = programs(module, calls[0], shapes, buckets)
    for args in calls:
        with torch.no_grad():
            want = tensors(module(*args))
        sizes = {}
        for program in found.values():
            for name, value in zip(program.inputs, args, strict=True):
                sizes |= {size: value.shape[d] for d, size in program.sizes.inputs.get(name, {}).items()}
            if any(sizes[name] > capacity for name, capacity in program.sizes.capacities.items()):
                continue
            call = program.sizes.at(sizes)
            got = nn_reference.run(program, args, sizes=sizes)
            assert len(got) == len(want)
            for g, w, layout in zip(got, want, program.sizes.outputs, strict=True):
                assert tuple(g.shape) == tuple(w.shape) == tuple(nn_reference.true_size(n, sizes) for n in layout)
                torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)
            assert all(call.arguments[name] == sizes.get(name, call.arguments[name]) for name in call.arguments)
    return found


def x_of(*shape):
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(sum(shape)))


def distances(m, x):
    """A table [tokens, tokens] that is a function of the distance, merged and taken apart again."""
    tokens = x.shape[1]
    at = torch.arange(tokens)
    return x + ((at[:, None] - at) * 0.5).reshape(-1).view(tokens, tokens).sum(1)[:, None]


FUNCTIONS = {
    "distances": distances,
    "means": lambda m, x: (x.mean(1), x.mean((0, 1)), x.mean(), x.mean(2), (x @ m.w).mean(-2, keepdim=True)),
    "variances": lambda m, x: (x.var(1, unbiased=False), x.std((0, 1)), torch.var_mean(x, 2)[0]),
    "norms": lambda m, x: (x / x.norm(dim=1, keepdim=True), F.layer_norm(x, (16,)), F.normalize(x, dim=1)),
    "extremes": lambda m, x: (x.amax(1), x.argmax(1), x.argmin(2), x.max(1).values, (x > 0).any(1), (x < 3).all(1)),
    "sums": lambda m, x: (x.cumsum(1), x.softmax(1).sum(1), x.logsumexp(1), x.log_softmax(1)),
    "numbers": lambda m, x: (
        x.sum(1) / x.shape[1] ** 0.5,
        x * x.shape[0] + x.shape[1] // 2,
        x.sum() / (x.shape[0] * x.shape[1]),
        torch.full((3,), x.shape[1] * 1.5),
        (x > x.shape[1] / 10).float(),
        x.clamp(max=x.shape[1] / 20),
        x - x.shape[1] ** -0.5,
    ),
    "tables": lambda m, x: (
        x + m.table[: x.shape[1]],
        x * torch.linspace(0, 1, 64)[: x.shape[1], None],
        m.table[: x.shape[1]].sum(0),
        m.table[x.shape[1] - 1],
        F.embedding(m.places[:, : x.shape[1]], m.table),
        x + m.table[:32].mean(0),
    ),
    "positions": lambda m, x: (
        torch.arange(x.shape[1]).float().mean(),
        torch.arange(x.shape[1])[None] + x.argmax(2),
        torch.arange(x.shape[1]).flip(0),
        torch.ones(x.shape[0], x.shape[1]).sum(),
        torch.zeros(x.shape[:2]).cumsum(1),
    ),
    "ends": lambda m, x: (x[:, 0], x[:, -1], x.flip(1), x[-1], x.flip(0, 1)),
    "shifts": lambda m, x: (
        F.pad(x, (0, 0, 1, 0)),
        F.pad(x, (0, 0, 0, 1), value=2.0)[:, 1:],
        F.pad(x, (0, 0, 1, 0))[:, :-1],
        torch.cat([m.table[None, :1].expand(x.shape[0], -1, -1), x], 1),
        torch.cat([x, m.table[None, :2].expand(x.shape[0], -1, -1)], 1).mean(1),
    ),
    "pieces": lambda m, x: torch.cat([x, 2 * x.flip(1)], 1).split([x.shape[1], x.shape[1]], 1),
    "views": lambda m, x: (
        x.flatten(0, 1).mean(0),
        (x.flatten(0, 1) @ m.w).view(x.shape),
        x.view(*x.shape[:2], 4, 4).transpose(1, 2),
        x.view(x.shape[0], -1).sum(1),
        x.repeat_interleave(2, 0).sum(0),
        x.expand(2, -1, -1, -1).flatten(0, 1).amax(0),
    ),
    "products": lambda m, x: (
        x @ x.mT,
        torch.einsum("btd,bsd->bts", x, x).softmax(-1) @ x,
        F.scaled_dot_product_attention(x, x @ m.w, x, is_causal=True),
        F.scaled_dot_product_attention(x, x, x, attn_mask=torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))),
    ),
    "indices": lambda m, x: (
        x[torch.arange(x.shape[0]), x.argmax(1)[:, 0]],
        x.gather(1, x.argmax(1, keepdim=True)),
        x.index_select(1, torch.zeros(2, dtype=torch.long)),
        x[:, -1 - x.argmax(2)[0, :1] % 1],
    ),
    "masks": lambda m, x: (
        x.masked_fill(torch.arange(x.shape[1])[:, None] > 2, 0.0).sum(1),
        torch.where(x > 0, x, x.shape[1]).mean(1),
        x.tril().sum(1),
    ),
    "broadcasts": lambda m, x: (
        m.table[0].expand(x.shape[0], x.shape[1], 16).sum((0, 1)),
        x.new_ones(x.shape[1]).sum(),
        x.new_full(x.shape[:2], 2.0).sum(1),
    ),
    "complex": lambda m, x: torch.view_as_real(
        torch.view_as_complex(x.view(*x.shape[:2], 8, 2))
        * torch.polar(torch.ones(64, 8), torch.outer(torch.arange(64.0), torch.arange(8.0)))[: x.shape[1]]
    ).flatten(2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_the_sizes_of_calls(name):
    compare(Calls(FUNCTIONS[name]), [(x_of(*s),) for s in SIZES], {"args": (NAMES,)})


def test_sizes_of_equal_buckets_stay_apart():
    """Tables and positions of one bucket's size are those of several sizes, and of none."""
    function = lambda m, x, y: (
        m.table[:24].sum(0),
        m.table[: x.shape[1]].sum(0),
        torch.arange(24).float().mean(),
        torch.arange(x.shape[1]).float().mean(),
        torch.arange(y.shape[1]).float().mean(),
        x * torch.linspace(0, 1, 24)[: x.shape[1], None] * torch.linspace(0, 1, 24).sum(),
        y * torch.linspace(0, 1, 24)[: y.shape[1], None],
    )
    calls = [(x_of(2, 20), x_of(2, 7)), (x_of(2, 3), x_of(2, 24))]
    compare(Calls(function), calls, {"args": ({1: "a"}, {1: "b"})}, {"a": [24], "b": [24]})


class Joint(nn.Module):
    """Text and image tokens in one sequence, taken apart again."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, text, image):
        x = torch.cat([self.a(text), self.b(image)], 1)
        y = F.scaled_dot_product_attention(self.o(x), x, x)
        return y[:, : text.shape[1]].sum(1), y[:, text.shape[1] :]


def test_two_sizes_in_one_sequence():
    found = compare(
        Joint(),
        [(x_of(2, 5), x_of(2, 11)), (x_of(1, 3), x_of(1, 20))],
        {"text": {0: "batch", 1: "text"}, "image": {0: "batch", 1: "image"}},
        {"batch": [2], "text": [8], "image": [16, 24]},
    )
    assert list(found) == ["batch=2,text=8,image=16", "batch=2,text=8,image=24"]
    assert list(found["batch=2,text=8,image=24"].sizes.arguments) == ["batch", "text", "image", "image + text"]


CONFIG = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=70, vocab_size=97)


def transformer(name):
    tf = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config, kind = {
        "bert": (tf.BertConfig(**CONFIG), tf.BertModel),
        "llama": (tf.LlamaConfig(**CONFIG, num_key_value_heads=2), tf.LlamaForCausalLM),
        "mistral": (tf.MistralConfig(**CONFIG, num_key_value_heads=2, sliding_window=5), tf.MistralForCausalLM),
        "gpt2": (tf.GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=97), tf.GPT2LMHeadModel),
        "t5": (tf.T5Config(d_model=48, d_kv=12, d_ff=70, num_layers=2, num_heads=4, vocab_size=97), tf.T5EncoderModel),
        "bloom": (tf.BloomConfig(hidden_size=48, n_layer=2, n_head=4, vocab_size=97), tf.BloomForCausalLM),
    }[name]
    return kind(config).eval()


@pytest.mark.parametrize("name", ["bert", "llama", "mistral", "gpt2", "t5", "bloom"])
def test_transformers_at_the_sizes_of_calls(name):
    net = transformer(name)
    ids = [torch.randint(3, 97, s, generator=torch.Generator().manual_seed(0)) for s in SIZES]
    masks = [(torch.arange(t) < torch.arange(t, t - b, -1).clamp(min=1)[:, None]).long() for b, t in SIZES]
    calls = [(i, m) for i, m in zip(ids, masks, strict=True)] if name == "bert" else [(i,) for i in ids]
    found = compare(net, calls, {"input_ids": NAMES, **({"attention_mask": NAMES} if name == "bert" else {})})
    ops = [n.op for n in list(found.values())[-1].graph.nodes()]
    assert ops.count("attention") == 2 and "cut" not in ops and "softmax" not in ops


def test_text_of_a_bucket():
    """The sizes of arguments, the sizes as arguments, and marks where no operand tells the size."""
    found = programs(
        Calls(lambda m, x: (x.sum(1) / x.shape[1] ** 0.5, x + m.table[: x.shape[1]], m.table[: x.shape[1]].sum(0))),
        (x_of(3, 1),),
        {"args": ({0: Dim("batch"), 1: Dim("tokens")},)},
    )
    text = re.sub(r" loc\(.*\)| \{nn\.id = \d+ : i64\}|, nn\.id = \d+ : i64", "", found["batch=4,tokens=24"].mlir)
    for line in [
        '%arg0: tensor<4x24x16xf32> {nn.input = "args.0", nn.sizes = ["batch", "tokens", ""]},',
        '%arg2: tensor<i64> {nn.input = "size.batch", nn.size = "batch"},',
        '%arg3: tensor<i64> {nn.input = "size.tokens", nn.size = "tokens"})',
        "= nn.cast %arg3 : (tensor<i64>) -> tensor<f64>",
        '= nn.cut %5 sizes ["tokens", ""] : tensor<24x16xf32>',
    ]:
        assert line in text, text
    assert text.count("nn.cut") == 1
    small = found["batch=1,tokens=8"].mlir  # a size of at most 1 is 1
    assert 'nn.sizes = ["", "tokens", ""]' in small and "size.batch" not in small


def test_one_export_for_all_buckets(monkeypatch):
    calls, export = [], torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: calls.append(1) or export(*args, **kwargs))
    assert len(programs(Calls(FUNCTIONS["means"]), (x_of(1, 1),), {"args": (NAMES,)})) == 4 and len(calls) == 1


REFUSED = {
    "sort": (lambda m, x: x.sort(1).values, "operation aten.sort.default cannot take the size 'tokens'"),
    "conv": (lambda m, x: F.conv1d(x.mT, m.w[:, :, None].repeat(1, 1, 3)), "operation aten.conv1d.default cannot take"),
    "windows": (lambda m, x: x.unfold(1, 3, 1), "operation aten.unfold.default cannot take the size 'tokens'"),
    "roll": (lambda m, x: x.roll(1, 1), "operation aten.roll.default cannot take the size 'tokens'"),
    "top k": (lambda m, x: x.topk(2, 1).values, "operation aten.topk.default cannot take the size 'tokens'"),
    "product": (lambda m, x: x.prod(1), "operation aten.prod.dim_int cannot take the size 'tokens'"),
    "running product": (lambda m, x: x.cumprod(1), "operation aten.cumprod.default cannot take the size 'tokens'"),
    "steps": (lambda m, x: x[:, ::2], "a slice with a step along the size 'tokens'"),
    "merged positions": (lambda m, x: torch.arange(x.shape[0] * x.shape[1]), "positions of the merged sizes"),
    "one of all": (lambda m, x: x.argmax(), "aten.argmax.default of all elements"),
    "known ends": (lambda m, x: x[:, torch.tensor([0, -1])], "known indices below 0 along the size 'tokens'"),
    "apart": (lambda m, x: x.flatten(0, 1).view(x.shape[1], x.shape[0], 16), "takes a size that changes from call to call apart"),
    "halves": (lambda m, x: x.chunk(2, 1)[0], "size 'tokens' cannot change"),
    "transform": (lambda m, x: torch.fft.fft(x, dim=1).abs(), "a Fourier transform along a size that changes"),
    "python's float": (lambda m, x: x * float(x.shape[1]), "size 'tokens' cannot change"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_line(name):
    function, said = REFUSED[name]
    with pytest.raises(ImportFailed) as error:
        programs(Calls(function).eval(), (x_of(2, 8),), {"args": (NAMES,)})
    assert said in str(error.value) and error.value.diagnostics[0].line is not None
