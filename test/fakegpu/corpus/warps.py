# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Instructions of a whole warp, divergence, barriers and atomic operations."""

import numpy as np
from corpus.harness import Case
from corpus.integers import signed

WARPS = 6
RNG = np.random.default_rng(5)
A = RNG.integers(0, 2**32, 32 * WARPS, dtype=np.uint32)
SMALL = RNG.integers(0, 4, 32 * WARPS, dtype=np.uint32)
LANE = np.arange(32 * WARPS) % 32


def per_warp(function, *arrays):
    """function(lists of 32) gives the 32 results of a warp."""
    rows = [function(*(x.reshape(-1, 32)[w].tolist() for x in arrays)) for w in range(WARPS)]
    return (np.array(rows, dtype=object).reshape(-1) % 2**32).astype(np.uint32)


def shuffle(mode, b, c):
    """The source lane and the predicate, from the pseudo-code of the manual."""
    limit, segment = c & 31, c >> 8 & 31

    def source(lane):
        most = (lane & segment) | (limit & ~segment & 31)
        least = lane & segment
        j = {"up": lane - (b & 31), "down": lane + (b & 31), "bfly": lane ^ (b & 31), "idx": least | (b & 31 & ~segment)}[mode]
        fine = j >= most if mode == "up" else j <= most
        return (j if fine else lane), fine

    return source


def shuffles():
    for mode in ("up", "down", "bfly", "idx"):
        for b in (0, 1, 5, 16, 31):
            for width in (32, 16, 8):
                c = (32 - width) << 8 | (0 if mode == "up" else 31)
                source = shuffle(mode, b, c)
                want = per_warp(lambda a: [a[source(k)[0]] + (1 if source(k)[1] else 0) for k in range(32)], A)
                body = f"shfl.sync.{mode}.b32 d|p, a, {b}, {c}, -1; @p add.u32 d, d, 1;"
                yield Case(body, [A], want)
    # The lane may differ by lane.
    want = per_warp(lambda a, s: [a[s[k]] for k in range(32)], A, SMALL)
    yield Case("shfl.sync.idx.b32 d, a, b, 31, 0xFFFFFFFF;", [A, SMALL], want)
    # Half a warp, by its mask.
    want = per_warp(lambda a: [a[k ^ 1] if k < 16 else 7 for k in range(32)], A)
    body = "mov.u32 j, %laneid; setp.lt.u32 p, j, 16; mov.u32 d, 7; @p shfl.sync.bfly.b32 d, a, 1, 31, 0xFFFF;"
    yield Case(body, [A], want)


def votes():
    odd = lambda a: [v & 1 for v in a]
    ballot = lambda a: sum(v << k for k, v in enumerate(odd(a)))
    body = "and.b32 r0, a, 1; setp.eq.u32 p, r0, 1; "
    answers = {
        "vote.sync.ballot.b32 d, p, -1;": ballot,
        "vote.sync.any.pred q, p, -1; selp.u32 d, 1, 0, q;": lambda a: any(odd(a)),
        "vote.sync.all.pred q, p, -1; selp.u32 d, 1, 0, q;": lambda a: all(odd(a)),
        "vote.sync.uni.pred q, p, -1; selp.u32 d, 1, 0, q;": lambda a: len(set(odd(a))) == 1,
        "vote.sync.ballot.b32 d, !p, -1;": lambda a: ~ballot(a),
    }
    same = A.copy()
    same[:32] |= 1
    same[32:64] &= ~np.uint32(1)
    for text, f in answers.items():
        yield Case(body + text, [same], per_warp(lambda a, f=f: [int(f(a))] * 32, same))
    match = lambda a: [sum(1 << j for j in range(32) if a[j] == a[k]) for k in range(32)]
    yield Case("match.any.sync.b32 d, a, -1;", [SMALL], per_warp(match, SMALL))
    wide = SMALL.astype(np.uint64) << np.uint64(40)
    yield Case("match.any.sync.b64 d, a, -1;", [wide], per_warp(match, SMALL))
    equal = np.where(np.arange(32 * WARPS) < 64, 9, A).astype(np.uint32)
    all_match = lambda a: [(2**32 - 1 if len(set(a)) == 1 else 0) ^ (len(set(a)) == 1)] * 32
    yield Case("match.all.sync.b32 d|p, a, -1; @p xor.b32 d, d, 1;", [equal], per_warp(all_match, equal))
    yield Case("activemask.b32 d;", [A], per_warp(lambda a: [2**32 - 1] * 32, A))
    body = "mov.u32 j, %laneid; setp.lt.u32 p, j, 5; @p bra LOW; activemask.b32 d; bra.uni OVER; LOW: activemask.b32 d; OVER: bar.warp.sync -1;"
    yield Case(body, [A], per_warp(lambda a: [31 if k < 5 else 2**32 - 32 for k in range(32)], A))


def reductions():
    unsigned = {"add": sum, "min": min, "max": max}
    for name, f in unsigned.items():
        yield Case(f"redux.sync.{name}.u32 d, a, -1;", [A], per_warp(lambda a, f=f: [f(a)] * 32, A))
        yield Case(f"redux.sync.{name}.s32 d, a, -1;", [A], per_warp(lambda a, f=f: [f([signed(v, 32) for v in a])] * 32, A))
    for name, f in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items():
        yield Case(f"redux.sync.{name}.b32 d, a, -1;", [A], per_warp(lambda a, f=f: [int(f.reduce(a))] * 32, A))
    body = "elect.sync r0|p, -1; selp.u32 d, 1, 0, p; shl.b32 r0, r0, 1; add.u32 d, d, r0;"
    want = per_warp(lambda a: [1] + [0] * 31, A)
    yield Case(body, [A], want)


def divergence():
    loop = "and.b32 r0, a, 31; mov.u32 d, 0; AGAIN: setp.eq.u32 p, r0, 0; @p bra DONE; add.u32 d, d, r0; sub.u32 r0, r0, 1; bra AGAIN; DONE:"
    n = (A & 31).astype(np.uint32)
    yield Case(loop, [A], n * (n + 1) // 2)
    nested = """and.b32 r0, a, 1; setp.eq.u32 p, r0, 1; and.b32 r1, a, 2; setp.eq.u32 q, r1, 2;
    @p bra ODD; @q bra TWO; mov.u32 d, 1; bra END; TWO: mov.u32 d, 2; bra END;
    ODD: @q bra BOTH; mov.u32 d, 3; bra END; BOTH: mov.u32 d, 4; END: shfl.sync.bfly.b32 d, d, 1, 31, -1;"""
    kind = 1 + (A >> 1 & 1) + 2 * (A & 1)
    yield Case(nested, [A], kind.reshape(-1, 2)[:, ::-1].reshape(-1).astype(np.uint32))
    table = "and.b32 r0, a, 3; WAYS: .branchtargets W0, W1, W2, W3; brx.idx r0, WAYS; W0: mov.u32 d, 10; bra OUT; W1: mov.u32 d, 11; bra OUT; W2: mov.u32 d, 12; bra OUT; W3: mov.u32 d, 13; OUT:"
    yield Case(table, [A], (10 + (A & 3)).astype(np.uint32))


def barriers():
    """A block has 64 threads."""
    reverse = """mov.u32 r0, buffer; mov.u32 r1, %tid.x; shl.b32 r2, r1, 2; add.u32 r2, r0, r2; st.shared.u32 [r2], a;
    BARRIER xor.b32 r3, r1, 63; shl.b32 r3, r3, 2; add.u32 r3, r0, r3; ld.shared.u32 d, [r3];"""
    want = A.reshape(-1, 64)[:, ::-1].reshape(-1)
    for barrier in ("bar.sync 0;", "barrier.sync.aligned 3, 64;", "barrier.cta.sync 1;", "bar.sync 2, 64;"):
        yield Case(reverse.replace("BARRIER", barrier), [A], want, shared=256)
    count = (A & 1).reshape(-1, 64)
    head = "and.b32 r0, a, 1; setp.eq.u32 p, r0, 1; "
    for text, f in {
        "bar.red.popc.u32 d, 0, p;": lambda c: c.sum(1),
        "bar.red.and.pred q, 0, p; selp.u32 d, 1, 0, q;": lambda c: c.all(1),
        "bar.red.or.pred q, 0, p; selp.u32 d, 1, 0, q;": lambda c: c.any(1),
    }.items():
        yield Case(head + text, [A], np.repeat(f(count), 64).astype(np.uint32))


def atomics():
    """All threads of a block change one word; the last reads it."""
    body = """mov.u32 r0, buffer; mov.u32 r1, %tid.x; setp.eq.u32 p, r1, 0; @p st.shared.u32 [r0], FIRST; bar.sync 0;
    DO bar.sync 0; ld.shared.u32 d, [r0];"""
    blocks = A.reshape(-1, 64)
    folds = {
        ("add", "u32"): (0, lambda b: int(b.sum(dtype=np.uint64)) % 2**32),
        ("min", "u32"): (2**32 - 1, lambda b: int(b.min())),
        ("max", "u32"): (0, lambda b: int(b.max())),
        ("min", "s32"): (2**31 - 1, lambda b: int(b.view(np.int32).min()) % 2**32),
        ("max", "s32"): (2**31, lambda b: int(b.view(np.int32).max()) % 2**32),
        ("and", "b32"): (2**32 - 1, lambda b: int(np.bitwise_and.reduce(b))),
        ("or", "b32"): (0, lambda b: int(np.bitwise_or.reduce(b))),
        ("xor", "b32"): (0, lambda b: int(np.bitwise_xor.reduce(b))),
    }
    for (name, kind), (first, f) in folds.items():
        want = np.repeat([f(b) for b in blocks], 64).astype(np.uint32)
        for do in (f"atom.shared.{name}.{kind} r3, [r0], a;", f"red.shared.{name}.{kind} [r0], a;"):
            yield Case(body.replace("FIRST", str(first)).replace("DO", do), [A], want, shared=16)
    counted = np.full(len(A), 64 % 7, np.uint32)
    yield Case(body.replace("FIRST", "0").replace("DO", "atom.shared.inc.u32 r3, [r0], 6;"), [A], counted, shared=16)
    floats = np.full(len(A), 64 * 0.5, np.float32)
    yield Case(body.replace("FIRST", "0").replace("DO", "atom.shared.add.f32 r3, [r0], 0f3F000000;"), [A], floats, shared=16)
    # Compare and swap: the threads count in a loop.
    loop = "TRY: ld.volatile.shared.u32 r4, [r0]; add.u32 r5, r4, 1; atom.shared.cas.b32 r6, [r0], r4, r5; setp.ne.u32 p, r6, r4; @p bra TRY;"
    yield Case(body.replace("FIRST", "0").replace("DO", loop), [A], np.full(len(A), 64, np.uint32), shared=16)


FAMILIES = dict(
    shuffles=shuffles, votes=votes, reductions=reductions, divergence=divergence, barriers=barriers, atomics=atomics,
)  # fmt: skip
