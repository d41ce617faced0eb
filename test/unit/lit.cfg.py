"""lit configuration: every executable in build/test/unit that ends in Tests is a gtest."""

import os

import lit.formats

config.name = "MeshwrightUnit"
# None of them is slow (see ../lit.cfg.py).
config.test_format = lit.formats.GoogleTest(".", "SlowTests" if "slow" in lit_config.params else "Tests")
config.suffixes = []
config.test_exec_root = os.path.join(config.meshwright_build_dir, "test", "unit")
config.test_source_root = config.test_exec_root

if config.sanitizer:
    # As in the configuration of the other tests.
    config.environment["ASAN_OPTIONS"] = (
        "detect_container_overflow=0:allow_user_poisoning=0:detect_leaks=0"
    )
    suppressions = os.path.join(config.meshwright_source_dir, "test", "tsan-suppressions.txt")
    config.environment["TSAN_OPTIONS"] = f"suppressions={suppressions}"
