// Snapshots that are wrong in every way the layout allows: refused with a reason, never a crash.
#include "exporter/snapshot.h"
#include "exporter/words.h"

#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "tests/exporter/crafted.h"

namespace sluice::exporter {
namespace {

using test::Crafted;
using test::example;

std::string error_of(const SnapshotResult& result) {
  const auto* error = std::get_if<SnapshotError>(&result);
  return error == nullptr ? "accepted" : error->text;
}

std::string parse(const std::vector<unsigned char>& bytes) {
  return error_of(snapshot_parse(bytes.data(), bytes.size()));
}

std::string parse(const Crafted& crafted) { return parse(crafted.bytes()); }

std::string malformed(const std::string& why) {
  return "the broker's snapshot is malformed: " + why;
}

/// The example with one field of its header overwritten after the counts were set.
template <class T>
std::vector<unsigned char> header_changed(std::size_t offset, T value) {
  std::vector<unsigned char> bytes = example().bytes();
  memcpy(bytes.data() + offset, &value, sizeof value);
  return bytes;
}
#define HEADER_AT(member) offsetof(protocol::SnapshotHeader, member)

TEST(Parse, GoodOne) {
  const auto bytes = example().bytes();
  const auto result = snapshot_parse(bytes.data(), bytes.size());
  const auto* snapshot = std::get_if<Snapshot>(&result);
  ASSERT_NE(snapshot, nullptr) << error_of(result);
  EXPECT_EQ(snapshot->gpus.size(), 2U);
  EXPECT_EQ(snapshot->tenants.size(), 3U);
  EXPECT_EQ(snapshot->tenants[0].tenant, 0U);  // sorted; the queue first
  EXPECT_EQ(snapshot->tenants[1].tenant, 2U);
  EXPECT_EQ(snapshot->tenant_gpus.size(), 3U);
  EXPECT_EQ(snapshot->processes.size(), 3U);
}

TEST(Parse, EmptyOne) { EXPECT_EQ(parse(Crafted()), "accepted"); }

TEST(Parse, SizesAndCounts) {
  const std::size_t whole = example().bytes().size();
  EXPECT_EQ(parse(std::vector<unsigned char>{}), malformed("shorter than its header"));
  EXPECT_EQ(parse(std::vector<unsigned char>(sizeof(protocol::SnapshotHeader) - 1)),
            malformed("shorter than its header"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(magic), 0U)), malformed("another magic number"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(gpu_count), 65U)), malformed("too many GPUs"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(gpu_count), UINT32_MAX)), malformed("too many GPUs"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(tenant_count), kTenantsMax + 1)),
            malformed("too many tenants"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(tenant_count), UINT32_MAX)),
            malformed("too many tenants"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(tenant_gpu_count), 25U)),
            malformed("more vGPUs than its tenants may have"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(process_count), UINT32_MAX)),
            malformed("too many processes"));
  EXPECT_EQ(parse(header_changed(HEADER_AT(gpu_count), 3U)),
            malformed(std::to_string(whole) + " bytes where its counts need " +
                      std::to_string(whole + sizeof(protocol::SnapshotGpu))));
  EXPECT_EQ(parse(header_changed(HEADER_AT(process_count), 2U)),
            malformed(std::to_string(whole) + " bytes where its counts need " +
                      std::to_string(whole - sizeof(protocol::SnapshotProcess))));
}

TEST(Parse, OtherVersion) {
  EXPECT_EQ(parse(header_changed<std::uint16_t>(HEADER_AT(version), 99)),
            "the broker speaks protocol version 99 and this exporter version " +
                std::to_string(protocol::kVersion) + "; install both from the same release");
}

TEST(Parse, Words) {
  Crafted a = example(), b = example(), c = example(), d = example();
  a.tenants[0].state = static_cast<protocol::TenantState>(4);
  b.tenants[1].tenant_class = static_cast<protocol::TenantClass>(255);
  c.tenants[2].reason = static_cast<protocol::QueueReason>(7);
  d.tenants[0].tenant = 0;
  EXPECT_EQ(parse(a), malformed("an unknown tenant state"));
  EXPECT_EQ(parse(b), malformed("an unknown class"));
  EXPECT_EQ(parse(c), malformed("an unknown queue reason"));
  c = example();
  c.tenants[0].stays = static_cast<protocol::StayReason>(7);
  EXPECT_EQ(parse(c), malformed("an unknown reason to stay"));
  for (std::size_t known = 0; known < kStayNames.size(); ++known) {
    c.tenants[0].stays = static_cast<protocol::StayReason>(known);
    const std::vector<unsigned char> bytes = c.bytes();
    const auto result = snapshot_parse(bytes.data(), bytes.size());
    EXPECT_TRUE(std::holds_alternative<Snapshot>(result)) << kStayNames[known];
  }
  c = example();
  c.tenant_gpus[0].sm_kind = static_cast<protocol::SmKind>(2);
  EXPECT_EQ(parse(c), malformed("an unknown kind of share"));
  EXPECT_EQ(parse(d), malformed("a tenant without a number"));
}

// What waits has no number yet, and many may wait.
TEST(Parse, Queue) {
  Crafted long_line = example(), vgpu = example();
  auto& second = long_line.tenant_add(0, "dora", protocol::TenantClass::kDebug);
  second.state = protocol::TenantState::kQueued;
  const std::vector<unsigned char> bytes = long_line.bytes();
  const auto result = snapshot_parse(bytes.data(), bytes.size());
  ASSERT_TRUE(std::holds_alternative<Snapshot>(result)) << error_of(result);
  EXPECT_EQ(std::get<Snapshot>(result).tenants.size(), 4U);
  vgpu.tenant_gpus[0].tenant = 0;
  EXPECT_EQ(parse(vgpu), malformed("a vGPU of an unknown tenant"));
}

TEST(Parse, References) {
  Crafted gpu_twice = example(), tenant_twice = example(), vgpu_twice = example();
  gpu_twice.gpus[1].uuid = gpu_twice.gpus[0].uuid;
  tenant_twice.tenants[1].tenant = tenant_twice.tenants[0].tenant;
  vgpu_twice.tenant_gpus[1].gpu = vgpu_twice.tenant_gpus[0].gpu;
  EXPECT_EQ(parse(gpu_twice), malformed("a GPU twice"));
  EXPECT_EQ(parse(tenant_twice), malformed("a tenant twice"));
  EXPECT_EQ(parse(vgpu_twice), malformed("a vGPU twice"));

  Crafted tenant_gone = example(), gpu_gone = example(), process_alone = example();
  tenant_gone.tenant_gpus[0].tenant = 77;
  gpu_gone.tenant_gpus[0].gpu = test::uuid_of(0);
  process_alone.processes[0].tenant = 77;
  EXPECT_EQ(parse(tenant_gone), malformed("a vGPU of an unknown tenant"));
  EXPECT_EQ(parse(gpu_gone), malformed("a vGPU on an unknown GPU"));
  EXPECT_EQ(parse(process_alone), malformed("a process of an unknown tenant"));
}

// Every truncation, and random damage: whatever comes out, it comes out in order.
TEST(Parse, Damage) {
  const std::vector<unsigned char> good = example().bytes();
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_NE(parse({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}), "accepted")
        << size;
  }
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<unsigned char> bytes = good;
    for (std::size_t i = 0; i < 1 + random() % 16; ++i) {
      bytes[random() % bytes.size()] = static_cast<unsigned char>(random());
    }
    const auto result = snapshot_parse(bytes.data(), bytes.size());
    if (const auto* snapshot = std::get_if<Snapshot>(&result)) {
      ASSERT_EQ(snapshot->tenant_gpus.size(), 3U);
    } else {
      ASSERT_FALSE(error_of(result).empty());
    }
  }
}

TEST(Load, Files) {
  const auto bytes = example().bytes();
  const int fd = test::memory_file(bytes);
  EXPECT_EQ(error_of(snapshot_load(fd, bytes.size())), "accepted");
  EXPECT_EQ(error_of(snapshot_load(fd, bytes.size() + 1)), malformed("shorter than announced"));
  EXPECT_EQ(error_of(snapshot_load(fd, UINT64_MAX)), malformed("larger than 64 MiB"));
  EXPECT_EQ(error_of(snapshot_load(fd, 0)), malformed("shorter than its header"));
  close(fd);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(error_of(snapshot_load(ends[0], 100)),
            malformed("not a file in memory"));  // and does not wait for it
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(error_of(snapshot_load(-1, 100)), malformed("not a file in memory"));
}

TEST(Text, Fields) {
  const char full[4] = {'a', 'b', 'c', 'd'};  // no NUL
  EXPECT_EQ(field_text(full, sizeof full), "abcd");
  const auto text = [](std::string_view bytes) { return field_text(bytes.data(), bytes.size()); };
  EXPECT_EQ(text("\xc3\xa9t\xc3\xa9"), "\xc3\xa9t\xc3\xa9");
  EXPECT_EQ(text("a\xff"
                 "b\xc3"),
            "a?b?");                                 // invalid, and cut
  EXPECT_EQ(text("\xc0\x80\xed\xa0\x80"), "?????");  // overlong NUL, surrogate
  EXPECT_EQ(text("\xf4\x90\x80\x80"), "????");       // beyond U+10FFFF
  EXPECT_EQ(text("\xf0\x9f\x8e\x93"), "\xf0\x9f\x8e\x93");
  EXPECT_EQ(text(std::string_view("a\0b", 3)), "a");
}

TEST(Text, Uuid) {
  EXPECT_EQ(uuid_text(test::uuid_of(0)), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
}

}  // namespace
}  // namespace sluice::exporter
