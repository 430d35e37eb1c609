# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Headers, and the sources of mha::compiled, which is built by whoever links it: nothing depends on the architecture, so
# everything goes under share/.
set(mha_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/mha")

# One export file per component: find_package(mha) works where a component's dependency is missing.
foreach(component IN ITEMS mha openmp io cuda)
  set(target mha_${component})
  if(component STREQUAL "mha")
    set(target mha)
  endif()
  if(TARGET ${target})
    set(mha_more_headers "")
    if(component STREQUAL "mha")
      set(mha_more_headers FILE_SET kernels DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    elseif(component STREQUAL "cuda")
      set(mha_more_headers FILE_SET device_headers DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    endif()
    install(TARGETS ${target} EXPORT mha-${component}Targets FILE_SET HEADERS
                                                             DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" ${mha_more_headers})
    install(
      EXPORT mha-${component}Targets
      NAMESPACE mha::
      DESTINATION "${mha_package_dir}")
  endif()
endforeach()

configure_package_config_file(cmake/mhaConfig.cmake.in "${PROJECT_BINARY_DIR}/mhaConfig.cmake"
                              INSTALL_DESTINATION "${mha_package_dir}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/mhaConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/mhaConfig.cmake" "${PROJECT_BINARY_DIR}/mhaConfigVersion.cmake"
        cmake/MhaCompiled.cmake DESTINATION "${mha_package_dir}")
install(DIRECTORY cmake/compiled DESTINATION "${mha_package_dir}")

# The prefix can be moved: pkg-config's files name it by their own place, but for a folder that was given absolute.
set(mha_pc_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
if(IS_ABSOLUTE "${mha_pc_dir}")
  set(mha_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  string(REGEX REPLACE "[^/]+" ".." mha_pc_prefix "${mha_pc_dir}")
  string(PREPEND mha_pc_prefix "\${pcfiledir}/")
endif()
set(mha_pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
if(NOT IS_ABSOLUTE "${mha_pc_includedir}")
  string(PREPEND mha_pc_includedir "\${prefix}/")
endif()
foreach(name IN ITEMS mha mha-compiled)
  configure_file(cmake/${name}.pc.in "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${mha_pc_dir}")
endforeach()
