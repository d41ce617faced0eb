# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buffers that a module writes to are state of the program."""
import copy

import meshwright as mw
import nn_reference
import pytest
import torch
import torch.nn.functional as F
from import_checks import count, tensors, verify
from meshwright.importer.torch import ImportFailed, import_module
from torch import nn


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Written(nn.Module):
    """Buffers x [2, 6, 4], n [] and i [3]; `how` uses and changes them."""
    def __init__(self, how):
        super().__init__()
        self.how, self.l = how, nn.Linear(4, 4)
        self.register_buffer("x", randn(2, 6, 4, seed=1))
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("i", torch.arange(3), persistent=False)

    def forward(self, y, p):
        return self.how(self, y, p)


def through_views(s, y, p):
    view = s.x[0].t()
    view[1:3].mul_(2).add_(y[0, 0, :1])
    before = s.x.clone()
    s.x.view(2, 2, 3, 4)[:, 1].copy_(y[:, :3])
    a, b = s.x.chunk(2, -1)
    b.zero_()
    return view, before, a + b, s.x.flatten()


def whole(s, y, p):
    old = s.n
    s.n += 2
    s.n.add_(old)
    s.i[:] = s.i.flip(0)
    s.x.copy_(y[:1])
    return s.n, old, s.x.mean(), s.i


def slices(s, y, p):
    s.x[:, p] = y[:, :2]
    s.x[:, 5:] = 3
    s.x[1, -1, 1:3] = y[0, 0, 1:3]
    s.x[..., 0] = 0
    return s.x * 2


def by_index(s, y, p):
    s.x.index_copy_(1, p, y[:, :2])
    s.x[torch.arange(2)[:, None], p] = y[:, 2:4]
    s.x[:, :, torch.tensor([1, 2])] = y[:, :, :2]
    s.x.index_add_(1, p, y[:, :2], alpha=2)
    s.x.index_put_((p - 2,), y[:, :1], accumulate=True)
    s.x[s.x > 1] = 1
    s.x.masked_fill_(s.x < -1, -1)
    s.x.index_fill_(2, p, 7.0)
    return s.x


def scattered(s, y, p):
    at = p[None, :, None].expand(2, 2, 4)
    s.x.scatter_(1, at, y[:, :2])
    s.x.scatter_add_(1, at, y[:, 2:4])
    s.x.scatter_(1, at[:, :1], 5.0)
    return s.x


def without_gradient(s, y, p):
    with torch.no_grad():
        s.x.lerp_(y, 0.25)
        s.n.fill_(3)
    return s.l(s.x) + s.n


def copies(s, y, p):
    kept = s.x.transpose(1, 2).reshape(2, 24)  # a copy: the write does not reach it
    kept += 1
    z = torch.empty(2, 3)
    z[:, 0], z[:, 1:] = y[:, 0, 0], y[:, 1, :2]
    s.x.sub_(1)
    return kept, z, s.x


def pieces(s, y, p):
    first, second = s.x.unbind(0)
    second.copy_(first * 2)
    for i, part in enumerate(s.x.split([2, 4], 1)[0].split(2, -1)):
        part += i + y[:, :2, :2]
    s.x.squeeze(0).unsqueeze(-1).permute(3, 1, 0, 2)[0, 2] = 0
    s.x.narrow(1, 4, 1).relu_()
    s.x.diagonal(1, 1, 2).add_(y[:, 0, :3])
    s.x.diagonal(-1, 2, 0).fill_(0.5)
    return first, second


def truth_values(s, y, p):
    s.i.clamp_(max=1)
    s.n |= 6
    return s.i, s.n


WAYS = [through_views, whole, slices, by_index, scattered, without_gradient, copies, pieces]


def follow(module, calls, double=True, tolerance=1e-5):
    """Imports the module and compares outputs and buffers after each call."""
    theirs, before = copy.deepcopy(module), copy.deepcopy(module.state_dict())
    if double:  # which gives each buffer memory of its own
        theirs.double()
    imported = import_module(module, calls[0])
    verify(imported.mlir)
    state = {}
    for args in calls:
        got = nn_reference.run(imported, imported.flatten(args), state=state)
        with torch.no_grad():
            want = tensors(theirs(*(a.double() if double and a.is_floating_point() else a
                                    for a in args)))
        buffers = dict(theirs.named_buffers())
        for g, w in zip(got + list(state.values()), want + [buffers[k] for k in state],
                        strict=True):
            assert g.shape == w.shape
            assert torch.allclose(g.double(), w.double(), rtol=tolerance, atol=tolerance)
        for name, buffer in module.named_buffers():
            if all(buffer.data_ptr() != module.get_buffer(k).data_ptr() for k in state):
                assert torch.equal(buffers[name].to(buffer.dtype), buffer)
    after = module.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    return imported


def calls_of(how):
    calls = [(randn(2, 6, 4, seed=n), torch.tensor(p)) for n, p in
             ((2, [1, 3]), (3, [2, 2] if how in (slices, without_gradient) else [3, 0]),
              (4, [0, 2]))]
    if how is by_index:
        calls = [(y, torch.tensor(p)) for (y, _), p in zip(calls, ([2, 3], [3, 2], [2, 3]))]
    return calls


by_name = pytest.mark.parametrize("how", WAYS, ids=[f.__name__ for f in WAYS])


@by_name
def test_writes(how):
    follow(Written(how), calls_of(how))


def sessions(module, calls, meshes, tolerance=1e-5):
    """Runs the calls in a session on each mesh and compares outputs and state after each."""
    model = mw.from_torch(module, calls[0])
    for mesh in meshes:
        theirs = copy.deepcopy(module).double()
        with model.parallelize(mesh=mesh).start() as session:
            for args in calls:
                got, state = session.run(*args), session.state()
                with torch.no_grad():
                    want = tensors(theirs(*(a.double() if a.is_floating_point() else a
                                            for a in args)))
                buffers = dict(theirs.named_buffers())
                for g, w in zip([*got, *state.values()], want + [buffers[k] for k in state],
                                strict=True):
                    assert torch.allclose(g.double(), w.double(), rtol=tolerance, atol=tolerance)


@by_name
def test_sessions(how):
    sessions(Written(how), calls_of(how), [{"tp": 2}, {"dp": 2, "tp": 2}])


def test_batch_norm_in_sessions():
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 6))
    sessions(net, [(randn(3, 6, seed=n),) for n in range(3)],
             [{"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 3}])


def test_text():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x):
            self.n += 1
            return x * self.n

    imported = import_module(Counter(), (torch.ones(3),))
    text = imported.mlir
    assert 'nn.state @"n" : tensor<1xf32>' in text
    assert text.count('nn.read @"n" : tensor<1xf32>') == 1
    assert text.count('nn.write @"n", ') == 1 and "nn.parameter" not in text
    assert list(imported.parameters) == ["n"]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_batch_norm_in_train_mode(rank):
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[rank](5)
    nn.init.uniform_(norm.weight), nn.init.uniform_(norm.bias)
    shape = (3, 5, 4, 2)[:rank]
    net = nn.Sequential(norm, nn.ReLU(inplace=True), nn.Dropout(0.5)).eval()
    norm.train()
    calls = [(randn(*shape, seed=n),) for n in range(3)]
    imported = follow(net, calls)
    assert sorted(s.attrs["key"] for s in imported.graph.states) == [
        "0.num_batches_tracked", "0.running_mean", "0.running_var"]
    assert norm.training
    norm.eval()
    assert not follow(net, calls).graph.states


def test_batch_statistics_only():
    class Norm(nn.Module):
        def forward(self, x):
            return F.batch_norm(x, None, None, training=True)

    assert not follow(Norm(), [(randn(3, 5, 4),)]).graph.states


def test_static_cache():
    """As transformers' StaticCache: positions count in a tensor, keys go to them."""
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
            self.register_buffer("keys", torch.zeros(2, 2, 6, 4))
            self.register_buffer("filled", torch.tensor(0))

        def forward(self, x):
            q, k = (l(x).unflatten(-1, (2, 4)).transpose(1, 2) for l in (self.q, self.k))
            at = torch.arange(x.shape[1]) + self.filled
            self.filled.add_(x.shape[1])
            self.keys.index_copy_(2, at, k)
            mask = torch.arange(6) <= at[:, None]
            y = F.scaled_dot_product_attention(q, self.keys, self.keys, attn_mask=mask)
            return y.transpose(1, 2).flatten(2)

    imported = follow(Cache(), [(randn(2, 2, 8, seed=n),) for n in range(3)])
    ops = count(imported)
    assert ops["index_copy"] == 1 and ops["attention"] == 1


def test_transformers_static_cache():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=31, max_position_embeddings=32)

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = transformers.LlamaForCausalLM(config)
            for n in ("k0", "v0", "k1", "v1"):
                self.register_buffer(n, torch.zeros(2, 2, 10, 8))

        def forward(self, ids, at):
            cache = transformers.StaticCache(config=config, max_cache_len=10)
            for i, layer in enumerate(cache.layers):
                layer.keys, layer.values = getattr(self, f"k{i}"), getattr(self, f"v{i}")
                layer.is_initialized, layer.cumulative_length = True, at[0].clone()
                layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
            return self.net(ids, position_ids=at[None].expand(2, -1), past_key_values=cache,
                            use_cache=True).logits

    torch.manual_seed(0)
    ids = torch.arange(12).reshape(2, 6)
    calls = [(ids[:, :2] + n, torch.arange(2) + 2 * n) for n in range(4)]
    imported = follow(Cached().eval(), calls)
    assert [s.attrs["key"] for s in imported.graph.states] == ["k0", "v0", "k1", "v1"]
    assert count(imported)["index_copy"] == 4


def fails(module, *args, match):
    with pytest.raises(ImportFailed, match=match) as failed:
        import_module(module, args)
    found = failed.value.diagnostics
    assert all(d.file == __file__ and d.line for d in found), found
    return found


def test_input_written():
    class Writes(nn.Module):
        def forward(self, x, y):
            x[0] = 1
            y.view(-1).mul_(2)
            return x + y

    found = fails(Writes(), torch.ones(2), torch.ones(2), match="input x is written to in place")
    assert len(found) == 2 and "input y" in found[1].message


def test_parameter_written():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            with torch.no_grad():
                self.inner.weight.mul_(0.5)
            return self.inner(x)

    fails(Writes(), torch.ones(2), match="parameter inner.weight is written to in place; only "
                                         "registered buffers can be changed")


class Shared(nn.Module):
    def __init__(self, other):
        super().__init__()
        memory = torch.zeros(6)
        self.register_buffer("a", memory[:4])
        self.register_buffer("b", {"same": memory[:4], "overlaps": memory[2:],
                                   "beside": memory[4:]}[other])
        self.register_buffer("c", self.a if other == "same" else torch.zeros(1))

    def forward(self, x):
        self.a += x
        return x * 2, self.b * 1, self.c * 1


def test_shared_memory():
    follow(Shared("beside"), [(torch.ones(4),)] * 2, double=False)
    imported = follow(Shared("same"), [(torch.ones(4),)] * 2, double=False)
    assert len(imported.graph.states) == 1
    fails(Shared("overlaps"), torch.ones(4),
          match="buffer a is written to in place, and shares memory with b")


def test_write_that_is_not_covered():
    fails(Written(lambda s, y, p: s.x.normal_()), randn(2, 6, 4), torch.tensor([0, 1]),
          match="normal")
    fails(Written(lambda s, y, p: s.x[0, :4].t_().mul_(2)), randn(2, 6, 4), torch.tensor([0, 1]),
          match="operation aten.t_ changes a shape in place: it is not covered")
    fails(Written(lambda s, y, p: torch._foreach_add_([s.x], 1.0)), randn(2, 6, 4),
          torch.tensor([0, 1]), match="a write by operation aten._foreach_add_ is not covered")
    fails(Written(lambda s, y, p: torch.aminmax(s.x, out=(s.x[0, 0, 0], s.x[0, 0, 1]))), randn(2, 6, 4),
          torch.tensor([0, 1]), match="a write by operation aten.aminmax is not covered")
    fails(Written(lambda s, y, p: s.x.unfold(1, 2, 2).add_(1)), randn(2, 6, 4),
          torch.tensor([0, 1]), match="a write through the view aten.unfold is not covered")
