# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The set-up of all tests."""
import collections
import hashlib
import os

import pytest
import torch

# A rank may have to wait long for another where the machine has much else to do. Tests of
# what happens after the timeout set their own.
os.environ.setdefault("MESHWRIGHT_TIMEOUT", "300")
# Plans assume the device that tests are written for, whatever calibration this machine has.
os.environ["MESHWRIGHT_DEVICE"] = "h100"
# Tests of JAX have several devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# scripts/sanitize_runtime.sh preloads a library into this process; its children have it already.
if "MESHWRIGHT_SANITIZER" in os.environ:
    os.environ.pop("LD_PRELOAD", None)
# Beside other processes of pytest-xdist, one for each processor.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed():
    """The same random numbers, no matter which tests ran before."""
    torch.manual_seed(0)


def pytest_addoption(parser):
    parser.addoption("--most-cases", type=int, metavar="N",
                     help="of a parametrized test run N cases at most, the same ones each time")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keeps N cases of each test. Hashes of names choose them, so that no parameter is the same in all."""
    most = config.getoption("--most-cases")
    if most is None:
        return
    cases = collections.defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for found in cases.values():
        found.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        kept.update(found[:most])
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
