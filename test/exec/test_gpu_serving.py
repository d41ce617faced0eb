# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sessions that serve on the backend `nccl`, on the stand-ins (test/fakegpu)."""
import json

import pytest
from test_gpu_running import check, pytestmark, refusal  # noqa: F401

SERVED = """
import transformers as tf
def served(**more):
    torch.manual_seed(2)
    config = tf.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
                            num_key_value_heads=2, vocab_size=97, max_position_embeddings=64)
    net = tf.LlamaForCausalLM(config).eval()
    model = mw.from_torch(net, (torch.ones(1, 4, dtype=torch.long),))
    return model.serve(**{**dict(max_length=24, page_size=4, max_requests=2, buckets=(2, 8)), **more})
prompts = [[5, 9, 30], [7], list(range(3, 14))]
def generate(ranks, **options):
    with served().parallelize(mesh={'tp': ranks}).start(**options) as session:
        return session.generate(prompts, max_new_tokens=5)
"""


@pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])
def test_tokens(backend):
    """The tokens are those of processors, on one rank and on two."""
    check(SERVED + f"assert generate(1) == generate(1, backend='{backend}') == generate(2, backend='{backend}')")


@pytest.mark.parametrize("options", [dict(data_parallel_attention=2), dict(cache_sharding="sequence"),
                                     dict(data_parallel_attention=2, cache_sharding="sequence")],
                         ids=["groups", "by sequence", "groups, by sequence"])
def test_layouts(options):
    """Groups of attention, and caches by sequence, on more ranks than there are heads of keys."""
    check(SERVED + f"""
plan = served().parallelize(mesh={{'tp': 4}}, **{options!r})
with plan.start() as session, plan.start(backend='nccl:peer') as other:
    want = session.generate(prompts, max_new_tokens=5)
    assert other.generate(prompts, max_new_tokens=5) == want, want
""")


def test_graphs(tmp_path):
    """Each entry is captured, and repeats: inputs, tables and pages keep their addresses."""
    check(SERVED + """
with served().parallelize(mesh={'tp': 2}).start(backend='nccl', graphs='on') as session:
    found = session.generate(prompts, max_new_tokens=9)
    calls = session.stats()['entries']
assert max(calls.values()) >= 4, calls
with served().parallelize(mesh={'tp': 2}).start(backend='nccl', graphs='off') as session:
    assert session.generate(prompts, max_new_tokens=9) == found
""", FAKEGPU_LOG=str(tmp_path / "log"))
    seen = json.loads((tmp_path / "log").read_text())
    assert seen["graph_captures"] >= 2 and seen["graph_launches"] > 0


def test_a_call_that_fails():
    """Rows that a failed call replaced are restored, with slots that have none among them."""
    check(SERVED + """
with served().parallelize(mesh={'tp': 1}).start(backend='nccl') as session:
    request = session.submit(prompts[2], max_new_tokens=6)
    session.step()
    before = session.state()
    inputs = {port.name: torch.zeros(tuple(port.shape), dtype=torch.long) for port in session._session.entries[0].inputs}
    inputs['slots'] -= 1
    inputs['slots'][0, 0], inputs['tokens'][0, 1] = 3, 97   # a token out of range
    try:
        session.run(**inputs)
        raise SystemExit('it passes')
    except mw.Error: pass
    after = session.state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    while session.step(): pass
assert request.tokens == served().parallelize(mesh={'tp': 1}).start().generate([prompts[2]], max_new_tokens=6)[0]
""")


def test_true_rows_are_refused():
    """Tokens of groups meet padded on GPUs."""
    said = refusal(SERVED + """
served().parallelize(mesh={'tp': 4}, data_parallel_attention=2, token_gather='sum').start(backend='nccl:peer')
""")
    assert "token_gather: expected 'max' or 'auto' on GPUs, got 'sum'" in said, said
