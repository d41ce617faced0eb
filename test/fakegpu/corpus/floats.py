# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Floating-point instructions: exact ones by fractions, approximate ones with the manual's errors."""

import math

from corpus import exact
import numpy as np
from corpus.exact import B16, BF16, F16, F32, F64
from corpus.harness import Case, product

MODES = ["rn", "rz", "rm", "rp"]


def flush(x):
    return math.copysign(0.0, x) if F32.tiny(x) else x


def saturate(x):
    return 0.0 if math.isnan(x) or x <= 0 else min(x, 1.0)


def make(body, arrays, function, format, **options):
    want = [function(*(float(v) for v in row)) for row in zip(*arrays)]
    with np.errstate(over="ignore"):
        return Case(body, list(arrays), np.array(want).astype(format.dtype), **options)


def flags(function, ftz, sat):
    """The modifiers .ftz and .sat around an operation of f32."""

    def changed(*v):
        result = function(*(flush(x) for x in v)) if ftz else function(*v)
        result = flush(result) if ftz else result
        return saturate(result) if sat else result

    return changed


def arithmetic():
    operations = {"add": exact.add, "mul": exact.multiply, "fma": exact.fma, "sub": lambda f, a, b, m: exact.add(f, a, -b, m)}
    for kind, format in (("f32", F32), ("f64", F64)):
        pair = product(format.values(4), format.values(4))
        triple = product(format.values(2)[:16], format.values(2)[6:22], format.values(1)[::3])
        for name, f in operations.items():
            for mode in MODES:
                for ftz, sat in ((0, 0), (1, 0), (0, 1), (1, 1)) if kind == "f32" else ((0, 0),):
                    if (ftz or sat) and mode not in ("rn", "rz"):
                        continue
                    suffix = f".{mode}{'.ftz' * ftz}{'.sat' * sat}.{kind}"
                    g = flags(lambda *v, f=f, m=mode, fmt=format: f(fmt, *v, m), ftz, sat)
                    if name == "fma":
                        yield make(f"fma{suffix} d, a, b, c;", triple, g, format)
                    else:
                        yield make(f"{name}{suffix} d, a, b;", pair, g, format)
    for kind, format in (("f32", F32), ("f64", F64)):
        pair, one = product(format.values(4), format.values(4)), [format.values(40)]
        for mode in MODES:
            yield make(f"div.{mode}.{kind} d, a, b;", pair, lambda a, b, m=mode, f=format: exact.divide(f, a, b, m), format)
            yield make(f"sqrt.{mode}.{kind} d, a;", one, lambda a, m=mode, f=format: exact.root(f, a, m), format)
            yield make(f"rcp.{mode}.{kind} d, a;", one, lambda a, m=mode, f=format: exact.divide(f, 1.0, a, m), format)
    # Without a mode an instruction rounds to nearest even.
    pair = product(F32.values(4), F32.values(4))
    yield make("add.f32 d, a, b;", pair, lambda a, b: exact.add(F32, a, b), F32)
    yield make("mul.f32 d, a, b;", pair, lambda a, b: exact.multiply(F32, a, b), F32)


def least(a, b, nan):
    if math.isnan(a) or math.isnan(b):
        return math.nan if nan or (math.isnan(a) and math.isnan(b)) else b if math.isnan(a) else a
    if a == b == 0:
        return -0.0 if math.copysign(1, a) < 0 or math.copysign(1, b) < 0 else 0.0
    return min(a, b)


def selections():
    for kind, format in (("f32", F32), ("f64", F64), ("f16", F16), ("bf16", B16)):
        pair, one = product(format.values(3), format.values(3)), [format.values(20)]
        for nan in (0, 1) if kind != "f64" else (0,):
            for ftz in (0, 1) if kind == "f32" else (0,):
                suffix = f"{'.ftz' * ftz}{'.NaN' * nan}.{kind}"
                yield make(f"min{suffix} d, a, b;", pair, flags(lambda a, b, n=nan: least(a, b, n), ftz, 0), format)
                yield make(f"max{suffix} d, a, b;", pair, flags(lambda a, b, n=nan: -least(-a, -b, n), ftz, 0), format)
        yield make(f"neg.{kind} d, a;", one, lambda a: -a, format)
        yield make(f"abs.{kind} d, a;", one, abs, format)
    for kind, format in (("f32", F32), ("f64", F64)):
        pair = product(format.values(3), format.values(3))
        yield make(f"copysign.{kind} d, a, b;", [x[~np.isnan(pair[0]) & ~np.isnan(pair[1])] for x in pair], lambda a, b: math.copysign(b, a), format)
        tests = {
            "finite": math.isfinite, "infinite": math.isinf, "number": lambda x: not math.isnan(x),
            "notanumber": math.isnan,
            "normal": lambda x, f=format: math.isfinite(x) and not f.tiny(x),
            "subnormal": lambda x, f=format: math.isfinite(x) and f.tiny(x),
        }  # fmt: skip
        for name, f in tests.items():
            want = np.array([f(float(v)) for v in format.values(20)], np.uint32)
            yield Case(f"testp.{name}.{kind} p, a; selp.u32 d, 1, 0, p;", [format.values(20)], want)


def comparisons():
    ordered = {
        "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    }  # fmt: skip
    for kind, format in (("f32", F32), ("f64", F64), ("f16", F16), ("bf16", B16)):
        a, b = product(format.values(2), format.values(2))
        x, y = a.astype(float), b.astype(float)
        nan = np.isnan(x) | np.isnan(y)
        for name in [*ordered, *(n + "u" for n in ordered), "num", "nan"]:
            if name in ("num", "nan"):
                want = nan if name == "nan" else ~nan
            else:
                want = np.where(nan, name.endswith("u"), ordered[name[:2]](x, y))
            body = f"setp.{name}.{kind} p, a, b; selp.u32 d, 1, 0, p;"
            yield Case(body, [a, b], want.astype(np.uint32))
    a, b = product(F32.values(2), F32.values(2))
    fa, fb = (np.array([flush(float(v)) for v in x]) for x in (a, b))
    yield Case("setp.lt.ftz.f32 p, a, b; selp.u32 d, 1, 0, p;", [a, b], (fa < fb).astype(np.uint32))
    number = ~np.isnan(a)
    yield Case("slct.u32.f32 d, 7, 9, a;", [a[number]], np.where(a[number] >= 0, 7, 9).astype(np.uint32))


def halves():
    """f16 and bf16, alone and in pairs. A pair is a case of two lanes in one register."""
    for kind, format in (("f16", F16), ("bf16", B16)):
        pair = product(format.values(4), format.values(4))
        triple = product(format.values(2)[:16], format.values(2)[6:22], format.values(1)[::3])
        even = lambda arrays: [x[: len(x) // 2 * 2].view(np.uint32) for x in arrays]

        def packed(body, arrays, function, fmt=format):
            one = make(body, [x[: len(x) // 2 * 2] for x in arrays], function, fmt)
            return Case(body, even(arrays), one.want.view(np.uint32), halves=one.want.dtype)

        def packed_or_one(name, arrays, function, fmt=format, k=kind, pack=packed):
            operands = ", ".join("abc"[: len(arrays)])
            yield make(f"{name}.{k} d, {operands};", arrays, function, fmt)
            yield pack(f"{name}.{k}x2 d, {operands};", arrays, function)

        yield from packed_or_one("fma.rn", triple, lambda a, b, c, f=format: exact.fma(f, a, b, c))
        relu = lambda v: v if math.isnan(v) or v > 0 else 0.0
        yield from packed_or_one("fma.rn.relu", triple, lambda a, b, c, f=format: relu(exact.fma(f, a, b, c)))
        yield from packed_or_one("add.rn", pair, lambda a, b, f=format: exact.add(f, a, b))
        yield from packed_or_one("sub.rn", pair, lambda a, b, f=format: exact.add(f, a, -b))
        yield from packed_or_one("mul.rn", pair, lambda a, b, f=format: exact.multiply(f, a, b))
        yield from packed_or_one("min", pair, lambda a, b: least(a, b, 0))
        yield from packed_or_one("max.NaN", pair, lambda a, b: -least(-a, -b, 1))
        yield from packed_or_one("neg", [format.values(21)], lambda a: -a)
        yield from packed_or_one("abs", [format.values(21)], abs)
        if kind == "f16":
            yield from packed_or_one("add.rn.sat", pair, lambda a, b: saturate(exact.add(F16, a, b)))


def approximate():
    """Errors of the manual: 2 ulp of f32 are 2^-22; some are absolute errors."""
    ulp = 2.0**-22
    normal = np.concatenate([np.exp2(np.linspace(-120, 120, 241)), [0.0, math.inf, math.nan]]).astype(np.float32)
    both = np.concatenate([normal, -normal])
    with np.errstate(all="ignore"):
        x = both.astype(float)
        yield Case("rcp.approx.f32 d, a;", [both], (1 / x).astype(np.float32), ulp)
        yield Case("sqrt.approx.f32 d, a;", [normal], np.sqrt(normal.astype(float)).astype(np.float32), ulp)
        yield Case("rsqrt.approx.f32 d, a;", [normal], (1 / np.sqrt(normal.astype(float))).astype(np.float32), ulp)
        yield Case("lg2.approx.f32 d, a;", [normal], np.log2(normal.astype(float)).astype(np.float32), 2.0**-20, 1)
        # Of f64 the lower half of the operand does not count, and that of the result is zero.
        gross = np.concatenate([np.exp2(np.linspace(-1000, 1000, 241)), [0.0, 2.0**-1074, math.inf, math.nan]])
        gross = np.concatenate([gross, -gross])
        read = (gross.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(float)
        read = np.where(np.abs(read) < 2.0**-1022, np.copysign(0.0, read), read)
        yield Case("rcp.approx.ftz.f64 d, a;", [gross], 1 / read, 2.0**-19)
        yield Case("rsqrt.approx.ftz.f64 d, a;", [gross], np.where(read == 0, np.copysign(math.inf, read), 1 / np.sqrt(read)), 2.0**-19)
        yield Case("rcp.approx.ftz.f64 l0, a; cvt.u32.u64 d, l0;", [gross], np.zeros(len(gross), np.uint32))
        small = np.concatenate([np.linspace(-125, 127, 505), [-math.inf, math.inf, math.nan, 0.0, -0.0, 128, -200]]).astype(np.float32)
        yield Case("ex2.approx.f32 d, a;", [small[small > -126]], np.exp2(small[small > -126].astype(float)).astype(np.float32), 2.0**-21)
        flushed = np.exp2(small.astype(float))
        flushed[flushed < 2.0**-126] = 0
        yield Case("ex2.approx.ftz.f32 d, a;", [small], flushed.astype(np.float32), 2.0**-21)
        angle = np.linspace(-3.1, 3.1, 200).astype(np.float32)
        yield Case("sin.approx.f32 d, a;", [angle], np.sin(angle.astype(float)).astype(np.float32), 2.0**-20, 1)
        yield Case("cos.approx.f32 d, a;", [angle], np.cos(angle.astype(float)).astype(np.float32), 2.0**-20, 1)
        wide = np.concatenate([np.linspace(-12, 12, 301), [math.inf, -math.inf, math.nan]]).astype(np.float32)
        yield Case("tanh.approx.f32 d, a;", [wide], np.tanh(wide.astype(float)).astype(np.float32), 2.0**-10.9)
        a, b = product(normal[60:180:7], both[60:180:7])
        ratio = (a.astype(float) / b.astype(float)).astype(np.float32)
        yield Case("div.approx.f32 d, a, b;", [a, b], ratio, 2 * ulp)
        yield Case("div.full.f32 d, a, b;", [a, b], ratio, 2 * ulp)
        for kind, dtype, error in (("f16", np.dtype(np.float16), 2.0**-9.9), ("bf16", BF16, 2.0**-7)):
            some = np.linspace(-8, 8, 200).astype(dtype)
            yield Case(f"tanh.approx.{kind} d, a;", [some], np.tanh(some.astype(float)).astype(dtype), 2 * error)
            ftz = ".ftz" if kind == "bf16" else ""
            yield Case(f"ex2.approx{ftz}.{kind} d, a;", [some], np.exp2(some.astype(float)).astype(dtype), 2 * error)


FAMILIES = dict(arithmetic=arithmetic, selections=selections, comparisons=comparisons, halves=halves, approximate=approximate)
