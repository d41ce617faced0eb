# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random models on random meshes compute, differentiate and train as PyTorch does in f64.

As a program it runs longer, or one seed again:
  test_random_models.py --long COUNT [--first SEED] [--part I/N]
  test_random_models.py --seed SEED
"""
import argparse
import fnmatch
import functools
import inspect
import pathlib
import re
import statistics
import sys
import tempfile
import time
import traceback
import warnings

import meshwright as mw
import numpy as np
import pytest
import torch
from apart import Outcome, run_apart
from random_models import (
    ELSEWHERE,
    FEATURES,
    OPTIONS,
    TRAIN_OPTIONS,
    generate,
    in_f64,
)

#: Of a first difference: one that rounding explains shrinks with other inputs.
INPUTS = 5
#: The largest error relative to the largest entry, where PyTorch's own is no larger.
BOUNDS = {"f32": (1e-5, 1e-6), "bf16": (2e-2, 2e-2), "f64": (1e-12, 1e-12)}
CASES = 60


class Differs(Exception):
    pass


def array(x):
    return x.detach().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, np.float64)


def distance(got, want, top=None):
    """The largest difference over the largest entry (of all values, if that is given)."""
    got, want = array(got), array(want)
    if got.shape != want.shape:
        raise Differs(f"shape {got.shape}, expected {want.shape}")
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max(initial=0) / max(top or np.abs(want).max(initial=0), 1e-30))


class Checker:
    """Runs one case; `met` is what its plans have on the way."""

    def __init__(self, case):
        self.case, self.met = case, set()
        self.net = case.build()

    # PyTorch's side.

    def inputs(self, step=0):
        return self.case.inputs(step)

    def trained(self, net):
        patterns = self.case.train["parameters"] if self.case.trains else ["*"]
        return {name: p for name, p in net.named_parameters() if p.requires_grad and
                any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}

    def shaken(self, draw):
        """The module with each parameter moved by at most one unit in its last place. Where few values
        decide, as in a norm over two features that are nearly equal, one rounding moves the result by
        more than PyTorch's error, which may be small by luck."""
        net, generator = self.case.build(), torch.Generator().manual_seed(draw)
        with torch.no_grad():
            for p in net.parameters():
                by = torch.randint(-1, 2, p.shape, generator=generator, dtype=p.dtype)
                p.mul_(1 + by * torch.finfo(p.dtype).eps)
        return net

    def gradients(self, net, step=0):
        loss, values = net(**self.inputs(step))
        loss.backward()
        return [loss, values], {n: torch.zeros_like(p) if p.grad is None else p.grad
                                for n, p in self.trained(net).items()}

    def steps(self, net, count, first=0):
        """Losses, and the parameters after each step."""
        case, trained = self.case, self.trained(net)
        numbers = dict(case.numbers)
        optimizer = getattr(torch.optim, case.optimizer)(list(trained.values()), **numbers)
        losses = []
        for step in range(first, first + count):
            optimizer.zero_grad()
            n, total = case.train["microbatches"], 0.0
            chunks = [v.chunk(n) for v in self.inputs(step).values()]
            for ids, labels in zip(*chunks, strict=True):
                loss = net(ids, labels)[0] / n
                loss.backward()
                total += loss.item()
            if case.train["clip_norm"]:
                torch.nn.utils.clip_grad_norm_(list(trained.values()), case.train["clip_norm"])
            optimizer.step()
            losses.append(total)
        return losses, {n: p.detach() for n, p in net.named_parameters()}

    # Ours.

    def plan(self, model, mesh, options):
        plan = model.parallelize(mesh=mesh, **options)
        for phase in ("global", "spmd"):
            self.met |= set(re.findall(r"\b(?:nn|dist)\.[a-z_]+\b", plan.ir(phase)))
        self.met |= {"pass " + d["pass"] for d in plan.report(format="json")["decisions"]}
        return plan

    def model(self, training):
        return mw.from_torch(self.net, (), self.inputs(), training=training)

    @functools.cached_property
    def trainer(self):
        case = self.case
        optimizer = getattr(mw, case.optimizer)(**case.numbers)
        return self.model(True).train(optimizer, **case.train)

    def session(self, then=False, **given):
        case = self.case
        mesh, options = case.then if then else (case.mesh, case.options)
        return self.plan(self.trainer, mesh, options).start(**given)

    def walk(self, session, count, first=0):
        losses = [float(session.run(**self.inputs(step))[0]) for step in range(first, first + count)]
        return losses, session.parameters()

    # Comparisons.

    def judge(self, errors_of, bound):
        """`errors_of(step, net)` gives our error and PyTorch's (of a module `net`, or as it is), on the
        inputs of a step."""
        (own, theirs), where = errors_of(0)
        if own <= max(bound, 1.25 * theirs):
            return
        if own <= 30 * max(bound, theirs):
            ratios = []
            for step in range(INPUTS):
                (mine, torchs), _ = errors_of(step)
                (_, shaken), _ = errors_of(step, self.shaken(step))
                ratios.append(mine / max(bound, 1.25 * torchs, 1.25 * shaken))
            if statistics.median(ratios) <= 1:
                return
        raise Differs(f"error {own:.1e} of {where}, PyTorch's own {theirs:.1e}")

    def outputs(self):
        case = self.case
        plan = self.plan(self.model(False), case.mesh, case.options)

        def errors(step, net=None):
            return self.output_errors(self.inputs(step), lambda inputs: plan.run(**inputs), net)

        self.judge(errors, BOUNDS[case.dtype][0])

    def output_errors(self, inputs, run, net=None):
        """Our error and PyTorch's of the worst output, and its name."""
        with torch.no_grad():
            want, own = in_f64(self.net)(**inputs), (net or self.net)(**inputs)
        pairs = [(distance(g, w), distance(o, w)) for g, o, w in zip(run(inputs), own, want, strict=True)]
        i = int(np.argmax([a for a, _ in pairs]))
        return pairs[i], f"output {i}"

    def differentiated(self):
        case = self.case
        model = self.model(True).differentiate()
        plan = self.plan(model, case.mesh, case.options)
        names = [name for name in model.outputs if name.startswith("grad.")]

        def errors(step, net=None):
            inputs = self.inputs(step)
            outs, want = self.gradients(in_f64(self.net), step)
            _, own = self.gradients(net or case.build(), step)
            got = plan.run(**inputs)
            mine = dict(zip(names, got[-len(names):], strict=True))
            if set(mine) != {"grad." + name for name in want}:
                raise Differs(f"gradients of {sorted(mine)}, expected {sorted(want)}")
            top = max(np.abs(array(w)).max() for w in want.values())
            pairs = {n: (distance(mine["grad." + n], w, top), distance(own[n], w, top))
                     for n, w in want.items()}
            worst = max(pairs, key=lambda n: pairs[n][0])
            if distance(got[0], outs[0], max(1.0, abs(outs[0].item()))) > 10 * BOUNDS[case.dtype][0]:
                raise Differs(f"loss {float(got[0])}, expected {outs[0].item()}")
            return (pairs[worst][0], max(own for _, own in pairs.values())), "grad." + worst

        self.judge(errors, BOUNDS[case.dtype][1])

    def compare_steps(self, got, count):
        """Losses and parameters of `count` steps."""
        losses, parameters = got
        start = {n: array(p) for n, p in self.net.named_parameters()}
        want_losses, want = self.steps(in_f64(self.net), count)
        trained = self.trained(self.net)
        moved = max(np.abs(array(want[n]) - start[n]).max() for n in trained)
        bound = max(BOUNDS[kind][0] for kind in ("f32", self.case.dtype))
        for name, value in want.items():
            if name not in trained and not np.array_equal(array(parameters[name]), start[name]):
                raise Differs(f"parameter {name} is not trained, and changed")

        def find(net):
            """PyTorch's own errors of parameters and losses."""
            own_losses, own = self.steps(net, count)
            return ({n: distance(own[n], want[n], moved) for n in trained},
                    [abs(a - b) for a, b in zip(own_losses, want_losses, strict=True)])

        own, own_losses = find(self.case.build())

        def compare(shaken):
            def is_near(error, least, theirs, others):
                """Within four times PyTorch's own error, or one that a rounding explains."""
                bar = max(least, 4 * theirs)
                return error <= bar or error <= min(30 * max(least, theirs), max(others, default=0))

            for name in trained:
                error = distance(parameters[name], want[name], moved)
                if not is_near(error, 2e-4, own[name], [errors[name] for errors, _ in shaken]):
                    return (f"parameter {name} {error:.1e} of the way of {moved:.1e}, "
                            f"PyTorch's own {own[name]:.1e}")
            for step, (a, b) in enumerate(zip(losses, want_losses, strict=True)):
                least = bound * max(1, abs(b))
                if not is_near(abs(a - b), least, own_losses[step], [e[step] for _, e in shaken]):
                    return f"loss {a} of step {step}, expected {b}"
            return ""

        if compare([]):
            if difference := compare([find(self.shaken(draw)) for draw in range(INPUTS)]):
                raise Differs(difference)

    def trained_steps(self):
        with self.session() as session:
            got = self.walk(session, self.case.steps)
        self.compare_steps(got, self.case.steps)

    def checkpoint(self):
        count = self.case.steps
        with tempfile.TemporaryDirectory() as folder:
            with self.session() as session:
                losses, _ = self.walk(session, count)
                session.save(folder + "/saved")
                session.save(folder + "/saved")  # takes the place of the one before
            with self.session(then=True, state=folder + "/saved") as session:
                more, parameters = self.walk(session, 1, count)
        self.compare_steps((losses + more, parameters), count + 1)

    def state_dict(self):
        count = self.case.steps
        with self.session() as session:
            losses, _ = self.walk(session, count)
            saved = session.state_dict()
        with self.session(then=True) as session:
            session.load_state_dict(saved)
            more, parameters = self.walk(session, 1, count)
        self.compare_steps((losses + more, parameters), count + 1)

    def dropped(self):
        """Elements that are dropped are the same on every mesh, and others in each step."""
        case, results = self.case, []
        for mesh, options in ((case.mesh, case.options), ({"tp": 1}, {})):
            with self.plan(self.trainer, mesh, options).start() as session:
                results.append(self.walk(session, case.steps))
        (losses, parameters), (want_losses, want) = results
        bound = BOUNDS["f32"][0] if case.dtype != "bf16" else 5e-2
        for a, b in zip(losses, want_losses, strict=True):
            if abs(a - b) > bound * max(1, abs(b)):
                raise Differs(f"losses {losses}, on one rank {want_losses}")
        start = {n: array(p) for n, p in self.net.named_parameters()}
        moved = max(np.abs(array(want[n]) - start[n]).max() for n in self.trained(self.net))
        for name, value in want.items():
            error = distance(parameters[name], value, moved) if name in start else 0
            if error > max(2e-4, 20 * bound):
                raise Differs(f"parameter {name} {error:.1e} of the way of {moved:.1e}")

    def entries(self):
        """Two entries with one set of weights: the second one for half of the batch."""
        case = self.case
        inputs = self.inputs()
        half = {k: v[: (len(v) + 1) // 2] for k, v in inputs.items()}
        model = mw.join({"whole": self.model(False), "half": mw.from_torch(self.net, (), half)})
        plan = self.plan(model, case.mesh, case.options)
        with plan.start() as session:
            for name in ("whole", "half", "whole"):

                def errors(step, net=None, name=name):
                    given = self.inputs(step)
                    if name == "half":
                        given = {k: v[: (len(v) + 1) // 2] for k, v in given.items()}
                    return self.output_errors(
                        given, lambda given: session.run(entry=name, **given), net)

                self.judge(errors, BOUNDS[case.dtype][0])

    def bundle(self):
        """A bundle gives the bits of its plan."""
        case = self.case
        plan = self.plan(self.model(True), case.mesh, case.options)
        inputs = self.inputs()
        want = plan.run(**inputs)
        with tempfile.TemporaryDirectory() as folder:
            plan.compile(folder + "/bundle")
            with mw.load_bundle(folder + "/bundle").start() as session:
                got = session.run(**{k: v.numpy() for k, v in inputs.items()})
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            if not np.array_equal(array(g), array(w)):
                raise Differs(f"output {i} of the bundle has other bits")


KINDS = {"gradients": Checker.differentiated, "steps": Checker.trained_steps,
         "outputs": Checker.outputs, "checkpoint": Checker.checkpoint, "dropout": Checker.dropped,
         "state_dict": Checker.state_dict, "entries": Checker.entries, "bundle": Checker.bundle}


def run(case):
    """The outcome of one case; in this process."""
    torch.set_num_threads(1)  # a forked process has no threads of OpenMP's
    # Of meshes with an axis that the options leave alone.
    warnings.simplefilter("ignore", mw.MeshwrightWarning)
    checker = Checker(case)
    try:
        KINDS[case.kind](checker)
    except Differs as difference:
        return Outcome("differs", str(difference), frozenset(checker.met))
    except mw.Error as error:
        return Outcome("refused", str(error), frozenset(checker.met))
    except Exception:
        return Outcome("error", traceback.format_exc(), frozenset(checker.met))
    return Outcome("equal", "", frozenset(checker.met))


def spell(counts):
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


def warm_up():
    """Loads in this process what PyTorch loads for its first exports, so that its children have it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for seed in range(3):
        Checker(generate(seed)).model(True).differentiate()
    torch.set_num_threads(threads)


def campaign(seeds, budget=float("inf"), say=print):
    """Counts of outcomes, what to say of those that are not equal, and what all met."""
    warm_up()
    counts, said, met, deadline = {}, [], set(), time.monotonic() + budget
    for seed in seeds:
        if time.monotonic() > deadline:
            break
        case = generate(seed)
        outcome = run_apart(run, case)
        counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
        met |= outcome.met
        if outcome.kind != "equal":
            said.append(f"seed {seed}: {outcome.kind}: {outcome.detail}\n  {case}")
            say(said[-1], flush=True)
        if sum(counts.values()) % 100 == 0:
            say(spell(counts), flush=True)
    return counts, said, met


# What the generator must contain.

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Ops that no case has, and why.
OTHER_OPS = {
    "nn.state": "a declaration; nn.read and nn.write occur", "dist.mesh": "a declaration",
    "nn.gradient": "differentiate replaces it", "nn.stop_gradient": "differentiate erases it",
    "nn.with_derivative": "differentiate erases it",
    "dist.positions": "random_programs.py: orders of positions",
    "dist.axis_index": "hand-written programs", "dist.partial": "hand-written programs",
    "dist.constrain": "partition replaces it", "dist.fetch": "partition replaces it",
    "dist.stow": "partition replaces it", "dist.mask_padding": "random_programs.py: infinities",
    **dict.fromkeys(["dist.round", "dist.encode", "dist.decode", "dist.largest"],
                    "test_random_forms.py: weights that travel in other types"),
    **dict.fromkeys(["nn.route", "nn.take_rows", "nn.sum_rows", "nn.repeat_rows", "nn.sum_groups",
                     "nn.grouped_product", "nn.grouped_outer", "nn.send_rows", "nn.return_rows"],
                    "compact-rows writes them, behind the program that is read here"),
    **dict.fromkeys(["nn.dequantize", "nn.widen"], "test_stored_weights.py: modules of codes and scales, drawn at random"),
    "nn.limit": "test_experts.py: few cases have experts and a capacity",
    "nn.index_copy": "test_gradients.py and points_indexing.py: few cases write rows",
    "dist.parts": "test_gtp.py and placement_mutants.py: gradients that travel in bf16",
    **dict.fromkeys(["nn.cut", "nn.uncut"], "test_random_sizes.py: sizes that come at run time"),
    **dict.fromkeys(["nn.page_write", "nn.paged_attention", "nn.merge_parts"],
                    "test_serve.py and test_paged_attention.py: caches in pages"),
    **dict.fromkeys(["dist.compact", "dist.expand", "dist.all_gather_v", "dist.reduce_scatter_v"],
                    "test_token_gather.py and test_counted_rows.py: true rows of groups"),
    "dist.place": "test_bias_gradients.py: gradients of a bias in rings, which seldom meet",
}
#: Policies that no case has, and why.
OTHER_POLICIES = {
    "declare-mesh": "decides nothing", "refine-blocks": "test_stored_weights.py: drawn blocks", "widen-stored": "test_widened_weights.py: drawn blocks", "annotate-rules": "speaks of rules that match nothing",
    "fold-encoder": "test_fold_auto.py: composed models",
    "split-joint-attention": "test_stage_meshes.py: attention of two sources",
}


def ops_of_the_dialects():
    """Names as nn.weight_grad, of definitions as Nn_WeightGradOp."""
    files = [*ROOT.glob("dialects/Nn/*.td"), *ROOT.glob("dialects/Dist/*.td")]
    defined = (re.findall(r"^def (Nn|Dist)_(\w+)Op\b", file.read_text(), re.M) for file in files)
    return {f"{dialect.lower()}.{re.sub('(?<!^)(?=[A-Z])', '_', name).lower()}"
            for definitions in defined for dialect, name in definitions}


def test_features_take_turns():
    had = set().union(*(generate(seed).features() for seed in range(4 * CASES)))
    missing = [f for f in FEATURES if f not in had]
    assert not missing, f"no case of {4 * CASES} has {missing}"


def test_options_are_drawn():
    """A new option of parallelize or train fails here until a generator draws it."""
    model = mw.from_torch(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    with pytest.raises(mw.Error) as error:
        model.parallelize(nonsense=1)
    known = set(re.search(r"supported are (.*)", str(error.value)).group(1).replace(",", "").split())
    drawn = {name.replace("_", "-") for name in [*OPTIONS, *ELSEWHERE]}
    assert known == drawn
    arguments = set(inspect.signature(mw.Model.train).parameters) - {"self", "optimizer"}
    assert arguments == set(TRAIN_OPTIONS)


@pytest.mark.slow
def test_random_models():
    counts, said, met = campaign(range(CASES))
    assert counts == {"equal": CASES}, "\n".join([str(counts), *said])
    # They have every op, and every policy decides something in them.
    ops = ops_of_the_dialects()
    assert len(ops) > 50
    missing = sorted(ops - met - set(OTHER_OPS))
    assert not missing, f"no case has {missing}"
    policies = set(re.findall(r"AnnotatePass<\"([\w-]+)\"",
                              (ROOT / "passes/annotate/Passes.td").read_text()))
    missing = sorted(policies - {m.removeprefix("pass ") for m in met} - set(OTHER_POLICIES))
    assert not missing, f"no case has a decision of {missing}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", type=int, default=1000, metavar="COUNT")
    parser.add_argument("--first", type=int, default=1000, metavar="SEED")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="each Nth seed, from the Ith on")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--seed", type=int, help="one case only")
    given = parser.parse_args()
    if given.seed is not None:
        case = generate(given.seed)
        outcome = run_apart(run, case)
        print(case, outcome.kind, outcome.detail, sep="\n")
        return outcome.kind != "equal"
    part, parts = map(int, given.part.split("/"))
    seeds = range(given.first + part - 1, given.first + given.long, parts)
    counts, _, _ = campaign(seeds, given.budget)
    print(spell(counts))
    return set(counts) != {"equal"}


if __name__ == "__main__":
    sys.exit(main())
