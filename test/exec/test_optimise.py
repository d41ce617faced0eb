# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""SPMD programs with plain all-reduces, before and after the passes over them."""
import subprocess

import meshwright as mw
import pytest
import torch
from harness import assert_close, launch, tool
from safetensors.torch import load_file, save_file
from torch import nn

PASSES = ["--decompose-all-reduce=when=on", "--sink-all-gather", "--combine-collectives"]


def model(tokens):
    """Two blocks with parallel branches, biases, a replicated narrow projection."""
    x, hidden, narrow = (f"tensor<2x{tokens}x{size}xf32>" for size in (24, 50, 6))
    parameters = {"n": (24,), "up": (50, 24), "down": (24, 50), "bias": (24,), "a": (6, 24), "b": (50, 6)}
    signature = "".join(f', %{name}: tensor<{"x".join(map(str, shape))}xf32> {{nn.parameter = "{name}"}}'
                        for name, shape in parameters.items())
    body, value = [], "%x"

    def op(text):
        name = f"%v{len(body)}"
        body.append(f"  {name} = {text}")
        return name

    for _ in range(2):
        h = op(f"nn.rms_norm {value} weight %n eps 1.0e-6 : ({x}, tensor<24xf32>) -> {x}")
        u = op(f"nn.linear {h}, %up : ({x}, tensor<50x24xf32>) -> {hidden}")
        p = op(f"nn.gelu {u} : {hidden}")
        p = op(f"nn.linear {p}, %down bias %bias : ({hidden}, tensor<24x50xf32>, tensor<24xf32>) -> {x}")
        a = op(f"nn.linear {h}, %a : ({x}, tensor<6x24xf32>) -> {narrow}")
        q = op(f"nn.linear {a}, %b : ({narrow}, tensor<50x6xf32>) -> {hidden}")
        q = op(f"nn.silu {q} : {hidden}")
        q = op(f"nn.linear {q}, %down bias %bias : ({hidden}, tensor<24x50xf32>, tensor<24xf32>) -> {x}")
        s = op(f"nn.add {p}, {q} : ({x}, {x}) -> {x}")
        value = op(f"nn.add {value}, {s} : ({x}, {x}) -> {x}")
    text = (f'func.func @main(%x: {x} {{nn.input = "x"}}{signature}) -> ({x} {{nn.output = "y"}}) {{\n'
            + "\n".join(body) + f"\n  return {value} : {x}\n}}\n")
    return text, parameters


@pytest.mark.parametrize("tokens", [1, 7, 16])
@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "dp=2,tp=3"])
def test_same_result(tmp_path, tokens, mesh):
    text, parameters = model(tokens)
    (tmp_path / "m.mlir").write_text(text)
    generator = torch.Generator().manual_seed(0)
    save_file({name: torch.randn(*shape, generator=generator) / 5 for name, shape in parameters.items()},
              tmp_path / "w.safetensors")
    save_file({"x": torch.randn(2, tokens, 24, generator=generator)}, tmp_path / "x.safetensors")
    opt = tool().replace("sharding-run", "sharding-opt")
    plain = f"--parallelize=mesh={mesh} sequence-parallel=off"
    for arguments in (["m.mlir", plain, "-o", "plain.mlir"], ["plain.mlir", *PASSES, "-o", "optimised.mlir"]):
        done = subprocess.run([opt, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    results = []
    for name in ("m", "plain", "optimised"):
        done = launch(tmp_path / f"{name}.mlir", f"--weights={tmp_path}/w.safetensors",
                      f"--inputs={tmp_path}/x.safetensors", f"--outputs={tmp_path}/{name}.safetensors")
        assert done.returncode == 0, done.stderr
        results.append(load_file(tmp_path / f"{name}.safetensors")["y"])
    assert "reduce_scatter" in (tmp_path / "optimised.mlir").read_text()
    assert_close(results[1], results[0], 1e-5)
    assert_close(results[2], results[0], 1e-5)


class Flattened(nn.Module):
    """A branch whose sequences are put end to end, beside a residual, and its elements."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 16))

    def forward(self, x):
        rows = x.reshape(-1, 16) + self.branch(x).reshape(-1, 16)
        return nn.functional.silu(rows), self.branch(x + 1).flatten()


@pytest.mark.parametrize("batch, tokens, mesh", [(2, 31, {"dp": 2, "tp": 2}), (3, 7, {"dp": 2, "tp": 2}),
                                                 (3, 5, {"dp": 3, "tp": 3}), (2, 1, {"tp": 2, "dp": 2})], ids=str)
def test_padded_tokens_within_a_sharded_dimension(batch, tokens, mesh):
    torch.manual_seed(0)
    model, x = Flattened().eval(), torch.randn(batch, tokens, 16)
    plan = mw.from_torch(model, (x,)).parallelize(mesh=mesh, sequence_parallel="on")
    assert "reduce_scatter" in [c["kind"] for c in plan.report(format="json")["collectives"]]
    with torch.no_grad():
        for got, want in zip(plan.run(x), model(x), strict=True):
            assert_close(got, want, 1e-5)
