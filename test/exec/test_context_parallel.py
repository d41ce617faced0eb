# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention over a sequence that is sharded: results beside PyTorch's in f64, bytes moved."""

import copy
import re

import meshwright as mw
import pytest
import torch
import transformers as tf

SMALL = dict(
    hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=101,
    max_position_embeddings=256, use_cache=False,
)  # fmt: skip
MODELS = {
    "llama 8:2": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(**SMALL, num_attention_heads=8, num_key_value_heads=2)
    ),
    "llama 8:1": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(**SMALL, num_attention_heads=8, num_key_value_heads=1)
    ),
    "mistral": lambda: tf.MistralForCausalLM(
        tf.MistralConfig(**SMALL, num_attention_heads=4, num_key_value_heads=4, sliding_window=9)
    ),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(n_embd=48, n_layer=2, n_head=6, vocab_size=101, n_positions=64, use_cache=False)
    ),
    "bert": lambda: tf.BertModel(tf.BertConfig(**SMALL, num_attention_heads=4)),
    "t5": lambda: tf.T5EncoderModel(
        tf.T5Config(d_model=48, d_kv=8, d_ff=96, num_layers=2, num_heads=6, vocab_size=101)
    ),
}  # fmt: skip


def compare(model, ids, mesh, context, **kwargs):
    with torch.no_grad():
        want = copy.deepcopy(model).double()(ids, **kwargs)[0]
    plan = mw.from_torch(model, (ids,), kwargs).parallelize(mesh=mesh, context_parallel=context)
    got = plan.run(ids, **kwargs)[0].double()
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    return plan


MESHES = [
    ({"ulysses": 2}, 3, 7),
    ({"ulysses": 4}, 1, 33),
    ({"tp": 2, "ulysses": 2}, 1, 31),
    ({"ulysses": 2}, 1, 1),
    ({"ulysses": 3}, 2, 16),
    ({"ulysses": 8}, 1, 5),
    ({"dp": 2, "ulysses": 2}, 3, 9),
]
# Every model on three of them, every one of them for two models at least.
CASES = [(name, *MESHES[(2 * i + j) % len(MESHES)]) for i, name in enumerate(MODELS) for j in range(3)]


@pytest.mark.parametrize("name, mesh, batch, length", CASES, ids=str)
def test_ulysses(name, mesh, batch, length):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    ids = torch.randint(0, 101, (batch, length))
    compare(model, ids, mesh, {"ulysses": "ulysses"})


# Ring and ulysses, order, batch, length; lengths that are shorter than the ring, that
# do not divide, and one token.
RINGS = [
    ({"ring": 2}, "zigzag", 1, 33),
    ({"ring": 3}, "contiguous", 2, 7),
    ({"ring": 4}, "striped", 1, 19),
    ({"ring": 2, "ulysses": 2}, "zigzag", 3, 5),
    ({"ulysses": 2, "ring": 2}, "striped", 1, 40),
    ({"ring": 4, "ulysses": 2}, "zigzag", 1, 2),
    ({"tp": 2, "ring": 2, "ulysses": 2}, "zigzag", 1, 21),
    ({"dp": 2, "ring": 3}, "auto", 3, 1),
]
RING_CASES = [
    (name, *RINGS[(3 * i + j) % len(RINGS)]) for i, name in enumerate(MODELS) for j in range(3)
]


@pytest.mark.parametrize("name, mesh, order, batch, length", RING_CASES, ids=str)
def test_ring(name, mesh, order, batch, length):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    ids = torch.randint(0, 101, (batch, length))
    context = {"ring": "ring", "order": order}
    if "ulysses" in mesh:
        context["ulysses"] = "ulysses"
    plan = compare(model, ids, mesh, context)
    kinds = {entry["kind"] for entry in plan.report(format="json")["collectives"]}
    # Of a sequence nothing is gathered; replicated key heads are.
    assert "all_gather" not in kinds or "ulysses" in mesh or "tp" in mesh
    plan.check(ids)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
def test_ring_windows(order):
    """Steps that the window leaves empty on all ranks are neither sent nor computed."""
    torch.manual_seed(0)
    model = MODELS["mistral"]().eval()
    ids = torch.randint(0, 101, (1, 128))
    plan = compare(model, ids, {"ring": 4}, {"ring": "ring", "order": order})
    # In zigzag order neighbours are on neighbours, in both directions of the ring.
    steps = {"contiguous": 1, "zigzag": 2, "striped": 3}[order]
    report = plan.report(format="json")
    assert {entry["kind"] for entry in report["collectives"]} == {"permute"}
    assert report["launches_per_rank"] == 2 * steps


# Contiguous, where keys travel only to ranks that see them.
@pytest.mark.parametrize("name, mesh, batch, length", [
    ("llama 8:2", {"ring": 3}, 1, 2),
    ("llama 8:2", {"ring": 4}, 3, 7),
    ("mistral", {"ring": 4}, 1, 97),
    ("mistral", {"ulysses": 2, "ring": 2}, 1, 7),
    ("mistral", {"ring": 3}, 1, 1000),
    ("gpt2", {"ring": 4}, 1, 61),
    ("llama 8:1", {"ring": 2, "ulysses": 2}, 1, 97),
    ("llama 8:2", {"tp": 2, "ring": 4}, 1, 33),
    ("bert", {"ring": 4}, 1, 5),
    ("t5", {"ring": 4}, 2, 3),
], ids=str)  # fmt: skip
def test_ring_that_leaves_ranks_out(name, mesh, batch, length):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    if length > 256:
        model = tf.MistralForCausalLM(tf.MistralConfig(
            **SMALL | {"max_position_embeddings": length}, num_attention_heads=4,
            num_key_value_heads=4, sliding_window=400)).eval()  # fmt: skip
    ids = torch.randint(0, 101, (batch, length))
    context = {axis: axis for axis in mesh if axis != "tp"} | {"order": "contiguous"}
    plan = compare(model, ids, mesh, context)
    assert "pairs [[" in plan.ir(phase="spmd")
    plan.check(ids)


@pytest.mark.parametrize("ring", [2, 3, 4])
def test_bytes_of_a_causal_ring(ring):
    """R (R-1)/2 chunks in contiguous order, R (R-1) in zigzag order; seen as planned."""
    torch.manual_seed(0)
    model = MODELS["llama 8:2"]().eval()
    ids = torch.randint(0, 101, (1, 48))
    chunk = 2 * (48 // ring) * 2 * 8 * 4  # keys and values, tokens, heads, head size, bytes
    for order, chunks in (("contiguous", ring * (ring - 1) // 2), ("zigzag", ring * (ring - 1))):
        plan = compare(model, ids, {"ring": ring}, {"ring": "ring", "order": order})
        report = plan.report(format="json")
        assert report["bytes_of_all_ranks"] == 2 * chunks * chunk
        assert report["bytes_per_rank"] == 2 * (ring - 1) * chunk
        plan.run(ids, measure=True)
        seen = plan.report(format="json")["run"]["communication"]
        assert seen["bytes_sent_by_all"] == report["bytes_of_all_ranks"]
        assert seen["bytes_sent"] == report["bytes_per_rank"]


def test_bytes_of_ring():
    """(R-1) times the local keys and values, a launch each step for both."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(**SMALL, num_attention_heads=8, num_key_value_heads=2)
    model = tf.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 101, (1, 64))
    plan = compare(model, ids, {"ring": 4}, {"ring": "ring"})
    report = plan.report(format="json")
    assert {entry["kind"] for entry in report["collectives"]} == {"permute"}
    assert report["launches_per_rank"] == 2 * 3
    assert report["bytes_per_rank"] == 2 * 3 * 2 * (64 // 4) * 2 * 8 * 4


@pytest.mark.parametrize("name, mesh, order, batch, length", [
    ("llama 8:2", {"ring": 2}, "zigzag", 1, 33),
    ("llama 8:2", {"ring": 4}, "striped", 1, 19),
    ("llama 8:2", {"tp": 2, "ring": 3}, "zigzag", 1, 24),
    ("llama 8:1", {"tp": 2, "ring": 2, "ulysses": 2}, "contiguous", 1, 32),
    ("mistral", {"ring": 4}, "contiguous", 1, 64),
    ("llama 8:2", {"tp": 2, "ring": 2}, "zigzag", 2, 32),
    ("t5", {"tp": 2, "ring": 2}, "contiguous", 1, 64),
], ids=str)  # fmt: skip
def test_overlap_of_ring(name, mesh, order, batch, length):
    """Keys that travel while attention is computed, and chunks of the rest, change no bit."""
    torch.manual_seed(0)
    ids = torch.randint(0, 101, (batch, length))
    model = mw.from_torch(MODELS[name]().eval(), (ids,))
    context = {axis: axis for axis in mesh if axis != "tp"} | {"order": order}
    on, off = (model.parallelize(mesh=mesh, context_parallel=context, overlap=overlap)
               for overlap in ("on", "off"))
    assert torch.equal(on.run(ids)[0], off.run(ids)[0])
    # The first permute starts before the first attention, and is waited for behind it.
    text = on.ir(phase="rt")
    start = re.search(r"(%\w+) = rt.start [^\n]*\n[^\n]*\n[^\n]*dist.permute", text)
    wait = text.index(f"rt.wait {start[1]} ")
    assert start.start() < text.index("nn.attention") < wait


@pytest.mark.parametrize("mesh, batch", [({"ulysses": 2}, 1), ({"ulysses": 2, "ring": 2}, 2)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_overlap_of_ulysses(name, mesh, batch):
    """Chunks of heads, or of a batch, change no bit, for any mask."""
    torch.manual_seed(0)
    ids = torch.randint(0, 101, (batch, 17))
    model = mw.from_torch(MODELS[name]().eval(), (ids,))
    context = {axis: axis for axis in mesh}
    on, off = (model.parallelize(mesh=mesh, context_parallel=context, overlap=overlap)
               for overlap in ("on", "off"))
    assert torch.equal(on.run(ids)[0], off.run(ids)[0])
    decisions = [d["outcome"] for d in on.report(format="json")["decisions"] if d["pass"] == "split-collectives"]
    # Two key/value heads are too few for chunks on two ranks.
    assert ("applied" in decisions) == (name != "llama 8:2" or batch > 1)


def test_order_without_a_causal_mask():
    """Declined with a remark: all ranks have the same to do."""
    torch.manual_seed(0)
    model = MODELS["bert"]().eval()
    ids = torch.randint(0, 101, (1, 8))
    plan = compare(model, ids, {"ring": 2}, {"ring": "ring", "order": "zigzag"})
    decisions = plan.report(format="json")["decisions"]
    declined = [d for d in decisions if d["outcome"] == "declined" and "zigzag" in d["message"]]
    assert declined and "not causal" in declined[0]["message"]


@pytest.mark.parametrize("mesh, message", [
    ({"ulysses": 2}, "zigzag order without a ring"),
    ({"ulysses": 1}, "have one rank"),
], ids=str)  # fmt: skip
def test_what_does_nothing_is_a_remark(mesh, message):
    model = mw.from_torch(MODELS["llama 8:2"]().eval(), (torch.zeros(1, 8, dtype=torch.long),))
    plan = model.parallelize(mesh=mesh, context_parallel={"ulysses": "ulysses", "order": "zigzag"})
    decisions = plan.report(format="json")["decisions"]
    assert any(d["outcome"] == "declined" and message in d["message"] for d in decisions)


VIDEO = ["flux", "ltx", "hunyuan", "aura", "mochi"]


class FixedMask(torch.nn.Module):
    """A denoiser whose prompts have one length: the mask is a constant of the module."""

    def __init__(self, model, mask):
        super().__init__()
        self.model = model
        self.register_buffer("mask", mask)

    def forward(self, **inputs):
        return self.model(encoder_attention_mask=self.mask, **inputs)


def video_model(diffusers, name):
    heads = dict(num_attention_heads=4, attention_head_dim=16)
    args = dict(encoder_hidden_states=torch.randn(1, 8, 32), return_dict=False)
    video, mask = torch.randn(1, 4, 2, 8, 8), torch.tensor([[1] * 6 + [0] * 2])
    if name == "flux":
        y, x = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
        ids = torch.stack([torch.zeros(16), y.flatten(), x.flatten()], 1)
        args |= dict(hidden_states=torch.randn(1, 16, 16), pooled_projections=torch.randn(1, 32), timestep=torch.tensor([0.5]), img_ids=ids, txt_ids=torch.zeros(8, 3))
        model = diffusers.FluxTransformer2DModel(**heads, patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8))
    elif name == "ltx":
        args |= dict(hidden_states=torch.randn(1, 32, 8), timestep=torch.tensor([5]), encoder_attention_mask=mask, num_frames=2, height=4, width=4)
        model = diffusers.LTXVideoTransformer3DModel(**heads, in_channels=8, out_channels=8, cross_attention_dim=64, num_layers=1, caption_channels=32)
    elif name == "hunyuan":
        args |= dict(hidden_states=video, timestep=torch.tensor([5]), encoder_attention_mask=mask, pooled_projections=torch.randn(1, 16), guidance=torch.tensor([6.0]))
        model = diffusers.HunyuanVideoTransformer3DModel(**heads, in_channels=4, out_channels=4, num_layers=1, num_single_layers=1, num_refiner_layers=1, patch_size=2, patch_size_t=1, text_embed_dim=32, pooled_projection_dim=16, rope_axes_dim=(4, 4, 8))
    elif name == "aura":
        args |= dict(hidden_states=torch.randn(1, 4, 8, 8), timestep=torch.tensor([0.5]))
        model = diffusers.AuraFlowTransformer2DModel(**heads, sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, joint_attention_dim=32, caption_projection_dim=64, out_channels=4, pos_embed_max_size=64)
    else:
        args |= dict(hidden_states=video, timestep=torch.tensor([5]))
        model = FixedMask(diffusers.MochiTransformer3DModel(**heads, patch_size=2, num_layers=1, pooled_projection_dim=32, in_channels=4, text_embed_dim=32, time_embed_dim=16, max_sequence_length=16), mask.bool())
    return model.eval(), args


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"ring": 2, "ulysses": 2}], ids=str)
@pytest.mark.parametrize("name", VIDEO)
def test_more_diffusion(name, mesh):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model, args = video_model(diffusers, name)
    wide = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in args.items()}
    with torch.no_grad():
        want = copy.deepcopy(model).double()(**wide)[0]
    context = {axis: axis for axis in mesh if axis != "tp"}
    options = {"context_parallel": context} if context else {}
    got = mw.from_torch(model, (), args).parallelize(mesh=mesh, **options).run(**args)[0].double()
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


def diffusers_model(name):
    diffusers = pytest.importorskip("diffusers")
    common = dict(sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8)
    args = dict(hidden_states=torch.randn(1, 4, 16, 16), return_dict=False)
    args["encoder_hidden_states"] = torch.randn(1, 7, 24)
    if name == "sd3":
        args |= dict(pooled_projections=torch.randn(1, 20), timestep=torch.tensor([3.0]))
        return diffusers.SD3Transformer2DModel(
            **common, num_attention_heads=4, joint_attention_dim=24, caption_projection_dim=32,
            pooled_projection_dim=20, out_channels=4, pos_embed_max_size=16,
        ).eval(), args  # fmt: skip
    args |= dict(timestep=torch.tensor([3]), added_cond_kwargs={})
    return diffusers.PixArtTransformer2DModel(
        **common, num_attention_heads=4, out_channels=8, cross_attention_dim=32,
        caption_channels=24, norm_num_groups=4,
    ).eval(), args  # fmt: skip


# Three does not divide the eight rows of patches.
@pytest.mark.parametrize(
    "mesh",
    [{"ulysses": 2}, {"ring": 2}, {"ring": 2, "ulysses": 2}, {"ring": 3}, {"ulysses": 2, "ring": 3}],
    ids=str,
)
@pytest.mark.parametrize("name", ["sd3", "pixart"])
def test_diffusion(name, mesh):
    """Image tokens are sharded, the prompt's few are whole; no sequence is gathered."""
    torch.manual_seed(0)
    model, args = diffusers_model(name)
    wide = {k: v.double() if k != "timestep" and torch.is_tensor(v) else v for k, v in args.items()}
    with torch.no_grad():
        want = copy.deepcopy(model).double()(**wide)[0]
    context = {axis: axis for axis in mesh}
    plan = mw.from_torch(model, (), args).parallelize(mesh=mesh, context_parallel=context)
    got = plan.run(**args)[0].double()
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    report = plan.report(format="json")
    kinds = {entry["kind"] for entry in report["collectives"]}
    assert kinds >= {{"ulysses": "all_to_all", "ring": "permute"}[axis] for axis in mesh}
    # 64 image tokens of 32 features would be 8 KiB.
    gathered = [e for e in report["collectives"] if e["kind"] == "all_gather"]
    assert all(e["bytes_per_rank"] < 1024 * e["count"] for e in gathered)


@pytest.mark.parametrize("shape, mesh", [
    ((1, 4, 1, 8, 8), {"ring": 8}),  # four rows of two pixels: padded to eight rows, not cut to pixels
    ((1, 4, 2, 8, 8), {"ring": 8, "ulysses": 4}),
    ((1, 4, 3, 4, 12), {"ring": 2, "ulysses": 8}),  # no factor takes all of eight
], ids=str)  # fmt: skip
def test_more_ranks_than_rows(shape, mesh):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=24, in_channels=4,
        out_channels=4, text_dim=32, freq_dim=32, ffn_dim=96, num_layers=1, rope_max_seq_len=32,
    ).eval()  # fmt: skip
    args = dict(hidden_states=torch.randn(shape), timestep=torch.tensor([5.0]),
                encoder_hidden_states=torch.randn(1, 7, 32))  # fmt: skip
    with torch.no_grad():
        want = copy.deepcopy(model).double()(**{k: v.double() for k, v in args.items()})[0]
    plan = mw.from_torch(model, (), args).parallelize(
        mesh=mesh, context_parallel={axis: axis for axis in mesh}
    )
    got = plan.run(**args)[0].double()
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


class Chained(torch.nn.Module):
    def forward(self, x, y):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(attend(x, x, x), y, y)


@pytest.mark.parametrize("context", [{"ring": "up"}, {"ulysses": "up"}], ids=str)
def test_attention_to_what_attention_made(context):
    torch.manual_seed(0)
    x, y = torch.randn(2, 1, 2, 9, 16)
    plan = mw.from_torch(Chained(), (x, y)).parallelize(mesh={"up": 2}, context_parallel=context)
    want = Chained()(x.double(), y.double())
    assert (plan.run(x, y)[0].double() - want).abs().max() <= 1e-5 * want.abs().max()


class Grouped(torch.nn.Module):
    """Causal attention over tokens that are grouped behind it."""

    def __init__(self, window=None):
        super().__init__()
        self.window = window

    def forward(self, x):
        i = torch.arange(x.shape[2])
        seen = i[None] <= i[:, None]
        if self.window:
            seen = seen & (i[None] > i[:, None] - self.window)
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen)
        return y.unflatten(2, (-1, 3)).square().sum(3)


class GroupedLoss(Grouped):
    def __init__(self, shape, window):
        super().__init__(window)
        self.x = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))

    def forward(self, scale):
        return super().forward(self.x * scale).sin().mean()


@pytest.mark.parametrize("window", [None, 4], ids=str)
@pytest.mark.parametrize("groups", [4, 5, 1])
@pytest.mark.parametrize("mesh", [{"r": 2}, {"r": 3}, {"r": 2, "u": 2}], ids=str)
def test_positions_of_grouped_tokens(window, groups, mesh):
    torch.manual_seed(0)
    context = {"ring": "r"} | ({"ulysses": "u"} if "u" in mesh else {})
    x = torch.randn(2, 2, 3 * groups, 8)
    plan = mw.from_torch(Grouped(window), (x,)).parallelize(mesh=mesh, context_parallel=context)
    want = Grouped(window)(x.double())
    assert (plan.run(x)[0] - want).abs().max() <= 1e-5 * want.abs().max()

    net, scale = GroupedLoss((1, 2, 3 * groups, 8), window), torch.tensor(1.5, dtype=torch.float64)
    model = mw.from_torch(net, (scale,), training=True).differentiate()
    loss, gradient = model.parallelize(mesh=mesh, context_parallel=context).run(scale)
    want = net(scale)
    want.backward()
    assert abs(float(loss) - want.item()) <= 1e-12
    assert (gradient - net.x.grad).abs().max() <= 1e-12 * net.x.grad.abs().max()


def test_padding_mask_on_a_ring():
    torch.manual_seed(0)
    model = MODELS["bert"]().eval()
    ids = torch.randint(0, 101, (3, 7))
    mask = (torch.arange(7)[None] < torch.tensor([[7], [3], [1]])).long()
    mesh = {"ring": 2, "ulysses": 2}
    context = {"ring": "ring", "ulysses": "ulysses"}
    compare(model, ids, mesh, context, attention_mask=mask)


class ScaledValues(torch.nn.Module):
    """Values divided by what is zero in the padding of a sequence."""

    def forward(self, x):
        keys = x.view(1, -1, 2, 8).transpose(1, 2)
        values = (x / x.abs().amax(-1, keepdim=True)).view(1, -1, 2, 8).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(keys, keys, values)


@pytest.mark.parametrize("context", [{"ring": "r"}, {"ulysses": "r"}], ids=str)
@pytest.mark.parametrize("length", [3, 7, 29])
def test_values_that_are_no_numbers_in_padding(context, length):
    torch.manual_seed(0)
    x = torch.randn(1, length, 16)
    plan = mw.from_torch(ScaledValues(), (x,)).parallelize(mesh={"r": 2}, context_parallel=context)
    want = ScaledValues()(x)
    assert (plan.run(x)[0] - want).abs().max() <= 1e-5 * want.abs().max()


def test_padding_mask():
    torch.manual_seed(0)
    model = MODELS["bert"]().eval()
    ids = torch.randint(0, 101, (3, 7))
    mask = (torch.arange(7)[None] < torch.tensor([[7], [3], [1]])).long()
    compare(model, ids, {"ulysses": 2}, {"ulysses": "ulysses"}, attention_mask=mask)


def test_bytes_of_ulysses():
    """(U-1)/U of the local q, k, v and output, in two launches a layer, nothing gathered."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(**SMALL, num_attention_heads=8, num_key_value_heads=4)
    model = tf.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 101, (1, 64))
    plan = compare(model, ids, {"ulysses": 4}, {"ulysses": "ulysses"})
    report = plan.report(format="json")
    assert {c["kind"] for c in report["collectives"]} == {"all_to_all"}
    local = 64 // 4 * 8 * 4  # tokens x head size x bytes
    heads = 8 + 4 + 4 + 8
    assert report["bytes_per_rank"] == 2 * local * heads * 3 // 4
    assert report["launches_per_rank"] == 4


@pytest.mark.parametrize("heads, key_heads, mesh, order, own, own_keys", [
    (6, 3, {"ulysses": 2}, "auto", 3, 3),  # groups split: padded keys would be 4 : 2
    (10, 5, {"ulysses": 4}, "auto", 3, 3),  # keys over 2, padded to 6, groups over 2
    (24, 3, {"ulysses": 4}, "auto", 6, 3),
    (32, 8, {"ulysses": 6}, "auto", 6, 3),  # keys over 3, padded to 9
    (14, 7, {"ulysses": 2}, "auto", 8, 4),  # padded: copies of 7 would be more bytes
    (6, 3, {"ring": 2, "ulysses": 2}, "zigzag", 4, 2),  # and copies go around a ring
    (12, 6, {"tp": 2, "ulysses": 2}, "auto", 3, 3),
    (12, 6, {"ring": 2, "ulysses": 4}, "striped", 4, 2),
], ids=str)  # fmt: skip
def test_key_heads_that_do_not_divide(heads, key_heads, mesh, order, own, own_keys):
    """More key heads than ranks, but no multiple: split or padded, as sends less."""
    torch.manual_seed(0)
    config = SMALL | dict(hidden_size=8 * heads, num_hidden_layers=1)
    model = tf.LlamaForCausalLM(
        tf.LlamaConfig(**config, num_attention_heads=heads, num_key_value_heads=key_heads)
    ).eval()
    ids = torch.randint(0, 101, (2, 21))
    context = {axis: axis for axis in mesh if axis != "tp"} | {"order": order}
    plan = compare(model, ids, mesh, context)
    attention = next(line for line in plan.ir().splitlines() if "nn.attention" in line)
    shapes = re.findall(r"tensor<\d+x(\d+)x\d+x8xf32>", attention)
    assert [int(size) for size in shapes[:2]] == [own, own_keys]


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, 4, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, 32))


class Video(torch.nn.Module):
    """Attention over the patches of each frame, then over the frames of each patch."""

    def __init__(self):
        super().__init__()
        self.space, self.time = Attention(), Attention()

    def forward(self, x):
        batch, frames, patches, features = x.shape
        x = self.space(x.flatten(0, 1)).view(x.shape).transpose(1, 2)
        return self.time(x.flatten(0, 1)).view(batch, patches, frames, features).transpose(1, 2)


@pytest.mark.parametrize("mesh", [
    {"ulysses": 2}, {"ring": 2}, {"ring": 2, "ulysses": 2}, {"tp": 2, "ring": 2}
], ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 3, 9, 32), (2, 4, 8, 32)], ids=str)
def test_sequences_in_turn(shape, mesh):
    """The sequence of one attention is in the batch of the other."""
    torch.manual_seed(0)
    context = {axis: axis for axis in mesh if axis != "tp"}
    model, x = Video().eval(), torch.randn(shape)
    got, = mw.from_torch(model, (x,)).parallelize(mesh=mesh, context_parallel=context).run(x)
    with torch.no_grad():
        want = copy.deepcopy(model).double()(x.double())
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
