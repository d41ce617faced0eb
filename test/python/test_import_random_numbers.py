# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Numbers that a forward pass draws: by PyTorch, by Python, by NumPy. And what it changes."""
import array
import collections
import dataclasses
import decimal
import functools
import io
import itertools
import random
import types

import counters
import numpy as np
import pytest
import torch
from counters import Counter, inner
from counters import tick as renamed
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


def forked(m, h):
    with torch.random.fork_rng(devices=()):
        return h * torch.rand(4, 1)


def test_states_that_are_put_back():
    """By the model, and by PyTorch around its own work."""
    assert "calls torch.set_rng_state, which" in refused(forked, True).message
    branches = lambda m, h: torch.cond(h.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (h,))
    for training in (True, False):
        assert "operation cond is not covered" in refused(branches, training).message


def test_a_counter_that_nothing_reads():
    def counted(m, h):
        m.calls += 1
        return h

    assert "changes attribute calls of the module (0 before, 1 behind) in each call, which the program would " \
        "not do: a later call may" in refused(counted, False).message


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


@dataclasses.dataclass(slots=True)
class Slots:
    n: int = 0


class Object:
    n = 0

    def __init__(self):
        self.inside = {"a": [{"b": ({"c": [0]},)}]}

    def tick(self):
        self.n += 1
        return self.n


class Numbers(list):
    n = 0


def generated():
    n = 0
    while True:
        n += 1
        yield n


def bump(counter, key, by=1):
    counter[key] += by
    return counter[key]


def attribute(owner, name, by=1):
    setattr(owner, name, getattr(owner, name) + by)
    return float(getattr(owner, name))


STATES = {
    "a slot": (Slots, lambda s: attribute(s, "n")), "an object": (Object, lambda s: s.tick()),
    "a long list": (lambda: [0.0] * 300, lambda s: bump(s, 299)),
    "a longer list": (lambda: [[0]] + [None] * 5000, lambda s: bump(s[0], 0)),
    "a long dict": (lambda: dict.fromkeys(range(1000), 0), lambda s: bump(s, 500)),
    "deep": (Object, lambda s: bump(s.inside["a"][0]["b"][0]["c"], 0)),
    "an attribute of a list": (Numbers, lambda s: attribute(s, "n")),
    "an iterator": (lambda: iter(range(1, 99)), next), "of a list": (lambda: iter([1, 2, 3, 4, 5, 6, 7, 8]), next),
    "of pairs": (lambda: enumerate(range(1, 9), 1), lambda s: next(s)[0]),
    "a cycle": (lambda: itertools.cycle([1, 2, 3, 4, 5]), next), "count": (lambda: itertools.count(1), next),
    "a generator": (generated, next), "Decimal": (lambda: [decimal.Decimal(0)], lambda s: float(bump(s, 0))),
    "bytearray": (lambda: bytearray(1), lambda s: bump(s, 0)), "array": (lambda: array.array("i", [0]), lambda s: bump(s, 0)),
    "NumPy": (lambda: np.zeros(1), lambda s: float(bump(s, 0))), "Counter": (collections.Counter, lambda s: bump(s, "x")),
    "defaultdict": (lambda: collections.defaultdict(int), lambda s: bump(s, "x")),
    "namespace": (lambda: types.SimpleNamespace(n=0), lambda s: attribute(s, "n")),
    "a file": (lambda: open(__file__), lambda s: len(s.readline())),
    "text": (lambda: io.StringIO("1\n22\n333\n4444\n55555\n"), lambda s: len(s.readline())),
    "deque": (lambda: collections.deque([1, 2, 3, 4, 5]), lambda s: (s.rotate(), s[0])[1]),
}
held = None


def by_variable(function):
    return lambda m, h: h * function(held)


@pytest.mark.parametrize("name", STATES)
def test_state_inside_of_objects(name):
    """In an attribute of the module, a variable of the file, one of a function around, a default."""
    global held
    make, function = STATES[name]
    module = Call(lambda m, h: h * function(m.state))
    module.state = make()
    with pytest.raises(ImportFailed, match="changes attribute state of the module"):
        import_module(module, (X,))
    held, around, default = make(), make(), make()
    places = {"variable held of": by_variable(function), "variable around of": lambda m, h: h * function(around),
              "the default arguments of": lambda m, h, s=default: h * function(s)}
    place = list(places)[list(STATES).index(name) % 3]
    with pytest.raises(ImportFailed, match=f"changes {place}"):
        import_module(Call(places[place]), (X,))
    held = None


class Static:
    count = 0

    @classmethod
    def tick(cls):
        cls.count += 1
        return cls.count


def own_attribute(m, h):
    own_attribute.calls += 1
    return h * own_attribute.calls


own_attribute.calls = 0
static = Static()


def counted(function):
    calls = 0

    @functools.wraps(function)
    def call(*args):
        nonlocal calls
        calls += 1
        return function(*args) * calls

    return call


@counted
def wrapped(h):
    return h


class Called:
    calls = 0

    def __call__(self, module, inputs, output):
        self.calls += 1
        return output * self.calls


def test_hooks_of_the_forward_pass_that_count():
    module = Call(lambda m, h: h)
    module.layer.register_forward_hook(Called())
    with pytest.raises(ImportFailed, match="the forward pass changes an object of class Called"):
        import_module(module, (X,))


def of_other_file(m, h):
    counters.count += 1
    return h * counters.count


@pytest.mark.parametrize("function, name", [
    (lambda m, h: wrapped(h), "variable calls of wrapped"), (own_attribute, "attribute calls of own_attribute"), (of_other_file, "variable count of counters"),
    (lambda m, h: h * renamed(), "variable count of counters"), (lambda m, h: h * inner(), "variable count of counters"),
    (lambda m, h: h * counters.tick(), "variable count of counters"),
    (lambda m, h: h * attribute(Counter, "count"), "attribute count of class Counter"),
    (lambda m, h: h * attribute(counters.Counter, "count"), "attribute count of class Counter"),
    (lambda m, h: h * Static.tick(), "attribute count of class Static"),
    (lambda m, h: h * static.tick(), "attribute count of class Static")])
def test_state_behind_variables(function, name):
    with pytest.raises(ImportFailed) as failed:
        import_module(Call(function), (X,))
    assert f"the forward pass changes {name}" in failed.value.diagnostics[0].message


def test_state_that_stays():
    """Objects that a forward pass only reads, or makes anew with equal contents."""
    for make, _ in STATES.values():
        module = Call(lambda m, h: h)
        module.state = module.other = make()
        module.function = lambda m, h: (setattr(m, "other", make()), h)[1]
        import_module(module, (X,))


def test_numbers_of_the_operating_system():
    own = random.SystemRandom()
    module = Call(lambda m, h: h)
    module.system = own
    import_module(module, (X,))
    assert "draws random numbers from" in refused(lambda m, h: h * own.random(), False).message
    assert "draws random numbers from" in refused(lambda m, h: h[:, own.sample(range(4), 4)], True).message
    import_module(Call(lambda m, h: (own.random(), h)[1]), (X,))
