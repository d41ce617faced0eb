# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loads and stores by space, width and vector, cp.async and generic addresses."""

import numpy as np
from corpus.harness import BLOCK, Case

N = 2 * BLOCK
RNG = np.random.default_rng(6)
WORDS = RNG.integers(0, 2**32, N, dtype=np.uint32)
WIDE = RNG.integers(0, 2**64, N, dtype=np.uint64)
#: x is the address of a[0], l0 that of a[i].
AT = "ld.param.u64 x, [p0]; mad.wide.u32 l0, i, 4, x; "
#: The same for the group of four words that has a[i]; r8 is i % 4.
GROUP = "ld.param.u64 x, [p0]; and.b32 r9, i, -4; and.b32 r8, i, 3; mad.wide.u32 l0, r9, 4, x; "
PICK = "setp.eq.u32 p, r8, 1; mov.b32 d, r0; @p mov.b32 d, r1; setp.eq.u32 p, r8, 2; @p mov.b32 d, r2; setp.eq.u32 p, r8, 3; @p mov.b32 d, r3;"


def loads():
    for text in ("ld.global", "ld.global.nc", "ld", "ld.volatile.global", "ld.relaxed.gpu.global", "ld.acquire.sys.global", "ld.global.ca", "ld.global.cg", "ld.global.L1::no_allocate", "ld.global.nc.L1::evict_last", "ld.global.L2::128B"):
        yield Case(f"{AT}{text}.b32 d, [l0];", [WORDS], WORDS)
        if "nc" in text or text in ("ld.global", "ld"):
            yield Case(f"{GROUP}{text}.v4.b32 {{r0, r1, r2, r3}}, [l0]; {PICK}", [WORDS], WORDS)
            yield Case(f"{GROUP}{text}.v2.b64 {{l1, l2}}, [l0]; mov.b64 {{r0, r1}}, l1; mov.b64 {{r2, r3}}, l2; {PICK}", [WORDS], WORDS)
    bytes_of = WORDS.view(np.uint8)[2::4]
    halves = WORDS.view(np.uint16)[1::2]
    yield Case(f"{AT}ld.global.u8 d, [l0+2];", [WORDS], bytes_of.astype(np.uint32))
    yield Case(f"{AT}ld.global.s8 d, [l0+2];", [WORDS], bytes_of.view(np.int8).astype(np.int32).view(np.uint32))
    yield Case(f"{AT}ld.global.u16 d, [l0+2];", [WORDS], halves.astype(np.uint32))
    yield Case(f"{AT}ld.global.s16 d, [l0+2];", [WORDS], np.ascontiguousarray(halves).view(np.int16).astype(np.int32).view(np.uint32))
    yield Case(f"{AT}ld.global.v2.b16 {{h0, h1}}, [l0]; mov.b32 d, {{h1, h0}};", [WORDS], WORDS << 16 | WORDS >> 16)
    yield Case(f"{AT}ld.global.v4.u8 {{h0, h1, h2, h3}}, [l0]; add.u16 h0, h0, h3; cvt.u32.u16 d, h0;", [WORDS], (WORDS & 255) + (WORDS >> 24))
    yield Case("ld.param.u64 x, [p0]; mad.wide.u32 x, i, 8, x; ld.global.s32 d, [x+4];", [WIDE], (WIDE.view(np.int64) >> 32).astype(np.int64).view(np.uint64))
    yield Case("ld.param.u32 d, [n]; add.u32 d, d, a;", [WORDS], WORDS + np.uint32(N - 1))


def shared_and_local():
    own = "mov.u32 r10, buffer; mov.u32 r11, %tid.x; mad.lo.u32 r10, r11, 16, r10; "
    yield Case(own + "st.shared.b32 [r10], a; ld.shared.b32 d, [r10];", [WORDS], WORDS, shared=16 * BLOCK)
    yield Case(own + "mov.b32 r1, 1; st.shared.v4.b32 [r10], {a, r1, a, r1}; ld.shared.v4.b32 {r0, r1, r2, r3}, [r10]; xor.b32 d, r1, r2;", [WORDS], WORDS ^ 1, shared=16 * BLOCK)
    yield Case(own + "st.shared.b64 [r10+8], a; ld.shared.b32 r0, [r10+12]; ld.shared.u16 r1, [r10+8]; xor.b32 d, r0, r1;", [WIDE], ((WIDE >> np.uint64(32)) ^ (WIDE & np.uint64(65535))).astype(np.uint32), shared=16 * BLOCK)
    yield Case(own + "st.shared.u8 [r10], a; ld.shared.s8 d, [r10];", [WORDS], WORDS.view(np.int8)[::4].astype(np.int32).view(np.uint32), shared=16 * BLOCK)
    generic = "cvt.u64.u32 l1, r10; cvta.shared.u64 l2, l1; st.b32 [l2], a; cvta.to.shared.u64 l3, l2; cvt.u32.u64 r1, l3; ld.shared.b32 d, [r1];"
    yield Case(own + generic, [WORDS], WORDS, shared=16 * BLOCK)
    spaces = "isspacep.shared p, l2; isspacep.global q, l2; selp.u32 d, 1, 0, p; @q add.u32 d, d, 2;"
    yield Case(own + "cvt.u64.u32 l1, r10; cvta.shared.u64 l2, l1; " + spaces, [WORDS], np.ones(N, np.uint32), shared=16 * BLOCK)
    yield Case("ld.param.u64 x, [p0]; cvta.global.u64 l2, x; " + spaces, [WORDS], np.full(N, 2, np.uint32))
    local = ".local .align 8 .b8 own[32]; mov.u64 l1, own; and.b32 r0, a, 7; mad.wide.u32 l2, r0, 4, l1; st.local.b32 [l2], a; ld.local.b32 d, [l2];"
    yield Case(local, [WORDS], WORDS)
    generic = ".local .align 8 .b8 own[32]; mov.u64 l1, own; cvta.local.u64 l2, l1; st.b32 [l2+4], a; ld.local.b32 d, [own+4];"
    yield Case(generic, [WORDS], WORDS)


def asynchronous():
    own = "mov.u32 r10, buffer; mov.u32 r11, %tid.x; mad.lo.u32 r10, r11, 16, r10; " + GROUP
    take = "cp.async.commit_group; cp.async.wait_group 0; ld.shared.v4.b32 {r0, r1, r2, r3}, [r10]; " + PICK
    yield Case(own + "cp.async.cg.shared.global [r10], [l0], 16; " + take, [WORDS], WORDS, shared=16 * BLOCK)
    yield Case(own + "cp.async.ca.shared.global [r10], [l0], 16; " + take, [WORDS], WORDS, shared=16 * BLOCK)
    yield Case(own + "cp.async.cg.shared.global.L2::128B [r10], [l0], 16; cp.async.wait_all; " + take.replace("cp.async.commit_group; cp.async.wait_group 0; ", ""), [WORDS], WORDS, shared=16 * BLOCK)
    eight = "cp.async.ca.shared.global [r10], [l0], 8; cp.async.ca.shared.global [r10+8], [l0+8], 4; cp.async.ca.shared.global [r10+12], [l0+12], 4; "
    yield Case(own + eight + take, [WORDS], WORDS, shared=16 * BLOCK)
    # Bytes behind the source size are zero.
    part = np.where(np.arange(N) % 4 < 2, WORDS, 0).astype(np.uint32)
    yield Case(own + "cp.async.cg.shared.global [r10], [l0], 16, 8; " + take, [WORDS], part, shared=16 * BLOCK)
    none = "mov.u32 r12, 0; cp.async.cg.shared.global [r10], [l0], 16, r12; "
    yield Case(own + none + take, [WORDS], np.zeros(N, np.uint32), shared=16 * BLOCK)
    groups = "cp.async.cg.shared.global [r10], [l0], 16; cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1; "
    yield Case(own + groups + take.split("wait_group 0; ")[1], [WORDS], WORDS, shared=16 * BLOCK)


def global_atomics():
    """On a[i] itself, so that each thread knows the old value."""
    head = AT + "ld.global.b32 r0, [l0]; "
    for text, f in {
        "atom.global.add.u32 r1, [l0], 5;": lambda a: a + np.uint32(5),
        "atom.global.exch.b32 r1, [l0], 7;": lambda a: np.full_like(a, 7),
        "atom.global.and.b32 r1, [l0], 255;": lambda a: a & 255,
        "atom.global.max.s32 r1, [l0], 0;": lambda a: np.maximum(a.view(np.int32), 0).view(np.uint32),
        "atom.relaxed.gpu.global.or.b32 r1, [l0], 1;": lambda a: a | 1,
        "atom.global.cas.b32 r1, [l0], r0, 9;": lambda a: np.full_like(a, 9),
    }.items():
        # The old value in one half of the answer, the new one in the other.
        body = head + text + " sub.u32 r1, r1, a; ld.global.b32 r2, [l0]; add.u32 d, r1, r2; st.global.b32 [l0], a;"
        yield Case(body, [WORDS], f(WORDS))
    body = head + "red.global.add.u32 [l0], 3; ld.global.b32 d, [l0];"
    yield Case(body, [WORDS], WORDS + np.uint32(3))


FAMILIES = dict(loads=loads, shared_and_local=shared_and_local, asynchronous=asynchronous, global_atomics=global_atomics)
