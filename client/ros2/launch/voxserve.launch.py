"""Starts the voxserve component in a container of its own.

ros2 launch voxserve_ros voxserve.launch.py points:=/sensing/lidar/top/pointcloud address:=server:8500
"""

from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import ComposableNodeContainer
from launch_ros.descriptions import ComposableNode


def container(context: LaunchContext) -> list[ComposableNodeContainer]:
    """Returns the container with the component. An address on the command line wins over that of the file."""
    address = LaunchConfiguration("address").perform(context)
    node = ComposableNode(
        package="voxserve_ros",
        plugin="voxserve_ros::VoxserveNode",
        name="voxserve",
        parameters=[LaunchConfiguration("params"), *([{"address": address}] if address else [])],
        remappings=[("~/input/points", LaunchConfiguration("points"))],
        extra_arguments=[{"use_intra_process_comms": True}],
    )
    return [
        ComposableNodeContainer(
            name="voxserve_container",
            namespace="",
            package="rclcpp_components",
            executable="component_container_mt",
            composable_node_descriptions=[node],
            output="screen",
        )
    ]


def generate_launch_description() -> LaunchDescription:
    share = get_package_share_directory("voxserve_ros")
    return LaunchDescription(
        [
            DeclareLaunchArgument("params", default_value=f"{share}/config/voxserve.yaml"),
            DeclareLaunchArgument("address", default_value="", description="of the server; empty: that of params"),
            DeclareLaunchArgument("points", default_value="/points"),
            OpaqueFunction(function=container),
        ]
    )
