#pragma once

// Makes many different inputs from a few real scans, for benchmarks. A benchmark that repeats one input would be too
// fast: its caches already have what it reads, and sizes that the engine predicts are always right. The same arguments
// give the same bytes on every machine.
//
// Every function takes clouds without gaps between their fields, as ReadScan and FromFloats make them. Errors end the
// program.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/tensor/point_cloud.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {

// Returns the scan turned about z by any angle, thinned to 80% to 100% of its points, and shifted by up to 2 m along x
// and y and 0.1 m along z. The fields keep their types: float16 coordinates are rounded to float16 again.
PointCloud VariedScan(const PointCloud& scan, uint32_t seed);

// Returns `count` varied scans. Scan i comes from frame i modulo the number of frames.
std::vector<PointCloud> VariedScans(const std::vector<PointCloud>& frames, int count, uint32_t seed);

// Returns the first `share` (0 to 1) of the points in the order of their angle about z, which is a sector of the scan.
// Unlike a thinned scan, a sector has the scan's density and so as many neighbours per voxel.
PointCloud Sector(const PointCloud& scan, double share);

// Returns one cloud with all clouds side by side, `spacing_m` apart, in rows and columns. There must be at least one
// cloud, and all clouds must have the same layout.
PointCloud SideBySide(const std::vector<PointCloud>& clouds, float spacing_m);

// Adds a field t in s, as if the points came from three sweeps in turns: -0.05, 0.05 and 0.15. Every field is float32
// afterwards.
PointCloud WithTime(const PointCloud& cloud);

// Returns the frames of the drive to which the scan belongs, the scan first. Frames that are missing are left out.
std::vector<PointCloud> DriveOf(const support::RealScan& scan);

// Writes the named fields of every point as float32, in their canonical units, one point after the other.
absl::Status WriteFloats(const PointCloud& cloud, const std::vector<std::string>& fields, const std::string& path);

}  // namespace voxserve::bench
