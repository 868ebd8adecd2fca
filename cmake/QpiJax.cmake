# The handlers that XLA calls for qpi_distill.jax. They need neither JAX nor XLA to be built, nor Python.
file(GLOB _sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/jax/*.cpp)
add_library(qpi_jax MODULE ${_sources})
target_compile_features(qpi_jax PRIVATE cxx_std_17)
target_compile_options(qpi_jax PRIVATE -Wall -Wextra)
target_link_libraries(qpi_jax PRIVATE qpi_distill)
target_link_options(qpi_jax PRIVATE LINKER:--as-needed LINKER:--exclude-libs,ALL
                    LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
set_target_properties(
  qpi_jax
  PROPERTIES PREFIX lib
             CXX_VISIBILITY_PRESET hidden
             VISIBILITY_INLINES_HIDDEN ON
             CXX_EXTENSIONS OFF
             LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map
             INSTALL_RPATH "$ORIGIN")
install(TARGETS qpi_jax LIBRARY DESTINATION ${QPI_LIBDIR} COMPONENT runtime)
