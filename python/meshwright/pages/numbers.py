# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Numbers as the report in text writes them."""


def bytes_text(count: float) -> str:
    """`512 bytes`, `8.00 KiB`, `24.0 KiB`, `350 KiB`."""
    if abs(count) < 1024:
        return plural(round(count), "byte")
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < 5:
        value, unit = value / 1024, unit + 1
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {' KMGTP'[unit]}iB"


def seconds_text(seconds: float) -> str:
    """`42.1 us`, `12.2 ms`, `1.50 s`."""
    size = abs(seconds)
    if size == 0:
        return "0 us"
    if size < 1e-6:
        return f"{seconds * 1e9:.1f} ns"
    if size < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if size < 1 else f"{seconds:.2f} s"


def count_text(count: float) -> str:
    """`512`, `1.05 G`: of operations."""
    for unit in ("", " k", " M", " G", " T", " P"):
        if abs(count) < 999.5 or unit == " P":
            break
        count /= 1000
    return f"{count:.3g}{unit}"


def number_text(name: str, value: float) -> str:
    """A number of a decision, in the unit that its name states."""
    if "seconds" in name:
        return seconds_text(value)
    if "bytes" in name:
        return bytes_text(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def label(name: str) -> str:
    """The name of a number of a decision without its unit: `time`, `exposed before`, `memory bytes`."""
    return "time" if name == "seconds" else name.removesuffix("_seconds").replace("_", " ")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
