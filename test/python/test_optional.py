# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""JAX and PyTorch are optional: each front end works without the other."""
import subprocess
import sys

import pytest

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
import meshwright as mw
import numpy as np
"""


def run(blocked, code):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BLOCK.format(blocked=blocked) + code],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pytorch_without_jax():
    assert "(2, 4)" in run(["jax", "jaxlib"], """
import torch
model = mw.from_torch(torch.nn.Linear(4, 4), (torch.zeros(2, 4),))
print(tuple(model.parallelize(mesh={"tp": 2}).run(torch.zeros(2, 4))[0].shape))
""")


def test_jax_is_asked_for_by_name():
    said = run(["jax", "jaxlib"], """
for function in (mw.from_jax, mw.from_stablehlo):
    try:
        function("text")
    except mw.Error as error:
        print(error)
""")
    assert "from_jax needs JAX 0.9 or 0.10: pip install meshwright[jax]" in said and "from_stablehlo needs JAX" in said


def test_jax_without_pytorch(tmp_path):
    pytest.importorskip("jax", reason="scripts/setup.sh --jax")
    said = run(["torch"], f"""
import jax, jax.numpy as jnp
def f(p, x):
    return jax.nn.softmax(x @ p["w"])
p, x = {{"w": jnp.ones((8, 8), jnp.bfloat16)}}, jnp.ones((4, 8), jnp.bfloat16)
model = mw.from_jax(f, (p, x))
plan = model.parallelize(mesh={{"tp": 2}})
print(plan.run(x)[0].dtype, plan.run(np.asarray(x))[0].dtype)
plan.check(x)
train = mw.from_jax(lambda p, x: (f(p, x) ** 2).sum().astype(jnp.float32), (p, x), training=True).train(mw.AdamW(lr=1e-2))
with train.parallelize(mesh={{"dp": 2}}).start() as session:
    print(session.run(x)[0], *session.parameters())
model.save("{tmp_path}/m.mlir", "{tmp_path}/w.safetensors")
print(mw.load("{tmp_path}/m.mlir", "{tmp_path}/w.safetensors"))
print("torch" in sys.modules)
""")
    assert said.splitlines()[0] == "bfloat16 bfloat16" and said.splitlines()[-1] == "False"


def test_the_package_imports_neither():
    assert run([], 'print("jax" in sys.modules, "torch" in sys.modules)').strip() == "False False"
