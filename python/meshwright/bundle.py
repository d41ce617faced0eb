# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Bundles: folders with all it takes to run a plan.

bundle.json          {"schema": 1, "program": ..., "weights": ..., "report": ..., "ranks": 4}
program.mlir         the SPMD program
weights.safetensors  its parameters, whole: a rank reads its part
report.json
"""

import json
import os
import shutil
import tempfile

from . import weights
from .errors import Error

SCHEMA = 1
FILES = {"program": "program.mlir", "weights": "weights.safetensors", "report": "report.json"}


def write(path, program, parameters, report):
    path = os.path.abspath(os.fspath(path))
    if os.path.lexists(path) and not _is_replaceable(path):
        raise Error(f"cannot write bundle '{path}': something else is there")
    parent, name = os.path.split(path)
    partial = None
    try:
        partial = tempfile.mkdtemp(prefix=f".{name}.", dir=parent)
        os.chmod(partial, 0o755)

        def text(file, content):
            weights.write_whole(
                os.path.join(partial, file), lambda out: out.write(content.encode("utf-8"))
            )

        text(FILES["program"], program)
        weights.save(os.path.join(partial, FILES["weights"]), parameters)
        text(FILES["report"], json.dumps(report, indent=1) + "\n")
        manifest = {"schema": SCHEMA, **FILES, "ranks": report["ranks"]}
        text("bundle.json", json.dumps(manifest, indent=1) + "\n")
        if os.path.isdir(path):
            shutil.rmtree(path)
        os.rename(partial, path)
        partial = None
    except OSError as error:
        raise Error(f"cannot write bundle '{path}': {error.strerror or error}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _is_replaceable(path):
    """Only a bundle, or an empty folder."""
    if os.path.islink(path) or not os.path.isdir(path):
        return False
    content = os.listdir(path)
    return not content or "bundle.json" in content
