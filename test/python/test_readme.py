# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The README's snippet works as it is written."""

import pathlib
import re

import torch

README = pathlib.Path(__file__).parents[2] / "README.md"


def test_snippet(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    args, kwargs = (torch.randn(2, 9, 64),), {}
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {"module": module, "args": args, "kwargs": kwargs}
    exec(compile(snippet, str(README), "exec"), names)
    assert "func.func @main" in capsys.readouterr().out
    assert list((tmp_path / "bundle").glob("program-*.so"))
    torch.testing.assert_close(names["outs"][0], module(*args), rtol=1e-4, atol=1e-5)
