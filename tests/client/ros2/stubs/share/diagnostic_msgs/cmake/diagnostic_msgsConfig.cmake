# Stands in for ROS' package of messages.
include(${CMAKE_CURRENT_LIST_DIR}/../../ament_cmake/cmake/stand_in.cmake)
stand_in(diagnostic_msgs::diagnostic_msgs)
set(diagnostic_msgs_TARGETS diagnostic_msgs::diagnostic_msgs)
