#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long do our passes take, beside LLVM's own, and how does the time grow?

Sends MLPs with more and more layers through `sharding-opt --parallelize` (annotate, propagate,
partition, optimise, with every placement proved) and through a stock mlir-opt's
sharding-propagation, cse, shard-partition, canonicalize, cse. Both times come from --mlir-timing,
without parsing and printing, as the best of several runs.

    PATH=build/bin:$PATH python bench/pass_time.py [--layers 100 400 1600] [--json FILE]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

BATCH, TOKENS, WIDTH, INNER, RANKS = 8192, 64, 4096, 14336, 8
STOCK = (
    "builtin.module(func.func(sharding-propagation),cse,func.func(shard-partition),"
    "canonicalize,cse)"
)


def ours(layers):
    """LayerNorm, linear, relu, linear, residual add: five ops a layer, biases inside."""
    x = f"tensor<{BATCH}x{TOKENS}x{WIDTH}xf32>"
    h = f"tensor<{BATCH}x{TOKENS}x{INNER}xf32>"
    n, up, upb = f"tensor<{WIDTH}xf32>", f"tensor<{INNER}x{WIDTH}xf32>", f"tensor<{INNER}xf32>"
    down = f"tensor<{WIDTH}x{INNER}xf32>"
    arguments, body = [f'%h0: {x} {{nn.input = "x"}}'], []
    for i in range(layers):
        for name, kind in (("n", n), ("m", n), ("u", up), ("ub", upb), ("d", down), ("db", n)):
            arguments.append(f'%{name}{i}: {kind} {{nn.parameter = "layers.{i}.{name}"}}')
        body += [
            f"%a{i} = nn.layer_norm %h{i} weight %n{i} bias %m{i} eps 1.0e-5 : "
            f"({x}, {n}, {n}) -> {x}",
            f"%b{i} = nn.linear %a{i}, %u{i} bias %ub{i} : ({x}, {up}, {upb}) -> {h}",
            f"%c{i} = nn.relu %b{i} : {h}",
            f"%e{i} = nn.linear %c{i}, %d{i} bias %db{i} : ({h}, {down}, {n}) -> {x}",
            f"%h{i + 1} = nn.add %h{i}, %e{i} : ({x}, {x}) -> {x}",
        ]
    return (
        f"func.func @main({', '.join(arguments)}) -> ({x} {{nn.output = \"y\"}}) {{\n"
        + "\n".join(body)
        + f"\nreturn %h{layers} : {x}\n}}\n"
    )


def stock(layers):
    """Scale, matmul, bias, sigmoid, matmul, bias, residual add: seven ops a layer, on matrices.

    Weights carry their shardings, and each block's result too.
    """
    rows = BATCH * TOKENS
    x, h = f"tensor<{rows}x{WIDTH}xf32>", f"tensor<{rows}x{INNER}xf32>"
    up, down = f"tensor<{WIDTH}x{INNER}xf32>", f"tensor<{INNER}x{WIDTH}xf32>"
    arguments = [f"%x: {x}"] + [
        f"%n{i}: {x}, %u{i}: {up}, %ub{i}: {h}, %d{i}: {down}, %db{i}: {x}" for i in range(layers)
    ]
    body = [
        '%shift = "tosa.const"() {values = dense<0> : tensor<1xi8>} : () -> tensor<1xi8>',
        f"%zh = arith.constant dense<0.0> : {h}",
        f"%zx = arith.constant dense<0.0> : {x}",
        "%rep = shard.sharding @mesh split_axes = [[], []] : !shard.sharding",
        "%col = shard.sharding @mesh split_axes = [[], [0]] : !shard.sharding",
        "%row = shard.sharding @mesh split_axes = [[0], []] : !shard.sharding",
        f"%h0 = shard.shard %x to %rep : {x}",
    ]
    for i in range(layers):
        body += [
            f"%pu{i} = shard.shard %u{i} to %col : {up}",
            f"%su{i} = shard.shard %pu{i} to %col annotate_for_users : {up}",
            f"%pd{i} = shard.shard %d{i} to %row : {down}",
            f"%sd{i} = shard.shard %pd{i} to %row annotate_for_users : {down}",
            f"%a{i} = tosa.mul %h{i}, %n{i}, %shift : ({x}, {x}, tensor<1xi8>) -> {x}",
            f"%b{i} = linalg.matmul ins(%a{i}, %su{i} : {x}, {up}) outs(%zh : {h}) -> {h}",
            f"%c{i} = tosa.add %b{i}, %ub{i} : ({h}, {h}) -> {h}",
            f"%e{i} = tosa.sigmoid %c{i} : ({h}) -> {h}",
            f"%f{i} = linalg.matmul ins(%e{i}, %sd{i} : {h}, {down}) outs(%zx : {x}) -> {x}",
            f"%g{i} = shard.shard %f{i} to %rep : {x}",
            f"%k{i} = tosa.add %g{i}, %db{i} : ({x}, {x}) -> {x}",
            f"%h{i + 1} = tosa.add %h{i}, %k{i} : ({x}, {x}) -> {x}",
        ]
    return (
        f"shard.grid @mesh(shape = {RANKS})\nfunc.func @main({', '.join(arguments)}) -> {x} {{\n"
        + "\n".join(body)
        + f"\nreturn %h{layers} : {x}\n}}\n"
    )


def measure(command, text, repeat):
    """Seconds of the passes alone, and the most memory; the best of some runs."""
    best, memory = None, None
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        for _ in range(repeat):
            process = subprocess.Popen(
                [*command, file.name, "--mlir-timing", "--mlir-timing-display=list", "-o",
                 os.devnull],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            said = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                sys.exit(f"error: {' '.join(command)} fails:\n{said[:2000]}")
            rows = dict(
                (name.strip(), float(seconds))
                for seconds, name in re.findall(r"^\s+([\d.]+) \([^)]*\)\s+(.*)$", said, re.M)
            )
            seconds = rows["root"] - rows.get("Parser", 0) - rows.get("Output", 0) - rows.get(
                "Rest", 0
            )
            if best is None or seconds < best:
                best, memory = seconds, usage.ru_maxrss * 1024
    return best, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[100, 400, 1600])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sequence-parallel", default="on", choices=["on", "off", "auto"])
    parser.add_argument("--json", help="write the figures here too")
    options = parser.parse_args()
    tool = shutil.which("sharding-opt")
    theirs = shutil.which("mlir-opt-22") or shutil.which("mlir-opt")
    if not tool or not theirs:
        sys.exit("error: sharding-opt and mlir-opt (LLVM 22) are expected on the path")

    def parallelize(mesh):
        return [tool, f"--parallelize=mesh={mesh} sequence-parallel={options.sequence_parallel}"]

    results = {"layers": [], "ranks": []}
    print(f"{'layers':>8} {'ours':>10} {'a layer':>10} {'stock':>10} {'a layer':>10} "
          f"{'ratio':>7} {'memory':>9}")
    for layers in options.layers:
        seconds, memory = measure(parallelize(f"tp={RANKS}"), ours(layers), options.repeat)
        stock_seconds, _ = measure([theirs, f"--pass-pipeline={STOCK}"], stock(layers),
                                   options.repeat)
        results["layers"].append({"layers": layers, "seconds": seconds, "stock": stock_seconds,
                                  "memory": memory})
        print(f"{layers:>8} {seconds * 1e3:>7.1f} ms {seconds / layers * 1e6:>7.0f} us "
              f"{stock_seconds * 1e3:>7.1f} ms {stock_seconds / layers * 1e6:>7.0f} us "
              f"{seconds / stock_seconds:>7.2f} {memory / 2**20:>5.0f} MiB", flush=True)

    layers = options.layers[0]
    print(f"\n{'ranks':>8} {'mesh':>16} {'ours':>10}   ({layers} layers)")
    for data in (1, 64, 8192):
        mesh = f"dp={data},tp={RANKS}"
        seconds, _ = measure(parallelize(mesh), ours(layers), options.repeat)
        results["ranks"].append({"ranks": data * RANKS, "seconds": seconds})
        print(f"{data * RANKS:>8} {mesh:>16} {seconds * 1e3:>7.1f} ms", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
