"""Starts the voxserve component in a container of its own.

ros2 launch voxserve_ros voxserve.launch.py points:=/sensing/lidar/top/pointcloud address:=server:8500
"""

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import ComposableNodeContainer
from launch_ros.descriptions import ComposableNode


def generate_launch_description() -> LaunchDescription:
    share = get_package_share_directory("voxserve_ros")
    node = ComposableNode(
        package="voxserve_ros",
        plugin="voxserve_ros::VoxserveNode",
        name="voxserve",
        parameters=[LaunchConfiguration("params"), {"address": LaunchConfiguration("address")}],
        remappings=[("~/input/points", LaunchConfiguration("points"))],
        extra_arguments=[{"use_intra_process_comms": True}],
    )
    return LaunchDescription(
        [
            DeclareLaunchArgument("params", default_value=f"{share}/config/voxserve.yaml"),
            DeclareLaunchArgument("address", default_value="localhost:8500"),
            DeclareLaunchArgument("points", default_value="/points"),
            ComposableNodeContainer(
                name="voxserve_container",
                namespace="",
                package="rclcpp_components",
                executable="component_container_mt",
                composable_node_descriptions=[node],
                output="screen",
            ),
        ]
    )
