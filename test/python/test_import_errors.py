# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A refused import names all problems at once and leaves the module as it was."""
import pytest
import torch
from meshwright.importer.torch import ImportFailed, import_module
from torch import nn


class Uncovered(nn.Module):
    def forward(self, x):
        a = torch.special.bessel_j0(x)
        b = torch.linalg.inv(x)
        return a, b, torch.linalg.inv(b)


def test_lists_every_operation():
    with pytest.raises(ImportFailed) as failed:
        import_module(Uncovered(), (torch.eye(4),))
    found = failed.value.diagnostics
    assert any("bessel" in d.message for d in found) and any("inv" in d.message for d in found)
    assert all(d.file == __file__ and d.line and d.severity == "error" for d in found)
    assert f"{__file__}:{found[0].line}: " in str(failed.value)


class Dynamic(nn.Module):
    def forward(self, x):
        return x[x > 0] * 2


def test_dynamic_shape():
    with pytest.raises(ImportFailed) as failed:
        import_module(Dynamic(), (torch.ones(4),))
    assert failed.value.diagnostics[0].line


def test_element_type():
    with pytest.raises(ImportFailed, match="x: element type uint8 is not covered"):
        import_module(_Typed(), (torch.ones(1, dtype=torch.uint8),))


class _Typed(nn.Module):
    def forward(self, x):
        return x.float()


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        raise ValueError("no such thing")


def test_left_as_it_was():
    module, fast = Fails().train(), torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ImportFailed, match="no such thing") as failed:
        import_module(module, (torch.ones(1),))
    assert module.training and module.drop.training
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert failed.value.diagnostics[0].file == __file__


def test_odd_input():
    with pytest.raises(ImportFailed, match="expected tensors, numbers, flags and None, got a object"):
        import_module(_Typed(), (object(),))


class Flags(nn.Module):
    def forward(self, x, flag=False, *, scale=1.0, mask=None, named=None):
        x = x * scale if flag else x
        x = x if mask is None else x + mask
        return x if named is None else x + named["a"] + named["b"][0]


def test_inputs():
    x, y = torch.ones(2), torch.full((2,), 3.0)
    imported = import_module(Flags(), (x, True), {"scale": 2.0, "mask": y, "named": {
        "a": x, "b": [y]}})
    assert imported.inputs == ["x", "mask", "named.a", "named.b.0"]
    values = imported.flatten((x, True), {"named": {"a": x, "b": [y]}, "mask": y, "scale": 2.0})
    assert [v.tolist() for v in values] == [[1, 1], [3, 3], [1, 1], [3, 3]]
    with pytest.raises(ImportFailed, match="an argument is 3.0, but was 2.0"):
        imported.flatten((x, True), {"scale": 3.0, "mask": y, "named": {"a": x, "b": [y]}})
    with pytest.raises(ImportFailed, match="the arguments are"):
        imported.flatten((x,), {})


def test_inputs_that_share_memory():
    class Add(nn.Module):
        def forward(self, x, y, z):
            return x + y * z

    x = torch.arange(6.)
    for args in ((x[:, None], x, x), (x, x[:, None], x[2:3]), (x[:3], x[3:], x[::2])):
        imported = import_module(Add(), args)
        assert imported.inputs == ["x", "y", "z"]
        assert [tuple(n.shape) for n in imported.graph.inputs] == [tuple(a.shape) for a in args]


def test_optional_inputs():
    x = torch.ones(2)
    imported = import_module(Flags(), (x,), {"mask": None})
    assert imported.inputs == ["x"] and len(imported.flatten((x,), {})) == 1


def test_training_mode():
    module = nn.Sequential(nn.Dropout(0.5)).train()
    assert import_module(module, (torch.ones(2),)).outputs == ["output"] and module.training


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("said, function", [
    ("a convolution whose kernel .* has more than 256 elements",
     lambda x: nn.functional.conv2d(x, torch.ones(1, 2, 20, 20))),
    ("a view by strides of elements that its operand has not",
     lambda x: x[:, 1:].as_strided((3,), (1,), 0)),
    ("operation aten.linalg_svdvals.* it needs aten._linalg_svd", torch.linalg.svdvals),
    ("operation aten.special_erfcx.default", torch.special.erfcx),
    ("a power 0.5 of complex numbers", lambda x: torch.complex(x, x) ** 0.5),
    ("operation aten.sgn.default on complex numbers", lambda x: torch.complex(x, x).sgn().real),
    ("operation aten.rand.default", lambda x: x + torch.rand(22)),
    ("operation aten.rand_like.default", lambda x: x + torch.rand_like(torch.zeros(22))),
    ("operation aten.exponential", lambda x: x + torch.empty(22).exponential_()),
    ("operation aten.multinomial.default", lambda x: x + torch.multinomial(torch.ones(22), 22)),
    ("dropout in training mode", lambda x: x * torch.dropout(torch.ones(22), 0.5, True)),
], ids=lambda part: part if isinstance(part, str) else "")
def test_functions(said, function):
    with pytest.raises(ImportFailed, match=said) as failed:
        import_module(Call(function), (torch.ones(1, 2, 22, 22),))
    assert all(d.file == __file__ and d.line for d in failed.value.diagnostics)


class Reads(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.read, self.t = read, nn.Embedding(5, 4)

    def forward(self, x):
        return self.read(x, self.t)


@pytest.mark.parametrize("index, lowest, read", [
    (5, -5, lambda x, t: x[torch.tensor([0, 5])]),
    (-6, -5, lambda x, t: x[torch.tensor([0, -6]), torch.tensor([0, 1])]),
    (4, -4, lambda x, t: x[torch.tensor([0, 1]), torch.tensor([0, 4])]),
    (5, -5, lambda x, t: x[torch.arange(6), torch.tensor(0)]),
    (-1, 0, lambda x, t: x.index_select(0, torch.tensor([1, -1]))),
    (4, 0, lambda x, t: x.gather(1, torch.arange(5).expand(5, 5))),
    (5, 0, lambda x, t: t(torch.tensor([0, 5]))),
])
def test_index_out_of_range(index, lowest, read):
    with pytest.raises(ImportFailed, match=f"index {index} is out of range: expected {lowest} to"):
        import_module(Reads(read), (torch.ones(5, 4),))
