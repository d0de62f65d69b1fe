// Exported memory that its exporter lets go of: it stays charged until it is gone from the device,
// or another process of the tenant has charged it. Judged by what the device held at most.
#include <signal.h>
#include <unistd.h>

#include <vector>

#include "tests/interpose/softgpu_fixture.h"
#include "tests/interpose/softgpu_partner.h"

namespace {

using namespace sluice::test;

class OwnExportsTest : public SoftGpuTest {
 protected:
  explicit OwnExportsTest(bool listed = true)
      : SoftGpuTest([listed] {
          Options o;
          o.listed = listed;
          return o;
        }()) {}
  static constexpr size_t kPiece = 16 * kMiB;
  static CUmemGenericAllocationHandle imported_again(CUmemGenericAllocationHandle handle) {
    int fd = -1;
    CUmemGenericAllocationHandle again = 0;
    EXPECT_EQ(
        cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
    EXPECT_EQ(
        cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_SUCCESS);
    close(fd);
    return again;
  }
  static CUmemAllocationProp shareable() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
  }
  void loop() {
    constexpr size_t kFit = (kQuota - kContext) / kPiece;
    const CUmemAllocationProp properties = shareable();
    for (int round = 0; round < 2; ++round) {
      std::vector<CUmemGenericAllocationHandle> pieces;
      CUmemGenericAllocationHandle handle = 0;
      while (pieces.size() < 3 * kFit &&
             cuMemCreate(&handle, kPiece, &properties, 0) == CUDA_SUCCESS) {
        pieces.push_back(imported_again(handle));
        ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
      }
      EXPECT_EQ(pieces.size(), kFit);
      EXPECT_LE(device_peak(), kQuota);
      EXPECT_EQ(held(), kContext + pieces.size() * kPiece);
      for (const CUmemGenericAllocationHandle piece : pieces)
        ASSERT_EQ(cuMemRelease(piece), CUDA_SUCCESS);
      EXPECT_TRUE(eventually([&] { return held() == kContext; })) << held();
      agrees("released");
    }
  }
};

class OwnExportsEstimatedTest : public OwnExportsTest {
 protected:
  OwnExportsEstimatedTest() : OwnExportsTest(false) {}
};

TEST_F(OwnExportsTest, WhatIsImportedAgainStaysCharged) { loop(); }
TEST_F(OwnExportsEstimatedTest, WhatIsImportedAgainStaysCharged) { loop(); }

// What nobody else has is back at once.
TEST_F(OwnExportsTest, WhatIsOnlyExportedIsGivenBackWithItsRelease) {
  const CUmemAllocationProp properties = shareable();
  for (int i = 0; i < 20; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    int fd = -1;
    ASSERT_EQ(cuMemCreate(&handle, 4 * kPiece, &properties, 0), CUDA_SUCCESS) << i;
    ASSERT_EQ(
        cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
    close(fd);
    ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }
}

class PassingTest : public SoftGpuTest {
 protected:
  static constexpr int kProcesses = 8;
  static constexpr size_t kPiece = 48 * kMiB;
  static constexpr size_t kChainQuota = kProcesses * kContext + 2 * kPiece;
  PassingTest()
      : SoftGpuTest({.quota = kChainQuota, .device_bytes = 4 * kChainQuota, .uses_cuda = false}) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
    for (Partner& partner : partners) {
      partner.start();
      ASSERT_EQ(partner.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    }
  }
  static uint64_t must(const PartnerMessage& answer) {
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    return answer.value;
  }
  Partner partners[kProcesses];
};

TEST_F(PassingTest, AlongAChainTheDeviceNeverHoldsMoreThanTheQuota) {
  uint64_t piece = must(partners[0].ask(PartnerOp::kVmmCreate, kPiece));
  for (int i = 1; i < kProcesses; ++i) {
    Partner& before = partners[i - 1];
    must(before.ask(PartnerOp::kVmmExport, piece));
    const uint64_t passed = must(partners[i].ask({.op = PartnerOp::kVmmImport}, before.fd));
    must(before.ask(PartnerOp::kVmmRelease, piece));
    // As much as it gets: the other half of what is beside the contexts, once.
    while (before.ask(PartnerOp::kVmmCreate, kPiece).result == CUDA_SUCCESS) {
      ASSERT_LE(device_total(), kChainQuota) << "process " << i - 1;
    }
    piece = passed;
  }
  EXPECT_LE(device_peak(), kChainQuota);
}

// One that cannot look, because it is stopped, has not charged what passed to it.
TEST_F(PassingTest, WhatPassesToAStoppedProcessStaysChargedMeanwhile) {
  Partner &exporter = partners[0], &importer = partners[1];
  const uint64_t pointer = must(exporter.ask(PartnerOp::kAlloc, 2 * kPiece));
  PartnerMessage handle = exporter.ask(PartnerOp::kIpcGet, pointer);
  handle.op = PartnerOp::kIpcOpen;
  const uint64_t opened = must(importer.ask(handle));
  ASSERT_EQ(kill(importer.pid(), SIGSTOP), 0);
  must(exporter.ask(PartnerOp::kFree, pointer));
  EXPECT_EQ(exporter.ask(PartnerOp::kAlloc, kMiB).result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(partners[2].ask(PartnerOp::kAlloc, kMiB).result, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(kill(importer.pid(), SIGCONT), 0);
  EXPECT_TRUE(eventually([&] {
    return held(importer.pid()) == kContext + 2 * kPiece && held(exporter.pid()) == kContext;
  }));
  must(importer.ask(PartnerOp::kIpcClose, opened));
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  must(exporter.ask(PartnerOp::kAlloc, 2 * kPiece));
  EXPECT_LE(device_peak(), kChainQuota);
}

// Nor has it charged what an exporter left to it that has ended.
TEST_F(PassingTest, WhatAnEndedProcessLeavesToAStoppedOneIsNobodyElses) {
  Partner &exporter = partners[0], &importer = partners[1];
  const uint64_t pointer = must(exporter.ask(PartnerOp::kAlloc, 2 * kPiece));
  PartnerMessage handle = exporter.ask(PartnerOp::kIpcGet, pointer);
  handle.op = PartnerOp::kIpcOpen;
  const uint64_t opened = must(importer.ask(handle));
  ASSERT_EQ(kill(importer.pid(), SIGSTOP), 0);
  const int pid = exporter.pid();
  exporter.end(SIGKILL);
  ASSERT_TRUE(broker->wait_for_end(pid, 10000));
  // One that shares memory itself looks. The exporter's context is gone.
  must(partners[2].ask(PartnerOp::kPoolExport, must(partners[2].ask(PartnerOp::kPoolCreate))));
  must(partners[2].ask(PartnerOp::kAlloc, kContext));
  EXPECT_EQ(partners[2].ask(PartnerOp::kAlloc, kMiB).result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), kChainQuota);
  ASSERT_EQ(kill(importer.pid(), SIGCONT), 0);
  EXPECT_TRUE(eventually([&] { return held(importer.pid()) == kContext + 2 * kPiece; }));
  must(importer.ask(PartnerOp::kIpcClose, opened));
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  must(partners[3].ask(PartnerOp::kAlloc, 2 * kPiece));
  EXPECT_LE(device_peak(), kChainQuota);
}

}  // namespace
