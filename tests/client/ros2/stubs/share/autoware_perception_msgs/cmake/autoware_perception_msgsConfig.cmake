# Stands in for ROS' package of messages.
include(${CMAKE_CURRENT_LIST_DIR}/../../ament_cmake/cmake/stand_in.cmake)
stand_in(autoware_perception_msgs::autoware_perception_msgs)
set(autoware_perception_msgs_TARGETS autoware_perception_msgs::autoware_perception_msgs)
