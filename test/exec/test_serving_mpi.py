# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Processes of mpirun serve: each decides alike, and a rank that dies ends the session in all of them."""
import json
import re
import time

import meshwright as mw
import pytest
import torch
import transformers as tf
from mpi_programs import NEEDS_MPI, launch

pytestmark = NEEDS_MPI
PROMPTS = [[5, 9, 30], [7], list(range(3, 20)), [11, 12], [90, 3, 4, 5, 6]]


def compile_to(folder, seed):
    torch.manual_seed(seed)
    config = tf.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
                            num_key_value_heads=2, vocab_size=97, max_position_embeddings=64)
    net = tf.LlamaForCausalLM(config).eval()
    model = mw.from_torch(net, (torch.ones(1, 4, dtype=torch.long),))
    served = model.serve(max_length=32, page_size=4, max_requests=2, buckets=(2, 8))
    served.parallelize(mesh={"tp": 2}).compile(folder / "b")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    compile_to(folder, seed=2)
    (folder / "p.json").write_text(json.dumps(PROMPTS))
    return folder


def serve(folder, *more, env=None, ranks=2):
    return launch(ranks, folder / "b", "--backend=mpi", f"--prompts={folder}/p.json", "--max-new-tokens=7",
                  f"--completions={folder}/c.json", *more, env=env)


@pytest.mark.parametrize("more", [[], ["--temperature=1.5", "--seed=4"]], ids=["greedy", "drawn"])
def test_processes(bundle, more):
    done = serve(bundle, *more)
    assert done.returncode == 0, done.stderr
    found = json.loads((bundle / "c.json").read_text())
    with mw.load_bundle(bundle / "b").start() as session:
        options = {"temperature": 1.5, "seed": 4} if more else {}
        assert session.generate(PROMPTS, max_new_tokens=7, **options) == found


def test_saved(bundle):
    """Processes write requests and pages together."""
    assert serve(bundle, f"--save-state={bundle}/state").returncode == 0
    done = serve(bundle, f"--state={bundle}/state")
    assert done.returncode == 0, done.stderr


def test_saved_of_another_model(bundle, tmp_path):
    """All processes refuse it, before one waits for another."""
    assert serve(bundle, f"--save-state={tmp_path}/state").returncode == 0
    compile_to(tmp_path, seed=3)
    (tmp_path / "p.json").write_text(json.dumps(PROMPTS))
    begin = time.monotonic()
    done = serve(tmp_path, f"--state={tmp_path}/state")
    assert done.returncode != 0 and time.monotonic() - begin < 20
    assert "got that of another model, which has other weights" in done.stderr


@pytest.mark.parametrize("fault, words", [("kill 1 o_proj", "rank 1"), ("throw 1 o_proj", "rank 1: .*a fault was asked for")])
def test_a_rank_fails(bundle, fault, words):
    (bundle / "c.json").unlink(missing_ok=True)
    begin = time.monotonic()
    done = serve(bundle, env={"MESHWRIGHT_FAULT": fault, "MESHWRIGHT_TIMEOUT": "8"})
    assert done.returncode != 0 and not (bundle / "c.json").exists()
    assert re.search(f"error: .*{words}", done.stderr), done.stderr
    assert time.monotonic() - begin < 60
