// Memory of a process on the second GPU, imported with the first one current: it is the maker's
// charge, and this process's on the second GPU when the maker lets go of it.
#include <string.h>
#include <unistd.h>

#include "tests/interpose/softgpu_devices.h"
#include "tests/interpose/softgpu_partner.h"

namespace {

using namespace sluice::test;

class SoftGpuImportsTest : public SoftGpuDevicesTest {
 protected:
  void SetUp() override {
    SoftGpuDevicesTest::SetUp();
    maker.start();
    ASSERT_EQ(maker.ask(PartnerOp::kInit, 1).result, CUDA_SUCCESS);
  }
  static uint64_t must(const PartnerMessage& answer) {
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    return answer.value;
  }
  void maker_holds(size_t bytes, const char* when) {
    EXPECT_EQ(held(maker.pid(), 0), 0u) << when;
    EXPECT_EQ(held(maker.pid(), 1), kContext + bytes) << when;
    holds(0, 0, when);
  }
  void maker_dies() {
    const int pid = maker.pid();
    maker.end(SIGKILL);
    ASSERT_TRUE(broker->wait_for_end(pid));
  }
  Partner maker;
};

TEST_F(SoftGpuImportsTest, IpcMemory) {
  PartnerMessage handle =
      maker.ask(PartnerOp::kIpcGet, must(maker.ask(PartnerOp::kAlloc, 6 * kMiB)));
  ASSERT_EQ(handle.result, CUDA_SUCCESS);
  CUipcMemHandle from;
  memcpy(&from, handle.blob, sizeof from);
  CUdeviceptr opened = 0;
  ASSERT_EQ(cuIpcOpenMemHandle(&opened, from, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
  maker_holds(6 * kMiB, "opened");
  maker_dies();
  come_to(0, 6 * kMiB, "its maker is dead");
  ASSERT_EQ(cuIpcCloseMemHandle(opened), CUDA_SUCCESS);
  holds(0, 0, "closed");
}

TEST_F(SoftGpuImportsTest, PhysicalMemory) {
  const uint64_t theirs = must(maker.ask(PartnerOp::kVmmCreate, 4 * kMiB));
  must(maker.ask(PartnerOp::kVmmExport, theirs));
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemImportFromShareableHandle(&handle,
                                           reinterpret_cast<void*>(static_cast<intptr_t>(maker.fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  maker_holds(4 * kMiB, "imported");
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAddressReserve(&at, 4 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at, 4 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  must(maker.ask(PartnerOp::kVmmRelease, theirs));
  come_to(0, 4 * kMiB, "released by its maker");
  on_thread(second, [&] { ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS); });
  holds(0, 4 * kMiB, "mapped without a handle");
  ASSERT_EQ(cuMemUnmap(at, 4 * kMiB), CUDA_SUCCESS);
  holds(0, 0, "unmapped");
}

// One unmapping of imports, which have no record, and of memory of this process's own behind them.
TEST_F(SoftGpuImportsTest, OwnMemoryThatIsUnmappedTogetherWithImports) {
  // More of our own than a context takes: no less can hide in what is read of the whole process.
  constexpr size_t kPiece = 10 * kMiB, kPieces = 6;
  const uint64_t theirs = must(maker.ask(PartnerOp::kVmmCreate, kPiece));
  must(maker.ask(PartnerOp::kVmmExport, theirs));
  const CUmemAllocationProp properties = on_device(0);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAddressReserve(&at, kPieces * kPiece, 0, 0, 0), CUDA_SUCCESS);
  for (int round = 0; round < 2; ++round) {
    CUmemGenericAllocationHandle imported = 0;
    ASSERT_EQ(cuMemImportFromShareableHandle(
                  &imported, reinterpret_cast<void*>(static_cast<intptr_t>(maker.fd)),
                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_SUCCESS);
    // Theirs and our own in turn, and at the end two of our own beside each other.
    for (size_t i = 0; i < kPieces; ++i) {
      CUmemGenericAllocationHandle own = imported;
      const bool ours = i % 2 == 1 || i == kPieces - 2;
      if (ours) {
        ASSERT_EQ(cuMemCreate(&own, kPiece, &properties, 0), CUDA_SUCCESS);
      }
      ASSERT_EQ(cuMemMap(at + i * kPiece, kPiece, 0, own, 0), CUDA_SUCCESS);
      if (ours) {
        ASSERT_EQ(cuMemRelease(own), CUDA_SUCCESS);
      }
    }
    ASSERT_EQ(cuMemRelease(imported), CUDA_SUCCESS);
    holds(4 * kPiece, 0, "mapped");
    ASSERT_EQ(cuMemUnmap(at, kPieces * kPiece), CUDA_SUCCESS);
    holds(0, 0, "unmapped");
  }
  // Nor does a record of theirs stand where something else is mapped now.
  CUmemGenericAllocationHandle own = 0, again = 0;
  ASSERT_EQ(cuMemCreate(&own, kPiece, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at + kPiece, kPiece, 0, own, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(own), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + kPiece)),
            CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(at + kPiece, kPiece), CUDA_SUCCESS);
  holds(kPiece, 0, "retained");
  ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  holds(0, 0, "released");
}

TEST_F(SoftGpuImportsTest, ExternalMemory) {
  const uint64_t theirs = must(maker.ask(PartnerOp::kVmmCreate, 4 * kMiB));
  must(maker.ask(PartnerOp::kVmmExport, theirs));
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = dup(maker.fd);
  what.size = 4 * kMiB;
  CUexternalMemory memory = nullptr;
  ASSERT_EQ(cuImportExternalMemory(&memory, &what), CUDA_SUCCESS);
  maker_holds(4 * kMiB, "imported");
  maker_dies();
  come_to(0, 4 * kMiB, "its maker is dead");
  ASSERT_EQ(cuDestroyExternalMemory(memory), CUDA_SUCCESS);
  // What this process holds by the descriptor alone is in no figure of it, and charged.
  EXPECT_EQ(held(getpid(), 1), kContext + 4 * kMiB);
  close(maker.fd);
  come_to(0, 0, "destroyed, and closed");
}

// No call of the driver's tells that a descriptor is closed, and no other process's account
// changes.
TEST_F(SoftGpuDevicesTest, ADescriptorThatIsClosedLongAfterItsHandle) {
  Partner maker;
  maker.start(true);
  ASSERT_EQ(maker.ask(PartnerOp::kInit, 1).result, CUDA_SUCCESS);
  const PartnerMessage theirs = maker.ask(PartnerOp::kVmmCreate, 4 * kMiB);
  ASSERT_EQ(theirs.result, CUDA_SUCCESS);
  ASSERT_EQ(maker.ask(PartnerOp::kVmmExport, theirs.value).result, CUDA_SUCCESS);
  maker.end(SIGKILL);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
  what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = dup(maker.fd);
  what.size = 4 * kMiB;
  CUexternalMemory memory = nullptr;
  ASSERT_EQ(cuImportExternalMemory(&memory, &what), CUDA_SUCCESS);
  ASSERT_EQ(cuDestroyExternalMemory(memory), CUDA_SUCCESS);
  // Longer than the looks that follow a call.
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(held(getpid(), 1), kContext + 4 * kMiB) << "the descriptor has it";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  close(maker.fd);
  come_to(0, 0, "closed");
}

// Nothing but the figure has it, once the handle that it was made by is gone; and it is free when
// its free has returned.
TEST_F(SoftGpuImportsTest, ABufferOfTheOwnMemoryIsGoneWithItsFree) {
  for (const int gpu : {0, 1}) {
    CUmemGenericAllocationHandle piece = 0;
    CUmemAllocationProp properties = on_device(gpu);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC what{};
    ASSERT_EQ(cuMemCreate(&piece, 8 * kMiB, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemExportToShareableHandle(&what.handle.fd, piece,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    what.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    what.size = 8 * kMiB;
    CUexternalMemory memory = nullptr;
    ASSERT_EQ(cuImportExternalMemory(&memory, &what), CUDA_SUCCESS);
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC all{};
    all.size = 8 * kMiB;
    CUdeviceptr buffer = 0, rest = 0, again = 0;
    ASSERT_EQ(cuExternalMemoryGetMappedBuffer(&buffer, memory, &all), CUDA_SUCCESS);
    ASSERT_EQ(cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    ASSERT_EQ(cuMemRelease(piece), CUDA_SUCCESS);
    come_to(gpu == 0 ? 8 * kMiB : 0, gpu == 0 ? 0 : 8 * kMiB, "the buffer has it");
    ASSERT_EQ(cuCtxPushCurrent(gpu == 0 ? context : second), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&rest, kQuota - held_total(gpu)), CUDA_SUCCESS);
    on_thread(gpu == 0 ? second : context, [&] { ASSERT_EQ(cuMemFree(buffer), CUDA_SUCCESS); });
    EXPECT_EQ(cuMemAlloc(&again, 8 * kMiB), CUDA_SUCCESS) << "on GPU " << gpu;
    EXPECT_EQ(cuMemFree(again), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    holds(0, 0, "freed");
  }
}

class SoftGpuPoolImportsTest : public SoftGpuImportsTest {
 protected:
  void SetUp() override;
  CUdeviceptr at = 0;
};

// Memory of a pool of the maker's, who is dead.
void SoftGpuPoolImportsTest::SetUp() {
  SoftGpuImportsTest::SetUp();
  const uint64_t pool = must(maker.ask(PartnerOp::kPoolCreate));
  const uint64_t pointer = must(maker.ask(PartnerOp::kPoolAlloc, pool, kMiB));
  must(maker.ask(PartnerOp::kSynchronize));
  must(maker.ask(PartnerOp::kPoolExport, pool));
  CUmemoryPool imported = nullptr;
  ASSERT_EQ(cuMemPoolImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(static_cast<intptr_t>(maker.fd)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  const PartnerMessage exported = maker.ask(PartnerOp::kPointerExport, pointer);
  ASSERT_EQ(exported.result, CUDA_SUCCESS);
  CUmemPoolPtrExportData from;
  memcpy(&from, exported.blob, sizeof from);
  ASSERT_EQ(cuMemPoolImportPointer(&at, imported, &from), CUDA_SUCCESS);
  maker_holds(2 * kMiB, "imported");
  maker_dies();
  come_to(0, 2 * kMiB, "its maker is dead");
}

TEST_F(SoftGpuPoolImportsTest, FreedAtOnce) {
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  come_to(0, 0, "freed");
}

TEST_F(SoftGpuPoolImportsTest, FreedInStreamOrder) {
  CUdeviceptr rest = 0, again = 0;
  with_second([&] { ASSERT_EQ(cuMemAlloc(&rest, kQuota - held_total(1)), CUDA_SUCCESS); });
  ASSERT_EQ(cuMemFreeAsync(at, stream_there), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream_there), CUDA_SUCCESS);
  with_second([&] { EXPECT_EQ(cuMemAlloc(&again, 2 * kMiB), CUDA_SUCCESS) << "it has come back"; });
  EXPECT_EQ(cuMemFree(again), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(rest), CUDA_SUCCESS);
  come_to(0, 0, "freed");
}

}  // namespace
