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


#: Groups of several ranks, which have some of a group's true rows each or all of them; of one rank; and replicas of
#: the groups.
GROUPS = [({"tp": 4}, 2, "on"), ({"tp": 4}, 2, "off"), ({"tp": 4}, 4, "auto"), ({"dp": 2, "tp": 2}, 2, "auto")]


@pytest.mark.parametrize("backend", ["nccl", "nccl:peer"])
@pytest.mark.parametrize(("mesh", "groups", "mode"),
                         [pytest.param(*case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(GROUPS)],
                         ids=[f"{mesh}, {groups}, {mode}" for mesh, groups, mode in GROUPS])
def test_true_rows(backend, mesh, groups, mode):
    """Tokens of groups meet compacted: tokens and logits are those of processors, with idle groups, too."""
    check(SERVED + f"""
def rows(session, given):
    requests = [session.submit(p, max_new_tokens=5, logits=True) for p in given]
    while session.step(): pass
    return [r.tokens for r in requests], torch.cat([torch.as_tensor(r.logits) for r in requests])
plan = served(buckets=(2, 8) if {groups} == 4 else (8,)).parallelize(
    mesh={mesh}, data_parallel_attention={groups}, token_gather='sum', sequence_parallel='{mode}')
assert 'dist.all_gather_v' in plan.ir()
with plan.start() as session, plan.start(backend='{backend}') as other:
    for given in (prompts, prompts[1:2]):
        (want, logits), (found, got) = (rows(s, given) for s in (session, other))
        assert found == want, (found, want)
        assert (got - logits).abs().max() < 1e-5 * logits.abs().max()
    assert all('sum=' in name for name in other.stats()['entries'])
""")


def test_graphs_beside_true_rows(tmp_path):
    """Steps without true rows repeat graphs, and so do parts of the others. A session that asks for graphs alone is
    refused, and 'auto' pads all groups."""
    check(SERVED + """
plan = served().parallelize(mesh={'tp': 4}, data_parallel_attention=2, token_gather='sum')
with plan.start() as session, plan.start(backend='nccl', graphs='auto') as other:
    want = session.generate(prompts, max_new_tokens=9)
    assert other.generate(prompts, max_new_tokens=9) == want
both = served().parallelize(mesh={'tp': 4}, data_parallel_attention=2)
with both.start(backend='nccl', graphs='on') as session:
    assert session.generate(prompts, max_new_tokens=9) == want
    assert not any('sum=' in name for name in session.stats()['entries'])
""", FAKEGPU_LOG=str(tmp_path / "log"))
    seen = json.loads((tmp_path / "log").read_text())
    assert seen["graph_captures"] >= 2 and seen["graph_launches"] > 0
    said = refusal(SERVED + """
served().parallelize(mesh={'tp': 4}, data_parallel_attention=2, token_gather='sum').start(backend='nccl', graphs='on')
""")
    assert "graphs: expected 'auto' or 'off' beside token_gather='sum'" in said, said


def test_numbers_that_do_not_fit():
    """More true rows of a group than it has, and of all groups than a step holds, are errors that name the op."""
    said = refusal(SERVED + """
plan = served().parallelize(mesh={'tp': 2}, data_parallel_attention=2, token_gather='sum')
said = []
for counts in ([9, 0], [8, 8]):
    with plan.start(backend='nccl:peer') as session:
        entry = next(e for e in session._session.entries if e.name == 'tokens=8,sum=8')
        inputs = {port.name: torch.zeros(tuple(port.shape), dtype=torch.long) for port in entry.inputs}
        inputs['counts'] += torch.tensor(counts)
        try: session.run(entry='tokens=8,sum=8', **inputs)
        except mw.Error as error: said.append(str(error))
raise mw.Error(' | '.join(said))
""")
    assert "expected 0 to 8 rows of group 0, got 9" in said, said
    assert "expected at most 8 rows of all groups, got 16" in said, said
