// Reading snapshots, damaged ones included.
#include <gtest/gtest.h>

#include <cstring>

#include "broker/cli/snapshot_reader.h"

namespace sluice::cli {
namespace {

std::string image(std::uint32_t gpus, std::uint32_t tenants) {
  protocol::SnapshotHeader header{};
  header.magic = protocol::kSnapshotMagic;
  header.version = protocol::kVersion;
  header.gpu_count = gpus;
  header.tenant_count = tenants;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(gpus * sizeof(protocol::SnapshotGpu), 'g');
  bytes.append(tenants * sizeof(protocol::SnapshotTenant), 't');
  return bytes;
}

TEST(Snapshot, Whole) {
  const auto snapshot = snapshot_read(image(2, 3));
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->gpus.size(), 2u);
  EXPECT_EQ(snapshot->tenants.size(), 3u);
  EXPECT_EQ(snapshot->gpus[1].name[0], 'g');
  EXPECT_TRUE(snapshot->processes.empty());
}

TEST(Snapshot, Damaged) {
  const std::string good = image(2, 3);
  for (std::size_t size = 0; size < good.size(); size += 7)
    EXPECT_FALSE(snapshot_read(good.substr(0, size))) << size;
  EXPECT_FALSE(snapshot_read(good + "x"));
  std::string counts = good;
  const std::uint32_t many = UINT32_MAX;
  std::memcpy(counts.data() + offsetof(protocol::SnapshotHeader, process_count), &many,
              sizeof many);
  EXPECT_FALSE(snapshot_read(counts));
  std::string version = good;
  version[4] = 99;
  EXPECT_FALSE(snapshot_read(version));
}

}  // namespace
}  // namespace sluice::cli
