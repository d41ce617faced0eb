# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Functions and settings that the scripts beside it share. Source it, do not run it.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
LLVM_VERSION=$(head -n1 llvm-version.txt)
LLVM_MAJOR=${LLVM_VERSION%%.*}
BUILD=${MESHWRIGHT_BUILD_DIR:-$ROOT/build}

# With paths relative to the checkout, ccache finds the objects that another build
# folder or another checkout has compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$ROOT} CCACHE_NOHASHDIR=1

# The Python packages. torch is installed first, so that packages which depend on
# it do not install another version.
PYTHON_TORCH="torch==2.13.0"
PYTHON_PACKAGES=("transformers==5.23.0" "diffusers==0.42.1" safetensors "nanobind>=2.4" ml_dtypes numpy
  "jinja2>=3.1" "svg.py>=1.10" pytest lit tqdm)

# JAX and its libraries, for the tests of the import from JAX only. Without them these tests are skipped.
JAX_PACKAGES=("jax==0.10.2" "flax==0.12.8" "equinox==0.13.8" "optax==0.2.8")

# NVIDIA's headers and libraries, for the stage "gpu" of scripts/test.sh only. NCCL and cuBLASLt are
# the versions that torch's build for CUDA 13 has; they load without a driver.
GPU_PACKAGES=("nvidia-nccl-cu13==2.30.7" "nvidia-cublas==13.1.1.3" "nvidia-cuda-runtime==13.0.96"
  "nvidia-cuda-crt==13.0.88" "nvidia-cuda-cccl==13.0.85")

# The generator of the site (scripts/site.sh).
SITE_PACKAGES=("mkdocs>=1.6,<2" "mkdocs-material>=9.5,<10" "mkdocstrings-python>=2")

# Succeeds if the interpreter has SITE_PACKAGES.
python_has_site_packages() {
  "$1" - <<'PY' 2>/dev/null
import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in ["mkdocs", "material", "mkdocstrings_handlers"]))
PY
}

# Succeeds if the interpreter has GPU_PACKAGES, or other versions of them.
python_has_gpu_packages() {
  "$1" - <<'PY' 2>/dev/null
import pathlib, sys, sysconfig
nvidia = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
files = ["nccl/include/nccl.h", "nccl/lib/libnccl.so.2", "cu13/include/cublasLt.h",
         "cu13/lib/libcublasLt.so.13", "cu13/include/cuda.h", "cu13/include/crt/host_config.h",
         "cu13/include/nv/target"]
sys.exit(not all((nvidia / f).exists() for f in files))
PY
}

# Succeeds if the interpreter has JAX_PACKAGES, or other versions of them.
python_has_jax_packages() {
  "$1" - <<'PY' 2>/dev/null
import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in ["jax", "flax", "equinox", "optax"]))
PY
}

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Succeeds if this interpreter can import all packages; prints nothing.
python_has_packages() {
  "$1" - <<'PY' 2>/dev/null
import importlib.util, sys
from importlib.metadata import version
names = ["torch", "transformers", "diffusers", "safetensors", "nanobind", "ml_dtypes", "numpy", "jinja2", "svg",
         "pytest", "lit", "tqdm"]
ok = (3, 11) <= sys.version_info[:2] <= (3, 12)
ok = ok and all(importlib.util.find_spec(n) for n in names)
ok = ok and version("torch").split("+")[0] == "2.13.0" and version("transformers") == "5.23.0"
sys.exit(0 if ok else 1)
PY
}

# Sets PYTHON: the active virtual environment, else .venv, else a python3 that
# already has all packages. Empty if set-up has to make .venv first.
find_python() {
  PYTHON=
  if [[ -n ${VIRTUAL_ENV:-} && -x $VIRTUAL_ENV/bin/python ]]; then
    PYTHON=$VIRTUAL_ENV/bin/python
  elif [[ -x $ROOT/.venv/bin/python ]]; then
    PYTHON=$ROOT/.venv/bin/python
  elif python3 -c '' 2>/dev/null && python_has_packages python3; then
    # The interpreter itself; python3 may be a launcher that picks one by directory.
    PYTHON=$(python3 -c 'import sys; print(sys.executable)')
  fi
}

# Options of CMake: the files of a library are compiled in groups, which takes less than half of the time with gcc.
UNITY_OPTIONS=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16)
# Options for builds that run few tests.
QUICK_OPTIONS=("${UNITY_OPTIONS[@]}" -DCMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG")

# Further options for the configuration of new build folders.
CONFIGURE_OPTIONS=()

# Configures (once) and builds the targets given: build_with PRESET TARGET...
build_with() {
  local preset=$1; shift
  if [[ $preset == release ]]; then local dir=$BUILD; else local dir=$BUILD-$preset; fi
  if [[ ! -f $dir/build.ninja ]]; then
    mkdir -p "$dir"
    cmake --preset "$preset" -B "$dir" -DPython3_EXECUTABLE="$PYTHON" \
      -DPython_EXECUTABLE="$PYTHON" "${CONFIGURE_OPTIONS[@]}" >"$dir/configure.log" 2>&1 ||
      { cat "$dir/configure.log" >&2; die "configuration failed"; }
  fi
  cmake --build "$dir" --parallel "${MESHWRIGHT_JOBS:-$(nproc)}" --target "$@"
}
