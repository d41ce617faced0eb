# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arguments of wrong types, for every parameter of every public function and method: each is an
mw.Error or has a meaning. Python itself raises TypeError for wrong names and numbers of arguments."""
import inspect
import pathlib
import traceback

import meshwright as mw
import numpy as np
import pytest
import torch
from mlp import Mlp
from torch import nn

WRONG = [None, 3, -1, 1.5, 10**30, float("nan"), True, "x", "", b"x", [], ["x"], [None], (1,), (3, None), {}, {"x": 3},
         {3: "x"}, {"x": None}, {"x": {"y": 3}}, {"x": object()}, object(), int, print, torch.zeros(2, 3), torch.zeros((), dtype=torch.complex64),
         torch.zeros(2, 6, 16, device="meta"), torch.zeros(2, 6, 16).to_sparse(), torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), np.zeros(3), np.array("x"), np.array([None]), nn.Linear(2, 3)]
#: Parameters of a run that name inputs of the program.
X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(4))


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Mlp()

    def forward(self, x):
        return self.net(x)["y"].square().mean()


def made(folder):
    """Objects whose methods are called, by the name of their class."""
    module = Mlp().eval()
    model = mw.from_torch(module, (X,))
    plan = model.parallelize(mesh={"dp": 1})
    model.save(folder / "m.mlir", folder / "m.safetensors")
    plan.compile(folder / "bundle")
    train = mw.from_torch(Loss(), (X,), training=True).train(mw.SGD(0.1, momentum=0.5))
    return {"Model": model, "Plan": plan, "Session": train.parallelize(mesh={"dp": 1}).start(),
            "Bundle": mw.load_bundle(folder / "bundle"), "Trained": train}


JAX = ("from_jax", "from_stablehlo")


def jax_calls():
    """Those of functions that need JAX, if it is there."""
    try:
        import jax
    except ImportError:
        return {}
    function, args = lambda p, x: x @ p, (np.zeros((6, 6), np.float32), np.zeros((2, 6), np.float32))
    return {"from_jax": dict(function=function, args=args),
            "from_stablehlo": dict(given=jax.jit(function).lower(*args).as_text())}


def calls(folder, known):
    """(name, function, arguments that are right) of everything public."""
    model, train, session = known["Model"], known["Trained"], known["Session"]
    right = {
        "from_torch": dict(module=Mlp().eval(), args=(X,)),
        **jax_calls(),
        "load": dict(program=folder / "m.mlir", parameters=folder / "m.safetensors"),
        "load_bundle": dict(path=folder / "bundle"), "Bundle": dict(path=folder / "bundle"),
        "compose": dict(models={"a": model, "b": model}, connect={"b.x": "a.0"}),
        "join": dict(models={"a": model}),
        "SGD": {}, "Adam": {}, "AdamW": {}, "quiet": {},
        # No backend and no folder: nothing is measured.
        "calibrate": dict(path=folder / "none" / "x.json", backend="none"),
        "Model": dict(program=model._program, parameters={}), "Plan": dict(model=model, plan=known["Plan"]._plan),
        "Session": dict(session=session._open, backend="local", prepare=model._prepare, kind="torch"),
        "DeviceArray": dict(array=None, dtype="f32", shape=(2,), gpu=0),
        "Error": dict(diagnostics="x"), "InputError": dict(diagnostics="x"),
        "CheckFailed": dict(diagnostics="x", differences={}),
        "Model.parallelize": dict(mesh={"dp": 1}),
        "Model.save": dict(program=folder / "n.mlir", parameters=folder / "n.safetensors"),
        "Model.train": dict(optimizer=mw.SGD(0.1)), "Model.differentiate": {}, "Model.serve": {}, "Model.check": {}, "Model.ir": {}, "Model.to_stablehlo": {},
        "Plan.ir": {}, "Plan.to_stablehlo": {}, "Plan.report": {}, "Plan.start": {}, "Plan.run": {}, "Plan.check": {},
        "Plan.compile": dict(path=folder / "other"), "Plan.compare": dict(other=known["Plan"]), "Plan.layout": {},
        "Plan.trace": dict(path=folder / "expected.json"),
        "Plan.save_report": dict(path=folder / "report.html"),
        "Session.run": {}, "Session.set_state": dict(values={}), "Session.load_state_dict": dict(saved=session.state_dict()),
        "Session.save": dict(path=folder / "state"), "Session.state": {}, "Session.parameters": {}, "Session.state_dict": {},
        "Bundle.start": {},
    }
    own = {"Model.parallelize": ["other"], "Plan.run": ["x", "other"], "Plan.check": ["x", "other"], "Model.check": ["x", "other"],
           "Session.run": ["x", "lr", "other"]}
    given = {name: (X,) for name in ("Plan.run", "Plan.check", "Model.check", "Session.run")}
    for name in mw.__all__:
        thing = getattr(mw, name)
        if name in ("Diagnostic", "MeshwrightWarning", "Request") or name not in right and name in JAX:
            continue
        yield name, thing, (), right[name], []
        if inspect.isclass(thing) and name in known:
            objects = [known[name]] + [train] * (name == "Model")
            for method in sorted(m for m in vars(thing) if not m.startswith("_") and callable(getattr(thing, m))):
                if method != "close":
                    key = f"{name}.{method}"
                    for one in objects:
                        if one is train and method == "train":
                            continue
                        yield key, getattr(one, method), given.get(key, ()), right[key], own.get(key, [])


def is_ours(error):
    """A TypeError that Python raises at the call itself comes from this file's frame."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return not (isinstance(error, TypeError) and pathlib.Path(frame.filename).name == pathlib.Path(__file__).name)


def parameters(function, own):
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds] + own


@pytest.mark.filterwarnings("ignore")
def test_wrong_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known, problems, tried = made(tmp_path), [], 0
    for name, function, given, right, own in calls(tmp_path, known):
        attempts = [((), {**right, p: wrong}) for p in parameters(function, own) for wrong in WRONG]
        if given:
            attempts = [(() if p in own and p == "x" else given, {**right, p: wrong}) for p in parameters(function, own) for wrong in WRONG]
            attempts += [((wrong,), right) for wrong in WRONG]
        for args, kwargs in attempts:
            tried += 1
            try:
                function(*args, **kwargs)
            except mw.Error as error:
                if not str(error).strip():
                    problems.append(f"{name}: an error without a message")
            except Exception as error:
                if is_ours(error):
                    changed = {k: v for k, v in kwargs.items() if k not in right or v is not right[k]}
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    problems.append(f"{name}{args if args is not given else ''}{changed}: {type(error).__name__}: {error} ({pathlib.Path(where.filename).name}:{where.lineno})"[:300])
    known["Session"].close()
    assert not problems, f"{len(problems)} of {tried}:\n" + "\n".join(problems)


def places(tree, path=()):
    """The paths of all parts of a tree of tables and lists."""
    yield path
    if isinstance(tree, (dict, list, tuple)):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*path, key))


def put(tree, path, value):
    """A copy of the tree with another value at a path."""
    if not path:
        return value
    kind, copied = type(tree), dict(tree) if isinstance(tree, dict) else list(tree)
    copied[path[0]] = put(tree[path[0]], path[1:], value)
    return kind(copied)


def test_wrong_types_within_a_state_dict():
    train = mw.from_torch(Loss(), (X,), training=True).train(mw.AdamW(1e-2), loss_scale="auto")
    with train.parallelize(mesh={"dp": 1}).start() as session:
        session.run(X)
        saved = session.state_dict()
        session.load_state_dict(saved)
        for path in places(saved):
            for wrong in WRONG:
                try:
                    session.load_state_dict(put(saved, path, wrong))
                except mw.Error:
                    pass
                except Exception as error:
                    raise AssertionError(f"{path} is {wrong!r}") from error
        for path, said in (((), "the state dict: expected .*, got None"), (("optimizer",), "'optimizer' of the state dict: expected .*, got None"),
                           (("optimizer", "state", 0), "the optimizer's state of parameter 0: expected arrays by name, got None"),
                           (("optimizer", "param_groups", 0, "lr"), "the optimizer's lr: expected a number, got None"),
                           (("model", "net.up.bias"), "'net.up.bias' of the state dict: expected an array, got None")):
            with pytest.raises(mw.Error, match=said):
                session.load_state_dict(put(saved, path, None))
        with pytest.raises(mw.Error, match="'scaler' has no 'scale'"):
            session.load_state_dict(put(saved, ("scaler",), {"x": 3}))
