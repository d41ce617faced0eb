"""lit configuration: .mlir and .test files run with our tools and LLVM's."""

import os
import shutil

import lit.formats

config.name = "Meshwright"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.meshwright_build_dir, "test")

bin_dir = os.path.join(config.meshwright_build_dir, "bin")
python_dir = os.path.join(config.meshwright_build_dir, "python")
config.environment["PATH"] = os.pathsep.join([bin_dir, config.llvm_tools_dir, os.environ["PATH"]])
config.environment["PYTHONPATH"] = os.pathsep.join(
    p for p in [python_dir, os.environ.get("PYTHONPATH")] if p
)

# Plans assume the device that tests are written for, whatever calibration this machine has.
config.environment["MESHWRIGHT_DEVICE"] = "h100"

# One spelling each for what tests call beside the tools on the path.
config.substitutions += [
    ("%python", config.python),
    ("%cmake", config.cmake),
    ("%{c_compiler}", config.c_compiler),
    ("%{cxx_compiler}", config.cxx_compiler),
    ("%{source_dir}", config.meshwright_source_dir),
    ("%{build_dir}", config.meshwright_build_dir),
    ("%{mlir_dir}", config.mlir_dir),
    (
        "%{test_passes}",
        os.path.join(config.meshwright_build_dir, "test", "lib", "libMeshwrightTestPasses.so"),
    ),
    ("%{plugin}", os.path.join(config.meshwright_build_dir, "lib", "libMeshwright.so")),
]

# A program that links an instrumented library has to be instrumented too.
sanitizer_flags = {
    "": "",
    "Address;Undefined": "-fsanitize=address,undefined",
    "Thread": "-fsanitize=thread",
}
config.substitutions.append(("%{sanitizer_flags}", sanitizer_flags[config.sanitizer]))

# Tests with `REQUIRES: slow` take more than a few seconds. `lit -Dslow=1` runs them, and no others.
if "slow" in lit_config.params:
    config.available_features.add("slow")
    config.limit_to_features.add("slow")
if config.enable_python:
    config.available_features.add("python")
backend = os.path.join(config.meshwright_build_dir, "lib", "libMeshwrightBackend_mpi.so")
if os.path.exists(backend) and shutil.which("mpirun"):
    config.available_features.add("mpi")
# gpu: a device, or the stand-in for its driver, which %{gpu} puts first on the library path.
# gpu-device: a device.
fakegpu = os.path.join(config.meshwright_build_dir, "fakegpu")
library_path = os.environ.get("LD_LIBRARY_PATH", "")
if os.path.exists("/dev/nvidia0"):
    config.available_features |= {"gpu", "gpu-device"}
elif os.path.exists(os.path.join(fakegpu, "libcuda.so.1")):
    config.available_features.add("gpu")
    library_path = os.pathsep.join(p for p in [fakegpu, library_path] if p)
config.substitutions.append(("%{gpu}", f"env LD_LIBRARY_PATH={library_path}"))
if config.sanitizer:
    # A stock mlir-opt cannot load an instrumented library.
    config.available_features.add("sanitizer")
    # libMLIR is not instrumented: what only one side of its border knows of (the
    # unused rest of a vector, of an allocator's slab) would look like an overflow.
    config.environment["ASAN_OPTIONS"] = (
        "detect_container_overflow=0:allow_user_poisoning=0:detect_leaks=0"
    )
    suppressions = os.path.join(config.test_source_root, "tsan-suppressions.txt")
    config.environment["TSAN_OPTIONS"] = f"suppressions={suppressions}"
