# Enables CUDA with, in this order: the compiler that was named (CMAKE_CUDA_COMPILER, CUDACXX), nvcc of the
# nvidia-cuda-nvcc wheel in the Python environment of this build, nvcc on PATH. The environment variable
# QPI_SYSTEM_CUDA=1 leaves the wheel out.

# Sets `out` to the wheels' toolkit folder (site-packages/nvidia/cu13), or to an empty string. The interpreter is asked
# because it knows the folders of an isolated build, which hold this project's own requirements, and their order.
function(qpi_find_nvcc_wheel out)
  set(_root "")
  find_package(Python COMPONENTS Interpreter QUIET)
  if(Python_Interpreter_FOUND)
    set(_program
        "import importlib.util, pathlib"
        "spec = importlib.util.find_spec('nvidia')"
        "roots = [pathlib.Path(p, 'cu13') for p in (spec.submodule_search_locations if spec else ())]"
        "print(next((r.as_posix() for r in roots if (r / 'bin' / 'nvcc').exists()), ''), end='')")
    list(JOIN _program "\n" _program)
    execute_process(COMMAND ${Python_EXECUTABLE} -c "${_program}" OUTPUT_VARIABLE _root ERROR_QUIET)
  endif()
  set(${out} "${_root}" PARENT_SCOPE)
endfunction()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND NOT "$ENV{QPI_SYSTEM_CUDA}")
  qpi_find_nvcc_wheel(_toolkit)
  if(_toolkit)
    set(CMAKE_CUDA_COMPILER ${_toolkit}/bin/nvcc CACHE FILEPATH "CUDA compiler")
    # The nvcc wheels before 13.2 look for their libraries in lib64, but ship lib. CMake records the folder as an
    # implicit link directory, so that the build itself does not need the variable.
    set(ENV{NVCC_APPEND_FLAGS} "$ENV{NVCC_APPEND_FLAGS} -L${_toolkit}/lib")
  endif()
endif()

# SASS for every generation that CUDA 13 knows and this library supports, PTX for what comes after them. Where the
# caller names no architectures, neighbours share the first half of their compilation (-> PTX), which is the longer one.
if(CMAKE_CUDA_ARCHITECTURES)
  set(QPI_CUDA_GENERATIONS "")
  set(QPI_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES})
else()
  set(QPI_CUDA_GENERATIONS
      "--generate-code=arch=compute_75,code=[sm_75]"
      "--generate-code=arch=compute_80,code=[sm_80,sm_86,sm_89]"
      "--generate-code=arch=compute_90,code=[sm_90]"
      "--generate-code=arch=compute_100,code=[sm_100,sm_110,sm_120,compute_100]")
  string(REGEX MATCHALL "sm_[0-9]+" QPI_CUDA_ARCHITECTURES "${QPI_CUDA_GENERATIONS}")
  list(TRANSFORM QPI_CUDA_ARCHITECTURES REPLACE "sm_" "")
  set(CMAKE_CUDA_ARCHITECTURES OFF)
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT CMAKE_CUDA_COMPILER)
    message(
      FATAL_ERROR
        "No nvcc was found. Install it from PyPI (pip install \"cuda-toolkit[nvcc,cccl]==13.0.*\") into the Python "
        "environment of this build, or name one with CUDACXX, or build for the CPU alone with QPI_CUDA=OFF.")
  endif()
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER_ID STREQUAL NVIDIA OR CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "nvcc 13.0 or newer is needed; ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_ID} "
                      "${CMAKE_CUDA_COMPILER_VERSION}.")
endif()

# What every CUDA source of the project is compiled with.
function(qpi_cuda_options target)
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
                                             CUDA_RUNTIME_LIBRARY Static)
  set(_options ${QPI_CUDA_GENERATIONS} -fmad=false -Xcompiler=-ffp-contract=off,-Wall --threads=${QPI_NVCC_THREADS})
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${_options}>")
endfunction()
