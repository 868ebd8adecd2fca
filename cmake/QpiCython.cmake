# Every src/cython/qpi_distill/*.pyx becomes the extension module qpi_distill.<name>.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})

set(_folder ${PROJECT_SOURCE_DIR}/src/cython)
file(GLOB _modules CONFIGURE_DEPENDS ${_folder}/qpi_distill/*.pyx)
foreach(_pyx IN LISTS _modules)
  cmake_path(GET _pyx STEM _name)
  set(_c ${PROJECT_BINARY_DIR}/cython/${_name}.c)
  add_custom_command(
    OUTPUT ${_c}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cython
    COMMAND Python::Interpreter -m cython -3 --depfile --module-name qpi_distill.${_name} -I ${_folder} --output-file
            ${_c} ${_pyx}
    DEPENDS ${_pyx}
    DEPFILE ${_c}.dep
    COMMENT "Cython: qpi_distill.${_name}"
    VERBATIM)
  # Free-threaded interpreters have no limited API of this kind: there the variable is empty.
  if(SKBUILD_SABI_VERSION)
    python_add_library(${_name} MODULE USE_SABI ${SKBUILD_SABI_VERSION} WITH_SOABI ${_c})
  else()
    python_add_library(${_name} MODULE WITH_SOABI ${_c})
  endif()
  target_include_directories(${_name} PRIVATE ${_folder} ${_folder}/qpi_distill)
  target_link_libraries(${_name} PRIVATE qpi_distill)
  # A function outside the limited API is one that its headers do not declare.
  target_compile_options(${_name} PRIVATE -Werror=implicit-function-declaration)
  target_link_options(${_name} PRIVATE LINKER:--as-needed)
  set_target_properties(${_name} PROPERTIES C_VISIBILITY_PRESET hidden INSTALL_RPATH "$ORIGIN/${QPI_LIBDIR}")
  install(TARGETS ${_name} LIBRARY DESTINATION . COMPONENT runtime)
endforeach()

# What a downstream Cython module needs: `from qpi_distill.c_api cimport ...`.
foreach(_pxd IN ITEMS c_api.pxd __init__.pxd)
  if(EXISTS ${_folder}/qpi_distill/${_pxd})
    install(FILES ${_folder}/qpi_distill/${_pxd} DESTINATION . COMPONENT dev)
  endif()
endforeach()
