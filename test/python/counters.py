# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Counters in a file beside the model's (test_import_random_numbers.py)."""
count = 0


class Counter:
    count = 0


def tick():
    global count
    count += 1
    return count


def inner():
    return tick()
