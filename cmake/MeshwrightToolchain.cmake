# Prefers the compiler and the linker of the LLVM that llvm-version.txt pins,
# and ccache, if they are installed and the user has not chosen others. Included
# before project(), because project() fixes the compilers.

file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/llvm-version.txt" MESHWRIGHT_LLVM_VERSION LIMIT_COUNT 1)
string(REGEX MATCH "^[0-9]+" MESHWRIGHT_LLVM_MAJOR "${MESHWRIGHT_LLVM_VERSION}")

if(NOT CMAKE_TOOLCHAIN_FILE AND NOT DEFINED CMAKE_CXX_COMPILER AND NOT DEFINED CMAKE_C_COMPILER
   AND NOT DEFINED ENV{CXX} AND NOT DEFINED ENV{CC})
  find_program(MESHWRIGHT_CLANG clang-${MESHWRIGHT_LLVM_MAJOR})
  find_program(MESHWRIGHT_CLANGXX clang++-${MESHWRIGHT_LLVM_MAJOR})
  mark_as_advanced(MESHWRIGHT_CLANG MESHWRIGHT_CLANGXX)
  if(MESHWRIGHT_CLANG AND MESHWRIGHT_CLANGXX)
    set(CMAKE_C_COMPILER "${MESHWRIGHT_CLANG}")
    set(CMAKE_CXX_COMPILER "${MESHWRIGHT_CLANGXX}")
  endif()
endif()

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(MESHWRIGHT_CCACHE ccache)
  mark_as_advanced(MESHWRIGHT_CCACHE)
  if(MESHWRIGHT_CCACHE)
    # Without these settings ccache skips files that use precompiled headers.
    set(launcher "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${MESHWRIGHT_CCACHE}")
    set(CMAKE_C_COMPILER_LAUNCHER "${launcher}" CACHE STRING "")
    set(CMAKE_CXX_COMPILER_LAUNCHER "${launcher}" CACHE STRING "")
  endif()
endif()

# lld links libMeshwright.so in a second; GNU ld takes ten. Clang finds the lld
# beside it; gcc needs its path.
find_program(MESHWRIGHT_LLD ld.lld HINTS "/usr/lib/llvm-${MESHWRIGHT_LLVM_MAJOR}/bin")
mark_as_advanced(MESHWRIGHT_LLD)
if(MESHWRIGHT_LLD AND NOT CMAKE_SHARED_LINKER_FLAGS MATCHES "-fuse-ld")
  get_filename_component(lld_dir "${MESHWRIGHT_LLD}" DIRECTORY)
  add_link_options(-fuse-ld=lld "-B${lld_dir}")
endif()

# The Python of the environment that scripts/setup.sh makes, unless another environment is active or the
# user has chosen a Python.
set(environment_python "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python")
if(NOT DEFINED Python_EXECUTABLE AND NOT DEFINED Python3_EXECUTABLE AND NOT DEFINED ENV{VIRTUAL_ENV}
   AND NOT DEFINED SKBUILD AND EXISTS "${environment_python}")
  set(Python_EXECUTABLE "${environment_python}" CACHE FILEPATH "")
  set(Python3_EXECUTABLE "${environment_python}" CACHE FILEPATH "")
endif()
