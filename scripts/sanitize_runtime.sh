#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Tests the runtime under sanitizers, in sharding-run and in Python. The build takes
# minutes, since the compiler library is the one of the release build, without
# instrumentation. (scripts/test.sh --preset=asan builds the compiler, too.)
# Generated code is not instrumented.
#
#   scripts/sanitize_runtime.sh asan                unit tests of the runtime, test/exec
#   scripts/sanitize_runtime.sh tsan
#   scripts/sanitize_runtime.sh tsan -k overlap     the rest of the line goes to pytest
#   scripts/sanitize_runtime.sh tsan test/exec/test_mpi.py

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=${1:-}
[[ $preset == asan || $preset == tsan ]] || { sed -n '/^#   /s/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
shift
find_python
[[ -n $PYTHON ]] || die "no Python with the packages needed: run scripts/setup.sh"
[[ -e $BUILD/lib/libMeshwright.so ]] || die "$BUILD/lib/libMeshwright.so is missing: build the release preset first"
DIR=$BUILD-$preset

tests=(DeviceTests LocalTests PackingTests ProgramTests ServeTests SessionTests StreamTests WorldTests)
targets=(sharding-run "${tests[@]}")
[[ -e $BUILD/lib/libMeshwrightBackend_mpi.so ]] && targets+=(lib/libMeshwrightBackend_mpi.so)
build_with "$preset" "${targets[@]}"
# sharding-run looks for the compiler library here. Keep one that this preset built.
for file in lib/libMeshwright.so bin/sharding-compile bin/sharding-opt; do
  [[ -e $DIR/$file ]] || ln -s "$BUILD/$file" "$DIR/$file"
done

# The settings of test/lit.cfg.py.
export ASAN_OPTIONS=detect_container_overflow=0:allow_user_poisoning=0:detect_leaks=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=suppressions=$PWD/test/tsan-suppressions.txt
# Processes with shadow memory exceed limits on the address space.
export MESHWRIGHT_SANITIZER=$preset
for name in "${tests[@]}"; do
  say "$name ($preset)"
  "$DIR/test/unit/$name" --gtest_brief=1
done
export PATH=$DIR/bin:$BUILD/bin:$PATH PYTHONPATH=$BUILD/python
[[ "$*" == *test/exec* ]] || set -- test/exec "$@"
say "$* ($preset)"
# Python is not instrumented, so the sanitizer is loaded first, then the instrumented
# runtime, which takes the place of the release build's. test/conftest.py removes
# this setting for child processes, which are linked with the sanitizer.
compiler=$(sed -n 's/^set(CMAKE_CXX_COMPILER "\(.*\)")$/\1/p' "$DIR"/CMakeFiles/*/CMakeCXXCompiler.cmake)
sanitizer=$("$compiler" -print-file-name="libclang_rt.$preset-$(uname -m).so")
[[ -e $sanitizer ]] || die "$compiler has no shared library of the sanitizer: $sanitizer"
LD_PRELOAD=$sanitizer:$DIR/lib/libMeshwrightRuntime.so "$PYTHON" -m pytest -q "$@"
