#!/usr/bin/env python3
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Trains a GPT-2 of characters, unchanged, on four ranks, beside PyTorch.

The text is the reference of Python's language, which comes with Python, or a file. Both sides start
from the same weights and see the same batches. The loss curves go to a picture, and the text that
the trained model goes on with is printed.

    python examples/train_gpt.py [--mesh dp=2,tp=2] [--steps 200] [--text FILE] [--picture loss.svg]
    python examples/train_gpt.py --gtp          weights in shards of four ranks, gathered before their use
"""

import argparse
import copy
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import meshwright as mw
import torch
import transformers
from tqdm import tqdm


def mesh_of(text):
    try:
        return {name: int(size) for name, size in (axis.split("=") for axis in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected name=size, as in dp=2,tp=2") from None


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", type=mesh_of, default={"dp": 2, "tp": 2}, help="axes, as in dp=2,tp=2")
    parser.add_argument("--gtp", action="store_true", help="store weights in shards of four ranks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="rows of a step")
    parser.add_argument("--tokens", type=int, default=64, help="characters of a row")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--text", type=pathlib.Path, help="a file to learn")
    parser.add_argument("--picture", default="loss.svg", help="where the loss curves go, or none")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="a folder for the trained state")
    options = parser.parse_args()
    if options.gtp:
        options.mesh = {"gtp": 4}
    if options.steps < 1:
        parser.error(f"--steps: expected a number from 1 on, got {options.steps}")
    return options


def read_text(path):
    if path is None:
        from pydoc_data.topics import topics

        return "\n".join(topics.values())
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"error: {path} cannot be read: {error}")


def make_net(vocabulary, options):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=options.tokens,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config).train()


def batches(ids, options):
    generator = torch.Generator().manual_seed(1)
    for _ in range(options.steps):
        starts = torch.randint(0, len(ids) - options.tokens, (options.batch,), generator=generator)
        rows = torch.stack([ids[start : start + options.tokens] for start in starts.tolist()])
        yield dict(input_ids=rows, labels=rows)


def rate_of(step, options):
    """A short warm-up, then a cosine down to a tenth."""
    warm = max(1, options.steps // 20)
    if step < warm:
        return options.lr * (step + 1) / warm
    share = torch.tensor((step - warm) / max(1, options.steps - warm))
    return options.lr * (0.55 + 0.45 * torch.cos(share * torch.pi).item())


def progress(steps, name):
    return tqdm(steps, desc=name, unit="step", file=sys.stderr)


def describe(memory):
    return ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in memory.items())


def compare_storage(train, report):
    """Prints the memory of a rank beside that of data parallelism, and what gathers cost."""
    other = train.parallelize(mesh={"dp": 4}).report(format="json")
    print(f"a rank of dp=4 holds {describe(other['memory_per_rank'])}")
    seconds = report["gtp"]["seconds"]
    moved = seconds["gather"] + seconds["scatter"]
    hidden = 1 - seconds["exposed"] / moved
    print(f"by the cost model of {report['device']}, {hidden:.0%} of the time of gathers and scatters is hidden")


def train_here(net, data, options):
    first = data[0]
    model = mw.from_torch(net, (), first, training=True)
    train = model.train(
        mw.AdamW(lr=options.lr, weight_decay=0.1), microbatches=options.microbatches, clip_norm=1.0
    )
    plan = train.parallelize(mesh=options.mesh)
    report = plan.report(format="json")
    memory, sent = describe(report["memory_per_rank"]), report["bytes_per_rank"] / 2**20
    print(f"a rank holds {memory}, and sends {sent:.1f} MiB a step")
    if options.gtp:
        compare_storage(train, report)
    losses = []
    with plan.start() as session:
        line = progress(data, "meshwright")
        for step, batch in enumerate(line):
            losses.append(session.run(**batch, lr=rate_of(step, options))[0].item())
            line.set_postfix(loss=f"{losses[-1]:.3f}")
        if options.checkpoint:
            session.save(options.checkpoint)
        return losses, session.state_dict()["model"]


def train_in_pytorch(net, data, options):
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr, weight_decay=0.1)
    losses = []
    line = progress(data, "PyTorch   ")
    for step, batch in enumerate(line):
        optimizer.param_groups[0]["lr"] = rate_of(step, options)
        optimizer.zero_grad()
        loss = net(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        line.set_postfix(loss=f"{losses[-1]:.3f}")
    return losses


def draw(path, ours, theirs, mesh):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(theirs, color="#c9ced6", linewidth=4, label="PyTorch, one process")
    axes.plot(ours, color="#2a6fbb", linewidth=1.5, label=f"Meshwright, {mesh}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def continue_text(net, text, ids, letters, options):
    """A piece of the text, and what the model goes on with."""
    length = options.tokens // 2
    start = len(ids) // 2
    with torch.no_grad():
        found = net.eval().generate(
            ids[None, start : start + length],
            max_length=options.tokens,
            do_sample=True,
            temperature=0.5,
            pad_token_id=0,
        )
    rest = found[0, length:].tolist()
    return text[start : start + length], "".join(letters[i] for i in rest)


def main():
    options = parse()
    if options.picture != "none":
        try:
            import matplotlib

            matplotlib.use("Agg")
        except ImportError:
            print("no picture is drawn, since matplotlib is not installed: pip install matplotlib", file=sys.stderr)
            options.picture = "none"
    transformers.logging.set_verbosity_error()
    text = read_text(options.text)
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text[:200_000]])
    if len(ids) <= options.tokens:
        sys.exit(f"error: the text: expected more than {options.tokens} characters, got {len(ids)}")
    net = make_net(len(letters), options)
    print(
        f"{len(ids)} characters, {len(letters)} different; "
        f"{sum(p.numel() for p in net.parameters()) / 1e6:.2f} M parameters"
    )
    data = list(batches(ids, options))
    mesh = ",".join(f"{name}={size}" for name, size in options.mesh.items())
    twin = copy.deepcopy(net)
    ours, trained = train_here(net, data, options)
    theirs = train_in_pytorch(twin, data, options)
    net.load_state_dict(trained)
    begin, rest = continue_text(net, text, ids, letters, options)
    print(f"\n{begin!r} goes on with {rest!r}")
    if options.picture != "none":
        draw(options.picture, ours, theirs, mesh)
        print(f"the loss curves are in {options.picture}")
    apart = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    print(f"loss from {ours[0]:.3f} to {ours[-1]:.3f}; PyTorch's from {theirs[0]:.3f} to {theirs[-1]:.3f}")
    print(f"the curves are at most {apart:.1e} apart")


if __name__ == "__main__":
    main()
