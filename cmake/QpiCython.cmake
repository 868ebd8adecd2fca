# Every src/cython/qpi_distill/*.pyx becomes the extension module qpi_distill.<name>.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})

set(_folder ${PROJECT_SOURCE_DIR}/src/cython)
file(GLOB _modules CONFIGURE_DEPENDS ${_folder}/qpi_distill/*.pyx)
file(GLOB _declarations CONFIGURE_DEPENDS ${_folder}/qpi_distill/*.pxd)
set(_generated ${_modules})
list(TRANSFORM _generated REPLACE "^.*/([^/]+)\\.pyx$" "${PROJECT_BINARY_DIR}/cython/\\1.c")
# One call for all of them: most of Cython's time goes into starting and into the declarations that they share.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cython)
add_custom_command(
  OUTPUT ${_generated}
  COMMAND Python::Interpreter -m cython -3 -I ${_folder} --output-file ${PROJECT_BINARY_DIR}/cython ${_modules}
  DEPENDS ${_modules} ${_declarations}
  COMMENT "Cython: qpi_distill"
  VERBATIM)
add_custom_target(qpi_cython DEPENDS ${_generated})

foreach(_c IN LISTS _generated)
  cmake_path(GET _c STEM _name)
  # Free-threaded interpreters have no limited API of this kind: there the variable is empty.
  if(SKBUILD_SABI_VERSION)
    python_add_library(${_name} MODULE USE_SABI ${SKBUILD_SABI_VERSION} WITH_SOABI ${_c})
  else()
    python_add_library(${_name} MODULE WITH_SOABI ${_c})
  endif()
  add_dependencies(${_name} qpi_cython)
  target_include_directories(${_name} PRIVATE ${_folder} ${_folder}/qpi_distill)
  target_link_libraries(${_name} PRIVATE qpi_distill)
  # A function outside the limited API is one that its headers do not declare.
  target_compile_options(${_name} PRIVATE -Werror=implicit-function-declaration)
  target_link_options(${_name} PRIVATE LINKER:--as-needed)
  set_target_properties(${_name} PROPERTIES C_VISIBILITY_PRESET hidden INSTALL_RPATH "$ORIGIN/${QPI_LIBDIR}"
                                            BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${_name} LIBRARY DESTINATION . COMPONENT runtime)
endforeach()

# What a downstream Cython module needs: `from qpi_distill.c_api cimport ...`.
foreach(_pxd IN ITEMS c_api.pxd __init__.pxd)
  if(EXISTS ${_folder}/qpi_distill/${_pxd})
    install(FILES ${_folder}/qpi_distill/${_pxd} DESTINATION . COMPONENT dev)
  endif()
endforeach()
