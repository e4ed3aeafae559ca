# SPDX-License-Identifier: MIT
# TAMIS_MPI=auto|on|off: whether libtamis_mpi is built. auto: where MPI is found.
set(TAMIS_MPI auto CACHE STRING "Build libtamis_mpi: auto, on or off")
set_property(CACHE TAMIS_MPI PROPERTY STRINGS auto on off)
if(TAMIS_MPI STREQUAL "on")
  find_package(MPI REQUIRED COMPONENTS C)
elseif(TAMIS_MPI STREQUAL "auto")
  find_package(MPI QUIET COMPONENTS C)
elseif(NOT TAMIS_MPI STREQUAL "off")
  message(FATAL_ERROR "TAMIS_MPI must be auto, on or off, not ${TAMIS_MPI}")
endif()
if(MPI_C_FOUND AND NOT TAMIS_MPI STREQUAL "off")
  add_subdirectory(${PROJECT_SOURCE_DIR}/src/mpi ${PROJECT_BINARY_DIR}/src/mpi)
endif()
