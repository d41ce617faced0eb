# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Lets tests import the modules beside them."""
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
