#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Tests and measures the GPU target on a machine that has a GPU and no compiler.
#
#   scripts/gpu.sh --pack [DIR] [--small]           here: builds DIR/archive.tar.gz and DIR/gpu.sh
#   DIR/gpu.sh --run PART... [--archive DIR] [--out DIR]   there: runs parts, writes PART.json and results.txt
#
# Parts: corpus tests gemm rows attention layers decode kernels. Each takes less than ten minutes. That machine
# needs the driver, cuBLASLt, and Python with numpy (for corpus, ml_dtypes too). With PyTorch the benches measure it
# beside ours. --small packs tiny programs, for a trial on the stand-in for the driver.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PARTS="corpus tests gemm rows attention layers decode kernels"
usage() { sed -n '/^# Tests/,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
refuse() { printf 'gpu.sh: error: %s\n' "$*" >&2; exit 2; }

mode= archive=$HERE out=$PWD/gpu-results pack=$PWD/gpu-archive chosen=() small=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --pack) mode=pack; [[ $# -gt 1 && $2 != --* ]] && { pack=$2; shift; } ;;
    --run) mode=run ;;
    --archive) [[ $# -gt 1 ]] || refuse "--archive needs a value"; archive=$2; shift ;;
    --archive=*) archive=${1#*=} ;;
    --out) [[ $# -gt 1 ]] || refuse "--out needs a value"; out=$2; shift ;;
    --out=*) out=${1#*=} ;;
    --small) small=(--small) ;;
    -h | --help) usage; exit 0 ;;
    -*) refuse "unknown option '$1'" ;;
    *) [[ $mode == run ]] || refuse "unexpected '$1'"
       [[ " $PARTS all " == *" $1 "* ]] || refuse "unknown part '$1': expected one of $PARTS, or all"
       chosen+=("$1") ;;
  esac
  shift
done

pack() {
  # Settings and functions of the checkout, which is the working folder from here on.
  case $pack in /*) ;; *) pack=$PWD/$pack ;; esac
  source "$HERE/common.sh"
  find_python
  [[ -n $PYTHON ]] || die "no Python with the packages of scripts/setup.sh"
  for file in bin/sharding-compile bin/sharding-run lib/libMeshwrightBackend_nccl.so; do
    [[ -e $BUILD/$file ]] || die "$BUILD/$file is missing: expected a build"
  done
  PYTHONPATH=$BUILD/python:$ROOT/bench/gpu "$PYTHON" "$ROOT/bench/gpu/pack.py" "$pack" --build "$BUILD" "${small[@]}"
}

run() {
  local python=${PYTHON:-python3} folder=$archive status=0 part
  command -v "$python" >/dev/null || refuse "'$python' was not found: expected a Python, which PYTHON names"
  # NVIDIA's libraries are looked for beside the first Python on the path.
  python=$("$python" -c 'import sys; print(sys.executable)')
  PATH=$(dirname "$python"):$PATH
  # An archive that is unpacked already is used in place.
  if [[ ! -e $archive/archive.json ]]; then
    [[ -e $archive/archive.tar.gz ]] || refuse "$archive has no archive.tar.gz: expected a folder that --pack wrote"
    folder=$(mktemp -d)
    trap "rm -rf '$folder'" EXIT
    tar xzf "$archive/archive.tar.gz" -C "$folder"
  fi
  [[ ${#chosen[@]} -gt 0 ]] || refuse "no part: expected some of $PARTS, or all"
  [[ " ${chosen[*]} " == *" all "* ]] && read -ra chosen <<<"$PARTS"
  for part in "${chosen[@]}"; do
    LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder/lib" PYTHONPATH=$folder/python \
      "$python" "$folder/python/run.py" "$part" "$folder" "$out" || status=1
  done
  return $status
}

case $mode in
  pack) pack ;;
  run) run ;;
  *) usage >&2; exit 2 ;;
esac
