# The toolchain of the CMake preset "aarch64": the distribution's cross compiler, and the arm64 libraries that
# deploy/cross/sysroot.sh put into a folder. Programs that run at build time (protoc, grpc_cpp_plugin) are this
# machine's, of the same distribution, so that generated code fits the libraries.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(VOXSERVE_SYSROOT "${CMAKE_CURRENT_LIST_DIR}/../../build/sysroot-aarch64" CACHE PATH "Made by deploy/cross/sysroot.sh")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES VOXSERVE_SYSROOT)
cmake_path(ABSOLUTE_PATH VOXSERVE_SYSROOT NORMALIZE OUTPUT_VARIABLE CMAKE_SYSROOT)
if(NOT EXISTS "${CMAKE_SYSROOT}/stamp")
  message(FATAL_ERROR "There is no arm64 sysroot at ${CMAKE_SYSROOT}: run deploy/cross/sysroot.sh")
endif()

find_program(VOXSERVE_CROSS_C aarch64-linux-gnu-gcc)
find_program(VOXSERVE_CROSS_CXX aarch64-linux-gnu-g++)
if(NOT VOXSERVE_CROSS_CXX)
  message(FATAL_ERROR "There is no aarch64-linux-gnu-g++: run deploy/install.sh build test cross")
endif()
set(CMAKE_C_COMPILER ${VOXSERVE_CROSS_C})
set(CMAKE_CXX_COMPILER ${VOXSERVE_CROSS_CXX})

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")

# ctest runs the tests under qemu, where it is installed.
find_program(VOXSERVE_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(VOXSERVE_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${VOXSERVE_QEMU};-L;${CMAKE_SYSROOT}")
endif()
