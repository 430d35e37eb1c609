# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Headers only: nothing depends on the architecture, so everything goes under share/.
set(mha_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/mha")

# One export file per component: find_package(mha) works where a component's dependency is missing.
foreach(component IN ITEMS mha openmp io cuda)
  set(target mha_${component})
  if(component STREQUAL "mha")
    set(target mha)
  endif()
  if(TARGET ${target})
    set(mha_device_headers "")
    if(component STREQUAL "cuda")
      set(mha_device_headers FILE_SET device_headers DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    endif()
    install(TARGETS ${target} EXPORT mha-${component}Targets FILE_SET HEADERS
                                                             DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" ${mha_device_headers})
    install(
      EXPORT mha-${component}Targets
      NAMESPACE mha::
      DESTINATION "${mha_package_dir}")
  endif()
endforeach()

configure_package_config_file(cmake/mhaConfig.cmake.in "${PROJECT_BINARY_DIR}/mhaConfig.cmake"
                              INSTALL_DESTINATION "${mha_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/mhaConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/mhaConfig.cmake" "${PROJECT_BINARY_DIR}/mhaConfigVersion.cmake"
        DESTINATION "${mha_package_dir}")

configure_file(cmake/mha.pc.in "${PROJECT_BINARY_DIR}/mha.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/mha.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
