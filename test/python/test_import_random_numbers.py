# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Numbers that a forward pass draws: by PyTorch, by Python, by NumPy. And what it changes."""
import random

import numpy as np
import pytest
import torch
from meshwright.importer.torch import ImportFailed, import_module
from torch import nn

drawn = np.random.default_rng(3)
calls = 0


def count():
    global calls
    calls += 1
    return calls


class Call(nn.Module):
    """Calls a function with itself and the result of a layer."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function
        self.calls, self.flag, self.log, self.kept = 0, False, [], {}
        self.generator, self.old, self.own = np.random.default_rng(1), np.random.RandomState(2), random.Random(3)

    def forward(self, x):
        return self.function(self, self.layer(x))


X = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))


def refused(function, training):
    module = Call(function).train(training)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with pytest.raises(ImportFailed) as failed:
        import_module(module, (X,), training=training)
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert (module.calls, module.flag, module.log, module.kept) == (0, False, [], {})
    diagnostic, = failed.value.diagnostics
    assert diagnostic.file == __file__ and diagnostic.line
    return diagnostic


def line_of(function):
    return function.__code__.co_firstlineno


DRAWS = {
    "NumPy's generator": [lambda m, h: h * float(np.random.rand()),
                          lambda m, h: h * torch.from_numpy(np.random.rand(4, 1) < 0.5),
                          lambda m, h: h[:, np.random.permutation(4).tolist()]],
    "Python's generator": [lambda m, h: h * random.random(), lambda m, h: h * 2 if random.random() < 0.5 else h,
                           lambda m, h: h * 2 if random.uniform(0, 1) < 0.01 else h,
                           lambda m, h: h[:, random.sample(range(4), 4)]],
    "attribute generator of the module": [lambda m, h: h * m.generator.random()],
    "attribute old of the module": [lambda m, h: h * m.old.rand()],
    "attribute own of the module": [lambda m, h: h * m.own.random()],
    "the generator drawn of": [lambda m, h: h * drawn.random()],
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_from_python_and_numpy(name, training):
    for function in DRAWS[name]:
        diagnostic = refused(function, training)
        assert "draws random numbers from" in diagnostic.message and name in diagnostic.message
        assert 0 <= diagnostic.line - line_of(function) <= 1


UNUSED = [lambda m, h: h * 2 if random.random() < -1 else h, lambda m, h: (np.random.uniform(0, 1), h)[1]]


def seeds(m, h):
    np.random.seed(3)
    return h * float(np.random.rand())


@pytest.mark.parametrize("training", [True, False])
def test_draws_that_decide_nothing(training):
    """LayerDrop in evaluation mode, say; or numbers that are the same in each call."""
    for function in [*UNUSED, seeds]:
        import_module(Call(function).train(training), (X,), training=training)


def counts(m, h):
    m.calls += 1
    return h * m.calls


def flips(m, h):
    m.flag = not m.flag
    return h * 2 if m.flag else h


def begins(m, h):
    if not m.flag:
        m.flag = True
        return h * 2
    return h


def appends(m, h):
    m.log.append(1)
    return h * len(m.log)


def keeps(m, h):
    m.kept["calls"] = m.kept.get("calls", 0) + 1
    return h * m.kept["calls"]


@pytest.mark.parametrize("function, name, line", [
    (counts, "attribute calls of the module (0 before, 1 behind)", 1),
    (flips, "attribute flag of the module (False before, True behind)", 1),
    (begins, "attribute flag of the module (False before, True behind)", 2),
    (appends, "attribute log of the module", 1), (keeps, "attribute kept of the module", 1)])
def test_changed_attributes(function, name, line):
    diagnostic = refused(function, False)
    assert f"the forward pass changes {name}, and" in diagnostic.message
    assert diagnostic.line == line_of(function) + line


def test_a_changed_variable():
    diagnostic = refused(lambda m, h: h * count(), True)
    assert "changes variable calls of" in diagnostic.message and diagnostic.line == line_of(count) + 2


def notes(m, h):
    m.calls, m.kept = h.shape[0], {"width": h.shape[1], "device": h.device, "one": np.float32(1)}
    m.flag = lambda: True
    return h


def test_an_attribute_that_settles():
    """The next call computes the same."""
    import_module(Call(notes), (X,))


def test_what_a_hook_keeps():
    """State outside of modules counts where another call computes something else."""
    module, seen = Call(lambda m, h: h), []
    module.layer.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    import_module(module, (X,))


def seeded(m, h):
    torch.manual_seed(0)
    return h * torch.rand(4, 1)


def test_a_seed():
    diagnostic = refused(seeded, True)
    assert "calls torch.manual_seed, which" in diagnostic.message
    assert diagnostic.line == line_of(seeded) + 1


@pytest.mark.parametrize("function, message", [
    (lambda m, h: h[torch.randperm(4)], "operation aten.randperm"),
    (lambda m, h: torch.multinomial(h.softmax(-1), 1), "operation aten.multinomial"),
    (lambda m, h: h * torch.rand(4, generator=torch.Generator()), "a generator of the model's own"),
])
def test_numbers_that_are_not_covered(function, message):
    assert message in refused(function, True).message


def test_evaluation_mode():
    assert "operation aten.rand.default in evaluation mode draws other numbers in each call" in refused(lambda m, h: h * torch.rand(4, 1), False).message
    import_module(Call(lambda m, h: (torch.rand(4), h)[1]), (X,))  # without a use
