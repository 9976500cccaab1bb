# Stands in for ROS' package of messages.
include(${CMAKE_CURRENT_LIST_DIR}/../../ament_cmake/cmake/stand_in.cmake)
stand_in(sensor_msgs::sensor_msgs)
set(sensor_msgs_TARGETS sensor_msgs::sensor_msgs)
