# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""mma.sync, ldmatrix, stmatrix and movmatrix, by the fragments of the PTX manual.

Small integers as elements make each sum exact, so that its order does not matter.
"""

import numpy as np
from corpus.exact import BF16
from corpus.harness import BLOCK, Case

GROUP, PAIR = np.arange(32) // 4, np.arange(32) % 4 * 2


def words(values):
    """(..., 2) of 16 bits to words."""
    return np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) @ np.array([1, 65536], np.uint32)


def fragment_a(a):
    """Registers of A, 16 x depth: a0 a1 are row `group`, a2 a3 eight rows below, then eight columns on."""
    registers = []
    for columns in range(0, a.shape[1], 8):
        for rows in (0, 8):
            registers.append(words(np.stack([a[GROUP + rows, PAIR + columns + h] for h in (0, 1)], 1)))
    return registers


def fragment_b(b):
    """Registers of B, depth x 8: column `group`, two rows to a register."""
    return [words(np.stack([b[PAIR + rows + h, GROUP] for h in (0, 1)], 1)) for rows in range(0, b.shape[0], 8)]


def fragment_c(c):
    return [np.ascontiguousarray(c[GROUP + r // 2 * 8, PAIR + r % 2]) for r in range(4)]


def mma():
    rng = np.random.default_rng(8)
    for kind, dtype in (("f16", np.dtype(np.float16)), ("bf16", BF16)):
        for depth in (8, 16):
            for sums in ("f32", "f16") if kind == "f16" else ("f32",):
                a, b, c = (rng.integers(-8, 8, s).astype(dtype) for s in ((16, depth), (depth, 8), (16, 8)))
                d = a.astype(float) @ b.astype(float) + c.astype(float)
                fa, fb = fragment_a(a), fragment_b(b)
                if sums == "f32":
                    fc = [x.view(np.uint32) for x in fragment_c(c.astype(np.float32))]
                    fd = [x.view(np.uint32) for x in fragment_c(d.astype(np.float32))]
                else:
                    half = lambda m: [words(np.stack([m[GROUP + r, PAIR + h] for h in (0, 1)], 1)) for r in (0, 8)]
                    fc, fd = half(c.astype(np.float16)), half(d.astype(np.float16))
                yield from one_mma(f"mma.sync.aligned.m16n8k{depth}.row.col.{sums}.{kind}.{kind}.{sums}", fa, fb, fc, fd)


def one_mma(name, fa, fb, fc, fd):
    """A case for each register of D. The operands are one array: word k of a lane is register k."""
    all_ = np.stack([*fa, *fb, *fc], 1).astype(np.uint32)
    n = all_.shape[1]
    count, loads = len(fc), ""
    for k in range(n):
        loads += f"ld.global.b32 r{k}, [l0+{4 * k}];\n"
    split = [len(fa), len(fa) + len(fb), n]
    regs = lambda lo, hi: "{" + ", ".join(f"r{k}" for k in range(lo, hi)) + "}"
    for k in range(count):
        out = "{" + ", ".join("d" if j == k else f"s{j}" for j in range(count)) + "}"
        body = f".reg .b32 s<4>; ld.param.u64 x, [p0]; mov.u32 j, %laneid; mad.wide.u32 l0, j, {4 * n}, x;\n{loads}"
        body += f"{name} {out}, {regs(0, split[0])}, {regs(split[0], split[1])}, {regs(split[1], n)};"
        # Thread i loads a[i], which it does not use. There are whole blocks, so that a thread for each
        # element writes it.
        size = BLOCK * n
        yield Case(body, [np.resize(all_, size)], np.resize(fd[k], size))


def matrices():
    """Four 8x8 matrices, one after the other in shared memory, of rows of 16 bytes."""
    tiles = np.arange(256, dtype=np.uint16).reshape(4, 8, 8) * 7 + 3
    source = tiles.reshape(-1, 2).copy().view(np.uint32).reshape(-1)
    fill = "mov.u32 r10, buffer; mov.u32 r11, %tid.x; mad.lo.u32 r12, r11, 8, r10; ld.param.u64 x, [p0]; "
    fill += "mad.wide.u32 x, r11, 8, x; ld.global.b64 l0, [x]; st.shared.b64 [r12], l0; bar.sync 0; "
    fill += "and.b32 r11, r11, 31; mad.lo.u32 r12, r11, 16, r10; "
    regs = ["d", "r1", "r2", "r3"]
    lane = np.arange(32)
    for trans in (False, True):
        for count in (1, 2, 4):
            for k in range(count):
                names = [regs[(j - k) % 4] for j in range(count)]
                listed = "{" + ", ".join(names) + "}"
                body = fill + f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.shared.b16 {listed}, [r12];"
                tile = tiles[k].T if trans else tiles[k]
                want = words(np.stack([tile[lane // 4, lane % 4 * 2 + h] for h in (0, 1)], 1))
                yield Case(body, [source], np.resize(want, len(source)), shared=512)
            text = ".trans" if trans else ""
            if count == 1:
                stored = f"stmatrix.sync.aligned.m8n8.x1{text}.shared.b16 [r12], {{r1}}; bar.warp.sync -1; "
                body = "mov.u32 r10, buffer; mov.u32 r11, %tid.x; shr.u32 r13, r11, 5; and.b32 r11, r11, 31; mad.lo.u32 r10, r13, 128, r10; and.b32 r12, r11, 7; mad.lo.u32 r12, r12, 16, r10; mov.b32 r1, a; "
                body += stored + "mad.lo.u32 r12, r11, 4, r10; ld.shared.b32 d, [r12];"
                given = source.reshape(-1, 32)
                want = np.empty_like(given)
                for w, row in enumerate(given):
                    m = np.empty((8, 8), np.uint16)
                    for h in (0, 1):
                        m[lane // 4, lane % 4 * 2 + h] = row >> (16 * h) & 0xFFFF
                    want[w] = words((m.T if trans else m).reshape(-1, 2))
                yield Case(body, [source], want.reshape(-1), shared=256)
    given = source.reshape(-1, 32)
    want = np.empty_like(given)
    for w, row in enumerate(given):
        m = np.empty((8, 8), np.uint16)
        for h in (0, 1):
            m[lane // 4, lane % 4 * 2 + h] = row >> (16 * h) & 0xFFFF
        want[w] = words(np.stack([m.T[lane // 4, lane % 4 * 2 + h] for h in (0, 1)], 1))
    yield Case("movmatrix.sync.aligned.m8n8.trans.b16 d, a;", [source], want.reshape(-1))


FAMILIES = dict(mma=mma, matrices=matrices)
