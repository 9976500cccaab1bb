# Finds the CUDA toolkit and cuBLAS; sets VOXSERVE_WITH_CUDA. Included at the top level, where a language is enabled.
#
# A toolkit that comes without cuBLAS is completed by deploy/install.sh, which puts NVIDIA's package into the user's
# cache; VOXSERVE_CUBLAS_ROOT names another place.
set(VOXSERVE_CUBLAS_ROOT "" CACHE PATH "Folder with include/cublas_v2.h and lib/libcublas.so, where the toolkit has none")

set(VOXSERVE_WITH_CUDA OFF)
if(NOT VOXSERVE_CUDA STREQUAL "OFF")
  find_program(VOXSERVE_NVCC nvcc PATHS /usr/local/cuda/bin)
  set(reason "there is no nvcc")
  if(VOXSERVE_NVCC)
    execute_process(COMMAND ${VOXSERVE_NVCC} --version OUTPUT_VARIABLE nvcc_version)
    string(REGEX MATCH "release ([0-9.]+)" nvcc_version "${nvcc_version}")
    set(reason "${VOXSERVE_NVCC} is of CUDA ${CMAKE_MATCH_1}")
    if(CMAKE_MATCH_1 VERSION_GREATER_EQUAL 13.0)
      set(VOXSERVE_WITH_CUDA ON)
    endif()
  endif()
  if(NOT VOXSERVE_WITH_CUDA AND VOXSERVE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "VOXSERVE_CUDA is ON and ${reason}; install the CUDA toolkit 13.0 or newer")
  elseif(NOT VOXSERVE_WITH_CUDA)
    message(STATUS "Building for the CPU alone: ${reason}, and GPUs need the CUDA toolkit 13.0 or newer")
  endif()
endif()

if(VOXSERVE_WITH_CUDA)
  set(CMAKE_CUDA_COMPILER ${VOXSERVE_NVCC})
  if(NOT CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
    # The compute capabilities that CUDA 13 can build for; "a" enables Hopper's own instructions.
    set(architectures "75;80;86;89;90a")
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
      # The GPUs that come with an Arm processor: Orin, Grace Hopper, Grace Blackwell, Thor, and DGX Spark (12.1).
      set(architectures "87;90a;100;110;120")
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Compute capabilities to build for" FORCE)
  endif()
  enable_language(CUDA)
  # Code for 90 would run on Hopper in place of 90a's and has nothing where that uses Hopper's own instructions. Words
  # for several architectures make it too.
  foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
    if(architecture MATCHES "^(90(-.*)?|all|all-major|native)$")
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES has ${architecture}, which may make code for 90: name the "
        "architectures, Hopper's as 90a (all that there are: 75;80;86;89;90a)")
    endif()
  endforeach()
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that this nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr")
  find_package(CUDAToolkit 13.0 REQUIRED)

  find_path(VOXSERVE_CUBLAS_INCLUDE cublas_v2.h HINTS ${VOXSERVE_CUBLAS_ROOT}/include ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
  find_library(VOXSERVE_CUBLAS_LIBRARY NAMES cublas libcublas.so.13
    HINTS ${VOXSERVE_CUBLAS_ROOT}/lib ${CUDAToolkit_LIBRARY_DIR} NO_CACHE)
  find_library(VOXSERVE_CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13
    HINTS ${VOXSERVE_CUBLAS_ROOT}/lib ${CUDAToolkit_LIBRARY_DIR} NO_CACHE)
  if(NOT VOXSERVE_CUBLAS_INCLUDE OR NOT VOXSERVE_CUBLAS_LIBRARY OR NOT VOXSERVE_CUBLASLT_LIBRARY)
    message(FATAL_ERROR "The CUDA toolkit at ${CUDAToolkit_TARGET_DIR} has no cuBLAS. deploy/install.sh fetches it; or "
      "set VOXSERVE_CUBLAS_ROOT, or build for the CPU alone with -DVOXSERVE_CUDA=OFF.")
  endif()
  add_library(voxserve_cublas INTERFACE)
  target_include_directories(voxserve_cublas SYSTEM INTERFACE ${VOXSERVE_CUBLAS_INCLUDE})
  target_link_libraries(voxserve_cublas INTERFACE ${VOXSERVE_CUBLAS_LIBRARY} ${VOXSERVE_CUBLASLT_LIBRARY})
  # Programs of the build open cuBLAS where the build found it. Installed ones look where the system does alone.
  cmake_path(GET VOXSERVE_CUBLAS_LIBRARY PARENT_PATH cublas_folder)
  list(APPEND CMAKE_BUILD_RPATH ${cublas_folder})
  message(STATUS "CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, cuBLAS ${VOXSERVE_CUBLAS_LIBRARY}")
endif()
