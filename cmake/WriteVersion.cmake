# Writes the numbers of a build to a file, if they have changed:
#
#   cmake -DINPUT=Version.cpp.in -DOUTPUT=Version.cpp -DSOURCES=. -DPROJECT=0.1.0 -DLLVM=22.1.8 -P WriteVersion.cmake
#
# COMMIT is the checkout's commit, with ".dirty" behind it if files differ. It is "none" for sources without
# a history. ABI is the number of meshwright-c/Runtime.h.

execute_process(COMMAND git describe --always --dirty=.dirty --abbrev=12 --exclude=*
  WORKING_DIRECTORY "${SOURCES}" OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT none)
endif()
file(STRINGS "${SOURCES}/include/meshwright-c/Runtime.h" ABI REGEX "#define MW_RT_ABI_VERSION ")
string(REGEX MATCH "[0-9]+$" ABI "${ABI}")
configure_file("${INPUT}" "${OUTPUT}" @ONLY)
