# Finds the LLVM and MLIR that llvm-version.txt pins, and refuses others.

find_package(MLIR CONFIG HINTS "/usr/lib/llvm-${MESHWRIGHT_LLVM_MAJOR}/lib/cmake/mlir")
if(NOT MLIR_FOUND)
  message(FATAL_ERROR "MLIR ${MESHWRIGHT_LLVM_VERSION} not found: install "
    "libmlir-${MESHWRIGHT_LLVM_MAJOR}-dev and mlir-${MESHWRIGHT_LLVM_MAJOR}-tools, or set MLIR_DIR")
endif()
if(NOT "${LLVM_VERSION_MAJOR}.${LLVM_VERSION_MINOR}" STREQUAL "${MESHWRIGHT_LLVM_VERSION}")
  message(FATAL_ERROR "LLVM ${LLVM_VERSION_MAJOR}.${LLVM_VERSION_MINOR} at ${MLIR_DIR}: "
    "expected ${MESHWRIGHT_LLVM_VERSION} (llvm-version.txt)")
endif()

list(APPEND CMAKE_MODULE_PATH "${MLIR_CMAKE_DIR}" "${LLVM_CMAKE_DIR}")
include(TableGen)
include(AddLLVM)
include(AddMLIR)
include(HandleLLVMOptions)
