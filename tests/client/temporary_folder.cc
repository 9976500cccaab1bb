#include "tests/client/temporary_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace voxserve::client {

TemporaryFolder::TemporaryFolder() {
  std::string pattern = testing::TempDir() + "/voxserve-client-XXXXXX";
  path_ = mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::string TemporaryFolder::Write(const std::string& name, const std::string& contents) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

std::string TemporaryFolder::Read(const std::string& name) const {
  std::ostringstream contents;
  contents << std::ifstream(path_ + "/" + name, std::ios::binary).rdbuf();
  return contents.str();
}

}  // namespace voxserve::client
