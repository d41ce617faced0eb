# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The programs that scripts/gpu.sh measures, as text, and the sizes that it measures them at."""

import re

# Rows and columns of the row kernels: a matrix of bf16 has 64 MiB.
SIZES = {
    "full": {
        # Kernels of one kind that a call runs in a row, each on inputs of its own.
        "copies": 4,
        "gemm": [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (2048, 14336, 4096), (2048, 4096, 14336)],
        "rows": (8192, 4096),
        "attention": [(16, 4096, 128), (16, 8192, 128), (16, 16384, 128)],  # heads, tokens, features
        "layers": {"layers": 4, "tokens": 2048},
        "decode": {"layers": 16, "tokens": 8192},
        "copy": 1 << 29,
    },
    # For trials on a stand-in for the driver, which is slow. The figures mean nothing.
    "small": {
        "copies": 1,
        "gemm": [(64, 48, 32)],
        "rows": (32, 64),
        "attention": [(2, 128, 128)],
        "layers": {"layers": 1, "tokens": 64, "hidden": 64, "inner": 96, "heads": 2, "key_heads": 1, "features": 32},
        "decode": {"layers": 1, "tokens": 32, "hidden": 64, "inner": 96, "heads": 2, "key_heads": 1, "features": 32,
                   "vocabulary": 96},
        "copy": 1 << 16,
    },
}

# Inputs (x: a matrix, w: a row), the body, results.
KERNELS = {
    "rms_norm": ("xw", "%r = nn.rms_norm %0 weight %1 eps 1.0e-5 : (X, W) -> X", "%r"),
    "add_rms_norm": ("xxw", "%h = nn.add %0, %1 : (X, X) -> X\n"
                     "%r = nn.rms_norm %h weight %2 eps 1.0e-5 : (X, W) -> X", "%h, %r"),
    "layer_norm": ("xww", "%r = nn.layer_norm %0 weight %1 bias %2 eps 1.0e-5 : (X, W, W) -> X", "%r"),
    "swiglu": ("xx", "%a = nn.silu %0 : X\n%r = nn.mul %a, %1 : (X, X) -> X", "%r"),
    "softmax": ("x", "%r = nn.softmax %0 dim 1 : X", "%r"),
}  # fmt: skip


def function(inputs, body, results):
    """A program. `inputs` and `results` are pairs of a value and its type."""
    arguments = ", ".join(f'{v}: {t} {{nn.input = "{v[1:]}"}}' for v, t in inputs)
    outputs = ", ".join(f'{t} {{nn.output = "{v[1:]}"}}' for v, t in results)
    values, types = (", ".join(x) for x in zip(*results))
    return f"func.func @main({arguments}) -> ({outputs}) {{\n{body}\nreturn {values} : {types}\n}}\n"


def continue_state(folder, step, steps):
    """Options of sharding-run for one of some steps, whose state is in a folder between them."""
    return [f"--state={folder}/state"] * (step > 0) + [f"--save-state={folder}/state"] * (step + 1 < steps)


def repeat(copies, inputs, body, results):
    """A program that does the same on several sets of inputs. Names of values get the number of the copy."""
    copy = lambda text, i: re.sub(r"%(\w+)", rf"%\1_{i}", text) if copies > 1 else text
    every = range(copies)
    return function([(copy(v, i), t) for i in every for v, t in inputs], "\n".join(copy(body, i) for i in every),
                    [(copy(v, i), t) for i in every for v, t in results])  # fmt: skip


def product(m, n, k, copies=1):
    x, w, y = (f"tensor<{a}x{b}xbf16>" for a, b in ((m, k), (n, k), (m, n)))
    return repeat(copies, [("%x", x), ("%w", w)], f"%y = nn.linear %x, %w : ({x}, {w}) -> {y}", [("%y", y)])


def row_kernel(name, rows, columns, copies=1):
    kinds, body, results = KERNELS[name]
    types = {"x": f"tensor<{rows}x{columns}xbf16>", "w": f"tensor<{columns}xbf16>"}
    body = body.replace("X", types["x"]).replace("W", types["w"])
    for i in range(len(kinds)):
        body = body.replace(f"%{i}", f"%in{i}")
    return repeat(copies, [(f"%in{i}", types[kind]) for i, kind in enumerate(kinds)], body,
                  [(r.strip(), types["x"]) for r in results.split(",")])  # fmt: skip


def attention(heads, tokens, features, dtype="bf16", key_heads=None, attributes="", copies=1):
    q, k = (f"tensor<1x{h}x{tokens}x{features}x{dtype}>" for h in (heads, key_heads or heads))
    body = f"%y = nn.attention %q, %k, %v scale {features**-0.5!r} {attributes} : ({q}, {k}, {k}) -> {q}"
    return repeat(copies, [("%q", q), ("%k", k), ("%v", k)], body, [("%y", q)])
