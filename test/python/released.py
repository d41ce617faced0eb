# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Small models of transformers, and checkpoints of them as they are released."""
import json
import re

import torch
import torch.nn.functional as F
import transformers as tf
from safetensors.torch import load_file, save_file

E8M0 = torch.float8_e8m0fnu
NUMBERS = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=100, max_position_embeddings=64, use_cache=False)
_DEEPSEEK = dict(num_key_value_heads=4, num_hidden_layers=3, n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2,
                 moe_intermediate_size=44, first_k_dense_replace=1, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=8,
                 qk_nope_head_dim=16, v_head_dim=16)
MODELS = {
    "llama": (tf.LlamaForCausalLM, tf.LlamaConfig, {}),
    "llama, tied": (tf.LlamaForCausalLM, tf.LlamaConfig, dict(tie_word_embeddings=True)),
    "gemma2": (tf.Gemma2ForCausalLM, tf.Gemma2Config, dict(head_dim=16)),
    "mixtral": (tf.MixtralForCausalLM, tf.MixtralConfig, dict(num_local_experts=4)),
    "qwen3_moe": (tf.Qwen3MoeForCausalLM, tf.Qwen3MoeConfig,
                  dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=44, head_dim=16)),
    "deepseek_v3": (tf.DeepseekV3ForCausalLM, tf.DeepseekV3Config, _DEEPSEEK),
    "granitemoe": (tf.GraniteMoeForCausalLM, tf.GraniteMoeConfig, dict(num_local_experts=4, num_experts_per_tok=2)),
    "gpt_oss": (tf.GptOssForCausalLM, tf.GptOssConfig,
                dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=8,
                     rope_scaling={"rope_type": "default", "rope_theta": 1e4})),
}


def model(name):
    """A model on the meta device."""
    kind, config, own = MODELS[name]
    with torch.device("meta"):
        return kind(config(**{**BASE, **own})).eval()


def entries(name, folder, dtype=torch.float32):
    """Random entries of a model, under the names of its release."""
    kind, config, own = MODELS[name]
    net = kind(config(**{**BASE, **own})).to(dtype)
    for key, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            tensor.normal_(1 if "norm" in key else 0, 0.08)
    net.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return stored


def write(folder, stored, files=1, config=None):
    """Writes entries as one file, or as several with an index, in an order of their own."""
    keys = sorted(stored, key=lambda key: key[::-1])
    names = ["model.safetensors"] if files == 1 else [f"model-{i + 1:05}-of-{files:05}.safetensors" for i in range(files)]
    at = {key: names[i * files // len(keys)] for i, key in enumerate(keys)}
    for name in names:
        save_file({key: stored[key].contiguous() for key in keys if at[key] == name}, folder / name, {"format": "pt"})
    if files > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": at}))
    path = folder / "config.json"
    if config is not None:
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return at


def truth(name, folder, counts, dtype=torch.float32):
    """The model as transformers loads it, from entries as they count."""
    folder.mkdir()
    kind, config, own = MODELS[name]
    config(**{**BASE, **own}).save_pretrained(folder)
    save_file(counts, folder / "model.safetensors", {"format": "pt"})
    return kind.from_pretrained(folder, dtype=dtype).eval()


# The forms.

def to_blocks(w, block, scale=torch.float32):
    """E4M3 codes and a scale for each block."""
    (n, k), (r, c) = w.shape, block
    rows, columns = -(-n // r), -(-k // c)
    padded = F.pad(w.float(), (0, columns * c - k, 0, rows * r - n)).unflatten(0, (rows, r)).unflatten(2, (columns, c))
    scales = padded.abs().amax((1, 3)).clamp(min=1e-6) / 448
    scales = scales.log2().ceil().exp2() if scale in (E8M0, torch.uint8) else scales.to(scale).float()
    codes = (padded / scales[:, None, :, None]).flatten(2).flatten(0, 1)[:n, :k].to(torch.float8_e4m3fn)
    stored = scales.to(E8M0).view(torch.uint8) if scale == torch.uint8 else scales.to(scale)
    return codes, stored, codes.float() * scales.repeat_interleave(r, 0)[:n].repeat_interleave(c, 1)[:, :k]


def to_mxfp4(w):
    """The blocks and exponents of a weight of the module [experts, in, out], and its numbers."""
    groups = w.mT.float().unflatten(-1, (-1, 32))
    exponents = (groups.abs().amax(-1).clamp(min=1e-6) / 6).log2().ceil()
    codes = ((groups / exponents.exp2()[..., None])[..., None] - NUMBERS).abs().argmin(-1).to(torch.uint8)
    numbers = (NUMBERS[codes.long()] * exponents.exp2()[..., None]).flatten(-2).mT
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8), numbers


def in_fp8(stored, block, scale=torch.float32):
    """Entries with projections in FP8, and the same as they count."""
    result, counts = dict(stored), dict(stored)
    for key, w in stored.items():
        if re.search(r"_proj(_with_mqa)?\.weight$|kv_b_proj|\.w[123]\.weight$", key):
            result[key], result[key + "_scale_inv"], counts[key] = to_blocks(w, block, scale)
    return result, counts


def in_mxfp4(stored):
    """Entries with experts in MXFP4, and the same as they count."""
    result, counts = dict(stored), dict(stored)
    for key, w in stored.items():
        if re.search(r"experts\.(gate_up|down)_proj$", key):
            del result[key]
            result[key + "_blocks"], result[key + "_scales"], counts[key] = to_mxfp4(w)
            counts[key] = counts[key].contiguous()
    return result, counts
