# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""cvt between integers and floats of all widths, mov of vectors, and cvta."""

import math

import ml_dtypes
import numpy as np
from corpus.exact import B16, F16, F32, F64, NAMES, TF32, Fraction
from corpus.floats import flush, make, saturate
from corpus.harness import Case, product
from corpus.integers import edge, read

MODES = ["rn", "rz", "rm", "rp"]


def exactly(x):
    return Fraction(x) if math.isfinite(x) else x


def convert(format, x, mode="rn"):
    return format.round(exactly(x), mode, x)


def between_integers():
    for source in (8, 16, 32, 64):
        for kind in "us":
            for target in (8, 16, 32, 64):
                if target == source:
                    continue
                out = max(target, 32)
                numbers = edge(source, 20) if source > 8 else np.arange(256, dtype=np.uint16)
                # The high byte of the register is not a part of an 8-bit operand.
                arrays = [(numbers | 0xA500).astype(np.uint16)] if source == 8 else [numbers]
                for to in "us":
                    # A result of 8 or 16 bits is extended to the register by its own type.
                    want = [read(read(v, kind, source) % 2**target, to, target) % 2**out for v in numbers]
                    yield Case(f"cvt.{to}{target}.{kind}{source} d, a;", arrays, np.array(want, f"u{out // 8}"))
                    low, high = (0, 2**target - 1) if to == "u" else (-(2 ** (target - 1)), 2 ** (target - 1) - 1)
                    clamped = [max(low, min(high, read(v, kind, source))) % 2**out for v in numbers]
                    if target < source or kind != to and (target == source or to == "u"):
                        yield Case(f"cvt.sat.{to}{target}.{kind}{source} d, a;", arrays, np.array(clamped, f"u{out // 8}"))


def to_integer(x, mode):
    whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode]
    return float(whole(Fraction(x))) if math.isfinite(x) else x


def floats_to_integers():
    for name, format in NAMES.items():
        numbers = format.values(60)
        with np.errstate(over="ignore"):
            more = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, 2.0**64, -1e30, 32767.5, 255.5])
            numbers = np.concatenate([numbers, more.astype(format.dtype)])
        numbers = numbers[~np.isnan(numbers)]
        for mode in ("rni", "rzi", "rmi", "rpi"):
            for target in (16, 32, 64):
                for to in "us":
                    low, high = (0, 2**target - 1) if to == "u" else (-(2 ** (target - 1)), 2 ** (target - 1) - 1)

                    def clamp(x):
                        x = to_integer(float(x), mode)
                        return int(max(low, min(high, x))) if math.isfinite(x) else high if x > 0 else low

                    want = [clamp(x) % 2**target for x in numbers]
                    yield Case(f"cvt.{mode}.{to}{target}.{name} d, a;", [numbers], np.array(want, f"u{target // 8}"))
            if name != "bf16":
                keep_sign = lambda x, m=mode: math.copysign(to_integer(x, m), x)
                yield make(f"cvt.{mode}.{name}.{name} d, a;", [numbers], keep_sign, format)
    nan = np.array([math.nan] * 2, np.float32)
    yield Case("cvt.rzi.s32.f32 d, a;", [nan], np.zeros(2, np.uint32))
    yield Case("cvt.rni.ftz.s32.f32 d, a;", [np.array([1e-40, 2.5], np.float32)], np.array([0, 2], np.uint32))


def integers_to_floats():
    for name, format in NAMES.items():
        for source in (8, 16, 32, 64) if name != "bf16" else (16, 32, 64):
            numbers = edge(source, 40) if source > 8 else np.arange(256, dtype=np.uint16)
            for kind in "us":
                for mode in MODES if name in ("f32", "f16") else ["rn"]:
                    exactly_read = lambda v, m=mode, k=kind, n=source, f=format: f.round(Fraction(read(v, k, n)), m)
                    want = np.array([exactly_read(int(v)) for v in numbers])
                    with np.errstate(over="ignore"):
                        yield Case(f"cvt.{mode}.{name}.{kind}{source} d, a;", [numbers], want.astype(format.dtype))


def between_floats():
    for wide, narrow in (("f64", "f32"), ("f64", "f16"), ("f32", "f16")):
        source, target = NAMES[wide], NAMES[narrow]
        ties = np.array([1 + 2.0**-target.precision, 1 + 3 * 2.0**-target.precision, float(target.largest) * (1 + 2.0 ** -(target.precision + 1)), 1.5 * 2.0 ** (target.low - target.precision)])
        numbers = np.concatenate([source.values(40), ties.astype(source.dtype), target.values(8).astype(source.dtype)])
        for mode in MODES:
            yield make(f"cvt.{mode}.{narrow}.{wide} d, a;", [numbers], lambda x, m=mode, f=target: convert(f, x, m), target)
        yield make(f"cvt.{wide}.{narrow} d, a;", [target.values(40)], lambda x: x, source)
    numbers = np.concatenate([F32.values(40), np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.39e38], np.float32)])
    relu = lambda x: x if math.isnan(x) or x > 0 else 0.0
    for mode in ("rn", "rz"):
        yield make(f"cvt.{mode}.bf16.f32 d, a;", [numbers], lambda x, m=mode: convert(B16, x, m), B16)
        yield make(f"cvt.{mode}.relu.bf16.f32 d, a;", [numbers], lambda x, m=mode: relu(convert(B16, x, m)), B16)
        yield make(f"cvt.{mode}.relu.f16.f32 d, a;", [numbers], lambda x, m=mode: relu(convert(F16, x, m)), F16)
    yield make("cvt.rn.sat.f16.f32 d, a;", [numbers], lambda x: saturate(convert(F16, x)), F16)
    yield make("cvt.rn.ftz.f16.f32 d, a;", [numbers], lambda x: convert(F16, flush(x)), F16)
    yield make("cvt.sat.f32.f32 d, a;", [numbers], saturate, F32)
    yield make("cvt.ftz.f32.f32 d, a;", [numbers], flush, F32)
    yield make("cvt.f32.bf16 d, a;", [B16.values(40)], lambda x: x, F32)
    finite = numbers[np.isfinite(numbers)]
    yield make("cvt.rna.tf32.f32 d, a;", [finite], lambda x: convert(TF32, x, "rna"), F32)


def pairs():
    """The first source is the high half of the result."""
    a, b = product(F32.values(6), F32.values(6))
    relu = lambda x: x if math.isnan(x) or x > 0 else 0.0
    for kind, format in (("f16", F16), ("bf16", B16)):
        for mode in ("rn", "rz"):
            for clamp in ("", ".relu"):
                last = relu if clamp else lambda x: x
                with np.errstate(over="ignore"):
                    halves = [np.array([last(convert(format, float(v), mode)) for v in x]).astype(format.dtype) for x in (b, a)]
                words = np.stack(halves, 1).reshape(-1)
                yield Case(f"cvt.{mode}{clamp}.{kind}x2.f32 d, a, b;", [a, b], words.view(np.uint32), halves=format.dtype)
    for kind, dtype, largest in (("e4m3", ml_dtypes.float8_e4m3fn, 448.0), ("e5m2", ml_dtypes.float8_e5m2, 57344.0)):
        keep = ~(np.isnan(a) | np.isnan(b))
        x, y = a[keep], b[keep]
        small = [np.clip(v.astype(float), -largest, largest).astype(np.float32).astype(dtype).view(np.uint8).astype(np.uint16) for v in (x, y)]
        yield Case(f"cvt.rn.satfinite.{kind}x2.f32 d, a, b;", [x, y], small[0] << 8 | small[1])
        codes = np.arange(0, 65536, 17, dtype=np.uint16)
        if kind == "e4m3":
            codes = codes[((codes & 0x7F) != 0x7F) & ((codes >> 8 & 0x7F) != 0x7F)]
        halves = codes.view(np.uint8).view(dtype).astype(np.float16)
        yield Case(f"cvt.rn.f16x2.{kind}x2 d, a;", [codes], halves.view(np.uint32), halves=np.dtype(np.float16))


def moves():
    a, b = product(edge(32), edge(32))
    yield Case("mov.b64 d, {a, b};", [a, b], a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32))
    yield Case("mov.b64 {r0, r1}, a; mov.b32 d, r1;", [edge(64)], (edge(64) >> np.uint64(32)).astype(np.uint32))
    yield Case("mov.b32 {h0, h1}, a; mov.b32 d, {h1, h0};", [edge(32)], edge(32) << 16 | edge(32) >> 16)
    yield Case("mov.b64 {h0, h1, h2, h3}, a; mov.b64 d, {h3, h2, h1, h0};", [edge(64)], edge(64).view(np.uint16).reshape(-1, 4)[:, ::-1].reshape(-1).view(np.uint64))
    yield Case("mov.f32 d, 0f3FC00000;", [a], np.full(len(a), 1.5, np.float32))
    yield Case("mov.f64 d, 0d3FF8000000000000;", [a], np.full(len(a), 1.5))
    yield Case("mov.u32 d, %laneid; mov.u32 r0, %lanemask_lt; popc.b32 r0, r0; xor.b32 d, d, r0;", [a], np.zeros(len(a), np.uint32))


FAMILIES = dict(
    between_integers=between_integers, floats_to_integers=floats_to_integers,
    integers_to_floats=integers_to_floats, between_floats=between_floats, pairs=pairs, moves=moves,
)  # fmt: skip
