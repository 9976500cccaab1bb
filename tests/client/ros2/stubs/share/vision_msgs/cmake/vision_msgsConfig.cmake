# Stands in for ROS' package of messages.
include(${CMAKE_CURRENT_LIST_DIR}/../../ament_cmake/cmake/stand_in.cmake)
stand_in(vision_msgs::vision_msgs)
set(vision_msgs_TARGETS vision_msgs::vision_msgs)
