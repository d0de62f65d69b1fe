// Exported memory that its exporter lets go of: it stays charged until it is gone from the device,
// or another process of the tenant has charged it. Judged by what the device held at most.
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
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

// Pieces that are parked in descriptors and brought back by them.
class ParkedTest : public OwnExportsTest {
 protected:
  explicit ParkedTest(bool listed = true) : OwnExportsTest(listed) {}
  static constexpr size_t kFit = (kQuota - kContext) / kPiece;
  // Each of so many pieces is in its descriptor alone.
  void park(size_t count) {
    const CUmemAllocationProp properties = shareable();
    for (size_t i = 0; i < count; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      int fd = -1;
      ASSERT_EQ(cuMemCreate(&handle, kPiece, &properties, 0), CUDA_SUCCESS) << i;
      ASSERT_EQ(
          cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_SUCCESS);
      ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
      parked.push_back(fd);
    }
  }
  static CUresult import(int fd, CUmemGenericAllocationHandle* handle) {
    return cuMemImportFromShareableHandle(handle,
                                          reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  static CUresult import_external(int fd, CUexternalMemory* memory) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
    what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    what.handle.fd = dup(fd);  // an import takes it over
    what.size = kPiece;
    return cuImportExternalMemory(memory, &what);
  }
  // Parked pieces stay on the device and charged, come back without room for them, and leave both
  // with the last descriptor.
  template <class Handle, class Import, class End>
  void brings_back(Import import_one, End end_one) {
    park(kFit);
    CUdeviceptr more = 0;
    EXPECT_EQ(cuMemAlloc(&more, kPiece), CUDA_ERROR_OUT_OF_MEMORY);
    std::vector<Handle> back(kFit);
    for (size_t i = 0; i < kFit; ++i) {
      ASSERT_EQ(import_one(parked[i], &back[i]), CUDA_SUCCESS) << i;
      EXPECT_EQ(cuMemAlloc(&more, kPiece), CUDA_ERROR_OUT_OF_MEMORY);
      ASSERT_EQ(held_total(), kContext + kFit * kPiece);
    }
    ASSERT_EQ(end_one(back.back()), CUDA_SUCCESS);
    ASSERT_EQ(import_one(parked.back(), &back.back()), CUDA_SUCCESS);
    for (Handle handle : back) ASSERT_EQ(end_one(handle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&more, kPiece), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_LE(device_peak(), kQuota);
    for (const int fd : parked) close(fd);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cuMemAlloc(&more, kFit * kPiece), CUDA_SUCCESS);
      ASSERT_EQ(cuMemFree(more), CUDA_SUCCESS);
    }
    EXPECT_EQ(held(), kContext);
    EXPECT_LE(device_peak(), kQuota);
  }
  void pieces() { brings_back<CUmemGenericAllocationHandle>(import, cuMemRelease); }
  void external() { brings_back<CUexternalMemory>(import_external, cuDestroyExternalMemory); }
  std::vector<int> parked;
};

class ParkedEstimatedTest : public ParkedTest {
 protected:
  ParkedEstimatedTest() : ParkedTest(false) {}
};

TEST_F(ParkedTest, PiecesComeBackWithinTheQuota) { pieces(); }
TEST_F(ParkedTest, ExternalMemoryComesBackWithinTheQuota) { external(); }
TEST_F(ParkedEstimatedTest, PiecesComeBackWithinTheQuota) { pieces(); }
TEST_F(ParkedEstimatedTest, ExternalMemoryComesBackWithinTheQuota) { external(); }

// Threads that bring memory back by its descriptor alone, beside one that takes whatever is free.
class RevivingTest : public ParkedTest {
 protected:
  static constexpr size_t kSmall = 4 * kMiB;
  static CUresult parked_small(int* fd) {
    const CUmemAllocationProp properties = shareable();
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cuMemCreate(&handle, kSmall, &properties, 0);
    if (result != CUDA_SUCCESS) return result;
    EXPECT_EQ(cuMemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    return cuMemRelease(handle);
  }
  static void revive() {
    for (int i = 0; i < 24; ++i) {
      int fd = -1;
      CUmemGenericAllocationHandle again = 0;
      if (parked_small(&fd) != CUDA_SUCCESS) continue;
      EXPECT_EQ(import(fd, &again), CUDA_SUCCESS);
      EXPECT_EQ(cuMemRelease(again), CUDA_SUCCESS);
      close(fd);
    }
  }
  static void take(const bool* end) {
    std::vector<CUdeviceptr> taken;
    while (!__atomic_load_n(end, __ATOMIC_ACQUIRE)) {
      CUdeviceptr pointer = 0;
      if (cuMemAlloc(&pointer, kSmall) == CUDA_SUCCESS) {
        taken.push_back(pointer);
      } else if (!taken.empty()) {
        EXPECT_EQ(cuMemFree(taken.back()), CUDA_SUCCESS);
        taken.pop_back();
      }
    }
    for (const CUdeviceptr pointer : taken) EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  }
};

TEST_F(RevivingTest, TheDeviceNeverHoldsMoreThanTheQuota) {
  bool end = false;
  std::vector<std::thread> revivers;
  std::thread taker([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    take(&end);
  });
  for (int i = 0; i < 4; ++i) revivers.emplace_back(revive);
  for (std::thread& reviver : revivers) reviver.join();
  __atomic_store_n(&end, true, __ATOMIC_RELEASE);
  taker.join();
  EXPECT_LE(device_peak(), kQuota);
  CUdeviceptr all = 0;
  EXPECT_EQ(cuMemAlloc(&all, kQuota - kContext), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(all), CUDA_SUCCESS);
}

// The ways to let go of exported memory that another process of the tenant holds: it stays charged,
// and when the other one lets go too, there is room.
class LetGoTest : public SoftGpuTest {
 protected:
  explicit LetGoTest(bool listed = true)
      : SoftGpuTest([listed] {
          Options o;
          o.listed = listed;
          o.quota = 2 * kContext + kAll;
          return o;
        }()) {}
  static constexpr size_t kAll = 64 * kMiB, kPiece = 48 * kMiB;
  void SetUp() override {
    SoftGpuTest::SetUp();
    partner.start();
    ASSERT_EQ(partner.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
  }
  static uint64_t must(const PartnerMessage& answer) {
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    return answer.value;
  }
  uint64_t opened_by_partner(CUdeviceptr pointer) {
    PartnerMessage request;
    request.op = PartnerOp::kIpcOpen;
    CUipcMemHandle handle;
    EXPECT_EQ(cuIpcGetMemHandle(&handle, pointer), CUDA_SUCCESS);
    memcpy(request.blob, &handle, sizeof handle);
    return must(partner.ask(request));
  }
  void stays_charged() {
    CUdeviceptr more = 0;
    EXPECT_EQ(cuMemAlloc(&more, kAll - kPiece + kMiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(partner.ask(PartnerOp::kAlloc, kAll - kPiece + kMiB).result,
              CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_LE(device_peak(), options.quota);
  }
  void fits_once_closed(uint64_t opened) {
    must(partner.ask(PartnerOp::kIpcClose, opened));
    CUdeviceptr all = 0;
    EXPECT_EQ(cuMemAlloc(&all, kAll), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(all), CUDA_SUCCESS);
    EXPECT_LE(device_peak(), options.quota);
  }
  void free_without_a_context() {
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuMemAlloc(&pointer, kPiece), CUDA_SUCCESS);
    const uint64_t opened = opened_by_partner(pointer);
    std::thread([&] { EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS); }).join();
    stays_charged();
    fits_once_closed(opened);
  }
  void release_without_a_context() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle piece = 0;
    int fd = -1;
    ASSERT_EQ(cuMemCreate(&piece, kPiece, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemExportToShareableHandle(&fd, piece, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    const uint64_t theirs = must(partner.ask({.op = PartnerOp::kVmmImport}, fd));
    close(fd);
    std::thread([&] { EXPECT_EQ(cuMemRelease(piece), CUDA_SUCCESS); }).join();
    stays_charged();
    must(partner.ask(PartnerOp::kVmmRelease, theirs));
    CUdeviceptr all = 0;
    EXPECT_EQ(cuMemAlloc(&all, kAll), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(all), CUDA_SUCCESS);
    EXPECT_LE(device_peak(), options.quota);
  }
  void free_in_stream_order() {
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuMemAlloc(&pointer, kPiece), CUDA_SUCCESS);
    const uint64_t opened = opened_by_partner(pointer);
    ASSERT_EQ(cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    stays_charged();
    fits_once_closed(opened);
  }
  void end_of_the_context() {
    CUcontext own = nullptr;
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&pointer, kPiece), CUDA_SUCCESS);
    const uint64_t opened = opened_by_partner(pointer);
    ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
    // For a moment both may be charged for what passes to the partner.
    ASSERT_TRUE(
        eventually([&] { return cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS; }, 5000));
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    stays_charged();
    fits_once_closed(opened);
  }
  Partner partner;
};

class LetGoEstimatedTest : public LetGoTest {
 protected:
  LetGoEstimatedTest() : LetGoTest(false) {}
};

TEST_F(LetGoTest, FreedWithoutAContext) { free_without_a_context(); }
TEST_F(LetGoTest, ReleasedWithoutAContext) { release_without_a_context(); }
TEST_F(LetGoTest, FreedInStreamOrder) { free_in_stream_order(); }
TEST_F(LetGoTest, EndedWithItsContext) { end_of_the_context(); }
TEST_F(LetGoEstimatedTest, FreedWithoutAContext) { free_without_a_context(); }
TEST_F(LetGoEstimatedTest, ReleasedWithoutAContext) { release_without_a_context(); }
TEST_F(LetGoEstimatedTest, FreedInStreamOrder) { free_in_stream_order(); }
TEST_F(LetGoEstimatedTest, EndedWithItsContext) { end_of_the_context(); }

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
  // In none of the device's critical sections, where it would stop the others, too.
  void stop(const Partner& partner) {
    const softgpu::device::Lock lock(*devices[0]);
    ASSERT_EQ(kill(partner.pid(), SIGSTOP), 0);
    siginfo_t stopped{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(partner.pid()), &stopped, WSTOPPED), 0);
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
  ASSERT_NO_FATAL_FAILURE(stop(importer));
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
  ASSERT_NO_FATAL_FAILURE(stop(importer));
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

// The importer has what it left at once, before it has charged it.
TEST_F(PassingTest, TheImporterOfAnEndedProcessHasNoRoomForItTwice) {
  Partner &exporter = partners[0], &importer = partners[1];
  for (int round = 0; round < 2; ++round) {
    const uint64_t pointer = must(exporter.ask(PartnerOp::kAlloc, 2 * kPiece));
    PartnerMessage handle = exporter.ask(PartnerOp::kIpcGet, pointer);
    handle.op = PartnerOp::kIpcOpen;
    const uint64_t opened = must(importer.ask(handle));
    const int pid = exporter.pid();
    exporter.end(SIGKILL);
    // Again and again, so that one comes at the moment at which the exporter's slot is free.
    EXPECT_TRUE(eventually([&] {
      const PartnerMessage taken = importer.ask(PartnerOp::kAlloc, kContext + kMiB);
      EXPECT_EQ(taken.result, CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_LE(device_total(), kChainQuota);
      return broker->wait_for_end(pid, 1);
    }));
    EXPECT_EQ(importer.ask(PartnerOp::kAlloc, kContext + kMiB).result, CUDA_ERROR_OUT_OF_MEMORY);
    must(importer.ask(PartnerOp::kIpcClose, opened));
    EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
    exporter.start();
    ASSERT_EQ(exporter.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
  }
  EXPECT_LE(device_peak(), kChainQuota);
}

// A process that has ended keeps nothing on the device, though its slot says so until the broker
// knows: what the device has left is no sign of what others keep.
TEST_F(PassingTest, WhatAnEndedProcessKeptIsNotTakenForWhatIsBack) {
  constexpr size_t kPart = kPiece / 4;
  Partner &ended = partners[0], &living = partners[1];
  for (const bool zombie : {true, false}) {
    const uint64_t piece = must(ended.ask(PartnerOp::kVmmCreate, kPiece));
    must(ended.ask(PartnerOp::kVmmExport, piece));
    const int exported = dup(ended.fd);  // the next answer closes its own
    must(ended.ask(PartnerOp::kVmmRelease, piece));
    ASSERT_EQ(held(ended.pid()), kContext + kPiece) << "the descriptor keeps it";
    broker->ended_hold(true);
    ASSERT_EQ(kill(ended.pid(), SIGKILL), 0);
    siginfo_t gone{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(ended.pid()), &gone, WEXITED | WNOWAIT), 0);
    if (!zombie) ended.end(SIGKILL);
    close(exported);
    std::vector<int> parts;
    while (parts.size() < 16) {
      const PartnerMessage made = living.ask(PartnerOp::kVmmCreate, kPart);
      if (made.result != CUDA_SUCCESS) break;
      must(living.ask(PartnerOp::kVmmExport, made.value));
      parts.push_back(dup(living.fd));
      must(living.ask(PartnerOp::kVmmRelease, made.value));
    }
    EXPECT_EQ(parts.size(), kPiece / kPart) << "beside what the ended one is charged";
    EXPECT_LE(device_peak(), kChainQuota);
    for (const int part : parts) close(part);
    if (zombie) ended.end(SIGKILL);
    broker->ended_hold(false);
    ended.start();
    ASSERT_EQ(ended.ask(PartnerOp::kInit).result, CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  }
}

// One that has shared nothing itself does not take it either.
TEST_F(PassingTest, WhatAnEndedProcessLeavesIsNoStrangersRoom) {
  Partner &exporter = partners[0], &importer = partners[1];
  const uint64_t pointer = must(exporter.ask(PartnerOp::kAlloc, 2 * kPiece));
  PartnerMessage handle = exporter.ask(PartnerOp::kIpcGet, pointer);
  handle.op = PartnerOp::kIpcOpen;
  must(importer.ask(handle));
  ASSERT_NO_FATAL_FAILURE(stop(importer));
  const int pid = exporter.pid();
  exporter.end(SIGKILL);
  ASSERT_TRUE(broker->wait_for_end(pid, 10000));
  must(partners[2].ask(PartnerOp::kAlloc, kContext));
  EXPECT_EQ(partners[2].ask(PartnerOp::kAlloc, kMiB).result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), kChainQuota);
  ASSERT_EQ(kill(importer.pid(), SIGCONT), 0);
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
}

}  // namespace
