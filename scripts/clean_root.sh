#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Installs a wheel in a root that has a Python and the libraries of the base system only, and
# plans and runs a model there. Needs to be root, for chroot. Exits with 77 where it cannot do that.
#
#   scripts/clean_root.sh PYTHON WHEEL ROOT      ROOT is written anew

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
(($# == 3)) || { echo "usage: scripts/clean_root.sh PYTHON WHEEL ROOT" >&2; exit 2; }
python=$1 wheel=$2 root=$(realpath -m "$3")
if ((EUID != 0)); then
  echo "left out: a clean root needs chroot, which root may use"
  exit 77
fi

rm -rf "$root"
mkdir -p "$root"/{usr/{bin,lib,lib64},proc,dev,tmp,site}
for link in bin lib lib64; do ln -s "usr/$link" "$root/$link"; done

# The libraries of packages that Debian requires or that are important, and those that all of them need.
copy() {
  local file
  for file in "$@"; do
    mkdir -p "$root$(dirname "$file")"
    cp -a "$file" "$root$(dirname "$file")"
  done
}
{ dpkg-query -W -f='${Package} ${Priority}\n' | awk '$2 == "required" || $2 == "important" { print $1 }'
  printf '%s\n' libc6 libgcc-s1 libstdc++6 zlib1g; } | xargs dpkg -L 2>/dev/null | grep -E '/lib/[^/]*-linux-gnu/[^/]*\.so(\.|$)' | sort -u | while read -r file; do
    [[ -e $file ]] && echo "$(readlink -f "$(dirname "$file")")/$(basename "$file")"
  done | sort -u | while read -r file; do copy "$file"; done
copy /usr/lib64/ld-linux-x86-64.so.2 2>/dev/null || cp -L /lib64/ld-linux-x86-64.so.2 "$root/usr/lib64/"

# Python, and the libraries that its own modules need.
read -r base binary version <<<"$("$python" -c 'import os, sys
print(sys.base_prefix, os.path.realpath(sys.executable), "%d.%d" % sys.version_info[:2])')"
copy "$binary"
mkdir -p "$root$base/lib"
tar -C "$base/lib" --exclude=site-packages --exclude=test --exclude='_tkinter*' -c "python$version" | tar -C "$root$base/lib" -x
find "$root$base/lib/python$version" -name '*.so' -path '*lib-dynload*' -print0 | xargs -0 ldd "$binary" 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r file; do
    file=$(readlink -f "$(dirname "$file")")/$(basename "$file")
    [[ -e $root$file ]] || { copy "$file"; copy "$(readlink -f "$file")"; }
  done

if ! "$python" -m pip install -q --target "$root/site" "${wheel}[report]" 2>"$root/pip.log"; then
  echo "left out: packages that the wheel needs cannot be installed"
  tail -n1 "$root/pip.log"
  exit 77
fi
cat >"$root/tmp/test.py" <<'PY'
import numpy as np
import meshwright as mw

open("/tmp/m.mlir", "w").write('''
func.func @main(%x: tensor<4x64xf32> {nn.input = "x"}, %w: tensor<32x64xf32> {nn.parameter = "w"})
    -> (tensor<4x32xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<4x64xf32>, tensor<32x64xf32>) -> tensor<4x32xf32>
  %1 = nn.relu %0 : tensor<4x32xf32>
  return %1 : tensor<4x32xf32>
}
''')
from safetensors.numpy import save_file

random = np.random.default_rng(0)
w, x = random.normal(size=(32, 64)).astype("f"), random.normal(size=(4, 64)).astype("f")
save_file({"w": w}, "/tmp/w.safetensors")
plan = mw.load("/tmp/m.mlir", "/tmp/w.safetensors").parallelize(mesh={"tp": 2})
(y,) = plan.run(x)
np.testing.assert_allclose(y, np.maximum(x @ w.T, 0), rtol=1e-4, atol=1e-4)
assert "plan for 2 ranks" in plan.report() and "<html" in plan.report(format="html")
try:
    plan.run(x, backend="mpi")
except mw.Error as error:
    print("without Open MPI:", error)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
assert any("libLLVM" in name and name.startswith("/site/") for name in loaded), loaded
print("meshwright", mw.__version__, "plans and runs")
PY
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PYTHONHOME="$base" PYTHONPATH=/site \
  unshare -m bash -c 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" &&
  cd / && exec chroot "$1" "$2" /tmp/test.py' _ "$root" "$binary"
