# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs written as launches: streams, several results, places."""
import pathlib
import re

import meshwright as mw
import pytest
import torch
import transformers as tf
from harness import run_module

OVERLAPPING = pathlib.Path(__file__).parents[1] / "passes" / "verify" / "verify-races.mlir"


def named(text):
    """The lit test's program with names for its inputs and outputs."""
    text = text.replace("%x: tensor<16x64xf32> {", '%x: tensor<16x64xf32> {nn.input = "x", ')
    text = text.replace("%y: tensor<16x64xf32> {", '%y: tensor<16x64xf32> {nn.input = "y", ')
    text = text.replace("-> (tensor<16x64xf32> {", '-> (tensor<16x64xf32> {nn.output = "a", ')
    return text.replace("        tensor<32x64xf32> {", '        tensor<32x64xf32> {nn.output = "b", ')


def test_overlapping_collectives(tmp_path):
    x, y = torch.randn(32, 64), torch.randn(32, 64)
    out = run_module(tmp_path, named(OVERLAPPING.read_text()), {"x": x, "y": y})
    soft = y.double().softmax(1)
    a = (-x.double() + (soft * y.double()).exp()).softmax(1)
    torch.testing.assert_close(out["a"].double(), a, rtol=0, atol=1e-5)
    torch.testing.assert_close(out["b"].double(), soft.softmax(1), rtol=0, atol=1e-5)


PLANNED = """
func.func @main(%x: tensor<6x40xf32> {nn.input = "x"}) -> (tensor<6x40xf32> {nn.output = "a"},
    tensor<6x40xf32> {nn.output = "b"}) attributes {rt.arena = 4096 : i64} {
  %0:2 = rt.kernel %x at [1024, 2048] : (tensor<6x40xf32>) -> (tensor<6x40xf32>, tensor<6x40xf32>) {
  ^bb0(%a: tensor<6x40xf32>):
    %k = nn.exp %a : tensor<6x40xf32>
    %l = nn.neg %k : tensor<6x40xf32>
    rt.yield %l, %k : tensor<6x40xf32>, tensor<6x40xf32>
  }
  %1 = rt.kernel %0#1, %0#0 at [AT] : (tensor<6x40xf32>, tensor<6x40xf32>) -> tensor<6x40xf32> {
  ^bb0(%a: tensor<6x40xf32>, %b: tensor<6x40xf32>):
    %k = nn.sub %a, %b : (tensor<6x40xf32>, tensor<6x40xf32>) -> tensor<6x40xf32>
    rt.yield %k : tensor<6x40xf32>
  }
  return %0#0, %1 : tensor<6x40xf32>, tensor<6x40xf32>
}
"""


SIZES = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": 128}
IDS = torch.zeros(2, 96, dtype=torch.int64, device="meta")
MODELS = {
    "llama": lambda: (tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False)), (IDS,)),
    "bert": lambda: (tf.BertModel(tf.BertConfig(**SIZES)), (IDS,)),
    "gpt2": lambda: (tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=512, n_embd=128, n_layer=3, n_head=4, n_positions=128,
                                                      use_cache=False)), (IDS,)),
    "vit": lambda: (tf.ViTModel(tf.ViTConfig(num_hidden_layers=4)), (torch.zeros(4, 3, 224, 224, device="meta"),)),
}
WAYS = [
    {"mesh": {"tp": 2}, "overlap": "off"},
    {"mesh": {"tp": 2}, "overlap": "on", "sequence_parallel": "on"},
    {"mesh": {"tp": 2}, "sequence_parallel": "on"},
    {"mesh": {"dp": 2, "tp": 2}},
]


@pytest.mark.parametrize("name", MODELS)
def test_arenas_are_near_the_largest_live_set(name):
    with torch.device("meta"):
        module, inputs = MODELS[name]()
    model = mw.from_torch(module.eval(), inputs)
    for way in WAYS:
        text = model.parallelize(**way).ir("rt")
        arena, live = (int(re.search(rf"rt.{what} = (\d+)", text)[1]) for what in ("arena", "live"))
        assert live <= arena <= 1.05 * live, (way, arena, live)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_ceilings_may_give_up_overlap(name):
    """An order in which nothing overlaps is an order too; all keep to the least memory that is named."""
    with torch.device("meta"):
        module, inputs = MODELS[name]()
    model = mw.from_torch(module.eval(), inputs)

    def least(overlap, ceiling=1):
        with pytest.raises(mw.Error, match="most frugal order") as refused:
            model.parallelize(mesh={"tp": 2}, overlap=overlap, memory_ceiling=ceiling)
        return int(re.search(r"needs (\d+) bytes", str(refused.value))[1])

    needed = {overlap: least(overlap) for overlap in ("off", "auto", "on")}
    assert needed["auto"] == min(needed.values())
    for overlap, ceiling in needed.items():
        assert least(overlap, ceiling - 1) == ceiling
        memory = model.parallelize(mesh={"tp": 2}, overlap=overlap, memory_ceiling=ceiling).report("json")["memory_per_rank"]
        assert sum(memory.values()) <= ceiling


def test_ceilings_may_give_up_chunks_that_pay():
    with torch.device("meta"):
        module = tf.LlamaForCausalLM(tf.LlamaConfig(
            hidden_size=2048, intermediate_size=5504, num_hidden_layers=2, num_attention_heads=16,
            num_key_value_heads=8, use_cache=False))
        inputs = torch.zeros(1, 4096, dtype=torch.int64)
    model = mw.from_torch(module.eval(), (inputs,))

    def plan(**more):
        return model.parallelize(mesh={"tp": 8}, device="h100", **more)

    with pytest.raises(mw.Error, match="most frugal order") as refused:
        plan(overlap="off", memory_ceiling=1)
    ceiling = int(re.search(r"needs (\d+) bytes", str(refused.value))[1])
    assert plan().ir("rt").count("rt.start") > plan(overlap="off").ir("rt").count("rt.start")
    with pytest.raises(mw.Error, match=r"'overlap=auto' may need less"):
        plan(overlap="on", memory_ceiling=ceiling)
    fitting = plan(memory_ceiling=ceiling)
    assert 'rt.chunks = "none"' in fitting.ir("spmd")
    assert sum(fitting.report("json")["memory_per_rank"].values()) <= ceiling


@pytest.mark.parametrize("offset", [0, 2048, 3072])
def test_places(tmp_path, offset):
    """In a buffer of its own, and over an operand without later users."""
    x = torch.randn(6, 40)
    out = run_module(tmp_path, PLANNED.replace("AT", str(offset)), {"x": x})
    torch.testing.assert_close(out["a"], -x.exp(), rtol=0, atol=1e-5)
    torch.testing.assert_close(out["b"], 2 * x.exp(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("offset, problem", [
    (1024, "over a value that is needed later"),
    (2112, "over operand 0, which it reads at other places"),
    (4096, "outside of the arena"),
])
def test_wrong_places_are_refused(tmp_path, offset, problem):
    text = PLANNED.replace("AT", str(offset))
    said = run_module(tmp_path, text, {"x": torch.randn(6, 40)}, status=1)
    assert problem in said and "rt.kernel" in said
