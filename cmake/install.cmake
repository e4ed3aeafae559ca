# SPDX-License-Identifier: MIT
# What `make install` puts where: headers, both libraries, pkg-config and CMake package files, and what
# belongs to the command.
include(CMakePackageConfigHelpers)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tamis DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tamis tamis_static EXPORT tamis-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT tamis-targets NAMESPACE tamis:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
file(WRITE ${PROJECT_BINARY_DIR}/tamis-config.cmake
     "include(\${CMAKE_CURRENT_LIST_DIR}/tamis-targets.cmake)\n")
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
