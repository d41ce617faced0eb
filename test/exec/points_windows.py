# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special points of operations on windows: pools, convolutions, resampling, padding."""
import math

import torch
import torch.nn.functional as F
from derivative_points import Case

inf, nan = math.inf, math.nan

#: [batch, channel, position]: equal elements, minus infinity alone and at borders, NaN.
LINE = torch.tensor([[[0.0] * 8, [0.0, 1.0, 1.0, 2.0, 1.0, 0.0, 2.0, 2.0]],
                     [[-inf] * 8, [1.0, nan, 0.0, nan, 3.0, 1.0, 1.0, 1.0]],
                     [[nan, nan, 2.0, 2.0, 2.0, inf, inf, -inf], [-1.0, -inf, -inf, -inf, -inf, 2.0, 3.0, 3.0]]])
#: Finite ones.
PLAIN = LINE[:1]
_NUMBERS = (torch.arange(72) * 7 % 5 - 1.0).view(1, 2, 6, 6)
PLANE = torch.cat([torch.zeros(1, 2, 6, 6), _NUMBERS, torch.full((1, 2, 6, 6), -inf),
                   _NUMBERS.masked_fill(_NUMBERS == 2, nan), _NUMBERS.masked_fill(_NUMBERS < 2, -inf)])
PLAIN_PLANE = PLANE[:2]
SPACE = PLANE[:, :, None, :4, :4].repeat(1, 1, 4, 1, 1)
WEIGHT = torch.tensor([[[0.5, -1.0, 2.0], [1.0, 0.0, -0.5]]]).repeat(3, 1, 1)


WHOLE = ("f32", "f64")


def pools(name, function, x, *settings, **more):
    return [Case(f"{name}{tuple(s)}", lambda x, s=s: function(x, *s), (x,), **more) for s in settings]


def of(x, types=("f32", "bf16", "f64"), **functions):
    return [Case(name, function, (x,), types) for name, function in functions.items()]


MAXIMA = [
    *pools("max_pool1d", F.max_pool1d, LINE, (2,), (3,), (3, 1), (3, 2, 1), (4, 2, 2), (3, 1, 1, 2), (2, 3),
           (3, 2, 1, 1, True)),
    *pools("max_pool2d", F.max_pool2d, PLANE, (2,), (3, 1), (3, 2, 1), (3, 1, 1, 2), ((2, 3), (2, 1), (1, 0)),
           (3, 2, 1, 1, True)),
    *pools("max_pool3d", F.max_pool3d, SPACE, (2,), (3, 1, 1)),
    *of(PLAIN_PLANE, indices=lambda x: F.max_pool2d(x, 2, return_indices=True)),
    *of(PLAIN_PLANE, unpooled=lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)),
    *[case for n in (1, 2, 4) for case in of(LINE, adaptive=lambda x, n=n: F.adaptive_max_pool1d(x, n))],
    *[case for n in (1, 3) for case in of(PLANE, adaptive=lambda x, n=n: F.adaptive_max_pool2d(x, n))],
    *of(SPACE, adaptive=lambda x: F.adaptive_max_pool3d(x, 2)),
]

MEANS = [
    *pools("avg_pool1d", F.avg_pool1d, LINE, (2,), (3, 2, 1), (3, 2, 1, False, False)),
    *pools("avg_pool2d", F.avg_pool2d, PLANE, (2,), (3, 2, 1, True), (3, 2, 1, True, False), (2, 2, 0, False, True, 3)),
    *pools("avg_pool3d", F.avg_pool3d, SPACE, (2,), (3, 2, 1, False, False), types=WHOLE),
    *of(LINE, adaptive=lambda x: F.adaptive_avg_pool1d(x, 4)), *of(PLAIN, adaptive=lambda x: F.adaptive_avg_pool1d(x, 3)),
    *of(PLANE, adaptive=lambda x: F.adaptive_avg_pool2d(x, 2)),
    *of(PLAIN_PLANE, adaptive=lambda x: F.adaptive_avg_pool2d(x, 4)),
    *of(SPACE, adaptive=lambda x: F.adaptive_avg_pool3d(x, 2)),
    *of(PLAIN, lp_pool=lambda x: F.lp_pool1d(x, 2, 2)),
    *of(PLANE, unfold=lambda x: F.unfold(x, 2, 1, 1, 2), fold=lambda x: F.fold(x.flatten(1)[:, :72].view(-1, 8, 9), (4, 4), 2)),
    *of(LINE, windows=lambda x: x.unfold(-1, 3, 2)),
]

PADS = [
    *[case for mode in ("reflect", "replicate", "circular", "constant") for x, size in ((LINE, (2, 1)), (PLANE, (2, 1, 1, 2)))
      for case in of(x, **{mode: lambda x, mode=mode, size=size: F.pad(x, size, mode=mode)})],
    *of(LINE, shorter=lambda x: F.pad(x, (-1, 2), value=3.0),
        shifted_out=lambda x: F.pad(x[..., :1], (1, -1)) + x),
    *[case for mode in ("nearest", "nearest-exact") for case in
      of(PLANE, **{mode: lambda x, mode=mode: F.interpolate(x, scale_factor=1.5, mode=mode)})],
    *[case for mode in ("bilinear", "bicubic") for corners in (True, False) for case in
      of(PLAIN_PLANE, **{mode: lambda x, m=mode, c=corners: F.interpolate(x, size=(4, 9), mode=m, align_corners=c)})],
    *[case for mode in ("bilinear", "bicubic") for case in
      of(PLAIN_PLANE, WHOLE, **{mode: lambda x, m=mode: F.interpolate(x, size=(4, 9), mode=m, antialias=True)})],
    *of(PLAIN, linear=lambda x: F.interpolate(x, size=5, mode="linear"),
        nearest=lambda x: F.interpolate(x, size=5), exact=lambda x: F.interpolate(x, size=5, mode="nearest-exact")),
    *of(SPACE[:2], trilinear=lambda x: F.interpolate(x, size=5, mode="trilinear"),
        nearest=lambda x: F.interpolate(x, size=5), exact=lambda x: F.interpolate(x, size=5, mode="nearest-exact")),
]

_PLACES = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [0.5, 0.25], [2.0, 0.0], [-1.5, 3.0], [0.0, 1.0], [-1.0, 0.2]])

#: At elements, at the border and beyond.
PADS += [Case(f"grid_sample {mode} {padding} {corners}",
              lambda x, g, m=mode, p=padding, c=corners: F.grid_sample(x, g, m, p, c), (_NUMBERS, _PLACES.view(1, 2, 4, 2)), WHOLE)
         for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border") for corners in (True, False)]

CONVOLUTIONS = [
    Case("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), (PLAIN, WEIGHT, torch.tensor([0.0, 1.0, -1.0]))),
    Case("conv1d of NaN", lambda x, w: F.conv1d(x, w), (LINE[1:2, 1:].repeat(1, 2, 1), WEIGHT)),
    Case("conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding=1), (PLAIN_PLANE, WEIGHT[..., None].repeat(1, 1, 1, 3))),
    Case("conv3d", lambda x, w: F.conv3d(x, w), (SPACE[:2], WEIGHT[..., None, None])),
    Case("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1), (PLAIN, WEIGHT[:2])),
    Case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w), (PLAIN_PLANE, WEIGHT[:2, :, :2, None])),
    Case("conv_transpose3d", lambda x, w: F.conv_transpose3d(x, w), (SPACE[1:2], WEIGHT[:2, :, :2, None, None])),
    Case("depthwise", lambda x, w: F.conv1d(x, w, groups=2), (PLAIN, WEIGHT[:2, :1])),
]
