#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Installs the packages that a fresh Debian 12 lacks to build, test and run
# Meshwright: apt packages (as root or by sudo), and Python packages, into the
# active virtual environment or else into .venv. Does nothing if all are there.
#
#   scripts/setup.sh --sanitizers   also the packages for the presets asan and tsan
#   scripts/setup.sh --gpu          also NVIDIA's headers, NCCL and cuBLASLt, for tests (650 MB)
#   scripts/setup.sh --jax          also JAX, Flax, Equinox and optax, for tests (330 MB)
#   scripts/setup.sh --chromium     also Chromium, in which a test opens pages of plans

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(build-essential cmake ninja-build ccache
  "libmlir-$LLVM_MAJOR-dev" "mlir-$LLVM_MAJOR-tools" "llvm-$LLVM_MAJOR-dev"
  "llvm-$LLVM_MAJOR-tools" "clang-$LLVM_MAJOR" "lld-$LLVM_MAJOR"
  libdnnl-dev nlohmann-json3-dev libcli11-dev libgtest-dev libopenmpi-dev openmpi-bin)
gpu=0
jax=0
for option in "$@"; do
  case $option in
    --sanitizers) packages+=("libclang-rt-$LLVM_MAJOR-dev") ;;
    --gpu) gpu=1 ;;
    --jax) jax=1 ;;
    --chromium) packages+=(chromium) ;;
    *) echo "usage: scripts/setup.sh [--sanitizers] [--gpu] [--jax] [--chromium]" >&2; exit 2 ;;
  esac
done

find_python
# Debian's Python refuses installed packages, and makes environments only with the
# package python3-venv. Another Python (3.11 or 3.12) on the path makes them by itself.
base_python=python3
if [[ -z $PYTHON ]]; then
  if ! { "$base_python" -c 'import sys, ensurepip, venv
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'; } 2>/dev/null; then
    base_python=/usr/bin/python3
    packages+=(python3 python3-venv python3-dev)
  elif [[ $("$base_python" -c 'import sys; print(sys.base_prefix)') == /usr ]]; then
    packages+=(python3-venv python3-dev)
  fi
fi

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] ||
    missing+=("$package")
done
if ((${#missing[@]})); then
  say "installing ${missing[*]}"
  as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "run as root or install sudo: missing ${missing[*]}"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [[ -z $PYTHON ]]; then
  say "making .venv"
  # Share an installed torch of the right version: it is by far the largest package.
  if "$base_python" -c 'import importlib.metadata as m, sys
sys.exit(m.version("torch").split("+")[0] != "2.13.0")' 2>/dev/null; then
    "$base_python" -m venv --system-site-packages "$ROOT/.venv"
  else
    "$base_python" -m venv "$ROOT/.venv"
  fi
  PYTHON=$ROOT/.venv/bin/python
fi
if ! python_has_packages "$PYTHON"; then
  say "installing Python packages for $PYTHON"
  # The CPU build is a tenth of the size of the default one. If its index cannot be
  # reached, the default one works, too.
  "$PYTHON" -c 'import importlib.metadata as m, sys
sys.exit(m.version("torch").split("+")[0] != "2.13.0")' 2>/dev/null ||
    "$PYTHON" -m pip install -q --retries 1 --timeout 20 \
      --index-url https://download.pytorch.org/whl/cpu "$PYTHON_TORCH" 2>/dev/null ||
    "$PYTHON" -m pip install -q "$PYTHON_TORCH"
  "$PYTHON" -m pip install -q "${PYTHON_PACKAGES[@]}"
  python_has_packages "$PYTHON" || die "$PYTHON still lacks packages; it must be Python 3.11 or 3.12"
fi
if ((gpu)) && ! python_has_gpu_packages "$PYTHON"; then
  say "installing ${GPU_PACKAGES[*]}"
  "$PYTHON" -m pip install -q --no-deps "${GPU_PACKAGES[@]}"
  python_has_gpu_packages "$PYTHON" || die "$PYTHON still lacks NVIDIA's headers and libraries"
fi
if ((jax)) && ! python_has_jax_packages "$PYTHON"; then
  say "installing ${JAX_PACKAGES[*]}"
  "$PYTHON" -m pip install -q "${JAX_PACKAGES[@]}"
  python_has_jax_packages "$PYTHON" || die "$PYTHON still lacks JAX, Flax, Equinox or optax"
fi
# Makes the tests faster; scripts/test.sh works without it.
"$PYTHON" -c 'import xdist' 2>/dev/null ||
  "$PYTHON" -m pip install -q --retries 1 --timeout 20 pytest-xdist 2>/dev/null ||
  echo "pytest-xdist cannot be installed: Python's tests will run in one process"
# For the site of the documents, which a test builds.
python_has_site_packages "$PYTHON" ||
  "$PYTHON" -m pip install -q --retries 1 --timeout 20 "${SITE_PACKAGES[@]}" 2>/dev/null ||
  echo "MkDocs cannot be installed: the site of the documents will not be built"
echo "set-up is complete ($PYTHON)"
