# Stands for an LLVM of another version.
set(LLVM_VERSION_MAJOR 21)
set(LLVM_VERSION_MINOR 1)
