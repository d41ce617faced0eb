# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models of transformers, as their classes build them."""
import pytest
import torch
from import_checks import count, same

tf = pytest.importorskip("transformers")


def config(cls, **options):
    return cls(**{**dict(hidden_size=72, intermediate_size=150, num_hidden_layers=2,
                         num_attention_heads=6, vocab_size=203, max_position_embeddings=1200),
                  **options})


T5 = dict(d_model=72, d_kv=16, d_ff=150, num_layers=2, num_heads=6, vocab_size=203)
FALCON = dict(hidden_size=72, num_hidden_layers=2, num_attention_heads=6, vocab_size=203)
MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(config(tf.LlamaConfig, num_key_value_heads=2)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(config(tf.Qwen3Config, num_key_value_heads=2,
                                                head_dim=16)),
    "mistral": lambda: tf.MistralForCausalLM(config(tf.MistralConfig, num_key_value_heads=3,
                                                    sliding_window=8)),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=72, n_layer=2, n_head=6,
                                                     vocab_size=203, n_positions=1200)),
    "bert": lambda: tf.BertModel(config(tf.BertConfig)),
    "t5": lambda: tf.T5EncoderModel(tf.T5Config(**T5)),
    "t5_gated": lambda: tf.T5EncoderModel(tf.T5Config(feed_forward_proj="gated-gelu", **T5)),
    "falcon": lambda: tf.FalconForCausalLM(tf.FalconConfig(**FALCON)),
    "falcon_new": lambda: tf.FalconForCausalLM(tf.FalconConfig(
        new_decoder_architecture=True, num_kv_heads=2, **FALCON)),
    "falcon_alibi": lambda: tf.FalconForCausalLM(tf.FalconConfig(
        multi_query=False, alibi=True, parallel_attn=False, bias=True, **FALCON)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(config(tf.Gemma2Config, num_key_value_heads=2,
                                                  head_dim=16, sliding_window=8)),
    "gpt_neox": lambda: tf.GPTNeoXForCausalLM(config(tf.GPTNeoXConfig)),
    "phi3": lambda: tf.Phi3ForCausalLM(config(tf.Phi3Config, num_key_value_heads=2, pad_token_id=0,
                                              bos_token_id=1, eos_token_id=2)),
    "cohere": lambda: tf.CohereForCausalLM(config(tf.CohereConfig, num_key_value_heads=2)),
    "olmo2": lambda: tf.Olmo2ForCausalLM(config(tf.Olmo2Config, num_key_value_heads=2)),
    "deepseek_v3": lambda: tf.DeepseekV3ForCausalLM(config(
        tf.DeepseekV3Config, num_key_value_heads=6, q_lora_rank=24, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, first_k_dense_replace=2)),
    "modernbert": lambda: tf.ModernBertModel(config(tf.ModernBertConfig, local_attention=8,
                                                    pad_token_id=0)),
    "bloom": lambda: tf.BloomForCausalLM(tf.BloomConfig(hidden_size=72, n_layer=2, n_head=6,
                                                        vocab_size=203)),
}
PADDED = ("llama", "gpt2", "bert", "mistral", "t5", "falcon", "modernbert")
SHAPES = [(2, 17), pytest.param((1, 1), marks=pytest.mark.slow)]


def ids(batch, length):
    return torch.randint(1, 200, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_equal(name, shape):
    torch.manual_seed(1)
    imported = same(MODELS[name]().eval(), (ids(*shape),))
    assert "tensor<17x17x" not in imported.mlir or name.startswith(("t5", "falcon_alibi"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_equal_bf16(name):
    torch.manual_seed(1)
    same(MODELS[name]().eval().bfloat16(), (ids(2, 17),), tolerance=2e-2)


@pytest.mark.parametrize("name", PADDED)
def test_key_padding(name):
    torch.manual_seed(1)
    lengths = torch.tensor([[11], [5], [1]])
    mask = (torch.arange(11)[None] < lengths).long()
    imported = same(MODELS[name]().eval(), (ids(3, 11),), {"attention_mask": mask})
    # T5 hides keys by a finite number: a query that sees none gets the mean of all values.
    assert imported.mlir.count("key_padding") == (0 if name == "t5" else 2)
    assert imported.inputs == ["input_ids", "attention_mask"]


def test_structure():
    imported = same(MODELS["llama"]().eval(), (ids(2, 17),))
    ops = count(imported)
    assert (ops["attention"], ops["rotary"], ops["rms_norm"], ops["linear"]) == (2, 4, 5, 15)
    assert "softmax" not in ops and "matmul" not in ops
    assert imported.mlir.count("causal") == 2
    assert imported.outputs == ["logits"]
    assert "modeling_llama.py" in imported.mlir and '"model.layers.1.mlp.up_proj"' in imported.mlir
    ops = count(same(MODELS["gemma2"]().eval(), (ids(2, 17),)))
    assert ops["attention"] == 2 and ops["rms_norm"] == 9


def test_windows():
    mistral = same(MODELS["mistral"]().eval(), (ids(2, 17),)).mlir
    assert mistral.count("window_left = 7 : i64") == 2 and mistral.count("causal") == 2
    assert "window_right" in same(MODELS["modernbert"]().eval(), (ids(2, 17),)).mlir


def test_shared_weight():
    model = tf.LlamaForCausalLM(config(tf.LlamaConfig, tie_word_embeddings=True)).eval()
    imported = same(model, (ids(1, 7),))
    assert 'nn.aliases = ["lm_head.weight"], nn.parameter = "model.embed_tokens.weight"' in \
        imported.mlir
    assert imported.parameters["model.embed_tokens.weight"].data_ptr() == \
        model.lm_head.weight.data_ptr()


def test_meta():
    with torch.device("meta"):
        model = tf.LlamaForCausalLM(config(tf.LlamaConfig, num_key_value_heads=2)).eval()
        tokens = torch.zeros(1, 4096, dtype=torch.long)
    from meshwright.importer.torch import import_module
    imported = import_module(model, (tokens,))
    assert count(imported)["attention"] == 2 and "4096x4096" not in imported.mlir
    assert "constant.0" not in imported.parameters  # tables that grow with the sequence
    assert (count(imported)["cos"], count(imported)["iota"]) == (1, 1)
