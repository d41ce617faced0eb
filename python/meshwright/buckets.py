# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buckets: entries for calls of several sizes. A call takes the smallest one that holds it.

An entry has static shapes. Inputs of a call are padded to them, and outputs are cut to the call's own
sizes, which the entry has as arguments of its own.
"""
from dataclasses import dataclass


@dataclass
class BucketSizes:
    """How the program of a bucket relates to the sizes of a call."""
    #: The name of each size -> the bucket's.
    capacities: dict[str, int]
    #: Input -> dimension -> the name of its size.
    inputs: dict[str, dict[int, str]]
    #: The sizes that are arguments of the program, with their expressions in the names.
    arguments: dict[str, object]
    #: Of each output the shape: numbers, and sizes with their expressions.
    outputs: list[tuple]
    #: Conditions on the sizes of a call, each with its place.
    checks: list
