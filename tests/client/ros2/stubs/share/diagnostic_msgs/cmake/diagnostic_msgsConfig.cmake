# Stands in for ROS' package: its headers are in stubs/include, which ament_cmake's stand-in adds.
