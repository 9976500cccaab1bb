# Installs the client in three components: "client" (the library), "client-dev" (headers, CMake package, pkg-config file)
# and "command" (voxserve-client): cmake --install BUILD --component client-dev
include(CMakePackageConfigHelpers)

install(TARGETS voxserve_client EXPORT voxserve
  LIBRARY COMPONENT client NAMELINK_COMPONENT client-dev)
if(VOXSERVE_BUILD_CLI)
  install(TARGETS voxserve-client COMPONENT command)
endif()

set(public_headers answer client export model options point_cloud status stream)
list(TRANSFORM public_headers REPLACE "(.+)" "${CMAKE_CURRENT_SOURCE_DIR}/voxserve/\\1.h")
install(FILES ${public_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/voxserve COMPONENT client-dev)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/voxserve)
install(EXPORT voxserve NAMESPACE voxserve:: FILE voxserveTargets.cmake DESTINATION ${package_folder}
  COMPONENT client-dev)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/voxserveConfig.cmake.in voxserveConfig.cmake
  INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
# While the version is 0.x, the SONAME says what is compatible: see voxserve/export.h.
write_basic_package_version_file(voxserveConfigVersion.cmake VERSION ${PROJECT_VERSION} COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/voxserveConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/voxserveConfigVersion.cmake
  DESTINATION ${package_folder} COMPONENT client-dev)

# The prefix is where the file lies, so that cmake --install --prefix needs no new configuration. Absolute paths of
# CMAKE_INSTALL_LIBDIR are taken as they are; others follow the prefix.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pkgconfig_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
  set(pkgconfig_PREFIX "\${pcfiledir}/${to_prefix}")
endif()
foreach(which LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${which}}")
    set(pkgconfig_${which} "${CMAKE_INSTALL_${which}}")
  else()
    set(pkgconfig_${which} "\${prefix}/${CMAKE_INSTALL_${which}}")
  endif()
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/voxserve.pc.in voxserve.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/voxserve.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT client-dev)
