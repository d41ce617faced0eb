# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions whose own derivative is that of their forward (torch.autograd.Function), in training."""

import copy

import meshwright as mw
import pytest
import torch
import transformers as tf
from torch import nn

#: The most that gradients differ from those in f64, relative to the largest of all.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6}


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        y = torch.tanh(x * scale)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y) * ctx.scale, None


class Product(torch.autograd.Function):
    """Has a context of its own, two results, and a mask."""

    @staticmethod
    def forward(x, weight, mask):
        return (x @ weight).masked_fill(mask, 0), x.square()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, by_product, by_square):
        x, weight, mask = ctx.saved_tensors
        by_product = by_product.masked_fill(mask, 0)
        return (by_product @ weight.T + 2 * x * by_square,
                (x.transpose(-1, -2) @ by_product).sum(0) if ctx.needs_input_grad[1] else None, None)


class Softmax(torch.autograd.Function):
    """Writes to a value that autograd would need."""

    @staticmethod
    def forward(ctx, x):
        y = (x - x.amax(-1, keepdim=True)).exp_()
        y.div_(y.sum(-1, keepdim=True))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return y * (gradient - (gradient * y).sum(-1, keepdim=True))


bound = Tanh.apply


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 24), nn.Linear(24, 12)
        self.weight = nn.Parameter(torch.randn(12, 12))

    def forward(self, x):
        x = x + self.down(bound(self.up(x), 0.7))
        product, square = Product.apply(x, self.weight, x < 0.3)
        return (Softmax.apply(product) * square).square().mean()


def check(module, inputs, **options):
    want = copy.deepcopy(module).double()
    loss = want(**{n: x.double() if x.is_floating_point() else x for n, x in inputs.items()})
    getattr(loss, "loss", loss).backward()
    want = {f"grad.{n}": p.grad for n, p in want.named_parameters()}
    grads = mw.from_torch(module, (), inputs, training=True).differentiate()
    got = dict(zip(grads.outputs, grads.parallelize(**options).run(**inputs), strict=True))
    top = max(float(g.abs().max()) for g in want.values())
    dtype = next(module.parameters()).dtype
    for name, gradient in want.items():
        assert float((got[name] - gradient).abs().max()) <= TOLERANCE[dtype] * top, name


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", [dict(mesh={"tp": 2}, sequence_parallel="on"),
                                     dict(mesh={"dp": 2, "tp": 2})], ids=["tp=2 sp", "dp=2,tp=2"])
def test_functions(options, dtype):
    torch.manual_seed(3)
    check(Functions().to(dtype), dict(x=torch.randn(4, 6, 12, dtype=dtype)), **options)


def test_bloom():
    """Its GELU in train mode has a derivative of its own, whose constants are rounded."""
    torch.manual_seed(3)
    config = tf.BloomConfig(hidden_size=24, n_layer=2, n_head=4, vocab_size=37, hidden_dropout=0.0,
                            attention_dropout=0.0)
    ids = torch.randint(0, 37, (2, 9))
    check(tf.BloomForCausalLM(config).train(), dict(input_ids=ids, labels=ids), mesh={"dp": 2, "tp": 2})
