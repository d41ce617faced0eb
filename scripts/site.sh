#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Builds the site of the documents in strict mode: a link without a target is an error. The
# site has search, and pages of the interfaces of Python, C and C++, of the passes and of the
# tools. `scripts/setup.sh` installs the generator.
#
#   scripts/site.sh           builds it in build/site/html
#   scripts/site.sh FOLDER    builds it in FOLDER/html; what was in FOLDER is deleted
#   scripts/site.sh --serve   builds it, and serves it at http://127.0.0.1:8000

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

serve=0
folder=$BUILD/site
case ${1-} in
  "") ;;
  --serve) serve=1 ;;
  -*) echo "usage: scripts/site.sh [FOLDER | --serve]" >&2; exit 2 ;;
  *) folder=$1 ;;
esac

find_python
[[ -n $PYTHON ]] && python_has_site_packages "$PYTHON" ||
  die "the generator of the site is missing: run scripts/setup.sh"

rm -rf "$folder"
"$PYTHON" scripts/stage_site.py "$folder" --build "$BUILD"
# Material prints an advertisement otherwise. The generator reads docstrings from the sources.
export NO_MKDOCS_2_WARNING=1 PYTHONPATH=$ROOT/scripts:$ROOT/python
# With --quiet, warnings would be no errors.
"$PYTHON" -m mkdocs build --strict --config-file "$folder/mkdocs.yml" >"$folder/log" 2>&1 ||
  { grep -v '^INFO' "$folder/log" >&2; die "the site cannot be built"; }
echo "$(find "$folder/html" -name '*.html' | wc -l) pages in $folder/html"
if ((serve)); then
  exec "$PYTHON" -m http.server --directory "$folder/html" --bind 127.0.0.1 8000
fi
