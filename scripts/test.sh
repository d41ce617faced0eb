#!/usr/bin/env bash
# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Set-up, build and all tests, quick ones first, with a summary at the end.
#
#   scripts/test.sh                    everything
#   scripts/test.sh STAGE...           some of: checks lit python gpu lit-slow python-slow wheel wheels recipes
#   scripts/test.sh --fast             the stages that are not slow
#   scripts/test.sh --preset=asan      with another preset; lit and unit tests only
#   scripts/test.sh --whole            all cases of each parametrized Python test; without it, MOST_CASES of them
#   scripts/test.sh --no-setup         installs nothing
#   scripts/test.sh --filter=REGEX     only tests whose names match
#   scripts/test.sh --unity            compiles files in groups if the build folder is new

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# More cases than this would take more time than a change may wait for.
MOST_CASES=6

preset=release
setup=1
whole=0
filter=
stages=()
for option in "$@"; do
  case $option in
    --fast) stages+=(checks lit python) ;;
    --preset=*) preset=${option#*=} ;;
    --no-setup) setup=0 ;;
    --whole) whole=1 ;;
    --filter=*) filter=${option#*=} ;;
    --unity) CONFIGURE_OPTIONS=("${UNITY_OPTIONS[@]}") ;;
    checks | gpu | lit | lit-slow | python | python-slow | wheel | wheels | recipes) stages+=("$option") ;;
    *) sed -n '/^#   /s/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
instrumented=0
[[ $preset == asan || $preset == tsan ]] && instrumented=1
if ((${#stages[@]} == 0)); then
  stages=(checks lit python gpu lit-slow python-slow wheel wheels recipes)
  # An interpreter that is not instrumented cannot load a library that is.
  ((instrumented)) && stages=(lit lit-slow)
fi

started=$SECONDS
if ((setup)); then
  say "set-up"
  if ((instrumented)); then
    scripts/setup.sh --sanitizers
  elif [[ " ${stages[*]} " == *" python-slow "* ]]; then
    # A slow test opens a page in Chromium, and is skipped without it.
    scripts/setup.sh --chromium || scripts/setup.sh
  else
    scripts/setup.sh
  fi
fi
find_python
[[ -n $PYTHON ]] || die "no Python with the packages needed: run scripts/setup.sh"

say "build ($preset)"
build_started=$SECONDS
# A tree that was configured before `scripts/setup.sh --gpu` lacks the stand-ins that need its headers.
if [[ $preset == release && " ${stages[*]} " == *" gpu "* && -f $BUILD/build.ninja &&
  ! -f $BUILD/fakegpu/libnccl.so.2 ]] && python_has_gpu_packages "$PYTHON"; then
  cmake "$BUILD" >"$BUILD/configure.log" 2>&1 || { cat "$BUILD/configure.log" >&2; die "configuration failed"; }
fi
build_with "$preset" all meshwright-test-depends
build_seconds=$((SECONDS - build_started))
[[ $preset == release ]] || BUILD=$BUILD-$preset

export PYTHONPATH=$BUILD/python${PYTHONPATH:+:$PYTHONPATH}
export PATH=$BUILD/bin:$PATH
# Tests build models from configurations and download nothing.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false

summary=()
failed=0
# run NAME COMMAND...: adds a line to the summary; later stages run even if this one fails.
run() {
  local name=$1 log="$BUILD/test-$1.log" begin=$SECONDS verdict=passed; shift
  say "$name"
  if ! "$@" 2>&1 | tee "$log"; then verdict=FAILED; failed=1; fi
  summary+=("$(printf '%-12s %-7s %4d s   %s' "$name" "$verdict" $((SECONDS - begin)) \
    "$(grep -E '(passed|failed|Passed|Failed|Unsupported|Expectedly).*[0-9]|^[0-9]+ ' "$log" |
      sed -E 's/^=+ *//; s/ *=+$//; s/ +/ /g' | tail -n4 | paste -sd';')")")
}

lit=("$PYTHON" -c 'from lit.main import main; main()' -sv --allow-empty-runs "$BUILD/test")
pytest=("$PYTHON" -m pytest -q -p no:cacheprovider --durations=10 --durations-min=1 test)
# One process per processor, if pytest-xdist is installed.
"$PYTHON" -c 'import xdist' 2>/dev/null &&
  pytest+=(-n "${MESHWRIGHT_JOBS:-$(nproc)}" --dist worksteal)
((whole)) || pytest+=(--most-cases="$MOST_CASES")
[[ -n $filter ]] && pytest+=(-k "$filter")

# pytest exits with 5 if no test was selected.
pytest_stage() { local status=0; "${pytest[@]}" "$@" || status=$?; ((status == 0 || status == 5)); }
# Tests that are marked as slow (`REQUIRES: slow` in lit, `pytest.mark.slow`) run last.
lit_stage() { "${lit[@]}" --filter="$filter" "$@"; }
# Runs `pip install .` into a folder. It uses the compiler that built Python, which is
# gcc for Debian's Python. So both compilers build the libraries. Code is not optimised here, and
# files are compiled in groups (a unity build), which saves most of the time.
wheel_stage() {
  local dir=$BUILD/wheel
  rm -rf "$dir" && mkdir -p "$dir/site" "$dir/elsewhere"
  if ! "$PYTHON" -c 'import scikit_build_core' 2>/dev/null; then
    "$PYTHON" -m pip install -q --target "$dir/tools" scikit-build-core 2>"$dir/tools.log" ||
      { echo "0 passed: left out, scikit-build-core cannot be downloaded"; return 0; }
  fi
  PYTHONPATH=$dir/tools "$PYTHON" -m pip install -q --no-build-isolation --no-deps \
    "${QUICK_OPTIONS[@]/#-D/--config-settings=cmake.define.}" --target "$dir/site" . || return 1
  cd "$dir/elsewhere"
  PYTHONPATH=$dir/site "$PYTHON" - "$dir/site" <<'PY'
import os, sys
import meshwright
assert os.path.dirname(os.path.dirname(meshwright.__file__)) == sys.argv[1], meshwright.__file__
from meshwright import _core
from meshwright.importer.graph import emit, rewrites
print("1 passed: the installed package is imported")
PY
}
# Tests that need NVIDIA's headers or libraries.
gpu_stage() {
  if ! python_has_gpu_packages "$PYTHON"; then
    echo "0 passed: left out, NVIDIA's headers and libraries are missing (scripts/setup.sh --gpu)"
    return 0
  fi
  pytest_stage -m gpu
}
checks_stage() {
  local status=0
  "$PYTHON" scripts/check_dependencies.py || status=1
  "$PYTHON" scripts/check_imports.py || status=1
  "$PYTHON" scripts/check_words.py || status=1
  "$PYTHON" scripts/check_docs.py || status=1
  "$PYTHON" scripts/options_page.py --check || status=1
  "$PYTHON" bench/plot.py --check || status=1
  "$PYTHON" scripts/check_sizes.py || status=1
  "$PYTHON" scripts/check_counts.py || status=1
  return $status
}

# Lists the ten slowest tests of the stages given, from lit's results and from pytest's list of durations.
list_slowest() {
  "$PYTHON" - "$BUILD" "$@" <<'PY'
import json, pathlib, re, sys

build, times = pathlib.Path(sys.argv[1]), []
for stage in sys.argv[2:]:
    results, log = build / f"test-{stage}.json", build / f"test-{stage}.log"
    if stage.startswith("lit"):
        tests = json.loads(results.read_text())["tests"] if results.exists() else []
        times += [(test["elapsed"] or 0, test["name"]) for test in tests]
    elif log.exists():
        found = re.findall(r"^([0-9.]+)s (?:call|setup|teardown) +(\S.*)$", log.read_text(), re.MULTILINE)
        times += [(float(seconds), name) for seconds, name in found]
for seconds, name in sorted(times, reverse=True)[:10]:
    print(f"{seconds:7.1f} s   {name}")
PY
}

for stage in "${stages[@]}"; do
  case $stage in
    checks) run checks checks_stage ;;
    lit) run lit lit_stage --output="$BUILD/test-lit.json" ;;
    lit-slow) run lit-slow lit_stage -Dslow=1 --output="$BUILD/test-lit-slow.json" ;;
    python) run python pytest_stage -m "not slow and not gpu" ;;
    gpu) run gpu gpu_stage ;;
    wheel) run wheel wheel_stage ;;
    wheels) run wheels scripts/wheel.sh ;;
    recipes) run recipes "$PYTHON" scripts/check_recipes.py ;;
    python-slow) run python-slow pytest_stage -m "slow and not gpu" ;;
  esac
done

say "summary ($((SECONDS - started)) s in all, build $build_seconds s)"
printf '%s\n' "${summary[@]}"
say "slowest tests"
list_slowest "${stages[@]}"
exit $failed
