# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Small PTX kernels, each with inputs and the outputs that the PTX manual asks for.

A case has a body of PTX that computes d from a, b and c: untyped registers of the widths of the
arrays. Thread i takes element i. The expected array is computed in Python, from the manual, without
a look at the interpreter. The same cases run on a device (FAKEGPU names the folder of its driver).
"""

import ctypes as C
import dataclasses

import fakegpu_cuda as cuda
import numpy as np

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
BLOCK = 64


@dataclasses.dataclass
class Case:
    body: str
    inputs: list  # of arrays of one length
    want: np.ndarray
    error: float = 0  # of an approximate instruction, relative to max(|want|, floor)
    floor: float = 0
    shared: int = 0  # bytes of a variable `buffer`
    halves: np.dtype = None  # of two to a word, to be compared as such

    def __post_init__(self):
        n = {len(x) for x in self.inputs}
        assert len(n) == 1 and len(self.want) == n.pop(), self.body

    def kernel(self, name):
        widths = [x.dtype.itemsize * 8 for x in self.inputs]
        params = "".join(f", .param .u64 p{k}" for k in range(len(widths)))
        loads = "".join(
            f"ld.param.u64 x, [p{k}]; mad.wide.u32 x, i, {w // 8}, x; ld.global.b{w} {'abc'[k]}, [x];\n"
            for k, w in enumerate(widths)
        )
        out = self.want.dtype.itemsize * 8
        regs = "".join(f".reg .b{w} {'abc'[k]};" for k, w in enumerate(widths)) + f".reg .b{out} d;"
        buffer = f".shared .align 16 .b8 buffer[{self.shared}];\n" if self.shared else ""
        return f"""
.visible .entry {name}(.param .u64 o{params}, .param .u32 n) {{
{regs} .reg .u64 x, y; .reg .u32 i, j, size; .reg .pred p, q, out; .reg .b16 h<8>; .reg .b32 r<16>;
.reg .b64 l<8>; {buffer}
mov.u32 i, %ctaid.x; mov.u32 j, %tid.x; mad.lo.u32 i, i, {BLOCK}, j;
ld.param.u32 size, [n]; min.u32 i, i, size;
{loads}{self.body}
ld.param.u64 x, [o]; mad.wide.u32 x, i, {out // 8}, x; st.global.b{out} [x], d;
ret; }}
"""

    def compare(self, got):
        want, per = self.want, 1
        if self.halves is not None:
            want, got, per = want.view(self.halves), got.view(self.halves), 2
        if want.dtype.kind == "f" or want.dtype.name == "bfloat16":
            got64, want64 = got.astype(float), want.astype(float)
            nan = np.isnan(want64)
            with np.errstate(invalid="ignore"):
                near = np.abs(got64 - want64) <= self.error * np.maximum(np.abs(want64), self.floor)
            same = np.where(nan, np.isnan(got64), (got64 == want64) & (np.signbit(got64) == np.signbit(want64)) | ((self.error > 0) & near))
        else:
            same = got == want
        if same.all():
            return None
        k = int(np.argmin(same))
        return f"{self.body}: element {k}: {[x[k // per] for x in self.inputs]} gives {got[k]}, expected {want[k]}"


def module(cases):
    return HEAD + "".join(case.kernel(f"k{i}") for i, case in enumerate(cases))


def run(driver, cases):
    """The differences of all cases."""
    loaded, wrong = driver.load(module(cases)), []
    for i, case in enumerate(cases):
        n = len(case.want)
        ins = [driver.put(x.view(f"u{x.dtype.itemsize}")) for x in case.inputs]
        out = driver.alloc(case.want.nbytes)
        driver.launch(driver.kernel(loaded, f"k{i}"), (n + BLOCK - 1) // BLOCK, BLOCK, out, *ins, C.c_uint32(n - 1))
        driver.synchronize()
        got = driver.get(out, n, f"u{case.want.dtype.itemsize}").view(case.want.dtype)
        if (said := case.compare(got)) is not None:
            wrong.append(said)
        for at in [*ins, out]:
            driver.free(at)
    return wrong


def product(*values):
    """All combinations, as one array for each."""
    grids = np.meshgrid(*values, indexing="ij")
    return [np.ascontiguousarray(g.ravel()) for g in grids]


__all__ = ["Case", "cuda", "module", "product", "run"]
