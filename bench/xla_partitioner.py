#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long does partitioning a Llama take, beside XLA?

Both partition the same layers (width 4096, inner width 14336, 32 heads, 8 kv heads, 8192 tokens,
f32) by tensor parallelism on 8 ranks. Our time goes from the annotation of the transformers model,
imported on the meta device, to SPMD IR with a proved placement (--mlir-timing, without parsing and
printing). XLA's time is Shardy's propagation and the SPMD partitioner on JAX's CPU backend with 8
devices, by XLA's own pass timers, read from its log. Each is the best of several runs.

    PATH=build/bin:$PATH PYTHONPATH=build/python python bench/xla_partitioner.py \\
        --jax-python VENV/bin/python [--layers 32 128] [--json FILE]

JAX has an environment of its own: pip install jax==0.10.2
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys

from pass_time import measure

WIDTH, INNER, HEADS, KV_HEADS, TOKENS, RANKS = 4096, 14336, 32, 8, 8192, 8
# XLA's names of the two passes.
PASSES = {"propagation": "shardy-xla", "partitioning": "spmd-partitioning"}


def jax_child(layers):
    """Compiles the layers; runs in the environment that has JAX."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(jax.devices(), ("tp",))
    head = WIDTH // HEADS
    replicated, column, row = (
        NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (None, "tp"), ("tp", None))
    )

    def norm(x, w):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w

    def rotary(x, cos, sin):
        a, b = jnp.split(x, 2, -1)
        return x * cos + jnp.concatenate([-b, a], -1) * sin

    def layer(x, p, cos, sin):
        y = norm(x, p["n1"])
        q = (y @ p["q"]).reshape(1, TOKENS, HEADS, head)
        k = (y @ p["k"]).reshape(1, TOKENS, KV_HEADS, head)
        v = (y @ p["v"]).reshape(1, TOKENS, KV_HEADS, head)
        q = rotary(q, cos, sin).reshape(1, TOKENS, KV_HEADS, HEADS // KV_HEADS, head)
        k = rotary(k, cos, sin)
        scores = jnp.einsum("bqkgd,btkd->bkgqt", q, k) / head**0.5
        mask = jnp.arange(TOKENS)[:, None] >= jnp.arange(TOKENS)[None]
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        out = jnp.einsum("bkgqt,btkd->bqkgd", weights, v).reshape(1, TOKENS, WIDTH)
        x = x + out @ p["o"]
        y = norm(x, p["n2"])
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]

    def model(x, layers, cos, sin):
        for p in layers:
            x = layer(x, p, cos, sin)
        return x

    def spec(*shape, sharding=replicated):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def parameters():
        kv = KV_HEADS * head
        return {
            "n1": spec(WIDTH), "n2": spec(WIDTH),
            "q": spec(WIDTH, WIDTH, sharding=column), "k": spec(WIDTH, kv, sharding=column),
            "v": spec(WIDTH, kv, sharding=column), "o": spec(WIDTH, WIDTH, sharding=row),
            "gate": spec(WIDTH, INNER, sharding=column), "up": spec(WIDTH, INNER, sharding=column),
            "down": spec(INNER, WIDTH, sharding=row),
        }

    table = spec(1, TOKENS, 1, head)
    jax.jit(model, out_shardings=replicated).lower(
        spec(1, TOKENS, WIDTH), [parameters() for _ in range(layers)], table, table
    ).compile()


def check_jax(python):
    """Ends the program where the interpreter cannot import JAX."""
    try:
        done = subprocess.run([python, "-c", "import jax"], capture_output=True, text=True)
        problem = done.stderr.strip().splitlines()[-1:] if done.returncode else None
    except OSError as error:
        problem = [str(error)]
    if problem is not None:
        sys.exit(f"error: {python} cannot import JAX: {''.join(problem)}\n"
                 "install JAX in an environment of its own, and name its interpreter:\n"
                 "    python -m venv VENV && VENV/bin/pip install jax==0.10.2\n"
                 "    python bench/xla_partitioner.py --jax-python VENV/bin/python")


def run_xla(python, layers):
    """Seconds of XLA's two passes."""
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={RANKS}",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "hlo_pass_pipeline=1",
        "JAX_PLATFORMS": "cpu",
    }
    process = subprocess.Popen(
        [python, __file__, "--jax-child", str(layers)], env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
    )
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
    found, tail = {}, []
    for line in process.stderr:
        tail = tail[-20:] + [line]
        match = re.search(r"HLO pass: (\S+) time: ([\d.]+) (us|ms|s|min) ", line)
        if not match:
            continue
        for what, name in PASSES.items():
            if match[1] == name:
                found[what] = found.get(what, 0.0) + float(match[2]) * units[match[3]]
        # The passes behind the partitioner take long and are not measured.
        if "partitioning" in found:
            process.kill()
            break
    process.wait()
    if set(found) != set(PASSES):
        sys.exit("error: XLA's log has no " + " or ".join(set(PASSES.values())) + " time:\n"
                 + "".join(tail))
    return found


def our_program(layers):
    import meshwright as mw
    import torch
    import transformers

    with torch.device("meta"):
        config = transformers.LlamaConfig(
            num_hidden_layers=layers, hidden_size=WIDTH, intermediate_size=INNER,
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=32000,
            max_position_embeddings=TOKENS,
        )
        module = transformers.LlamaModel(config).eval()
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
    return mw.from_torch(module, (ids,)).ir(locations=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--jax-python", default=sys.executable, help="an interpreter with JAX")
    parser.add_argument("--json", help="write the figures here too")
    parser.add_argument("--jax-child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jax_child:
        return jax_child(options.jax_child)
    tool = shutil.which("sharding-opt")
    if not tool:
        sys.exit("error: sharding-opt is expected on the path")
    check_jax(options.jax_python)

    results = []
    print(f"{'layers':>7} {'ours':>10} {'a layer':>10} {'XLA':>10} {'a layer':>10} {'ratio':>7}"
          "   (XLA: propagation + partitioning)")
    for layers in options.layers:
        command = [tool, f"--parallelize=mesh=tp={RANKS} sequence-parallel=on"]
        ours, _ = measure(command, our_program(layers), options.repeat)
        xla = min((run_xla(options.jax_python, layers) for _ in range(options.repeat)),
                  key=lambda found: sum(found.values()))
        theirs = sum(xla.values())
        results.append({"layers": layers, "seconds": ours, "xla": xla})
        print(f"{layers:>7} {ours * 1e3:>7.1f} ms {ours / layers * 1e3:>7.3f} ms "
              f"{theirs * 1e3:>7.0f} ms {theirs / layers * 1e3:>7.2f} ms {ours / theirs:>7.3f}"
              f"   ({xla['propagation'] * 1e3:.0f} + {xla['partitioning'] * 1e3:.0f} ms)",
              flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
