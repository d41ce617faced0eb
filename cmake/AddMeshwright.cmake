# Thin helpers: leaf CMakeLists only list sources and libraries.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Every include is spelt meshwright/<folder>/...: a link in the build tree.
set(MESHWRIGHT_INCLUDE_DIR "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${MESHWRIGHT_INCLUDE_DIR}/meshwright")
set(MESHWRIGHT_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
foreach(folder dialects passes lib runtime)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}"
    "${MESHWRIGHT_INCLUDE_DIR}/meshwright/${folder}" SYMBOLIC)
endforeach()

# The include folders of the build tree: the links, the output of mlir-tblgen, and
# the public facade (meshwright/, meshwright-c/).
set(MESHWRIGHT_BUILD_INCLUDES "${MESHWRIGHT_INCLUDE_DIR}" "${MESHWRIGHT_GENERATED_DIR}"
  "${PROJECT_SOURCE_DIR}/include")

# The run path of installed files: a library finds its neighbours beside it, a tool
# in ../lib. Both find the pinned LLVM, which the dynamic linker does not search.
set(MESHWRIGHT_LIBRARY_RPATH "$ORIGIN" "${LLVM_LIBRARY_DIR}")
set(MESHWRIGHT_TOOL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" "${LLVM_LIBRARY_DIR}")

set_property(GLOBAL PROPERTY MESHWRIGHT_COMPONENTS "")
add_custom_target(meshwright-headers)

# Runs mlir-tblgen on a .td of this folder, once for each further argument:
# an output and its flags, separated by bars ("DistOps.h.inc|-gen-op-decls").
# Outputs are included as meshwright/<folder>/<output>.
function(meshwright_tablegen td)
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  set(out_dir "${MESHWRIGHT_GENERATED_DIR}/meshwright/${folder}")
  file(MAKE_DIRECTORY "${out_dir}")
  get_filename_component(stem "${td}" NAME_WE)
  file(GLOB_RECURSE tds "${PROJECT_SOURCE_DIR}/dialects/*.td")
  set(outputs)
  foreach(pair ${ARGN})
    string(REPLACE "|" ";" pair "${pair}")
    list(POP_FRONT pair output)
    add_custom_command(
      OUTPUT "${out_dir}/${output}"
      COMMAND $<TARGET_FILE:mlir-tblgen> ${pair} "${CMAKE_CURRENT_SOURCE_DIR}/${td}"
        -I "${MESHWRIGHT_INCLUDE_DIR}" -I "${MLIR_INCLUDE_DIRS}"
        --write-if-changed -o "${out_dir}/${output}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${td}" ${tds}
      COMMENT "Generating ${folder}/${output}")
    list(APPEND outputs "${out_dir}/${output}")
  endforeach()
  string(MAKE_C_IDENTIFIER "${folder}-${stem}" id)
  add_custom_target(tablegen-${id} DEPENDS ${outputs})
  add_dependencies(meshwright-headers tablegen-${id})
endfunction()

# Nearly all components include these headers, and parsing them takes longer than the
# rest of most files. So they are precompiled. Each file still includes all headers
# that it needs: a build with CMAKE_DISABLE_PRECOMPILE_HEADERS has to work.
set(MESHWRIGHT_PRECOMPILED_HEADERS
  <llvm/ADT/MapVector.h> <llvm/ADT/StringExtras.h> <llvm/ADT/TypeSwitch.h>
  <llvm/Support/FormatVariadic.h>
  <mlir/Dialect/Arith/IR/Arith.h> <mlir/Dialect/Func/IR/FuncOps.h>
  <mlir/Dialect/SCF/IR/SCF.h>
  <mlir/IR/Builders.h> <mlir/IR/DialectImplementation.h> <mlir/IR/OpImplementation.h>
  <mlir/Pass/PassManager.h>
  <meshwright/dialects/Dist/Dist.h> <meshwright/dialects/Nn/Nn.h>)

# A component of libMeshwright.so, compiled once.
function(meshwright_add_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  add_dependencies(${name} meshwright-headers)
  target_include_directories(${name} PRIVATE ${MESHWRIGHT_BUILD_INCLUDES})
  target_include_directories(${name} SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
  target_compile_options(${name} PRIVATE -fno-exceptions -Wall -Wno-unused-parameter)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # With times in the precompiled header ccache would never find it again.
    target_compile_options(${name} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
  get_property(components GLOBAL PROPERTY MESHWRIGHT_COMPONENTS)
  if(components)
    list(GET components 0 first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE ${MESHWRIGHT_PRECOMPILED_HEADERS})
  endif()
  if(ARG_LIBRARIES)
    target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES})
    set_property(GLOBAL APPEND PROPERTY MESHWRIGHT_LIBRARIES ${ARG_LIBRARIES})
  endif()
  set_property(GLOBAL APPEND PROPERTY MESHWRIGHT_COMPONENTS ${name})
endfunction()

# The shared library of all components.
function(meshwright_link_library)
  get_property(components GLOBAL PROPERTY MESHWRIGHT_COMPONENTS)
  get_property(libraries GLOBAL PROPERTY MESHWRIGHT_LIBRARIES)
  set(objects)
  foreach(component ${components})
    list(APPEND objects $<TARGET_OBJECTS:${component}>)
  endforeach()
  add_library(Meshwright SHARED ${objects})
  # The runtime has the functions of sessions in the C interface.
  target_link_libraries(Meshwright PUBLIC MLIR LLVM ${libraries})
  foreach(dir ${MESHWRIGHT_BUILD_INCLUDES})
    target_include_directories(Meshwright PUBLIC $<BUILD_INTERFACE:${dir}>)
  endforeach()
  target_include_directories(Meshwright
    PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(Meshwright SYSTEM PUBLIC
    ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
  target_compile_features(Meshwright PUBLIC cxx_std_17)
  # The build ID is part of the names of cached kernels.
  target_link_options(Meshwright PRIVATE "LINKER:--build-id=sha1")
  meshwright_install_library(Meshwright)
endfunction()

# Puts a shared library of ours into the build's lib/, the installed one, the
# exported package (Meshwright::<name>) and, for `pip install`, beside the
# Python package.
function(meshwright_install_library name)
  add_library(Meshwright::${name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib"
    INSTALL_RPATH "${MESHWRIGHT_LIBRARY_RPATH}")
  install(TARGETS ${name} EXPORT MeshwrightTargets COMPONENT development
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  meshwright_install_python(${name})
endfunction()

# Puts a library beside the Python package. The target `python-package` builds all of these.
function(meshwright_install_python name)
  install(TARGETS ${name} COMPONENT python EXCLUDE_FROM_ALL LIBRARY DESTINATION meshwright)
  set_property(GLOBAL APPEND PROPERTY MESHWRIGHT_PYTHON_LIBRARIES ${name})
endfunction()

# A backend of the runtime: a shared object that the runtime finds beside itself
# and opens by name.
function(meshwright_add_backend name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  set(target MeshwrightBackend_${name})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_compile_options(${target} PRIVATE -fexceptions -Wall)
  target_link_libraries(${target} PRIVATE MeshwrightRuntime ${ARG_LIBRARIES})
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib"
    INSTALL_RPATH "${MESHWRIGHT_LIBRARY_RPATH}")
  install(TARGETS ${target} COMPONENT development LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  meshwright_install_python(${target})
endfunction()

# Writes the numbers of the build into a template, at each build: the output, and the target that writes it.
function(meshwright_write_version template output target)
  add_custom_target(${target}
    COMMAND "${CMAKE_COMMAND}" "-DINPUT=${CMAKE_CURRENT_SOURCE_DIR}/${template}" "-DOUTPUT=${output}"
      "-DSOURCES=${PROJECT_SOURCE_DIR}" "-DPROJECT=${PROJECT_VERSION}" "-DLLVM=${LLVM_PACKAGE_VERSION}"
      -P "${PROJECT_SOURCE_DIR}/cmake/WriteVersion.cmake"
    BYPRODUCTS "${output}"
    COMMENT "")
endfunction()

# A tool: a main of a few lines. It links the compiler library unless LIBRARIES
# names others.
function(meshwright_add_tool name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_LIBRARIES)
    set(ARG_LIBRARIES Meshwright)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  add_dependencies(${name} meshwright-headers)
  target_include_directories(${name} PRIVATE ${MESHWRIGHT_BUILD_INCLUDES})
  target_compile_options(${name} PRIVATE -fno-exceptions -Wall -Wno-unused-parameter)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin"
    INSTALL_RPATH "${MESHWRIGHT_TOOL_RPATH}")
  install(TARGETS ${name} EXPORT MeshwrightTargets COMPONENT development
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  set_property(GLOBAL APPEND PROPERTY MESHWRIGHT_TOOLS ${name})
endfunction()

# A gtest executable that lit runs; the name ends in Tests.
function(meshwright_add_unit_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT name MATCHES "Tests$")
    message(FATAL_ERROR "unit test ${name}: expected a name that ends in Tests")
  endif()
  if(NOT ARG_LIBRARIES)
    set(ARG_LIBRARIES Meshwright)
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  add_dependencies(${name} meshwright-headers)
  target_compile_options(${name} PRIVATE -fno-exceptions -Wall -Wno-unused-parameter)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/test/unit")
  set_property(GLOBAL APPEND PROPERTY MESHWRIGHT_UNIT_TESTS ${name})
endfunction()

# Headers as users include them, without those that say "Private to" their folder, and
# the CMake package.
function(meshwright_install_development)
  file(GLOB_RECURSE headers RELATIVE "${PROJECT_SOURCE_DIR}" dialects/*.h passes/*.h lib/*.h)
  set(private)
  foreach(header ${headers})
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" mark REGEX "^// Private to " LIMIT_COUNT 1)
    if(mark)
      list(APPEND private PATTERN "${header}" EXCLUDE)
    endif()
  endforeach()
  install(DIRECTORY dialects passes lib COMPONENT development
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/meshwright"
    FILES_MATCHING PATTERN "*.h" PATTERN "*.td" ${private})
  install(DIRECTORY runtime/include COMPONENT development
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/meshwright/runtime" FILES_MATCHING PATTERN "*.h")
  install(DIRECTORY "${MESHWRIGHT_GENERATED_DIR}/meshwright" COMPONENT development
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.inc")
  install(DIRECTORY include/ COMPONENT development
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h" PATTERN "*.def")

  set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Meshwright")
  install(EXPORT MeshwrightTargets NAMESPACE Meshwright:: COMPONENT development
    DESTINATION "${package_dir}")
  configure_package_config_file(cmake/MeshwrightConfig.cmake.in
    "${PROJECT_BINARY_DIR}/cmake/MeshwrightConfig.cmake"
    INSTALL_DESTINATION "${package_dir}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/MeshwrightConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/cmake/MeshwrightConfig.cmake"
    "${PROJECT_BINARY_DIR}/cmake/MeshwrightConfigVersion.cmake"
    COMPONENT development DESTINATION "${package_dir}")
endfunction()
