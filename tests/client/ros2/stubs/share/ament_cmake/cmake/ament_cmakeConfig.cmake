# Stands in for ROS' package: the function that client/ros2 calls.
function(ament_package)
  install(FILES package.xml DESTINATION share/${PROJECT_NAME})
endfunction()
