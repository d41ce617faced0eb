# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pages on plans, drawings of layouts and comparisons: their structure and their texts."""

import functools
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess

import meshwright as mw
import pytest
import torch
import transformers as tf

pytest.importorskip("jinja2")
pytest.importorskip("svg")

ANSWERS = ("query-layout", "rank-3", "longest-collective", "collective-waits-for", "peak", "longest-layer",
           "ceiling-share", "most-traffic", "sequence-parallel", "second-plan")
SECTIONS = ("warnings", "summary", "answers", "picture-mesh", "picture-layouts", "picture-timeline",
            "picture-arena", "picture-traffic", "table-layers", "picture-prefetch", "picture-decisions")
VOID = {"meta", "br", "link", "img", "input", "hr"}
#: Their end tags may be left out.
IMPLIED = {"td", "th", "tr", "p", "dt", "dd"}


class Page(html.parser.HTMLParser):
    """The texts of a page's elements by their ids. Fails for tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.ids, self.open, self.attributes, self.names = {}, [], [], [], []
        self.feed(text)
        self.close()
        assert not [tag for tag, _ in self.open if tag not in IMPLIED], self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.attributes += [(tag, *pair) for pair in attributes.items()]
        self.names.append(tag)
        if "id" in attributes:
            assert attributes["id"] not in self.ids
            self.ids.append(attributes["id"])
            self.texts[attributes["id"]] = ""
        if tag not in VOID:
            self.open.append((tag, attributes.get("id")))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        while self.open[-1][0] != tag:
            assert self.open[-1][0] in IMPLIED, f"</{tag}> within {self.open}"
            self.open.pop()
        self.open.pop()

    def handle_data(self, data):
        for _, id in self.open:
            if id:
                self.texts[id] += data

    def answer(self, name):
        return " ".join(self.texts[f"answer-{name}"].split())


def check_page(text) -> Page:
    """A page has all parts, and needs no other file."""
    page = Page(text)
    assert [f"answer-{name}" for name in ANSWERS] == [id for id in page.ids if id.startswith("answer-")]
    assert [id for id in page.ids if id in SECTIONS] == list(SECTIONS)
    assert all(page.answer(name).endswith((".", "...")) for name in ANSWERS)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.names)
    for tag, name, value in page.attributes:
        assert name not in ("href", "src", "srcset", "data", "action", "xlink:href"), (tag, name, value)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    return page


def config(layers=2, hidden=48, **more):
    return tf.LlamaConfig(hidden_size=hidden, intermediate_size=80, num_hidden_layers=layers, num_attention_heads=6,
                          num_key_value_heads=2, vocab_size=152, max_position_embeddings=64, **more)


@functools.cache
def model(tokens=16, batch=4):
    net = tf.LlamaForCausalLM(config()).eval()
    return mw.from_torch(net, (), {"input_ids": torch.zeros((batch, tokens), dtype=torch.long)})


@functools.cache
def plan(**options):
    return model().parallelize(**{name: dict(value) if isinstance(value, tuple) else value
                                  for name, value in options.items()})


@functools.cache
def trained():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = tf.LlamaForCausalLM(config())

        def forward(self, ids):
            return self.model(input_ids=ids, labels=ids).loss

    return mw.from_torch(Loss().train(), (torch.zeros((4, 16), dtype=torch.long),)).train(mw.AdamW(lr=1e-3))


def test_tensor_parallel():
    made = plan(mesh=(("dp", 2), ("tp", 2)))
    page = check_page(made.report("html"))
    report = made.report("json")
    assert 'layout [{"tp"}, {}]' in page.answer("query-layout") and "over tp in 2 chunks" in page.answer("query-layout")
    assert "self_attn.q_proj.weight is 48x48xf32" in page.answer("query-layout")
    assert "Rank 3 holds rows 24:48 of 48; all 48 columns" in page.answer("rank-3")
    assert "Rank 1 holds the same part" in page.answer("rank-3")
    assert "over tp" in page.answer("longest-collective")
    assert re.search(r"It waits for launch \d+, nn\.\w+ at model\.", page.answer("collective-waits-for"))
    assert "rank 0 to rank 1" in page.answer("most-traffic") and "rank 0 to rank 2" not in page.answer("most-traffic")
    decision = next(d for d in report["decisions"] if d["pass"] == "annotate-scatter-modes")
    assert decision["message"] in page.answer("sequence-parallel")
    assert page.texts["run-seconds"].split()[1] in ("us", "ms") and page.texts["sent-bytes"].endswith("KiB")
    assert "dp 1, tp 1" in page.texts["picture-mesh"] and "stream 1: tp" in page.texts["picture-timeline"]
    assert "model.layers.1" in page.texts["table-layers"] and "No warnings." in page.texts["warnings"]
    assert re.match(r"model\.layers\.[01]: \S+ [um]s by the cost model", page.answer("longest-layer"))
    assert "runs at" in page.answer("ceiling-share") and "of the ceiling of its kernels" in page.answer("ceiling-share")
    assert "model.layers." in page.texts["picture-layer"] and "GB/s" in page.texts["links"]


def test_data_parallel():
    page = check_page(plan(mesh=(("dp", 2),)).report("html"))
    assert "not sharded: each rank holds all of it" in page.answer("query-layout")
    assert "There is no rank 3: the plan has 2 ranks." in page.answer("rank-3")
    assert page.answer("longest-collective") == "None: the program has no collectives."
    assert page.answer("collective-waits-for") == "There is no collective."
    assert page.answer("most-traffic") == "No rank sends: the program has no collectives."
    assert "No rank sends." in page.texts["picture-traffic"]


def test_sequence_parallelism_as_asked():
    on = check_page(plan(mesh=(("tp", 2),), sequence_parallel="on").report("html"))
    off = check_page(plan(mesh=(("tp", 2),), sequence_parallel="off").report("html"))
    assert on.answer("sequence-parallel").startswith("On: ") and "as the user asks" in on.answer("sequence-parallel")
    assert off.answer("sequence-parallel") == "Off, as the user asks."


def test_training_with_stored_shards():
    made = trained().parallelize(mesh={"gtp": 2, "tp": 2})
    page, gtp = check_page(made.report("html")), made.report("json")["gtp"]
    assert 'layout [{"tp", "gtp"}, {}]' in page.answer("query-layout") and "4 chunks" in page.answer("query-layout")
    assert "Rank 3 holds rows 36:48 of 48" in page.answer("rank-3")
    assert "place 0: " in page.texts["picture-prefetch"] and f"place {len(gtp['slots']) - 1}: " in \
        page.texts["picture-prefetch"]
    assert "states of the optimizer with the same layout" in page.texts["picture-layouts"]
    assert "memory-optimizer" in page.ids and "gtp weights" in page.texts["picture-timeline"]
    check_page(made.report("html", entry="evaluate"))


def test_microbatches():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x).square().mean()

    made = mw.from_torch(Loss().train(), (torch.ones(4, 8),)).train(mw.SGD(lr=0.1), microbatches=2)
    plan = made.parallelize(mesh={"dp": 2})
    page, report = check_page(plan.report("html")), plan.report("json", verbose=True)
    # The bytes are those of all functions.
    sent = sum(pair["bytes"] for pair in report["program"]["sent"])
    assert round(sent) == report["bytes_of_all_ranks"] == 2 * report["bytes_per_rank"] > 0
    assert "A call runs 1 other function before the entry's own" in " ".join(page.texts["summary"].split())


def test_context_parallel():
    made = plan(mesh=(("sp", 2), ("ring", 2)), context_parallel=(("ulysses", "sp"), ("ring", "ring")))
    page = check_page(made.report("html"))
    assert "choose-context-parallel compared" in page.answer("second-plan")
    chosen = next(a for d in made.report("json")["decisions"] for a in d.get("alternatives", ()) if a["chosen"])
    assert f"The chosen one is '{chosen['name']}'" in page.answer("second-plan")
    assert "chosen" in page.texts["picture-decisions"] and "zigzag" in made.layout("input_ids")


def test_composed():
    """A folded encoder: the second plan is that of the decision with alternatives."""
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

        def forward(self, x):
            return self.block(x)

    x = torch.ones(4, 8, 16)
    stages = {name: mw.from_torch(Block().eval(), (x,)) for name in ("encoder", "denoiser")}
    joined = mw.compose(stages, {"denoiser.x": "encoder.0"})
    made = joined.parallelize(mesh={"sp": 4}, context_parallel={"ring": "sp"}, fold={"encoder": "auto"})
    page = check_page(made.report("html"))
    assert "fold-encoder compared" in page.answer("second-plan") and "time" in page.answer("second-plan")
    assert "encoder." in page.answer("query-layout")
    staged = mw.compose(stages, {"denoiser.x": "encoder.0"}).parallelize(
        mesh={"encoder": {"dp": 4}, "denoiser": {"dp": 2, "tp": 2}})
    check_page(staged.report("html"))


def test_serving():
    net = tf.LlamaForCausalLM(config(pad_token_id=0, bos_token_id=1, eos_token_id=2)).eval()
    served = mw.from_torch(net, (torch.ones(1, 6, dtype=torch.long),)).serve(
        max_length=40, page_size=4, max_requests=3, buckets=(2, 12))
    made = served.parallelize(mesh={"tp": 2})
    page = check_page(made.report("html", entry="tokens=12"))
    assert "tokens=2" in page.texts["serving"] and "tokens=12" in page.texts["serving"]
    assert "memory-cache" in page.ids and "cache" in page.texts["picture-layouts"]
    assert "q_proj.weight" in page.answer("query-layout")


@pytest.mark.parametrize("options", [{"mesh": (("dp", 2), ("tp", 2))}, {"mesh": (("sp", 2), ("ring", 2)),
                         "context_parallel": "auto"}, {"mesh": (("tp", 2),), "sequence_parallel": "on"}])
def test_peak_is_that_of_the_buffer_plan(options):
    """The values alive at the peak take the bytes that the plan of buffers proves."""
    for facts in (plan(**options)._facts(None), trained().parallelize(mesh={"gtp": 2, "tp": 2})._facts("step")):
        assert facts.peak.bytes == facts.live > 0
        assert all(b.launch <= facts.peak.launch.number <= b.last for b in facts.peak.buffers)


def test_traffic_adds_up():
    ring = plan(mesh=(("sp", 2), ("ring", 2)), context_parallel=(("ulysses", "sp"), ("ring", "ring")))
    for made in (plan(mesh=(("dp", 2), ("tp", 2))), ring, trained().parallelize(mesh={"gtp": 2, "tp": 2})):
        facts = made._facts(None)
        assert round(sum(count for _, _, count in facts.sent)) == facts.report["bytes_of_all_ranks"]
        assert all(i != j for i, j, _ in facts.sent)


@pytest.mark.parametrize("sequence_parallel", ["on", "off"])
def test_launches_and_layers_add_up(sequence_parallel):
    """The times of launches are those of the whole run, and layers have all of them."""
    report = plan(mesh=(("dp", 2), ("tp", 2)), sequence_parallel=sequence_parallel).report("json", verbose=True)
    program, time = report["program"], report["communication"]
    kernels = [launch for launch in program["launches"] if launch["kind"] != "collective"]
    for kind, seconds in time["kernel_seconds"].items():
        assert sum(l["seconds"] for l in kernels if l["kind"] == kind) == pytest.approx(seconds)
    collectives = [launch for launch in program["launches"] if launch["kind"] == "collective"]
    assert sum(l["exposed_seconds"] for l in collectives) == pytest.approx(time["exposed_seconds"])
    assert max(l["begin_seconds"] + l["seconds"] for l in program["launches"]) == pytest.approx(time["run_seconds"])
    assert program["seconds"] == pytest.approx(time["run_seconds"])
    ends = 0
    for launch in kernels:  # one after the other
        assert launch["begin_seconds"] >= ends - 1e-12 and 0 < launch["least_seconds"] <= launch["seconds"]
        ends = launch["begin_seconds"] + launch["seconds"]
    for name, key in (("seconds", "seconds"), ("flops", "flops")):
        assert sum(layer[name] for layer in program["layers"]) == pytest.approx(sum(l[key] for l in kernels))
    layer = next(layer for layer in program["layers"] if layer["name"] == "model.layers.1")
    own = [entry["bytes_per_rank"] for entry in report["layouts"]
           if entry["name"].startswith("model.layers.1.") and entry["role"] == "parameter"]
    assert layer["weight_bytes"] == sum(own) and layer["collectives"] > 0
    assert {link["axis"] for link in program["links"]} == {"dp", "tp"}
    assert "program" not in plan(mesh=(("dp", 2), ("tp", 2)), sequence_parallel=sequence_parallel).report("json")


def test_text_begins_with_a_summary():
    made = plan(mesh=(("dp", 2), ("tp", 2)))
    lines = made.report().splitlines()
    layouts = lines.index("layouts")
    assert 4 < layouts <= 10 and lines[0].startswith("plan for 4 ranks, mesh dp=2,tp=2")
    for name in ("time", "memory", "sends", "warnings"):
        assert any(line.startswith(f"  {name} ") for line in lines[:layouts]), name
    assert any(re.match(r'  model\.layers\.\{0,1\}\.self_attn\.q_proj\.weight +48x48xf32 +\[\{"tp"\}, \{\}\]', line)
               for line in lines[layouts:])
    assert "decisions" not in lines and "decisions" in made.report(verbose=True).splitlines()
    assert set(lines) < set(made.report(verbose=True).splitlines())
    steps = trained().parallelize(mesh={"gtp": 2, "tp": 2}).report().splitlines()
    assert "  and 42 states of training with the layouts of their weights" in steps[steps.index("layouts") + 12 :][:14]


def test_layout_in_characters():
    made = plan(mesh=(("dp", 2), ("tp", 2)))
    assert str(made.layout("*.q_proj.weight")) == (
        'model.layers.{0..1}.self_attn.q_proj.weight  48x48xf32, [{"tp"}, {}]: 24x48xf32 (4.50 KiB) on a rank, 2 tensors\n'
        "           0:48\n"
        "      ┌────────────┐\n"
        " 0:24 │ ranks 0, 2 │\n"
        "      ├────────────┤\n"
        "24:48 │ ranks 1, 3 │\n"
        "      └────────────┘"
    )
    assert "model.layers.0.self_attn.o_proj.weight" in made.layout("*.0.*.o_proj.weight")
    assert "0:24        24:48" in made.layout("*.0.*.o_proj.weight")


def test_layout_of_padding_and_many_ranks():
    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(6, 37), torch.nn.Linear(37, 6)

        def forward(self, x):
            return self.down(self.up(x).relu())

    made = mw.from_torch(Wide().eval(), (torch.ones(4, 6),))
    odd, many = made.parallelize(mesh={"tp": 4}), made.parallelize(mesh={"tp": 32})
    assert "30:37" in odd.layout("up.weight") and "rank 3" in odd.layout("up.weight")
    drawn = many.layout("up.weight")
    assert "..." in drawn and "padding" in drawn and len(drawn.splitlines()) < 20
    check_page(odd.report("html"))
    check_page(many.report("html"))


def test_chunks_cover_a_dimension():
    """All chunks of a dimension, with factors, orders and padding, are its elements, each once."""
    from meshwright.importer.graph.layouts import Axis, Factor
    from meshwright.pages.holdings import chunks, ranges

    axes = [Axis("a", 1, 2, True), Axis("b", 1, 3, True)]
    for dim in (
        (Factor(10, 12, tuple(axes)),),
        (Factor(3, 3, ()), Factor(8, 8, (axes[0],))),
        (Factor(2, 2, (axes[0],)), Factor(7, 9, (axes[1],))),
        (Factor(24, 24, tuple(axes), "zigzag", 6),),
        (Factor(23, 24, tuple(axes), "striped", 6),),
        (Factor(5, 6, (axes[0],), "zigzag", 2), Factor(3, 3, ())),
    ):
        size = 1
        for factor in dim:
            size *= factor.size
        found = [i for chunk in range(chunks(dim)) for begin, end in ranges(dim, chunk) for i in range(begin, end)]
        assert sorted(found) == list(range(size)), dim


def test_shards_of_ranks():
    """The compiler and the page agree on the elements that each rank holds."""
    from meshwright.pages.holdings import coordinate, ranges

    for made in (plan(mesh=(("dp", 2), ("tp", 2))), trained().parallelize(mesh={"gtp": 2, "tp": 2}),
                 plan(mesh=(("sp", 2), ("ring", 2)), context_parallel=(("ulysses", "sp"), ("ring", "ring")))):
        facts = made._facts(None)
        for entry in facts.report["layouts"]:
            layout = facts.layout(entry["name"])
            for rank, dims in enumerate(entry["shards"]):
                own = zip(layout.sharding.dims, coordinate(layout, facts.mesh, rank))
                assert [[list(pair) for pair in ranges(dim, index)] for dim, index in own] == dims, entry["name"]


def test_sizes_of_run_time():
    from meshwright.importer.graph.layouts import Mesh, read_sharding

    text = '#dist.sharding<@mesh, [(4 size @batch{"dp"}, 24 size @tokens), {"tp"} size @n]>'
    found = read_sharding(text, Mesh({"dp": 2, "tp": 2}), (96, 8), (48, 4), at_run_time=True)
    assert found.shape == (96, 8) and found.local == (48, 4)
    with pytest.raises(ValueError):
        read_sharding(text, Mesh({"dp": 2, "tp": 2}), (96, 8), (48, 4))


def test_compare():
    one, two = plan(mesh=(("dp", 2), ("tp", 2))), plan(mesh=(("dp", 4),))
    text = one.compare(two)
    assert "first:  dp=2 tp=2" in text and "second: dp=4" in text
    assert 'model.layers.*.self_attn.q_proj.weight: [{"tp"}, {}] -> [{}, {}]' in text
    assert re.search(r"memory: weights +\S+ KiB +\S+ KiB +\+\S+ %", text)
    assert "annotate-tensor-parallel" in text.split("decisions of the first alone")[1]
    page = Page(one.compare(two, "html"))
    assert {"first", "second", "compare-numbers", "compare-layouts", "compare-decisions"} <= set(page.ids)
    assert "all_reduce over tp" in page.texts["compare-numbers"]
    assert one.compare(one) == "the plans are alike: dp=2 tp=2\n"
    assert "The plans are alike." in Page(one.compare(one, "html")).texts["alike"]


def test_names_are_escaped():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module('<script>&"x', torch.nn.Linear(8, 8))
            self.query = torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.query(getattr(self, '<script>&"x')(x))

    made = mw.from_torch(Odd().eval(), (torch.ones(4, 8),)).parallelize(mesh={"tp": 2})
    page = check_page(made.report("html"))
    assert '<script>&"x.weight' in page.texts["picture-layouts"]
    assert page.answer("query-layout") == "The program has no attention whose queries are a product with a weight."
    assert made._repr_html_().startswith("<iframe srcdoc=") and "<script>" not in made._repr_html_()
    check_page(dict(pair for _, *pair in Frame(made._repr_html_()).found)["srcdoc"])


class Frame(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found += [(tag, *pair) for pair in attributes]


def test_notebooks():
    made = plan(mesh=(("tp", 2),))
    shown = model()._repr_html_()
    for text in ("<td style=\"text-align: left\">input input_ids", "model.layers.{0..1}.mlp.up_proj.weight", "f32 [", "KiB"):
        assert text in shown, text
    with made.start() as session:
        assert "local" in session._repr_html_()
        check_page(dict(pair for _, *pair in Frame(session._repr_html_()).found)["srcdoc"])
    closed = session._repr_html_()
    assert "closed" in closed and check_page(dict(pair for _, *pair in Frame(closed).found)["srcdoc"])


def test_buckets():
    class Loss(torch.nn.Module):
        def forward(self, x):
            return x.relu().sum(-1)

    made = mw.from_torch(Loss(), (torch.ones(4, 8),), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=8)},),
                         buckets={"n": [4, 8]}).parallelize(mesh={"dp": 2})
    check_page(made.report("html"))
    assert "x" in made.layout("x")


def test_saved_reports(tmp_path):
    made = plan(mesh=(("tp", 2),))
    made.save_report(tmp_path / "plan.html")
    made.save_report(str(tmp_path / "plan.json"))
    made.save_report(tmp_path / "plan.txt")
    check_page((tmp_path / "plan.html").read_text())
    assert json.loads((tmp_path / "plan.json").read_text()) == made.report("json")
    assert (tmp_path / "plan.txt").read_text() == made.report()
    assert sorted(os.listdir(tmp_path)) == ["plan.html", "plan.json", "plan.txt"]


def test_bad_arguments(tmp_path):
    made = plan(mesh=(("tp", 2),))
    for call, message in (
        (lambda: made.save_report(tmp_path / "plan.pdf"), "expected a name that ends in .html, .json or .txt"),
        (lambda: made.save_report(tmp_path / "absent" / "plan.html"), "No such file or directory"),
        (lambda: made.save_report(None), "path: expected a path, got None"),
        (lambda: made.save_report(""), "path: expected a path"),
        (lambda: made.save_report(tmp_path / "plan.html", entry="no"), "there is no entry 'no'"),
        (lambda: made.report("pdf"), "format: expected text, json or html, got 'pdf'"),
        (lambda: made.layout("absent*"), "pattern: expected a pattern of names such as 'input_ids'"),
        (lambda: made.layout(3), "pattern: expected a shell pattern of names, got 3"),
        (lambda: made.compare("plan"), "other: expected a plan of Model.parallelize, got 'plan'"),
        (lambda: made.compare(made, "json"), "format: expected text or html, got 'json'"),
    ):
        with pytest.raises(mw.Error) as error:
            call()
        assert message in str(error.value)
    assert not os.listdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(mw.Error, match="Is a directory"):
        made.save_report(tmp_path / "folder.html")


def test_without_the_libraries(monkeypatch):
    """Without the libraries a page is an error that names them, and notebooks show text."""
    import sys

    made = plan(mesh=(("tp", 2),))
    for name in [n for n in sys.modules if n.startswith("meshwright.pages.")]:
        monkeypatch.delitem(sys.modules, name)
    import meshwright.pages

    for name in ("render", "charts"):
        monkeypatch.delattr(meshwright.pages, name, raising=False)
    monkeypatch.setitem(sys.modules, "svg", None)
    with pytest.raises(mw.Error, match=r"a page needs the packages 'jinja2' and 'svg.py': 'svg' is not installed"):
        made.report("html")
    assert made._repr_html_() is None and model()._repr_html_() is None
    assert "ranks" in made.layout("*") and made.compare(made).startswith("the plans are alike")


def deep_model(layers, hidden=96, shape=(4, 16)):
    with torch.device("meta"):
        net = tf.LlamaForCausalLM(config(layers=layers, hidden=hidden)).eval()
    return mw.from_torch(net, (), {"input_ids": torch.zeros(shape, dtype=torch.long)})


@pytest.mark.slow
def test_chromium_opens_a_page(tmp_path):
    """Chromium opens the page of a model of 32 layers, says nothing on its console, and shows each picture and
    each answer."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("Chromium is not installed")
    deep_model(32, hidden=1536, shape=(1, 512)).parallelize(ranks=4).save_report(tmp_path / "plan.html")
    done = subprocess.run(
        [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", "--v=0", "--dump-dom", (tmp_path / "plan.html").as_uri()],
        capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 0 and "CONSOLE" not in done.stderr
    page = Page(re.sub(r"^<!DOCTYPE html>", "", done.stdout, flags=re.I))
    assert {f"answer-{name}" for name in ANSWERS} <= set(page.ids)
    assert "unknown" not in [value for _, name, value in page.attributes if name == "class"]
    assert "model.layers.{0..31}.self_attn.q_proj.weight" in page.answer("query-layout")
    pictures = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    for label in ("the ranks of the mesh", "the launches of a rank", "the arena", "bytes from rank to rank"):
        assert any(picture.startswith(label) for picture in pictures), label


@pytest.mark.slow
def test_size_of_128_layers(tmp_path):
    """Also on many ranks, where the pictures leave parts out."""
    deep = deep_model(128)
    path = pathlib.Path(tmp_path / "plan.html")
    for mesh in ({"dp": 2, "tp": 2}, {"dp": 4, "tp": 64}):
        deep.parallelize(mesh=mesh).save_report(path)
        assert path.stat().st_size < 2_000_000
        assert "model.layers.{0..127}.self_attn.q_proj.weight" in check_page(path.read_text()).answer("query-layout")
