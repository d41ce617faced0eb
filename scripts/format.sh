#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Formats C++ by clang-format of the pinned LLVM, and checks Python by ruff. Leaves
# out a tool that is not installed.
#
#   scripts/format.sh           changes files
#   scripts/format.sh --check   names the files that would change, and fails

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check=0
case ${1-} in
  "") ;;
  --check) check=1 ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac

status=0
formatter=clang-format-$LLVM_MAJOR
command -v "$formatter" >/dev/null || formatter=/usr/lib/llvm-$LLVM_MAJOR/bin/clang-format
if command -v "$formatter" >/dev/null; then
  options=(-i)
  ((check)) && options=(--dry-run -Werror)
  git ls-files -z '*.cpp' '*.h' | xargs -0 "$formatter" "${options[@]}" || status=1
else
  echo "left out: clang-format-$LLVM_MAJOR is not installed"
fi
if command -v ruff >/dev/null; then
  options=(--fix)
  ((check)) && options=()
  ruff check -q "${options[@]}" . || status=1
else
  echo "left out: ruff is not installed"
fi
exit $status
