# SPDX-License-Identifier: MIT
# What `make install` puts where: headers, both libraries, pkg-config and CMake package files, and what
# belongs to the command.
include(CMakePackageConfigHelpers)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tamis DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tamis tamis_static EXPORT tamis-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT tamis-targets NAMESPACE tamis:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
# find_package(tamis COMPONENTS mpi) adds tamis::tamis_mpi.
file(WRITE ${PROJECT_BINARY_DIR}/tamis-config.cmake
     "include(\${CMAKE_CURRENT_LIST_DIR}/tamis-targets.cmake)
set(tamis_mpi_targets \${CMAKE_CURRENT_LIST_DIR}/tamis-mpi-targets.cmake)
if(mpi IN_LIST tamis_FIND_COMPONENTS AND EXISTS \${tamis_mpi_targets})
  include(CMakeFindDependencyMacro)
  find_dependency(MPI COMPONENTS C)
  include(\${tamis_mpi_targets})
  set(tamis_mpi_FOUND TRUE)
endif()
if(tamis_FIND_REQUIRED_mpi AND NOT tamis_mpi_FOUND)
  set(tamis_FOUND FALSE)
  set(tamis_NOT_FOUND_MESSAGE \"this installation of tamis was built without MPI\")
endif()
")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tamis-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tamis-config.cmake ${PROJECT_BINARY_DIR}/tamis-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
# Relative to the .pc file itself, so that `cmake --install --prefix` moves it too.
file(RELATIVE_PATH TAMIS_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/tamis.pc.in ${PROJECT_BINARY_DIR}/tamis.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tamis.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TAMIS_BUILD_COMMAND)
  install(FILES ${PROJECT_SOURCE_DIR}/docs/tamis.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${PROJECT_SOURCE_DIR}/completion/tamis.bash
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tamis)
endif()
