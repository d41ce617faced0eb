# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values moved between layouts, run on ranks: what arrives is what was there."""
import random
import subprocess

import pytest
import torch
from harness import launch, tool
from safetensors.torch import load_file, save_file


def layouts(axes, may_be_unreduced):
    """All layouts of a rank-3 tensor: axes of each dimension, unreduced axes."""
    result = [(((), (), ()), ())]
    for axis in axes:
        more = []
        for dims, unreduced in result:
            more.append((dims, unreduced))
            if may_be_unreduced:
                more.append((dims, unreduced + (axis,)))
            for d in range(3):
                for place in range(len(dims[d]) + 1):
                    changed = list(dims)
                    changed[d] = dims[d][:place] + (axis,) + dims[d][place:]
                    more.append((tuple(changed), unreduced))
        result = more
    return result


def spell(layout):
    def names(axes):
        return "{" + ", ".join(f'"{axis}"' for axis in axes) + "}"

    dims, unreduced = layout
    suffix = f", unreduced = {names(unreduced)}" if unreduced else ""
    return f"#dist.sharding<@mesh, [{', '.join(map(names, dims))}]{suffix}>"


@pytest.mark.parametrize("mesh, shape, passes", [
    ('"x"=2, "y"=2, "z"=2', (8, 8, 8), []),
    ('"x"=2, "y"=2, "z"=2', (8, 8, 8), ["--combine-collectives"]),
    ('"x"=2, "y"=3', (7, 5, 9), []),
])
def test_all_arrive(tmp_path, mesh, shape, passes):
    axes = [entry.split('"')[1] for entry in mesh.split(", ")]
    choose = random.Random(5)
    sources, targets = layouts(axes, True), layouts(axes, False)
    pairs = [(choose.choice(sources), choose.choice(targets)) for _ in range(60)]
    kind = f"tensor<{'x'.join(map(str, shape))}xf32>"
    arguments = [f'%x{i}: {kind} {{nn.input = "x{i}", dist.sharding = {spell(a)}}}'
                 for i, (a, _) in enumerate(pairs)]
    results = [f'{kind} {{nn.output = "y{i}", dist.sharding = {spell(b)}}}'
               for i, (_, b) in enumerate(pairs)]
    names, kinds = [f"%x{i}" for i in range(len(pairs))], [kind] * len(pairs)
    (tmp_path / "m.mlir").write_text(
        f"dist.mesh @mesh = <[{mesh}]>\nfunc.func @main({', '.join(arguments)}) -> "
        f"({', '.join(results)}) {{\n  return {', '.join(names)} : {', '.join(kinds)}\n}}\n")
    opt = tool().replace("sharding-run", "sharding-opt")
    done = subprocess.run([opt, tmp_path / "m.mlir", "--propagate-shardings", "--partition", *passes,
                           "--verify-placement", "-o", tmp_path / "spmd.mlir"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values = {f"x{i}": torch.randn(*shape) for i in range(len(pairs))}
    save_file(values, tmp_path / "x.safetensors")
    done = launch(tmp_path / "spmd.mlir", f"--inputs={tmp_path}/x.safetensors",
                  f"--outputs={tmp_path}/y.safetensors")
    assert done.returncode == 0, done.stderr
    moved = load_file(tmp_path / "y.safetensors")
    for i, (a, b) in enumerate(pairs):
        # One rank has the whole of a partial sum: adding zeros changes nothing.
        assert torch.equal(moved[f"y{i}"], values[f"x{i}"]), f"{spell(a)} -> {spell(b)}"
