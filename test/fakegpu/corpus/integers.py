# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Integer, logic, comparison and selection instructions."""

import numpy as np
from corpus.harness import Case, product


def edge(bits, extra=6):
    rng = np.random.default_rng(bits)
    top = 1 << bits
    some = [0, 1, 2, 3, 7, 0x55 % top, top // 2 - 1, top // 2, top // 2 + 1, top - 2, top - 1]
    some += [int(v) for v in rng.integers(0, top, extra, dtype=np.uint64)]
    return np.array(some, f"u{bits // 8}")


def signed(value, bits):
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def read(value, kind, bits):
    """A number as the type reads its bits."""
    return signed(int(value), bits) if kind == "s" else int(value) % (1 << bits)


def make(body, arrays, function, out):
    """function takes Python integers; its result wraps to `out` bits."""
    want = [function(*(int(v) for v in row)) % (1 << out) for row in zip(*arrays)]
    return Case(body, list(arrays), np.array(want, f"u{out // 8}"))


def truncate(a, b):
    """Quotient towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def arithmetic():
    two = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul.lo": lambda a, b: a * b,
        "min": min,
        "max": max,
        "div": truncate,
        "rem": lambda a, b: a - b * truncate(a, b),
    }
    for bits in (16, 32, 64):
        for kind in "us":
            a, b = product(edge(bits), edge(bits))
            as_read = lambda f, k=kind, n=bits: lambda *v: f(*(read(x, k, n) for x in v))
            for name, f in two.items():
                x, y = a, b
                if name in ("div", "rem"):
                    lowest = (a == 1 << (bits - 1)) & (b == (1 << bits) - 1)
                    keep = (b != 0) & ~lowest if kind == "s" else b != 0
                    x, y = a[keep], b[keep]
                yield make(f"{name}.{kind}{bits} d, a, b;", [x, y], as_read(f), bits)
            yield make(f"mul.hi.{kind}{bits} d, a, b;", [a, b], as_read(lambda a, b, n=bits: a * b >> n), bits)
            three = product(edge(bits, 1), edge(bits, 1), edge(bits, 0)[::2])
            yield make(f"mad.lo.{kind}{bits} d, a, b, c;", three, as_read(lambda a, b, c: a * b + c), bits)
            yield make(f"mad.hi.{kind}{bits} d, a, b, c;", three, as_read(lambda a, b, c, n=bits: (a * b >> n) + c), bits)
            yield make(f"sad.{kind}{bits} d, a, b, c;", three, as_read(lambda a, b, c: c + abs(a - b)), bits)
            if bits < 64:
                yield make(f"mul.wide.{kind}{bits} d, a, b;", [a, b], as_read(lambda a, b: a * b), 2 * bits)
                x, y, z = product(edge(bits, 1), edge(bits, 1), edge(2 * bits, 0)[::3])
                wide = lambda a, b, c, k=kind, n=bits: read(a, k, n) * read(b, k, n) + c
                yield make(f"mad.wide.{kind}{bits} d, a, b, c;", [x, y, z], wide, 2 * bits)
        (a,) = product(edge(bits))
        yield make(f"neg.s{bits} d, a;", [a], lambda a: -a, bits)
        yield make(f"abs.s{bits} d, a;", [a], lambda a, n=bits: abs(signed(a, n)), bits)
    a, b = product(edge(32), edge(32))
    clamp = lambda v: max(-(2**31), min(2**31 - 1, v))
    yield make("add.sat.s32 d, a, b;", [a, b], lambda a, b: clamp(signed(a, 32) + signed(b, 32)), 32)
    yield make("sub.sat.s32 d, a, b;", [a, b], lambda a, b: clamp(signed(a, 32) - signed(b, 32)), 32)
    low = lambda v: v & 0xFFFFFF
    low_signed = lambda v: signed(v & 0xFFFFFF, 24)
    yield make("mul24.lo.u32 d, a, b;", [a, b], lambda a, b: low(a) * low(b), 32)
    yield make("mul24.lo.s32 d, a, b;", [a, b], lambda a, b: low_signed(a) * low_signed(b), 32)
    yield make("mul24.hi.u32 d, a, b;", [a, b], lambda a, b: low(a) * low(b) >> 16, 32)
    yield make("mad24.lo.u32 d, a, b, a;", [a, b], lambda a, b: low(a) * low(b) + a, 32)


def carries():
    a, b, c = product(edge(32), edge(32), np.array([0, 1, 2**32 - 1], np.uint32))
    high = lambda a, b, c: (a + b + ((c + b) >> 32)) & 0xFFFFFFFF
    yield make("add.cc.u32 r0, c, b; addc.u32 d, a, b;", [a, b, c], high, 32)
    yield make("sub.cc.u32 r0, c, b; subc.u32 d, a, b;", [a, b, c], lambda a, b, c: a - b - (c < b), 32)
    chain = "add.cc.u32 r0, a, b; addc.cc.u32 r1, a, c; addc.u32 r2, b, c; mov.b64 l0, {r0, r1}; cvt.u64.u32 l1, r2; xor.b64 d, l0, l1;"

    def sums(a, b, c):
        first = a + b
        second = a + c + (first >> 32)
        return ((first % 2**32) | (second % 2**32) << 32) ^ ((b + c + (second >> 32)) % 2**32)

    yield make(chain, [a, b, c], sums, 64)
    for bits in (32, 64):
        a, b, c = product(edge(bits), edge(bits), edge(bits, 0)[::4])
        r = "rl"[bits == 64]
        top = (1 << bits) - 1
        for kind in "us":

            def upper(a, b, c, k=kind, n=bits):
                """The upper half of a * b + (c << n) + c."""
                whole = read(a, k, n) * read(b, k, n)
                return (whole >> n) + c + ((whole & ((1 << n) - 1)) + c >> n)

            body = f"mad.lo.cc.{kind}{bits} {r}0, a, b, c; madc.hi.{kind}{bits} d, a, b, c;"
            yield make(body, [a, b, c], upper, bits)

            def carried(a, b, c, k=kind, n=bits, t=top):
                """The carries of three sums, each with the one before."""
                high = (read(a, k, n) * read(b, k, n) >> n) & t
                first = high + c >> n
                second = (a * b & t) + c + first >> n
                return (high + b + second) & t

            body = f"mad.hi.cc.{kind}{bits} {r}0, a, b, c; madc.lo.cc.{kind}{bits} {r}1, a, b, c; madc.hi.{kind}{bits} d, a, b, b;"
            yield make(body, [a, b, c], carried, bits)


def permute(a, b, selector, mode):
    source = [(a | b << 32) >> (8 * k) & 255 for k in range(8)]
    if mode == "":
        picks = [selector >> (4 * k) & 15 for k in range(4)]
        return sum((source[p & 7] if p < 8 else (255 if source[p & 7] & 128 else 0)) << (8 * k) for k, p in enumerate(picks))
    s = selector & 3
    table = {
        "f4e": [s, s + 1, s + 2, s + 3],
        "b4e": [s % 8, (s - 1) % 8, (s - 2) % 8, (s - 3) % 8],
        "rc8": [s] * 4,
        "ecl": [max(k, s) for k in range(4)],
        "ecr": [min(k, s) for k in range(4)],
        "rc16": [0, 1, 0, 1] if s % 2 == 0 else [2, 3, 2, 3],
    }[mode]
    return sum(source[p] << (8 * k) for k, p in enumerate(table))


def bits_and_shifts():
    for bits in (16, 32, 64):
        a, b = product(edge(bits), edge(bits))
        for name, f in {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}.items():
            yield make(f"{name}.b{bits} d, a, b;", [a, b], f, bits)
        (a,) = product(edge(bits))
        yield make(f"not.b{bits} d, a;", [a], lambda a: ~a, bits)
        yield make(f"cnot.b{bits} d, a;", [a], lambda a: a == 0, bits)
        a, s = product(edge(bits), np.array([0, 1, 5, bits - 1, bits, bits + 1, 64, 255, 2**32 - 1], np.uint32))
        yield make(f"shl.b{bits} d, a, b;", [a, s], lambda a, s: a << s if s < 64 else 0, bits)
        yield make(f"shr.u{bits} d, a, b;", [a, s], lambda a, s: a >> min(s, 64), bits)
        yield make(f"shr.b{bits} d, a, b;", [a, s], lambda a, s: a >> min(s, 64), bits)
        yield make(f"shr.s{bits} d, a, b;", [a, s], lambda a, s, n=bits: signed(a, n) >> min(s, 64), bits)
    for bits in (32, 64):
        (a,) = product(edge(bits, 20))
        yield make(f"popc.b{bits} d, a;", [a], lambda a: bin(a).count("1"), 32)
        yield make(f"clz.b{bits} d, a;", [a], lambda a, n=bits: n - a.bit_length(), 32)
        yield make(f"brev.b{bits} d, a;", [a], lambda a, n=bits: int(f"{a:0{n}b}"[::-1], 2), bits)
        for kind in "us":

            def first(a, shift, k=kind, n=bits):
                a = ~a % (1 << n) if k == "s" and a >> (n - 1) else a
                found = a.bit_length() - 1
                return 0xFFFFFFFF if found < 0 else n - 1 - found if shift else found

            yield make(f"bfind.{kind}{bits} d, a;", [a], lambda a, f=first: f(a, False), 32)
            yield make(f"bfind.shiftamt.{kind}{bits} d, a;", [a], lambda a, f=first: f(a, True), 32)
        field = [np.array([0, 1, 7, bits // 2, bits - 1, bits, 255], np.uint32)] * 2
        a, at, length = product(edge(bits, 3), *field)

        def extract(a, at, length, kind, n=bits):
            at, length = at & 255, length & 255
            if kind == "u":
                return (a >> at) & ((1 << length) - 1) if at < n else 0
            sign = (a >> min(at + length - 1, n - 1)) & 1 if length else 0
            return sum((((a >> (at + k)) & 1) if k < length and at + k < n else sign) << k for k in range(n))

        for kind in "us":
            yield make(f"bfe.{kind}{bits} d, a, b, c;", [a, at, length], lambda *v, k=kind, f=extract: f(*v, k), bits)

        def insert(a, at, length, n=bits):
            base = a ^ ((1 << n) - 1)  # the second operand, see the body
            for k in range(length & 255):
                if (at & 255) + k < n:
                    where = (at & 255) + k
                    base = base & ~(1 << where) | ((a >> k) & 1 if k < n else 0) << where
            return base

        temp = "l0" if bits == 64 else "r0"
        yield make(f"not.b{bits} {temp}, a; bfi.b{bits} d, a, {temp}, b, c;", [a, at, length], insert, bits)
    a, b, s = product(edge(32, 1), edge(32, 1), np.array([0, 1, 9, 31, 32, 33, 64, 2**32 - 1], np.uint32))
    for mode, amount in {"wrap": lambda s: s & 31, "clamp": lambda s: min(s, 32)}.items():
        left = lambda a, b, s, f=amount: ((b << 32 | a) << f(s)) >> 32
        right = lambda a, b, s, f=amount: (b << 32 | a) >> f(s)
        yield make(f"shf.l.{mode}.b32 d, a, b, c;", [a, b, s], left, 32)
        yield make(f"shf.r.{mode}.b32 d, a, b, c;", [a, b, s], right, 32)
    a, b, s = product(edge(32, 3)[-3:], edge(32, 2)[-3:], np.array([0, 1, 2, 3, 0x3210, 0x7654, 0x0123, 0xBA98, 0xFEDC, 0x5140], np.uint32))
    for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield make(f"prmt.b32{'.' + mode if mode else ''} d, a, b, c;", [a, b, s], lambda a, b, s, m=mode: permute(a, b, s, m), 32)
    abc = product(edge(32, 2)[-4:], edge(32, 3)[-4:], edge(32, 4)[-4:])
    for table in (0x00, 0x1E, 0x80, 0x96, 0xCA, 0xE8, 0xFE, 0xFF, 0x2D):

        def logic(a, b, c, t=table):
            return sum((t >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(32))

        yield make(f"lop3.b32 d, a, b, c, {table:#x};", abc, logic, 32)
    at, length = product(np.array([0, 1, 8, 31, 32, 99], np.uint32), np.array([0, 1, 5, 31, 32, 99], np.uint32))
    mask = lambda at, n: ((1 << min(n, 32)) - 1) << at if at < 32 else 0
    yield make("bmsk.clamp.b32 d, a, b;", [at, length], mask, 32)
    wrapped = lambda at, n: ((1 << (n & 31)) - 1) << (at & 31)
    yield make("bmsk.wrap.b32 d, a, b;", [at, length], wrapped, 32)


COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def comparisons():
    for bits in (16, 32, 64):
        a, b = product(edge(bits, 2), edge(bits, 2))
        for kind in "usb":
            names = ["eq", "ne"] if kind == "b" else [*COMPARE, *(UNSIGNED if kind == "u" else [])]
            for name in names:
                f = COMPARE[UNSIGNED.get(name, name)]
                want = lambda a, b, f=f, k=kind, n=bits: 1 if f(read(a, k, n), read(b, k, n)) else 2
                yield make(f"setp.{name}.{kind}{bits} p, a, b; selp.u32 d, 1, 2, p;", [a, b], want, 32)
    a, b, c = product(edge(32, 1), edge(32, 1), np.array([0, 1], np.uint32))
    combine = {"and": lambda x, y: x and y, "or": lambda x, y: x or y, "xor": lambda x, y: x != y}
    for name, f in combine.items():
        for negated in ("", "!"):
            other = lambda c, n=negated: (c == 1) != bool(n)
            want = lambda a, b, c, f=f, o=other: bool(f(a < b, o(c))) | bool(f(not a < b, o(c))) << 1
            body = f"setp.eq.u32 q, c, 1; setp.lt.{name}.u32 p|out, a, b, {negated}q; selp.u32 r0, 1, 0, p; selp.u32 r1, 2, 0, out; or.b32 d, r0, r1;"
            yield make(body, [a, b, c], want, 32)
    for body, want in {
        "@q mov.u32 d, a; @!q mov.u32 d, b;": lambda a, b, c: a if c else b,
        "selp.b32 d, a, b, q;": lambda a, b, c: a if c else b,
        "not.pred p, q; selp.b32 d, a, b, p;": lambda a, b, c: b if c else a,
        "setp.lt.u32 p, a, b; and.pred p, p, q; selp.b32 d, 1, 0, p;": lambda a, b, c: a < b and c,
        "setp.lt.u32 p, a, b; xor.pred p, p, q; selp.b32 d, 1, 0, p;": lambda a, b, c: (a < b) != c,
        "setp.lt.u32 p, a, b; or.pred p, p, q; selp.b32 d, 1, 0, p;": lambda a, b, c: a < b or c,
        "slct.u32.s32 d, a, b, c;": lambda a, b, c: a,
    }.items():
        yield make(f"setp.ne.u32 q, c, 0; {body}", [a, b, c], want, 32)
    a, b, c = product(edge(32, 1), edge(32, 1), edge(32, 1))
    yield make("slct.b32.s32 d, a, b, c;", [a, b, c], lambda a, b, c: a if signed(c, 32) >= 0 else b, 32)


def products():
    """dp4a and dp2a: sums of products of bytes."""
    a, b, c = product(edge(32, 4)[-6:], edge(32, 5)[-6:], edge(32, 0)[::4])
    part = lambda v, k, n, kind: read(v >> (n * k) & ((1 << n) - 1), kind, n)
    for x in "us":
        for y in "us":
            want = lambda a, b, c, x=x, y=y: c + sum(part(a, k, 8, x) * part(b, k, 8, y) for k in range(4))
            yield make(f"dp4a.{x}32.{y}32 d, a, b, c;", [a, b, c], want, 32)
            for half in (0, 1):
                want = lambda a, b, c, x=x, y=y, h=half: c + sum(part(a, k, 16, x) * part(b, k + 2 * h, 8, y) for k in range(2))
                yield make(f"dp2a.{'hi' if half else 'lo'}.{x}32.{y}32 d, a, b, c;", [a, b, c], want, 32)


FAMILIES = dict(arithmetic=arithmetic, carries=carries, bits_and_shifts=bits_and_shifts, comparisons=comparisons, products=products)
