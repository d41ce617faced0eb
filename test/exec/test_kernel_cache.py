# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled kernels are kept on disk, each once, and not believed blindly."""
import concurrent.futures

import torch
from harness import assert_close, run_module

# Two sums over the first dimension, equal, and one over the second.
MODULE = """
func.func @main(%x: tensor<8x64xf32> {nn.input = "x"}, %z: tensor<8x64xf32> {nn.input = "z"}) -> (
    tensor<64xf32> {nn.output = "a"}, tensor<64xf32> {nn.output = "b"},
    tensor<8xf32> {nn.output = "c"}) {
  %0 = nn.reduce sum %x dims [0] : (tensor<8x64xf32>) -> tensor<64xf32>
  %1 = nn.reduce sum %z dims [0] : (tensor<8x64xf32>) -> tensor<64xf32>
  %2 = nn.reduce sum %x dims [1] : (tensor<8x64xf32>) -> tensor<8xf32>
  return %0, %1, %2 : tensor<64xf32>, tensor<64xf32>, tensor<8xf32>
}
"""
# And the list of calls.
FILES = 3


def run(folder, cache):
    folder.mkdir(exist_ok=True)
    # Not torch's own generator: several threads run this at a time.
    x, z = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(0))
    got = run_module(folder, MODULE, {"x": x, "z": z}, env={"MESHWRIGHT_CACHE": str(cache)})
    for name, want in {"a": x.sum(0), "b": z.sum(0), "c": x.sum(1)}.items():
        assert_close(got[name], want, 1e-5)
    return torch.cat(list(got.values()))


def kernels(cache):
    return sorted(path for path in cache.iterdir() if path.name != "llvmcache.timestamp")


def test_kept_and_found(tmp_path):
    cache = tmp_path / "made" / "on the way"
    first = run(tmp_path, cache)
    files = kernels(cache)
    # Equal kernels are one file.
    assert len(files) == FILES
    inodes = [path.stat().st_ino for path in files]
    assert torch.equal(run(tmp_path, cache), first)
    # Read, not written again.
    assert kernels(cache) == files and [path.stat().st_ino for path in files] == inodes


def test_damaged_files_are_replaced(tmp_path):
    cache = tmp_path / "cache"
    first = run(tmp_path, cache)
    contents = [path.read_bytes() for path in kernels(cache)]
    cut, changed = kernels(cache)[:2]
    cut.write_bytes(contents[0][: len(contents[0]) // 2])
    changed.write_bytes(contents[1][:100] + bytes([contents[1][100] ^ 1]) + contents[1][101:])
    assert torch.equal(run(tmp_path, cache), first)
    assert [path.read_bytes() for path in kernels(cache)] == contents


def test_off(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    run(tmp_path, "off")
    assert not (tmp_path / "caches").exists()


def test_default_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    run(tmp_path, "")
    assert len(kernels(tmp_path / "caches" / "meshwright" / "kernels")) == FILES


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    run(tmp_path, tmp_path / "file" / "cache")


def test_folders_that_others_may_write(tmp_path):
    """Code from there is not run, and none is put there."""
    for number, (path, mode) in enumerate([("cache", 0o777), ("cache", 0o770), ("cache", 0o1777), (".", 0o777)]):
        above = tmp_path / str(number)
        cache = above / "cache"
        cache.mkdir(parents=True)
        (above / path).chmod(mode)
        run(above / "run", cache)
        assert kernels(cache) == []
        # In a sticky folder others cannot take the place of one.
        (above / path).chmod(0o1777 if path == "." else 0o755)
        run(above / "run", cache)
        assert len(kernels(cache)) == FILES


def test_several_writers(tmp_path):
    cache = tmp_path / "cache"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: run(tmp_path / str(i), cache), range(4)))
    assert all(torch.equal(result, results[0]) for result in results)
    assert len(kernels(cache)) == FILES
