#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A text encoder folded onto the axes of a diffusion transformer.

Composes a T5 encoder of transformers and Wan's transformer of diffusers (small, random weights)
into one program: the encoder once, the denoiser in a loop. The denoiser's sequence is sharded. The
encoder is folded onto the same ranks, in each of the modes of `fold`. The latents are compared with
PyTorch's in f64.

    python examples/diffusion_folding.py [--mesh ring=1,ulysses=4] [--steps 3] [--why]
"""

import argparse
import copy
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import diffusers
import meshwright as mw
import torch
import transformers

MODES = ["sp", "ulysses", "ring", "replica", "batch", "auto", None]


class Update(torch.nn.Module):
    """One step along the noise."""

    def forward(self, x, noise):
        return x - 0.1 * noise


def mesh_of(text):
    try:
        return {name: int(size) for name, size in (axis.split("=") for axis in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected name=size, as in ulysses=4") from None


def build(steps):
    """The composed model, its inputs, PyTorch's latents in f64 and its own error in f32."""
    torch.manual_seed(0)
    encoder = transformers.T5EncoderModel(
        transformers.T5Config(
            d_model=64, d_kv=16, d_ff=256, num_layers=2, num_heads=8, vocab_size=199
        )
    ).eval()
    denoiser = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=24, in_channels=4,
        out_channels=4, text_dim=64, freq_dim=32, ffn_dim=96, num_layers=2, rope_max_seq_len=32,
    ).eval()  # fmt: skip
    ids, x = torch.randint(0, 199, (2, 16)), torch.randn(2, 4, 2, 8, 8)
    time = torch.full((2,), 5.0)

    def pipeline(encoder, denoiser, x, time):
        text = encoder(ids).last_hidden_state
        for _ in range(steps):
            noise = denoiser(hidden_states=x, timestep=time, encoder_hidden_states=text).sample
            x = x - 0.1 * noise
        return text, x

    with torch.no_grad():
        exact = pipeline(
            copy.deepcopy(encoder).double(), copy.deepcopy(denoiser).double(), x.double(),
            time.double(),
        )[1]  # fmt: skip
        text, own = pipeline(encoder, denoiser, x, time)
    call = dict(hidden_states=x, timestep=time, encoder_hidden_states=text, return_dict=False)
    model = mw.compose(
        {
            "encoder": mw.from_torch(encoder, (ids,)),
            "denoiser": mw.from_torch(denoiser, (), call),
            "update": mw.from_torch(Update(), (x, x)),
        },
        connect={
            "denoiser.encoder_hidden_states": "encoder.0",
            "update.noise": "denoiser.0",
            "denoiser.hidden_states": "update.0",
            "update.x": "update.0",
        },
        loop=["denoiser", "update"],
        steps=steps,
    )
    inputs = {
        "encoder.input_ids": ids, "denoiser.hidden_states": x, "denoiser.timestep": time,
        "update.x": x,
    }  # fmt: skip
    return model, inputs, exact, error_of(own, exact)


def error_of(latents, exact):
    return (latents - exact).abs().max().item() / exact.abs().max().item()


def size(count):
    return f"{count / 1024:.0f} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", type=mesh_of, default={"ring": 1, "ulysses": 4},
                        help="axes ring and ulysses, and others, as in tp=2,ring=1,ulysses=2")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--why", action="store_true", help="print what auto compared")
    options = parser.parse_args()
    model, inputs, exact, own = build(options.steps)

    heads = ["fold", "encoder's weights", "denoiser's weights", "activations", "sent by a rank",
             "launches", "error"]  # fmt: skip
    rows, largest, chosen = [], 0.0, ""
    for mode in MODES:
        plan = model.parallelize(
            mesh=options.mesh,
            context_parallel={"ulysses": "ulysses", "ring": "ring"},
            fold={"encoder": mode},
        )
        (latents,) = plan.run(**inputs)
        error = error_of(latents, exact)
        largest = max(largest, error)
        report = plan.report(format="json")
        memory = report["memory_per_rank"]
        modules = memory["modules"]
        rows.append(
            [str(mode), size(modules["encoder"]["weights"]), size(modules["denoiser"]["weights"]),
             size(memory["activations_peak"]), size(report["bytes_per_rank"]),
             str(report["launches_per_rank"]), f"{error:.1e}"]
        )  # fmt: skip
        if mode == "auto":
            folded = [d for d in report["decisions"] if "fold=auto" in d["message"]]
            chosen = folded[0]["message"]
            if options.why:
                print(plan.report())
    mesh = ",".join(f"{name}={count}" for name, count in options.mesh.items())
    print(f"{options.steps} steps on mesh {mesh}; auto: {chosen}")
    print(f"errors are relative to the largest latent of PyTorch in f64; its own in f32 is {own:.1e}")
    print()
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    if largest > max(1e-5, 1.25 * own):
        sys.exit("error: the latents differ")


if __name__ == "__main__":
    main()
