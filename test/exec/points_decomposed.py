# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operations that the importer takes apart and that PyTorch differentiates as a whole.

The derivative of the parts need not be that of the whole. So each has points in a table. An import
in a test that takes another one apart fails (test/python/conftest.py).
"""

DECOMPOSED = {
    "_prelu_kernel", "aminmax", "binary_cross_entropy", "binary_cross_entropy_with_logits", "deg2rad",
    "dist", "frac", "huber_loss", "logaddexp", "logaddexp2", "logit", "mse_loss", "mvlgamma", "rad2deg",
    "sinc", "smooth_l1_loss", "soft_margin_loss", "special_entr", "special_xlog1py", "threshold", "xlogy",
}
