# Debian packages by CPack (deploy/deb.sh makes them): voxserve-server, voxserve-client, voxserve-client-dev. A package is
# a group of components; which libraries it depends on, dpkg-shlibdeps reads from its programs.
set(doc ${CMAKE_INSTALL_DATADIR}/doc)
if(NOT VOXSERVE_CLIENT_ONLY AND VOXSERVE_BUILD_SERVER)
  # The demonstration's models and scan, so that a fresh machine gets a first label.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/models ${PROJECT_SOURCE_DIR}/deploy/scans
    DESTINATION ${CMAKE_INSTALL_DATADIR}/voxserve COMPONENT demo PATTERN export.sh EXCLUDE)
  install(FILES ${PROJECT_SOURCE_DIR}/proto/NOTICE DESTINATION ${doc}/voxserve-server COMPONENT demo)
  set(server_components server demo)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc}/voxserve-server COMPONENT demo RENAME copyright)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc}/voxserve-client COMPONENT client RENAME copyright)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc}/voxserve-client-dev COMPONENT client-dev RENAME copyright)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME voxserve)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The voxserve authors <voxserve@voxserve.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL ${server_components} command client client-dev)
if(NOT VOXSERVE_BUILD_CLI)
  list(REMOVE_ITEM CPACK_COMPONENTS_ALL command)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# A package that links the library depends on voxserve-client in this version or a later one: a program runs with every
# later library of the same SONAME.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(CPACK_COMPONENT_SERVER_GROUP server_package)
set(CPACK_COMPONENT_DEMO_GROUP server_package)
set(CPACK_COMPONENT_COMMAND_GROUP client_package)
set(CPACK_COMPONENT_CLIENT_GROUP client_package)
set(CPACK_COMPONENT_CLIENT-DEV_GROUP dev_package)
set(CPACK_DEBIAN_SERVER_PACKAGE_PACKAGE_NAME voxserve-server)
set(CPACK_DEBIAN_CLIENT_PACKAGE_PACKAGE_NAME voxserve-client)
set(CPACK_DEBIAN_DEV_PACKAGE_PACKAGE_NAME voxserve-client-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_PACKAGE_DEPENDS "voxserve-client (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_SERVER_PACKAGE_PACKAGE_RECOMMENDS voxserve-client)
set(CPACK_DEBIAN_SERVER_PACKAGE_DESCRIPTION
  "gRPC inference server for sparse-convolution networks on point clouds
 Labels points and finds boxes in LiDAR scans. With the tuner, a tool for 8 bits and two small demonstration models.")
set(CPACK_DEBIAN_CLIENT_PACKAGE_DESCRIPTION
  "client library and command of the voxserve inference server
 libvoxserve_client.so sends point clouds and gets labels, boxes or tensors; voxserve-client does so for files.")
set(CPACK_DEBIAN_DEV_PACKAGE_DESCRIPTION
  "headers, CMake package and pkg-config file of the voxserve client library
 Needs C++20 and the standard library alone.")
include(CPack)
