# SPDX-License-Identifier: MIT
# The CUDA kernels: compiled by nvcc to one fat binary, which fatbin.c embeds in the library. Without
# nvcc the library builds all the same, and tamis_cuda_create says what is missing.
set(TAMIS_CUDA "auto" CACHE STRING "CUDA kernels: auto (when nvcc is found), on, off")
set_property(CACHE TAMIS_CUDA PROPERTY STRINGS auto on off)
set(TAMIS_CUDA_ARCHS "native" CACHE STRING
    "native (this machine's GPU; 80;90a without one), release (all the toolchain has from 80 on, and PTX), or a list: 80;90a; 80-virtual is PTX alone")

set(TAMIS_NVCC "" CACHE INTERNAL "nvcc, where kernels are compiled")
if(NOT TAMIS_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "TAMIS_CUDA is '${TAMIS_CUDA}': auto, on or off is required")
endif()
if(NOT TAMIS_CUDA STREQUAL "off")
  find_program(TAMIS_NVCC_PROGRAM nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
  if(TAMIS_NVCC_PROGRAM)
    set(TAMIS_NVCC ${TAMIS_NVCC_PROGRAM} CACHE INTERNAL "nvcc, where kernels are compiled")
  elseif(TAMIS_CUDA STREQUAL "on")
    message(FATAL_ERROR "TAMIS_CUDA is on, and nvcc was not found")
  endif()
endif()

# The compute capabilities of this machine's GPUs: 80, 86, 90a, ..
function(tamis_cuda_native result)
  set(archs "")
  find_program(TAMIS_NVIDIA_SMI nvidia-smi)
  if(TAMIS_NVIDIA_SMI)
    execute_process(COMMAND ${TAMIS_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE found ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${found}")
    string(REPLACE "." "" archs "${found}")
    string(REPLACE "90" "90a" archs "${archs}")
    list(REMOVE_DUPLICATES archs)
  endif()
  if(archs STREQUAL "")
    set(archs 80 90a)
  endif()
  set(${result} ${archs} PARENT_SCOPE)
endfunction()

function(tamis_cuda_flags result)
  set(archs ${TAMIS_CUDA_ARCHS})
  set(flags "")
  if(archs STREQUAL "native")
    tamis_cuda_native(archs)
  elseif(archs STREQUAL "release")
    execute_process(COMMAND ${TAMIS_NVCC} --list-gpu-arch OUTPUT_VARIABLE found)
    string(REGEX MATCHALL "compute_[0-9]+" found "${found}")
    list(TRANSFORM found REPLACE "compute_" "")
    list(SORT found COMPARE NATURAL)
    set(archs 90a)
    foreach(arch ${found})
      if(arch GREATER_EQUAL 80)
        list(APPEND archs ${arch})
        set(last ${arch})
      endif()
    endforeach()
    list(APPEND flags -gencode arch=compute_${last},code=compute_${last})
  endif()
  foreach(arch ${archs})
    if(arch MATCHES "^(.*)-virtual$")
      list(APPEND flags -gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
    else()
      list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
    endif()
  endforeach()
  message(STATUS "CUDA kernels for: ${archs}")
  set(${result} ${flags} PARENT_SCOPE)
endfunction()

# Adds the fat binary to the library's objects.
function(tamis_add_cuda target)
  set(folder ${PROJECT_SOURCE_DIR}/src/kernels/cuda)
  if(NOT TAMIS_NVCC)
    message(STATUS "CUDA kernels: none (TAMIS_CUDA is ${TAMIS_CUDA}, nvcc is '${TAMIS_NVCC_PROGRAM}')")
    return()
  endif()
  execute_process(COMMAND ${TAMIS_NVCC} --version OUTPUT_VARIABLE version)
  if(NOT version MATCHES "release ([0-9]+)\\.([0-9]+)")
    message(FATAL_ERROR "${TAMIS_NVCC} --version says no version")
  endif()
  math(EXPR toolkit "1000 * ${CMAKE_MATCH_1} + 10 * ${CMAKE_MATCH_2}")
  tamis_cuda_flags(archs)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  # The depfile names its target as CMake expects it, relative: nvcc does not escape a space.
  # FMA stands only where it is written; registers and spills of every kernel stay in kernels.ptxas.
  set(command ${TAMIS_NVCC} -fatbin -std=c++17 -O3 -fmad=false -Xptxas -v -t 2 ${archs}
      -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -MD -MT kernels.fatbin -MF ${fatbin}.d
      ${folder}/kernels.cu -o ${fatbin})
  list(TRANSFORM command PREPEND "'")
  list(TRANSFORM command APPEND "'")
  list(JOIN command " " line)
  set(log ${CMAKE_CURRENT_BINARY_DIR}/kernels.ptxas)
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND sh -c "${line} >'${log}' 2>&1 || { cat '${log}'; exit 1; }"
    DEPENDS ${folder}/kernels.cu DEPFILE ${fatbin}.d
    COMMENT "Compiling the CUDA kernels" VERBATIM)
  set_source_files_properties(
    ${folder}/fatbin.c PROPERTIES OBJECT_DEPENDS ${fatbin}
    COMPILE_DEFINITIONS "TAMIS_CUDA_FATBIN=\"${fatbin}\";TAMIS_CUDA_TOOLKIT=${toolkit}")
  target_sources(${target} PRIVATE ${fatbin})
endfunction()
