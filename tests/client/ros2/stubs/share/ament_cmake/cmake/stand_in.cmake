# Makes a target whose headers are those of stubs/include, for a stand-in of one of ROS' packages.
function(stand_in target)
  if(NOT TARGET ${target})
    get_filename_component(stubs "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../.." ABSOLUTE)
    add_library(${target} INTERFACE IMPORTED)
    set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${stubs}/include)
  endif()
endfunction()
