#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What does data-parallel attention cost a decoding step, by the way in which groups exchange tokens?

Plans DeepSeek-V3 without weights on 8 H200: tensor parallelism over 8 ranks, 4 groups of 2 ranks for attention,
experts over all ranks, 256 requests in each group. Prints the seconds of a step that the cost model predicts:

1. Tokens of all groups meet by an all-reduce of buffers that each group fills with its own rows and zeros, and come back
   by another one: two all-reduces of all rows in a layer.
2. By reduce-scatters and all-gathers, as the plan has them.
3. The same, and collectives run beside kernels.

It also counts the kernels that only rearrange elements and stand directly before or behind a collective of the tokens'
features. Collectives over lists of tensors have such copies.

The model has 61 layers. Plans of a few layers say what a dense layer, a layer of experts, and the rest cost. The first
way is no plan: two priced all-reduces take the place of a layer's collectives.

    PYTHONPATH=build/python python bench/dp_attention.py [--requests 256] [--json FILE]
"""

import argparse
import json
import tempfile

RANKS, GROUPS, LAYERS, DENSE, WIDTH = 8, 4, 61, 3, 7168
REARRANGES = {"nn.concat", "nn.slice", "nn.transpose", "nn.reshape", "dist.pad", "dist.slice"}
#: A value that ranks sum, as the padded buffers of groups are.
ALL_REDUCE = """
dist.mesh @mesh = <["tp"={ranks}], device = "h200">
func.func @main(%x: tensor<{rows}x{width}xbf16> {{nn.input = "x", dist.global = tensor<{rows}x{width}xbf16>,
    dist.sharding = #dist.sharding<@mesh, [{{}}, {{}}], unreduced = {{"tp"}}>}})
    -> (tensor<{rows}x{width}xbf16> {{nn.output = "y", dist.global = tensor<{rows}x{width}xbf16>,
        dist.sharding = #dist.sharding<@mesh, [{{}}, {{}}]>}}) attributes {{dist.spmd = @mesh}} {{
  %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<{rows}x{width}xbf16>) -> tensor<{rows}x{width}xbf16>
  return %0 : tensor<{rows}x{width}xbf16>
}}
"""


def serve(layers, dense, requests):
    """Steps of a model of so many layers."""
    import meshwright as mw
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(num_hidden_layers=layers, first_k_dense_replace=dense)
    with torch.device("meta"):
        net = DeepseekV3ForCausalLM(config).to(torch.bfloat16).eval()
        ids = torch.zeros(1, 8, dtype=torch.long)
    return mw.from_torch(net, (ids,)).serve(max_length=2048, page_size=64, max_requests=requests, buckets=(requests,))


def plan(served, overlap):
    return served.parallelize(mesh={"tp": RANKS}, data_parallel_attention=GROUPS, token_gather="max", device="h200",
                              expert_parallel="tp", sequence_parallel="on", dp_lm_head="on",
                              cache_sharding="heads", overlap=overlap)


def count_copies(served, requests):
    """(kernels that copy what a collective of features has or gives, such collectives), without overlap."""
    launches = plan(served, "off").report("json", verbose=True)["program"]["launches"]
    # A rank's part of a group's tokens, in bf16.
    features = requests * GROUPS // RANKS * WIDTH * 2
    copies = found = 0
    for before, launch, behind in zip([None, *launches], launches, [*launches[1:], None]):
        if launch["kind"] != "collective" or launch["bytes"] < features:
            continue
        found += 1
        copies += sum(other is not None and other["bytes"] >= features and set(other["ops"]) <= REARRANGES
                      for other in (before, behind))
    return copies, found


def price(served, overlap):
    """(seconds of a step, of collectives alone, bytes and launches of a rank)."""
    report = plan(served, overlap).report(format="json")
    times = report["communication"]
    return (times["run_seconds"], times["exposed_seconds"] + times["hidden_seconds"], report["bytes_per_rank"],
            report["launches_per_rank"])


def price_all_reduce(rows):
    import meshwright as mw

    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(ALL_REDUCE.format(ranks=RANKS, rows=rows, width=WIDTH))
        file.flush()
        report = mw.load(file.name).parallelize(overlap="off").report(format="json")
    return report["communication"]["exposed_seconds"], report["bytes_per_rank"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256, help="of a group")
    parser.add_argument("--json")
    options = parser.parse_args()
    few = {name: serve(dense + experts, dense, options.requests)
           for name, (dense, experts) in {"base": (1, 1), "dense": (2, 1), "experts": (1, 2)}.items()}

    def extend(overlap):
        base, dense, experts = (price(few[name], overlap) for name in ("base", "dense", "experts"))
        return [b + (DENSE - 1) * (d - b) + (LAYERS - DENSE - 1) * (e - b)
                for b, d, e in zip(base, dense, experts, strict=True)]

    apart, beside = extend("off"), extend("on")
    seconds, sent = price_all_reduce(GROUPS * options.requests)
    # Two of them in each layer take the place of its collectives; what is outside the layers stays.
    layers = [LAYERS * 2 * seconds, LAYERS * 2 * sent]
    base = price(few["base"], "off")
    own = [apart[i] - (base[i] - (apart[i] - base[i]) / (LAYERS - 2) * 2) for i in (1, 2)]
    rows = [
        {"exchange": "all-reduce of padded buffers", "seconds": apart[0] - own[0] + layers[0],
         "communication": layers[0], "bytes": layers[1]},
        {"exchange": "reduce-scatter and all-gather", "seconds": apart[0], "communication": own[0], "bytes": own[1]},
        {"exchange": "the same, beside kernels", "seconds": beside[0], "communication": own[0], "bytes": own[1]},
    ]
    print(f"{'exchange':<32}{'step':>10}{'gain':>8}{'collectives of layers':>23}{'sent by a rank':>16}")
    for row in rows:
        row["gain"] = rows[0]["seconds"] / row["seconds"] - 1
        print(f"{row['exchange']:<32}{row['seconds'] * 1e3:>7.1f} ms{row['gain']:>8.2%}"
              f"{row['communication'] * 1e3:>20.2f} ms{row['bytes'] / 1e9:>13.2f} GB")
    copies, found = count_copies(few["base"], options.requests)
    print(f"copies beside the {found} collectives of features in two layers: {copies}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows, "copies": copies, "collectives": found}, file, indent=2)


if __name__ == "__main__":
    main()
