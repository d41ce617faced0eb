# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sessions that serve: requests get the tokens of greedy decoding without a cache, in any company."""

import ctypes
import functools
import json
import random
import subprocess

import meshwright as mw
import numpy as np
import pytest
import torch
import transformers as tf

SIZES = {"max_length": 40, "page_size": 4, "max_requests": 3, "buckets": (2, 12)}


@functools.cache
def net():
    torch.manual_seed(7)
    config = tf.LlamaConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
                            num_key_value_heads=2, vocab_size=151, max_position_embeddings=64, pad_token_id=0,
                            bos_token_id=1, eos_token_id=2)
    made = tf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.3 * parameter.shape[-1] ** -0.5)
    return made


@functools.cache
def served(**more):
    return mw.from_torch(net(), (torch.ones(1, 6, dtype=torch.long),)).serve(**{**SIZES, **more})


@functools.cache
def plan(tp=2, **more):
    return served(**more).parallelize(mesh={"tp": tp})


@functools.cache
def greedy(prompt, new):
    """The tokens, and the logits that choose them."""
    ids, rows = list(prompt), []
    with torch.no_grad():
        for _ in range(new):
            rows.append(net()(torch.tensor([ids]), use_cache=False).logits[0, -1])
            ids.append(int(rows[-1].argmax()))
    return ids[len(prompt):], torch.stack(rows)


@functools.cache
def prompts(count, seed=3):
    """Prompts whose greedy tokens no rounding changes."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        prompt = tuple(draw.randrange(3, 151) for _ in range(draw.randrange(1, 20)))
        top = greedy(prompt, 9)[1].topk(2).values
        if float((top[:, 0] - top[:, 1]).min()) > 1e-2:
            found.append(prompt)
    return found


def expected(prompt, new):
    return greedy(prompt, 9)[0][:new]


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_generate(tp):
    with plan(tp).start() as session:
        assert session.generate(prompts(5), max_new_tokens=9) == [expected(p, 9) for p in prompts(5)]
        stats = session.stats()
    assert stats["generated"] == 45 and stats["pages"] == {"total": 30, "free": 30}
    assert stats["steps"] == sum(stats["entries"].values()) and set(stats["entries"]) == {"tokens=2", "tokens=12"}
    assert stats["prompt_tokens"] == sum(map(len, prompts(5))) and stats["waiting"] == stats["running"] == 0


def test_joins_and_leaves():
    """Requests come and go in an order that is drawn; each has its own tokens and logits."""
    draw, waiting, requests, cancelled = random.Random(1), list(prompts(8)), [], None
    with plan().start() as session:
        while waiting or session.requests:
            if waiting and draw.random() < 0.4:
                prompt, new = waiting.pop(), draw.randrange(1, 10)
                requests.append((prompt, new, session.submit(np.array(prompt), max_new_tokens=new, logits=True)))
            if cancelled is None and len(requests) == 4 and requests[3][2].tokens:
                cancelled = requests[3][2]
                session.cancel(cancelled)
                session.cancel(cancelled)
            session.step()
    assert cancelled is None or cancelled.reason in ("cancelled", "length")
    for prompt, new, request in requests:
        count = len(request.tokens)
        assert request.prompt == list(prompt) and request.done
        assert request is cancelled or count == new
        assert request.tokens == expected(prompt, count)
        assert request.reason == "length" or request is cancelled
        torch.testing.assert_close(request.logits, greedy(prompt, 9)[1][:count], rtol=0, atol=2e-5)


def test_pages_run_out():
    """Requests that lose their pages are computed again."""
    with plan(pages=10).start() as session:
        requests = [session.submit(p, max_new_tokens=9) for p in prompts(6)]
        while session.step():
            pass
        assert [r.tokens for r in requests] == [expected(p, 9) for p in prompts(6)]
        assert session.stats()["pages"] == {"total": 10, "free": 10}


def test_stop_tokens():
    prompt = prompts(1)[0]
    stop = expected(prompt, 9)[4]
    at = expected(prompt, 9).index(stop)
    with plan().start() as session:
        request = session.submit(prompt, max_new_tokens=9, stop=stop)
        while session.step():
            pass
    assert request.tokens == expected(prompt, at + 1) and request.reason == "stop"


def test_same_bits():
    """Neighbours of equal lengths and the number of threads change no bit."""
    first, *others = [p for p in prompts(40) if len(p) == 5][:1] + [tuple(range(10, 17)), tuple(range(30, 39))]

    def run(company, **options):
        with plan().start(**options) as session:
            requests = [session.submit(p, max_new_tokens=6, logits=True) for p in [first, *company]]
            while session.step():
                pass
        return requests[0].logits

    base = run(others)
    assert torch.equal(base, run([tuple(t + 50 for t in p) for p in others]))
    assert torch.equal(base, run(others, threads_per_rank=2))


def test_a_step_that_fails():
    """It changes no request: the same step succeeds behind it."""
    prompt = prompts(1)[0]
    with plan().start() as session:
        request = session.submit(prompt, max_new_tokens=9, logits=True)
        while len(request.tokens) < 3:
            session.step()
        state, stats, tokens, pages = session.state(), session.stats(), request.tokens, request.pages
        session.set_state({name: torch.full_like(value, torch.nan) for name, value in state.items()})
        for _ in range(2):
            with pytest.raises(mw.Error, match="expected a token of at least 0 and less than 151"):
                session.step()
        assert (session.stats(), request.tokens, request.pages) == (stats, tokens, pages)
        session.set_state(state)
        while session.step():
            pass
    assert request.tokens == expected(prompt, 9) and len(request.logits) == 9


def test_saved(tmp_path):
    """Requests go on where they were: with the same bits on the mesh, with the same tokens on another."""
    chosen = prompts(4)
    with plan().start() as session:
        requests = [session.submit(p, max_new_tokens=9, logits=True) for p in chosen]
        for _ in range(4):
            session.step()
        session.save(tmp_path / "state")
        begun = [len(r.tokens) for r in requests]
        while session.step():
            pass
    for other in (plan(), plan(1), plan(2, page_size=8), plan(3, pages=10)):
        with other.start(state=tmp_path / "state") as session:
            again = session.requests
            assert [len(r.tokens) for r in again] == begun
            while session.step():
                pass
        assert [r.tokens for r in again] == [expected(p, 9) for p in chosen]
        if other is plan():
            for mine, theirs, count in zip(again, requests, begun, strict=True):
                assert torch.equal(mine.logits, theirs.logits[count:])


def test_saved_state_of_another_model(tmp_path):
    with plan().start() as session:
        session.submit([4, 5], max_new_tokens=3)
        session.save(tmp_path / "state")
    config = tf.LlamaConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=1, num_attention_heads=6,
                            num_key_value_heads=2, vocab_size=151, max_position_embeddings=64)
    other = mw.from_torch(tf.LlamaForCausalLM(config).eval(), (torch.ones(1, 6, dtype=torch.long),)).serve(**SIZES)
    with pytest.raises(mw.Error, match="expected the saved state of this model"):
        other.parallelize(mesh={"tp": 2}).start(state=tmp_path / "state")


def forget_model(folder):
    """Makes a saved state as it was before sessions named their model."""
    path = folder / "checkpoint.json"
    index = json.loads(path.read_text())
    del index["model"], index["hash"]
    state = 0xCBF29CE484222325
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()
    for at in range(0, len(text), 8):
        state = (state ^ int.from_bytes(text[at : at + 8], "little")) * 0x9E3779B97F4A7C15 % 2**64
        state ^= state >> 32
    path.write_text(json.dumps({**index, "hash": f"{state:016x}"}))


def test_the_model_of_a_saved_state(tmp_path):
    """Caches of other models may have the same shapes. The model is known on each mesh, in pages of each size, for
    requests of each length, and in bundles with and without weights."""
    state, prompt = tmp_path / "state", prompts(1)[0]
    with plan().start() as session:
        session.submit(prompt, max_new_tokens=9)
        session.step()
        session.save(state)
    config = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
              "num_key_value_heads": 2, "vocab_size": 151, "max_position_embeddings": 64}
    torch.manual_seed(8)
    seed = tf.LlamaForCausalLM(tf.LlamaConfig(**config)).eval()
    biased = tf.Qwen2ForCausalLM(tf.Qwen2Config(**config)).eval()
    gelu = tf.LlamaForCausalLM(tf.LlamaConfig(**config, hidden_act="gelu")).eval()
    gelu.load_state_dict(net().state_dict())
    others = {}
    for other, what in ((seed, "weights"), (biased, "parameters"), (gelu, "operations")):
        model = mw.from_torch(other, (torch.ones(1, 6, dtype=torch.long),)).serve(**SIZES)
        others[what] = model.parallelize(mesh={"tp": 2})
        with pytest.raises(mw.Error, match=f"expected the saved state of this model, got that of another model, "
                                           f"which has other {what}"):
            others[what].start(state=state)
    others["weights"].compile(tmp_path / "seed.bundle")
    with pytest.raises(mw.Error, match="another model, which has other weights"):
        mw.load_bundle(tmp_path / "seed.bundle").start(state=state)
    served().save(tmp_path / "m.mlir", tmp_path / "w.safetensors")
    plan(1).compile(tmp_path / "own.bundle")
    plan(3).compile(tmp_path / "bare.bundle", weights=False)
    bare = mw.load_bundle(tmp_path / "bare.bundle").start
    with pytest.raises(mw.Error, match="another model, which has other weights"):
        bare(random_weights=1, state=state)
    loaded = mw.load(tmp_path / "m.mlir", tmp_path / "w.safetensors").parallelize(mesh={"tp": 2})
    starts = [of.start for of in (plan(1), plan(2, page_size=8), plan(3, max_length=64), plan(2, buckets=(1, 4)))]
    starts += [mw.load_bundle(tmp_path / "own.bundle").start, loaded.start,
               lambda **more: bare(weights=tmp_path / "w.safetensors", **more)]
    for start in starts:
        with start(state=state) as session:
            (request,) = session.requests
            while session.step():
                pass
            assert request.tokens == expected(prompt, 9)
            session.submit(prompt, max_new_tokens=9)
            session.save(tmp_path / "again")
        with plan().start(state=tmp_path / "again") as session:
            assert len(session.requests) == 1
    forget_model(state)
    with others["weights"].start(state=state) as session:
        assert len(session.requests) == 1


def test_shared_beginnings():
    common = list(prompts(1, seed=9)[0]) * 3
    with plan(prefix_cache=True).start() as session:
        one, two = [common[:12] + [7], common[:12] + [8, 9]]
        for prompt in (one, two):
            request = session.submit(prompt, max_new_tokens=3)
            while session.step():
                pass
            assert request.tokens == greedy(tuple(prompt), 3)[0]
        assert session.stats()["prompt_tokens"] == len(one) + len(two) - 12


def test_draws():
    """A draw depends on seed and position: not on mesh or company."""
    prompt = prompts(1)[0]

    def draw(tp, seed, company=()):
        with plan(tp).start() as session:
            request = session.submit(prompt, max_new_tokens=8, temperature=1.2, seed=seed)
            session.generate(company, max_new_tokens=5)
            while session.step():
                pass
        return request.tokens

    drawn = draw(2, 5)
    assert drawn == draw(1, 5) == draw(2, 5, prompts(3)) and drawn != draw(2, 6)


def test_frequencies():
    """Each token is drawn as often as its probability says."""
    temperature, count = 2.5, 400
    p = (greedy((4, 9, 3), 1)[1][0].double() / temperature).softmax(-1).numpy()
    with plan(max_requests=16, buckets=(48,)).start() as session:
        requests = [session.submit([4, 9, 3], 1, temperature=temperature, seed=s) for s in range(count)]
        while session.step():
            pass
    seen = np.bincount([r.tokens[0] for r in requests], minlength=151)
    order = np.argsort(p)
    groups = [order[:100], order[100:140], order[140:]]
    want, got = (np.array([x[g].sum() for g in groups]) for x in (p * count, seen))
    assert ((got - want) ** 2 / want).sum() < 14  # two degrees of freedom: one of 1,000


def test_bad_requests():
    calls = {
        "prompt: expected at least one token": {"prompt": []},
        "less than 151, got 151 at index 1": {"prompt": [3, 151]},
        "prompt: expected a sequence of tokens": {"prompt": "text"},
        r"prompt\[0\]: expected an integer": {"prompt": [1.5]},
        "max_new_tokens: expected at least 1, got 0": {"prompt": [5], "max_new_tokens": 0},
        "at most max_length = 40": {"prompt": [5] * 35, "max_new_tokens": 6},
        "temperature: expected a finite number": {"prompt": [5], "temperature": -0.5},
        "group: expected 0 to 0, got 3": {"prompt": [5], "group": 3},
        "stop: expected tokens": {"prompt": [5], "stop": [-1]},
    }
    with plan().start() as session:
        running = session.submit(prompts(1)[0], max_new_tokens=5)
        session.step()
        for message, call in calls.items():
            with pytest.raises(mw.InputError, match=message):
                session.submit(**call)
        with pytest.raises(mw.InputError):
            session.generate([[5], []])
        while session.step():
            pass
        assert running.tokens == expected(prompts(1)[0], 5) and session.requests == []
        with plan().start() as other, pytest.raises(mw.Error, match="another session"):
            other.cancel(running)
    with pytest.raises(mw.Error, match="the session is closed"):
        session.step()


def test_bad_models():
    class Bidirectional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(31, 16), torch.nn.Linear(16, 31)

        def forward(self, ids):
            x = self.table(ids)
            return self.head(x + torch.nn.functional.scaled_dot_product_attention(x, x, x))

    model = mw.from_torch(Bidirectional(), (torch.ones(1, 6, dtype=torch.long),))
    with pytest.raises(mw.Error, match="sees later tokens") as error:
        model.serve(**SIZES)
    assert error.value.diagnostics[0].file.endswith("test_serving.py")
    with pytest.raises(mw.Error, match="expected one of Model.serve"):
        model.parallelize(mesh={"tp": 2}).start().submit([5])
    linear = mw.from_torch(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
    with pytest.raises(mw.Error, match="expected a causal language model"):
        linear.serve()
    for sizes, message in (({"buckets": ()}, "at least one"), ({"buckets": (4, 4)}, "ascending"),
                           ({"page_size": 0}, "page_size"), ({"pages": 9}, "the 10 pages"),
                           ({"max_requests": 0}, "max_requests"), ({"max_length": 0}, "max_length")):
        with pytest.raises(mw.Error, match=message):
            mw.from_torch(net(), (torch.ones(1, 6, dtype=torch.long),)).serve(**{**SIZES, **sizes})


def test_bundle(tmp_path):
    """The runtime serves without the compiler: from Python, the shell and C."""
    plan().compile(tmp_path / "bundle")
    chosen = prompts(4)
    want = [expected(p, 6) for p in chosen]
    with mw.load_bundle(tmp_path / "bundle").start() as session:
        session.warm_up()
        assert session.generate(chosen, max_new_tokens=6) == want
    (tmp_path / "prompts.json").write_text(json.dumps(chosen))
    subprocess.run(["sharding-run", tmp_path / "bundle", f"--prompts={tmp_path}/prompts.json", "--max-new-tokens=6",
                    f"--completions={tmp_path}/out.json"], check=True)
    assert json.loads((tmp_path / "out.json").read_text()) == want
    assert from_c(tmp_path / "bundle", chosen[1], 6) == want[1]


class RequestOptions(ctypes.Structure):
    _fields_ = [("max_new_tokens", ctypes.c_int64), ("num_stop", ctypes.c_int64),
                ("stop", ctypes.POINTER(ctypes.c_int64)), ("temperature", ctypes.c_double),
                ("seed", ctypes.c_int64), ("group", ctypes.c_int64)]


def from_c(path, prompt, new):
    library = ctypes.CDLL("libMeshwrightRuntime.so")
    said = []
    say = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p)(
        lambda user, severity, where, what: said.append(what.decode()))
    for name in ("mw_bundle_start", "mw_serve_submit", "mw_serve_tokens"):
        getattr(library, name).restype = ctypes.c_void_p
    library.mw_serve_step.restype = ctypes.c_int64
    options = ctypes.create_string_buffer(256)  # zeros: the defaults of mw_run_options
    session = ctypes.c_void_p(library.mw_bundle_start(str(path).encode(), options, say, None))
    tokens = (ctypes.c_int64 * len(prompt))(*prompt)
    bad = RequestOptions(max_new_tokens=new, group=4)
    assert not library.mw_serve_submit(session, tokens, ctypes.c_int64(len(prompt)), ctypes.byref(bad))
    assert said == ["group: expected 0 to 0, got 3"]
    wanted = RequestOptions(max_new_tokens=new)
    request = ctypes.c_void_p(
        library.mw_serve_submit(session, tokens, ctypes.c_int64(len(prompt)), ctypes.byref(wanted)))
    while library.mw_serve_step(session) > 0:
        pass
    count = ctypes.c_int64()
    found = ctypes.cast(library.mw_serve_tokens(request, ctypes.byref(count)), ctypes.POINTER(ctypes.c_int64))
    result, state = found[: count.value], library.mw_serve_state(request)
    assert state == 1
    library.mw_serve_free(request)
    library.mw_session_close(session)
    return result


def test_shell_errors(tmp_path):
    plan().compile(tmp_path / "bundle")
    for text, options, message in (
        ("{}", [], "expected a list of prompts"),
        ("[[3], [200]]", [], "prompt 1: prompt: expected tokens of at least 0 and less than 151"),
        ("[[3]]", ["--stop=200"], "error: --stop: expected tokens of at least 0 and less than 151, got 200"),
        ("[[3]]", ["--temperature=-1"], "error: --temperature: expected a finite number from 0 on, got '-1'"),
        ("[[3]]", ["--temperature=inf"], "error: --temperature: expected a finite number from 0 on, got 'inf'"),
        ("[[3]]", ["--max-new-tokens=0"], "error: --max-new-tokens: expected a number from 1 on, got '0'"),
        ("[[3]]", ["--stop=a"], "--stop: expected a number, got 'a'"),
        ("[[3]]", ["--report"], "--prompts and --report exclude each other"),
    ):
        (tmp_path / "p.json").write_text(text)
        done = subprocess.run(["sharding-run", tmp_path / "bundle", f"--prompts={tmp_path}/p.json", *options],
                              capture_output=True, text=True)
        assert done.returncode in (1, 2) and message in done.stderr and not done.stdout
    for options, message in (
        ([], "sharding-run: error: the bundle serves requests: give --prompts\n"),
        (["--max-new-tokens=3"], "sharding-run: error: --max-new-tokens needs --prompts\n"),
        (["--temperature=0.5", "--seed=2"], "sharding-run: error: --temperature needs --prompts\n"),
        (["--stop=2"], "sharding-run: error: --stop needs --prompts\n"),
        (["--completions=-"], "sharding-run: error: --completions needs --prompts\n"),
    ):
        done = subprocess.run(["sharding-run", tmp_path / "bundle", *options], capture_output=True, text=True)
        assert done.returncode in (1, 2) and done.stderr.startswith(message) and not done.stdout


def test_completions_to_standard_output(tmp_path):
    plan().compile(tmp_path / "bundle")
    (tmp_path / "p.json").write_text(json.dumps(prompts(2)))
    done = subprocess.run(["sharding-run", tmp_path / "bundle", f"--prompts={tmp_path}/p.json", "--max-new-tokens=4",
                           "--completions=-"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout) == [expected(p, 4) for p in prompts(2)]
    assert not (tmp_path / "-").exists()


def test_small_temperatures():
    """A temperature by which no logit can be divided takes the largest one."""
    with plan().start() as session:
        for temperature in (5e-324, 1e-320, 1e-300, 1e-30):
            tokens = session.generate(prompts(2), max_new_tokens=9, temperature=temperature)
            assert tokens == [expected(p, 9) for p in prompts(2)]


def test_report():
    report = plan().report(format="json")
    heads, size = 1, 8
    rows = SIZES["max_length"] * SIZES["max_requests"]
    assert report["memory_per_rank"]["cache"] == rows * 2 * 2 * heads * size * 4
    serving = report["serving"]
    assert (serving["groups"], serving["pages"], serving["cache"]) == (1, 30, "heads")
    assert serving["cache_bytes_per_token"] == 2 * 2 * heads * size * 4
    assert [entry["name"] for entry in serving["entries"]] == ["tokens=2", "tokens=12"]
    assert all(entry["seconds"] > 0 and entry["bytes_per_rank"] > 0 for entry in serving["entries"])
    assert "pages of keys and values" in plan().report()
