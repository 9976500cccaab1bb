# Makes what an attacker may do with an error in memory harder, in every optimised C++ file and every program. CUDA's
# files are left alone: their host code launches kernels and reads nothing from outside.
# tests/integration/test_hardening.py checks the programs and the compilers' command lines.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckPIESupported)

# Programs may be loaded at any address. Needs CMAKE_POSITION_INDEPENDENT_CODE.
check_pie_supported(LANGUAGES CXX)

# Sanitizers check more, and know no checked functions of the C library. Those need an optimising compiler.
if(NOT VOXSERVE_SANITIZE AND NOT VOXSERVE_FUZZ)
  # Level 3 knows the sizes of more buffers. A C library that lacks it warns.
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("#include <cstdlib>\nint main() { return 0; }" VOXSERVE_HAS_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(fortify_level $<IF:$<BOOL:${VOXSERVE_HAS_FORTIFY_3}>,3,2>)
  # Distributions set a level of their own.
  add_compile_options(
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${fortify_level}>")
  foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)  # the last one is x86's
    string(MAKE_C_IDENTIFIER "VOXSERVE_HAS${flag}" has_flag)
    check_cxx_compiler_flag(${flag} ${has_flag})
    if(${has_flag})
      add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${flag}>)
    endif()
  endforeach()
  # The tables through which libraries' functions are called are filled at the start, and then read-only.
  add_link_options($<$<LINK_LANGUAGE:CXX>:-Wl,-z,relro,-z,now,-z,noexecstack>)
endif()
