# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls, loops and choices: what has regions, or stands for functions of a library."""
from ..errors import Uncovered
from ..graph.nodes import Node
from .attributes import symbol, text
from .gradients import RANDOM, STOP
from .handlers import handles
from .walk import MOST_STEPS, Walk


def sees(function):
    """Marks a handler whose regions see the values around the operation: it takes them as well."""
    function.sees = True
    return function


@handles("while")
@sees
def loop(c: Walk, op, operands, values) -> list[Node]:
    """A loop whose condition is known in each step: its steps one after the other."""
    condition, body = op.regions
    for _ in range(MOST_STEPS):
        loc = c.build.loc
        going = c.region(condition, operands, values)[0]
        c.build.loc = loc
        if going.op == "failed":
            return [going] * len(operands)
        if going.form is None:
            raise Uncovered("a loop whose end depends on values (stablehlo.while) is not covered: expected a number of "
                            "steps that is known, as that of jax.lax.scan and fori_loop")
        if not going.form.values.reshape(-1)[0]:
            return operands
        operands = c.region(body, operands, values)
        c.build.loc = loc
    raise Uncovered(f"a loop of more than {MOST_STEPS} steps is not covered")


@handles("case", "if")
@sees
def choice(c: Walk, op, operands, values) -> list[Node]:
    """The branch that a known index selects, else the results of all branches, chosen by the index."""
    index, regions = operands[0], list(op.regions)
    if op.name == "stablehlo.if":
        regions = regions[::-1]
    if index.form is not None:
        at = int(index.form.values.reshape(-1)[0])
        return c.region(regions[at if 0 <= at < len(regions) else len(regions) - 1], [], values)
    loc = c.build.loc
    branches = []
    for region in regions:
        branches.append(c.region(region, [], values))
        c.build.loc = loc
    chosen = branches[-1]
    for i in range(len(branches) - 2, -1, -1):
        is_chosen = c.build.unary("not", index) if index.dtype == "i1" else \
            c.build.compare("eq", index, c.build.scalar(i, index.dtype))
        chosen = [a if a is b else c.build.broadcast(c.build.select(is_chosen, c.thin(a), c.thin(b)), a.shape)
                  for a, b in zip(branches[i], chosen)]
    return chosen


@handles("composite")
@sees
def composite(c: Walk, op, operands, values) -> list[Node]:
    """A function with a name, by its decomposition."""
    return c.call(symbol(op.attributes["decomposition"]), operands)



@handles("custom_call")
@sees
def custom_call(c: Walk, op, operands, values) -> list[Node]:
    target = text(op.attributes["call_target_name"])
    if target == "Sharding":
        return operands
    if target == STOP:
        return [c.build.unary("stop_gradient", operands[0])]
    if "callback" in target:
        raise Uncovered(f"a callback to the host (custom call @{target}) is not covered: ranks call no Python")
    raise Uncovered(f"custom call @{target} is not covered: it has no definition in the module")


@handles("rng", "rng_bit_generator", "shift_left", "shift_right_logical", "shift_right_arithmetic")
def random(c, op, *operands):
    if op.name.startswith("stablehlo.shift"):
        raise Uncovered(f"operation {op.name} is not covered. Random numbers are made with it: {RANDOM}")
    raise Uncovered(RANDOM)


@handles("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute", "collective_broadcast",
         "partition_id", "replica_id", "send", "recv", "infeed", "outfeed")
def collective(c, op, *operands):
    raise Uncovered(f"operation {op.name} is not covered outside of a function that shard_map writes over a mesh")
