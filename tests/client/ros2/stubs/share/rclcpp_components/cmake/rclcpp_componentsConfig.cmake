# Stands in for ROS' package. A real one also makes the program EXECUTABLE, which loads the component.
include(${CMAKE_CURRENT_LIST_DIR}/../../ament_cmake/cmake/stand_in.cmake)
stand_in(rclcpp_components::component)
function(rclcpp_components_register_node target)
  cmake_parse_arguments(arg "" "PLUGIN;EXECUTABLE" "" ${ARGN})
  if(NOT arg_PLUGIN OR NOT arg_EXECUTABLE)
    message(FATAL_ERROR "rclcpp_components_register_node needs PLUGIN and EXECUTABLE")
  endif()
endfunction()
