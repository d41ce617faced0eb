# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A text encoder folded onto the axes of a diffusion transformer: results, memory, refusals."""

import copy
import functools

import diffusers
import meshwright as mw
import pytest
import torch
import transformers as tf
from torch import nn

STEPS = 2
CONNECT = {
    "denoiser.encoder_hidden_states": "encoder.0",
    "update.noise": "denoiser.0",
    "denoiser.hidden_states": "update.0",
    "update.x": "update.0",
}
CONTEXT = {"ulysses": "ulysses", "ring": "ring"}


class Update(nn.Module):
    def forward(self, x, noise):
        return x - 0.1 * noise


def t5(heads=4, width=64):
    torch.manual_seed(3)
    config = tf.T5Config(
        d_model=32, d_kv=8, d_ff=width, num_layers=2, num_heads=heads, vocab_size=96
    )
    return tf.T5EncoderModel(config).eval()


def wan():
    torch.manual_seed(4)
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=24, in_channels=4,
        out_channels=4, text_dim=32, freq_dim=32, ffn_dim=96, num_layers=1, rope_max_seq_len=32,
    ).eval()  # fmt: skip


@functools.cache
def pipeline(batch=1, tokens=7, **encoder):
    """The composed model, its inputs, and what PyTorch makes of them in f64."""
    encoder = t5(**encoder)
    torch.manual_seed(5)
    denoiser = wan()
    ids, x = torch.randint(0, 96, (batch, tokens)), torch.randn(batch, 4, 2, 8, 8)
    time = torch.full((batch,), 5.0)
    with torch.no_grad():
        text = copy.deepcopy(encoder).double()(ids).last_hidden_state
        exact, want = copy.deepcopy(denoiser).double(), x.double()
        for _ in range(STEPS):
            noise = exact(hidden_states=want, timestep=time.double(), encoder_hidden_states=text)
            want = want - 0.1 * noise.sample
    call = dict(
        hidden_states=x, timestep=time, encoder_hidden_states=text.float(), return_dict=False
    )
    models = {
        "encoder": mw.from_torch(encoder, (ids,)),
        "denoiser": mw.from_torch(denoiser, (), call),
        "update": mw.from_torch(Update(), (x, x)),
    }
    model = mw.compose(models, CONNECT, loop=["denoiser", "update"], steps=STEPS)
    inputs = {
        "encoder.input_ids": ids, "denoiser.hidden_states": x, "update.x": x,
        "denoiser.timestep": time,
    }  # fmt: skip
    return model, inputs, want


def encoder_bytes(plan):
    """Of the encoder's weights on one rank, from the signature of its program."""
    total = 0
    for line in plan.ir().splitlines():
        if "func.func @main" not in line:
            continue
        for argument in line.split("%arg")[1:]:
            if 'nn.parameter = "encoder.' in argument:
                shape = argument.split("tensor<")[1].split(">")[0].split("x")
                count = 4
                for size in shape[:-1]:
                    count *= int(size)
                total += count
    report = plan.report(format="json")["memory_per_rank"]
    modules = report["modules"]
    assert list(modules) == ["encoder", "denoiser", "update"]
    assert modules["encoder"]["weights"] == total and modules["update"]["weights"] == 0
    assert sum(module["weights"] for module in modules.values()) == report["weights"]
    peaks = [module["activations_peak"] for module in modules.values()]
    # That of the program is the arena, which gaps may make a little larger.
    assert max(peaks) <= report["activations_peak"] <= 1.1 * max(peaks)
    return total


MODES = ["sp", "ulysses", "ring", "replica", "batch", "auto", None]


@pytest.mark.parametrize(
    "mode, mesh",
    [("sp", {"ulysses": 4}), ("replica", {"tp": 2, "ulysses": 2}), ("batch", {"ulysses": 4})]
    + [("auto", {"tp": 2, "ulysses": 2})]
    + [
        pytest.param(mode, mesh, marks=pytest.mark.slow)
        for mesh in ({"ulysses": 4}, {"tp": 2, "ulysses": 2})
        for mode in MODES
    ],
    ids=str,
)
def test_modes(mode, mesh):
    model, inputs, want = pipeline(batch=2)
    plan = model.parallelize(
        mesh={**mesh, "ring": 1}, context_parallel=CONTEXT, fold={"encoder": mode}
    )
    (got,) = plan.run(**inputs)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    plan.check(**inputs)


@pytest.mark.parametrize(
    "mode, mesh, share",
    [
        ("ulysses", {"ulysses": 4}, 4),
        ("sp", {"ulysses": 8}, 8),
        ("replica", {"tp": 2, "ulysses": 2}, 4),
        ("ulysses", {"tp": 2, "ulysses": 2}, 2),
        (None, {"tp": 2, "ulysses": 2}, 2),
        ("batch", {"ulysses": 2}, 1),
    ],
)
def test_memory(mode, mesh, share):
    """A rank holds its share of the encoder; norms and the bias's table are small change."""
    model, _, _ = pipeline(batch=2, heads=8, width=256)
    mesh = {**mesh, "ring": 1}
    plan = model.parallelize(mesh=mesh, context_parallel=CONTEXT, fold={"encoder": mode})
    whole = model.parallelize(mesh={"tp": 1})
    assert encoder_bytes(plan) == pytest.approx(encoder_bytes(whole) / share, rel=0.03)


@pytest.mark.parametrize("heads, width", [(3, 50), (6, 75)])
def test_what_does_not_divide(heads, width):
    model, inputs, want = pipeline(heads=heads, width=width)
    plan = model.parallelize(
        mesh={"ring": 1, "ulysses": 4}, context_parallel=CONTEXT, fold={"encoder": "sp"}
    )
    (got,) = plan.run(**inputs)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert "padded" in plan.report(verbose=True)


def test_group_larger_than_the_encoder_can_use():
    """Two heads and a table of 96 rows on eight ranks: a part of them, and a remark."""
    model, inputs, want = pipeline(heads=2, width=9)
    plan = model.parallelize(
        mesh={"ring": 1, "ulysses": 8}, context_parallel=CONTEXT, fold={"encoder": "ulysses"}
    )
    text = plan.report(verbose=True)
    assert "are sharded over 2 of the 8 ranks" in text
    assert "9 features, heads or rows are padded to 16 on 8 ranks" in text
    (got,) = plan.run(**inputs)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


def test_report_names_modules():
    model, _, _ = pipeline()
    mesh = {"ring": 1, "ulysses": 2}
    text = model.parallelize(mesh=mesh, context_parallel=CONTEXT, fold={"encoder": "sp"}).report(verbose=True)
    lines = text[text.index("memory, per rank") :].splitlines()[1:6]
    assert [line.split()[0] for line in lines[1:]] == ["encoder", "denoiser", "update", "together"]


def test_auto_without_a_group():
    model, _, _ = pipeline()
    plan = model.parallelize(mesh={"dp": 1}, fold={"encoder": "auto"})
    assert "fold=auto has no group of more than one rank for stage 'encoder'" in plan.report(verbose=True)


def test_group_of_one_is_a_remark():
    model, _, _ = pipeline()
    plan = model.parallelize(
        mesh={"ring": 1, "ulysses": 2}, context_parallel=CONTEXT, fold={"encoder": "ring"}
    )
    assert "is not folded by 'ring': the group has one rank" in plan.report(verbose=True)


@pytest.mark.parametrize(
    "fold, message",
    [
        ({"encoder": "sideways"}, "expected a stage and sp, ulysses, ring, replica, batch, auto or none"),
        ({"decoder": "auto"}, "fold names stage 'decoder': expected one of encoder, denoiser, update"),
        ({"decoder": "sp"}, "fold names stage 'decoder': expected one of encoder, denoiser, update"),
    ],
)  # fmt: skip
def test_refusals(fold, message):
    model, _, _ = pipeline()
    with pytest.raises(mw.Error) as error:
        model.parallelize(mesh={"ring": 1, "ulysses": 2}, context_parallel=CONTEXT, fold=fold)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "mesh, context, message",
    [
        ({"tp": 2}, {"ulysses": "up"}, 'has no axis "up" for Ulysses attention'),
        ({"tp": 2}, {"ring": "up"}, 'has no axis "up" for ring attention'),
        ({"tp": 2}, {"ulysses": "tp"}, "is that of tensor parallelism: expected another"),
        ({"dp": 2}, {"ring": "dp"}, "is that of data parallelism: expected another"),
        ({"sp": 2}, {"ulysses": "sp", "ring": "sp"}, "expected two axes for ulysses and ring, got 'sp' for both"),
        ({"sp": 2}, {"ulysses": "sp", "order": "spiral"}, "cannot read 'order=spiral'"),
        ({"sp": 2}, {"order": "zigzag"}, "expected an axis for ulysses, ring or both"),
        ({"sp": 2}, None, "needs the axis that context-parallel names"),
    ],
)  # fmt: skip
def test_refuses_axes(mesh, context, message):
    model, _, _ = pipeline()
    with pytest.raises(mw.Error) as error:
        model.parallelize(mesh=mesh, context_parallel=context, fold={"encoder": "sp"})
    assert message in str(error.value)


def test_a_prompt_of_one_token():
    """A head of each rank, and one key: sizes of one, which may be any dimension."""
    model, inputs, want = pipeline(tokens=1)
    plan = model.parallelize(
        mesh={"ring": 1, "ulysses": 4}, context_parallel=CONTEXT, fold={"encoder": "sp"}
    )
    got = plan.run(**inputs)[-1]
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("tokens", [16, 20])
@pytest.mark.parametrize("mode", ["ulysses", "replica"])
def test_a_prompt_as_long_as_the_image(mode, tokens):
    """Joint attention shards the image's 16 tokens, not the prompt's, whose encoder has the axes."""
    encoder = t5()
    torch.manual_seed(6)
    denoiser = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=16,
        pooled_projection_dim=16, out_channels=4, pos_embed_max_size=16,
    ).eval()  # fmt: skip
    ids, x, pooled = torch.randint(0, 96, (1, tokens)), torch.randn(1, 4, 8, 8), torch.randn(1, 16)
    time = torch.tensor([5.0])
    with torch.no_grad():
        text = copy.deepcopy(encoder).double()(ids).last_hidden_state
        want = copy.deepcopy(denoiser).double()(
            x.double(), text, pooled.double(), time.double(), return_dict=False
        )[0]
    call = dict(
        hidden_states=x, encoder_hidden_states=text.float(), pooled_projections=pooled,
        timestep=time, return_dict=False,
    )  # fmt: skip
    models = {
        "encoder": mw.from_torch(encoder, (ids,)),
        "denoiser": mw.from_torch(denoiser, (), call),
    }
    model = mw.compose(models, {"denoiser.encoder_hidden_states": "encoder.0"})
    plan = model.parallelize(
        mesh={"tp": 2, "ring": 1, "ulysses": 2}, context_parallel=CONTEXT, fold={"encoder": mode}
    )
    decisions = [d["message"] for d in plan.report(format="json")["decisions"]]
    assert any("sequence of 16 is sharded over 2 ranks" in message for message in decisions)
    assert not any(f"sequence of {tokens} is" in message for message in decisions if tokens != 16)
    inputs = {
        "encoder.input_ids": ids, "denoiser.hidden_states": x, "denoiser.timestep": time,
        "denoiser.pooled_projections": pooled,
    }  # fmt: skip
    got = plan.run(**inputs)[-1]
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("batch, tokens", [(3, 9), (1, 1)])
def test_twice_as_many_ranks_as_heads(batch, tokens):
    """The axis of six is three of heads by two of their features, not two by three."""
    encoder = t5(heads=3, width=150)
    ids = torch.randint(0, 96, (batch, tokens))
    with torch.no_grad():
        want = copy.deepcopy(encoder).double()(ids).last_hidden_state
    plan = mw.from_torch(encoder, (ids,)).parallelize(mesh={"tp": 6}, sequence_parallel="off")
    got = plan.run(ids)[0]
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()


def test_sizes_of_one_in_every_dimension():
    """A head and a frame on each rank: of many candidate layouts the verifier finds the right one."""
    model, inputs, want = pipeline()
    plan = model.parallelize(
        mesh={"tp": 2, "ring": 2, "ulysses": 2}, context_parallel=CONTEXT, fold={"encoder": "sp"}
    )
    got = plan.run(**inputs)[-1]
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()
