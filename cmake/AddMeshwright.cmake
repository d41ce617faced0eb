# Thin helpers: leaf CMakeLists only list sources and libraries.

# Every include is spelt meshwright/<folder>/...: a link in the build tree.
set(MESHWRIGHT_INCLUDE_DIR "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${MESHWRIGHT_INCLUDE_DIR}/meshwright")
set(MESHWRIGHT_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
foreach(folder dialects passes lib runtime)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}"
    "${MESHWRIGHT_INCLUDE_DIR}/meshwright/${folder}" SYMBOLIC)
endforeach()

file(CREATE_LINK "${PROJECT_SOURCE_DIR}/include/meshwright-c" "${MESHWRIGHT_INCLUDE_DIR}/meshwright-c"
  SYMBOLIC)

set_property(GLOBAL PROPERTY MESHWRIGHT_COMPONENTS "")
add_custom_target(meshwright-headers)

# Runs mlir-tblgen on a .td of this folder: pairs of output file and flags,
# separated by semicolons in one argument ("DistOps.h.inc;-gen-op-decls").
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

# A component of libMeshwright.so, compiled once.
function(meshwright_add_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  add_dependencies(${name} meshwright-headers)
  target_include_directories(${name} PRIVATE
    "${MESHWRIGHT_INCLUDE_DIR}" "${MESHWRIGHT_GENERATED_DIR}")
  target_include_directories(${name} SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
  target_compile_options(${name} PRIVATE -fno-exceptions -Wall -Wno-unused-parameter)
  if(ARG_LIBRARIES)
    target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES})
    set_property(GLOBAL APPEND PROPERTY MESHWRIGHT_LIBRARIES ${ARG_LIBRARIES})
  endif()
  set_property(GLOBAL APPEND PROPERTY MESHWRIGHT_COMPONENTS ${name})
endfunction()

# The one shared library, of all components.
function(meshwright_link_library)
  get_property(components GLOBAL PROPERTY MESHWRIGHT_COMPONENTS)
  get_property(libraries GLOBAL PROPERTY MESHWRIGHT_LIBRARIES)
  set(objects)
  foreach(component ${components})
    list(APPEND objects $<TARGET_OBJECTS:${component}>)
  endforeach()
  add_library(Meshwright SHARED ${objects})
  target_link_libraries(Meshwright PUBLIC MLIR LLVM PRIVATE ${libraries})
  target_include_directories(Meshwright PUBLIC
    $<BUILD_INTERFACE:${MESHWRIGHT_INCLUDE_DIR}> $<BUILD_INTERFACE:${MESHWRIGHT_GENERATED_DIR}>)
  target_include_directories(Meshwright SYSTEM PUBLIC
    $<BUILD_INTERFACE:${LLVM_INCLUDE_DIRS}> $<BUILD_INTERFACE:${MLIR_INCLUDE_DIRS}>)
  set_target_properties(Meshwright PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
endfunction()

# A tool: a main of a few lines.
function(meshwright_add_tool name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  add_dependencies(${name} meshwright-headers)
  target_compile_options(${name} PRIVATE -fno-exceptions -Wall -Wno-unused-parameter)
  target_link_libraries(${name} PRIVATE Meshwright)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endfunction()
