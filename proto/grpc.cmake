# Finds protobuf, Abseil and gRPC: the system's, or those of VOXSERVE_GRPC_ROOT. Sets VOXSERVE_PROTOC and
# VOXSERVE_GRPC_PLUGIN, the programs that generate code.
#
# VOXSERVE_GRPC_ROOT is the prefix of a gRPC that was installed with its protobuf and Abseil (cmake --install of gRPC with
# gRPC_PROTOBUF_PROVIDER=package and gRPC_ABSL_PROVIDER=package, or of its submodules). All three are then taken from
# there alone, for a program that loads two versions of one of them ends at its start, or worse. The prefix must hold
# CMake packages, which protobuf has when CMake installed it.
set(VOXSERVE_GRPC_ROOT "" CACHE PATH "Prefix of an installed gRPC, protobuf and Abseil; empty: the system's")

find_package(Threads REQUIRED)
if(VOXSERVE_GRPC_ROOT)
  if(VOXSERVE_ABSEIL_ROOT)
    message(FATAL_ERROR "VOXSERVE_GRPC_ROOT and VOXSERVE_ABSEIL_ROOT both bring an Abseil: set one of them")
  endif()
  list(PREPEND CMAKE_PREFIX_PATH ${VOXSERVE_GRPC_ROOT})  # for what these packages find in turn
  foreach(package absl Protobuf gRPC)
    if(package STREQUAL "gRPC" AND NOT VOXSERVE_BUILD_SERVER)
      continue()
    endif()
    string(TOLOWER ${package} lower)
    # Protobuf's package is called protobuf before version 22's Protobuf by some distributions.
    find_package(${package} CONFIG NAMES ${package} ${lower} NO_DEFAULT_PATH PATHS ${VOXSERVE_GRPC_ROOT})
    if(NOT ${package}_FOUND)
      message(FATAL_ERROR "VOXSERVE_GRPC_ROOT (${VOXSERVE_GRPC_ROOT}) has no CMake package of ${package}. It must be the "
        "prefix into which gRPC, protobuf and Abseil were installed by CMake; leave it empty for the system's.")
    endif()
    message(STATUS "${package} ${${package}_VERSION} of ${VOXSERVE_GRPC_ROOT}")
  endforeach()
  set(VOXSERVE_PROTOC $<TARGET_FILE:protobuf::protoc>)
else()
  find_package(Protobuf REQUIRED)
  set(VOXSERVE_PROTOC ${Protobuf_PROTOC_EXECUTABLE})
  if(VOXSERVE_BUILD_SERVER)
    find_package(gRPC REQUIRED)
  endif()
endif()
if(VOXSERVE_BUILD_SERVER)
  if(VOXSERVE_GRPC_ROOT AND TARGET gRPC::grpc_cpp_plugin)
    set(VOXSERVE_GRPC_PLUGIN $<TARGET_FILE:gRPC::grpc_cpp_plugin>)
  else()
    find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
    set(VOXSERVE_GRPC_PLUGIN ${GRPC_CPP_PLUGIN})
  endif()
endif()
