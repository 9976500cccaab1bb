# Stands in for ROS' package.
include(${CMAKE_CURRENT_LIST_DIR}/../../ament_cmake/cmake/stand_in.cmake)
stand_in(rclcpp::rclcpp)
