# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The front end of StableHLO, and of JAX by way of it: a walk over the module, then the graph."""
