#pragma once

// VOXSERVE_API marks what libvoxserve_client.so shows to programs that link it. All else in the library is hidden.
//
// The library's promise of binary compatibility: a program that was linked with a version of the library runs with
// every later one of the same SONAME. So the public classes hold a pointer alone, and plain structs (Box, Pose) never
// change. All public names live in the inline namespace abi0; a library that breaks the promise has another SONAME, and
// another inline namespace. The standard library's classes in signatures are those of libstdc++ (GCC 11 or newer) with
// its C++11 strings.

#define VOXSERVE_API [[gnu::visibility("default")]]
