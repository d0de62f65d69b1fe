// A device that gives memory out in pages of 2 MiB, as an H100 does: whole ones for what is larger
// than half of one, pages that small pieces share. A tenant stays within its quota in pages, judged
// by the device's own account.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "softgpu/device/directory.h"
#include "tests/interpose/softgpu_fixture.h"
#include "tests/interpose/softgpu_partner.h"
#include "tests/interpose/softgpu_together.h"

namespace {

using namespace sluice::test;

constexpr size_t kPage = 2 * kMiB;
constexpr size_t kKiB = 1024;

// A way to take memory, by its bytes, and to give it back.
struct Way {
  const char* name;
  CUresult (*take)(size_t bytes, uint64_t* piece);
  CUresult (*give)(uint64_t piece);
};

CUresult pointer_take(size_t bytes, uint64_t* piece) {
  CUdeviceptr pointer = *piece;
  const CUresult result = cuMemAlloc(&pointer, bytes);
  *piece = pointer;
  return result;
}

CUresult pointer_give(uint64_t piece) { return cuMemFree(piece); }

CUresult pitched_take(size_t bytes, uint64_t* piece) {
  CUdeviceptr pointer = *piece;
  size_t pitch = 77;
  const CUresult result = cuMemAllocPitch(&pointer, &pitch, 1001, (bytes + 1000) / 1001, 4);
  EXPECT_EQ(pitch == 77, result != CUDA_SUCCESS);
  *piece = pointer;
  return result;
}

CUresult array_take(size_t bytes, uint64_t* piece) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 1024;
  shape.Height = (bytes + 1023) / 1024;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  auto array = reinterpret_cast<CUarray>(*piece);
  const CUresult result = cuArrayCreate(&array, &shape);
  *piece = reinterpret_cast<uint64_t>(array);
  return result;
}

CUresult array_give(uint64_t piece) { return cuArrayDestroy(reinterpret_cast<CUarray>(piece)); }

CUresult levels_take(size_t bytes, uint64_t* piece) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = 1024;
  shape.Height = (bytes * 3 / 4 + 1023) / 1024;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  auto levels = reinterpret_cast<CUmipmappedArray>(*piece);
  const CUresult result = cuMipmappedArrayCreate(&levels, &shape, 4);
  *piece = reinterpret_cast<uint64_t>(levels);
  return result;
}

CUresult levels_give(uint64_t piece) {
  return cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(piece));
}

constexpr Way kPointers{"pointers", pointer_take, pointer_give};
constexpr Way kWays[] = {kPointers,
                         {"rows", pitched_take, pointer_give},
                         {"arrays", array_take, array_give},
                         {"levels", levels_take, levels_give}};

// Takes pieces until one is refused, at most `most`. A refusal leaves the output as it was.
std::vector<uint64_t> take_all(const Way& way, size_t bytes, size_t most = 10000) {
  std::vector<uint64_t> pieces;
  while (pieces.size() < most) {
    uint64_t piece = 4711;
    const CUresult result = way.take(bytes, &piece);
    EXPECT_EQ(piece == 4711, result != CUDA_SUCCESS) << way.name;
    if (result != CUDA_SUCCESS) {
      EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY) << way.name;
      break;
    }
    pieces.push_back(piece);
  }
  return pieces;
}

void give_all(const Way& way, const std::vector<uint64_t>& pieces) {
  for (const uint64_t piece : pieces) EXPECT_EQ(way.give(piece), CUDA_SUCCESS) << way.name;
}

class SoftGpuPagesTest : public SoftGpuTest {
 protected:
  static constexpr size_t kPages = 20;  // beside the context
  static constexpr size_t kRoom = kPages * kPage;
  static Options paged(size_t pages = kPages) {
    Options o;
    o.page = kPage;
    o.quota = kContext + pages * kPage;
    o.device_bytes = 1024 * kMiB;
    return o;
  }
  explicit SoftGpuPagesTest(const Options& chosen = paged()) : SoftGpuTest(chosen) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  size_t room() const { return options.quota - kContext; }
  // `unlearnt`: how many calls may have been in progress before the device was known.
  void within(const std::string& when, size_t unlearnt = 1) {
    EXPECT_LE(device_total(), options.quota) << when;
    EXPECT_LE(device_peak(), options.quota + unlearnt * kPage) << when;
  }
  // Nothing is left, and the tenant has a whole quota.
  void all_is_back(const std::string& when) {
    EXPECT_EQ(device_total(), kContext) << when;
    CUdeviceptr whole = 0;
    ASSERT_EQ(cuMemAlloc(&whole, room()), CUDA_SUCCESS) << when;
    EXPECT_EQ(device_total(), options.quota) << when;
    EXPECT_EQ(cuMemFree(whole), CUDA_SUCCESS);
  }
  void every_way_fills();
  void small_pieces_fill();
  void pages_are_pinned();
};

class SoftGpuPagesUnlistedTest : public SoftGpuPagesTest {
 protected:
  static Options unlisted() {
    Options o = paged();
    o.listed = false;
    return o;
  }
  SoftGpuPagesUnlistedTest() : SoftGpuPagesTest(unlisted()) {}
};

void SoftGpuPagesTest::every_way_fills() {
  for (const Way& way : kWays) {
    for (const size_t bytes : {kMiB + 1, kPage + 1, 3 * kMiB + 300 * kKiB, 9 * kMiB - 7}) {
      const std::string when = way.name + (" of " + std::to_string(bytes));
      const auto pieces = take_all(way, bytes);
      within(when);
      EXPECT_GT(device_total(), options.quota / 2) << when;
      give_all(way, pieces);
      all_is_back(when);
    }
  }
}
TEST_F(SoftGpuPagesTest, EveryWayStaysWithinTheQuota) { every_way_fills(); }
TEST_F(SoftGpuPagesUnlistedTest, EveryWayStaysWithinTheQuota) { every_way_fills(); }

// An allocation is charged what the device takes, from the first one on.
TEST_F(SoftGpuPagesTest, APageIsChargedWhole) {
  for (const size_t bytes : {kMiB + 1, kPage, kPage + 1, 9 * kMiB}) {
    const uint64_t before = held();
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuMemAlloc(&pointer, bytes), CUDA_SUCCESS);
    EXPECT_EQ(held() - before, (bytes + kPage - 1) / kPage * kPage) << bytes;
    agrees("taken");
    ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return held() == before; })) << bytes;
  }
}

TEST_F(SoftGpuPagesTest, ARefusalLeavesRoomForLess) {
  CUdeviceptr most = 0;
  ASSERT_EQ(cuMemAlloc(&most, kRoom - 3 * kPage + 1), CUDA_SUCCESS);
  for (const Way& way : kWays) {
    const uint64_t before = device_total();
    EXPECT_TRUE(take_all(way, 2 * kPage + 100 * kKiB, 1).empty()) << way.name;
    EXPECT_EQ(device_total(), before) << way.name;
    const auto less = take_all(way, kPage + kPage / 2, 1);
    EXPECT_EQ(less.size(), 1u) << way.name;
    within(way.name);
    give_all(way, less);
  }
}

// A piece may be refused though a page has room for it: when the quota has none for another page.
void SoftGpuPagesTest::small_pieces_fill() {
  for (const Way& way : kWays) {
    for (const size_t bytes : {4 * kKiB, 64 * kKiB, 700 * kKiB, kMiB}) {
      const std::string when = way.name + (" of " + std::to_string(bytes));
      const auto pieces = take_all(way, bytes, 1200);
      within(when);
      if (options.listed && bytes >= 64 * kKiB && &way == kWays) {
        EXPECT_GE(pieces.size(), (kPages - 1) * (kPage / bytes)) << when;
      }
      give_all(way, pieces);
      all_is_back(when);
    }
  }
}
TEST_F(SoftGpuPagesTest, SmallPiecesStayWithinTheQuota) { small_pieces_fill(); }
TEST_F(SoftGpuPagesUnlistedTest, SmallPiecesStayWithinTheQuota) { small_pieces_fill(); }

// Pieces that share a page cost a page together.
TEST_F(SoftGpuPagesTest, TinyPiecesShareAPage) {
  const auto tiny = take_all(kPointers, 1, 3000);
  EXPECT_EQ(tiny.size(), 3000u);
  EXPECT_EQ(device_total(), kContext + kPage);
  EXPECT_TRUE(eventually([&] { return held() == kContext + kPage; }));
  give_all(kPointers, tiny);
  EXPECT_TRUE(eventually([&] { return held() == kContext; }));
}

// Pages full of small pieces, of which all but one are freed: each page stays.
void SoftGpuPagesTest::pages_are_pinned() {
  constexpr size_t kPiece = 256 * kKiB, kOfPage = kPage / kPiece;
  for (const size_t pages : {size_t{4}, kPages}) {
    for (int round = 0; round < 10; ++round) {
      const std::string when = std::to_string(pages) + " pages, round " + std::to_string(round);
      const auto pieces = take_all(kPointers, kPiece, pages * kOfPage);
      std::vector<uint64_t> kept;
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (i % kOfPage == 0) {
          kept.push_back(pieces[i]);
        } else {
          EXPECT_EQ(cuMemFree(pieces[i]), CUDA_SUCCESS);
        }
      }
      const auto large = take_all(kPointers, 3 * kMiB);
      const auto rest = take_all(kPointers, kMiB + 1);
      within(when);
      give_all(kPointers, kept);
      give_all(kPointers, rest);
      within(when);
      give_all(kPointers, large);
    }
    all_is_back(std::to_string(pages));
  }
}
TEST_F(SoftGpuPagesTest, PagesThatOnePieceKeepsAreCharged) { pages_are_pinned(); }
TEST_F(SoftGpuPagesUnlistedTest, PagesThatOnePieceKeepsAreCharged) { pages_are_pinned(); }

// Where the quota is nearly full, pieces that come and go never take a page too much.
TEST_F(SoftGpuPagesTest, PiecesComeAndGoNearTheQuota) {
  CUdeviceptr most = 0;
  ASSERT_EQ(cuMemAlloc(&most, kRoom - 3 * kPage), CUDA_SUCCESS);
  for (int round = 0; round < 30; ++round) {
    const auto pieces = take_all(kPointers, 500 * kKiB, 8);
    EXPECT_EQ(pieces.size(), 8u) << round;
    const auto more = take_all(kPointers, kMiB + 1);
    within("near");
    give_all(kPointers, pieces);
    give_all(kPointers, more);
  }
}

TEST_F(SoftGpuPagesTest, FourThreadsStayWithinTheQuota) {
  for (const Way& way : kWays) {
    for (const size_t bytes : {size_t{300 * kKiB}, kMiB + 1, kPage + 1, 3 * kMiB + 300 * kKiB}) {
      std::vector<uint64_t> pieces[4];
      together(4, [&](size_t i, Together& others) {
        ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        others.meet();
        pieces[i] = take_all(way, bytes);
        others.meet();
        if (i == 0) within(way.name + std::to_string(bytes), 4);
        others.meet();
        give_all(way, pieces[i]);
      });
      all_is_back(way.name);
    }
  }
}

// Four threads take and free what fits, so that nothing is refused for long.
TEST_F(SoftGpuPagesTest, FourThreadsFindTheRoomThatIsThere) {
  std::atomic<int> refused{0};
  together(4, [&](size_t, Together& others) {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    others.meet();
    for (int round = 0; round < 50; ++round) {
      const auto pieces = take_all(kPointers, 900 * kKiB, 8);
      refused += pieces.size() == 8 ? 0 : 1;
      give_all(kPointers, pieces);
    }
  });
  within("four threads", 4);
  EXPECT_EQ(refused, 0);
}

TEST_F(SoftGpuPagesTest, AContextsEndGivesItsPagesBack) {
  const size_t rest = kRoom - kContext;
  for (int round = 0; round < 5; ++round) {
    CUcontext own = nullptr;
    ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 0), CUDA_SUCCESS);
    EXPECT_FALSE(take_all(kPointers, 100 * kKiB, 30).empty());
    EXPECT_FALSE(take_all(kPointers, rest / 3).empty());
    within("in a context");
    ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    all_is_back("destroyed");
  }
}

TEST_F(SoftGpuPagesTest, PlainMemoryFreedInStreamOrderIsChargedInPages) {
  const auto pieces = take_all(kPointers, 700 * kKiB, 6);
  const auto large = take_all(kPointers, 3 * kMiB, 2);
  EXPECT_EQ(cuMemFreeAsync(pieces[0], nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(large[0], nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  EXPECT_EQ(device_total(), kContext + 3 * kPage + 2 * kPage);
}

// The processes of a tenant have not used CUDA before.
class SoftGpuPagesProcessesTest : public SoftGpuPagesTest {
 protected:
  static constexpr size_t kCount = 4;
  static Options processes() {
    Options o = paged();
    o.quota = kCount * kContext + kRoom;
    o.uses_cuda = false;
    return o;
  }
  SoftGpuPagesProcessesTest() : SoftGpuPagesTest(processes()) {}
  // All take pieces of so many bytes until they are refused.
  void fill(size_t bytes) {
    const auto results = processes_together(kCount, [&](Together& others) {
      CUcontext own = nullptr;
      if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&own, 0) != CUDA_SUCCESS ||
          cuCtxSetCurrent(own) != CUDA_SUCCESS)
        return -1;
      others.meet();
      const auto pieces = take_all(kPointers, bytes);
      others.meet();
      const uint64_t total = device_total();
      others.meet();
      give_all(kPointers, pieces);
      if (total <= options.quota / 2) return 2;
      return total <= options.quota ? 0 : 1;
    });
    EXPECT_EQ(results, std::vector<int>(kCount, 0)) << bytes << ", peak " << device_peak();
    EXPECT_LE(device_peak(), options.quota + kCount * kPage) << bytes;
  }
};

TEST_F(SoftGpuPagesProcessesTest, TogetherTheyStayWithinTheQuota) {
  for (const size_t bytes : {64 * kKiB, 700 * kKiB, kMiB + 1, kPage + 1, 3 * kMiB + 300 * kKiB})
    fill(bytes);
}

// Each process has pages that one piece keeps, and frees and takes at the same time.
TEST_F(SoftGpuPagesProcessesTest, PagesThatOnePieceKeepsAreChargedInAll) {
  const auto results = processes_together(kCount, [&](Together& others) {
    CUcontext own = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&own, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(own) != CUDA_SUCCESS)
      return -1;
    int above = 0;
    for (int round = 0; round < 5; ++round) {
      others.meet();
      const auto pieces = take_all(kPointers, 256 * kKiB, kPages * 2);
      for (size_t i = 0; i < pieces.size(); ++i)
        if (i % 8 != 0) (void)cuMemFree(pieces[i]);
      const auto large = take_all(kPointers, kMiB + 1);
      others.meet();
      above += device_total() > options.quota ? 1 : 0;
      others.meet();
      give_all(kPointers, large);
      for (size_t i = 0; i < pieces.size(); i += 8) (void)cuMemFree(pieces[i]);
    }
    return above;
  });
  EXPECT_EQ(results, std::vector<int>(kCount, 0)) << "peak " << device_peak();
  EXPECT_LE(device_peak(), options.quota + kCount * kPage);
}

// A process that has room by the device is not refused for what another one is charged too much
// for a moment.
TEST_F(SoftGpuPagesProcessesTest, WhatOthersHaveNotReadYetIsNotRefused) {
  const auto results = processes_together(2, [&](Together& others) {
    CUcontext own = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&own, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(own) != CUDA_SUCCESS)
      return -1;
    const auto large = take_all(kPointers, 2 * kContext / 2 + kRoom / 2 - 4 * kPage, 1);
    int refused = large.size() == 1 ? 0 : 1;
    for (int round = 0; round < 20; ++round) {
      others.meet();
      const auto pieces = take_all(kPointers, 100 * kKiB, 20);
      refused += pieces.size() == 20 ? 0 : 1;
      give_all(kPointers, pieces);
    }
    others.meet();
    return refused;
  });
  EXPECT_EQ(results, std::vector<int>(2, 0));
}

TEST_F(SoftGpuPagesProcessesTest, AKilledProcessLeavesNothing) {
  for (int round = 0; round < 3; ++round) {
    int taken[2];
    ASSERT_EQ(pipe(taken), 0);
    const pid_t child = fork();
    if (child == 0) {
      CUcontext own = nullptr;
      const bool ready = cuInit(0) == CUDA_SUCCESS &&
                         cuDevicePrimaryCtxRetain(&own, 0) == CUDA_SUCCESS &&
                         cuCtxSetCurrent(own) == CUDA_SUCCESS;
      const size_t count = ready ? take_all(kPointers, 700 * kKiB, 40).size() : 0;
      char word = count == 40 ? 1 : 0;
      if (write(taken[1], &word, 1) == 1) pause();
      _exit(1);
    }
    char word = 0;
    ASSERT_EQ(read(taken[0], &word, 1), 1);
    EXPECT_EQ(word, 1);
    EXPECT_EQ(device_total(), kContext + 20 * kPage);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(broker->wait_for_end(child));
    EXPECT_EQ(device_total(), 0u);
    EXPECT_EQ(held_total(), 0u);
  }
}

// Memory that another process has open: the ledger comes to what the device says of both.
TEST_F(SoftGpuPagesProcessesTest, WhatIsExportedIsChargedInPages) {
  Partner a, b;
  for (Partner* partner : {&a, &b}) {
    partner->start();
    ASSERT_EQ(partner->ask(PartnerOp::kInit).result, CUDA_SUCCESS);
  }
  for (const size_t bytes : {100 * kKiB, kMiB + 1, 5 * kMiB}) {
    const uint64_t pointer = a.ask(PartnerOp::kAlloc, bytes).value;
    PartnerMessage handle = a.ask(PartnerOp::kIpcGet, pointer);
    ASSERT_EQ(handle.result, CUDA_SUCCESS);
    handle.op = PartnerOp::kIpcOpen;
    const PartnerMessage opened = b.ask(handle);
    ASSERT_EQ(opened.result, CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return difference().empty(); }, 10'000)) << difference();
    EXPECT_EQ(a.ask(PartnerOp::kFree, pointer).result, CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return difference().empty(); }, 10'000)) << difference();
    EXPECT_EQ(b.ask(PartnerOp::kIpcClose, opened.value).result, CUDA_SUCCESS);
    EXPECT_TRUE(eventually([&] { return difference().empty(); }, 10'000)) << difference();
    EXPECT_EQ(device_total(), 2 * kContext) << bytes;
  }
}

// A child has no charge of its parent's pages.
TEST_F(SoftGpuPagesTest, AChildBeginsWithNothing) {
  const auto pieces = take_all(kPointers, 300 * kKiB, 9);
  const pid_t child = fork();
  if (child == 0) _exit(held() == 0 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(device_total(), kContext + 2 * kPage);
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
}

// Limits of the program's own, without a broker.
class SoftGpuPagesAloneTest : public SoftGpuPagesTest {
 protected:
  void SetUp() override {
    char name[] = "/tmp/sluice-softgpu-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory = name;
    setenv("SOFTGPU_DIR", name, 1);
    setenv("SOFTGPU_PAGE", "2MiB", 1);
    setenv("SOFTGPU_MEMORY", "1GiB", 1);
    setenv("SLUICE_MEMORY", (std::to_string(options.quota) + "B").c_str(), 1);
    std::string error;
    for (auto* segment : softgpu::device::directory_open(directory, error))
      devices.push_back(std::make_unique<softgpu::device::Device>(segment));
    ASSERT_FALSE(devices.empty()) << error;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  void TearDown() override { EXPECT_EQ(system(("rm -rf " + directory).c_str()), 0); }
};

TEST_F(SoftGpuPagesAloneTest, EveryWayStaysWithinTheQuota) { every_way_fills(); }
TEST_F(SoftGpuPagesAloneTest, SmallPiecesStayWithinTheQuota) { small_pieces_fill(); }
TEST_F(SoftGpuPagesAloneTest, PagesThatOnePieceKeepsAreCharged) { pages_are_pinned(); }

// A device to the byte is charged to the byte, from the first allocation on.
class SoftGpuBytesTest : public SoftGpuTest {
 protected:
  static Options exact(bool listed) {
    Options o;
    o.listed = listed;
    return o;
  }
  explicit SoftGpuBytesTest(bool listed = true) : SoftGpuTest(exact(listed)) {}
  void SetUp() override {
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  void charges(size_t bytes) {
    CUdeviceptr pointer = 0;
    const uint64_t before = held();
    ASSERT_EQ(cuMemAlloc(&pointer, bytes), CUDA_SUCCESS);
    EXPECT_EQ(held() - before, bytes);
    agrees("taken");
    ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
    EXPECT_EQ(held(), before);
  }
};

class SoftGpuBytesUnlistedTest : public SoftGpuBytesTest {
 protected:
  SoftGpuBytesUnlistedTest() : SoftGpuBytesTest(false) {}
};

TEST_F(SoftGpuBytesTest, AByteIsAByte) {
  for (const size_t bytes : {size_t{1}, kMiB + 1, kPage, 3 * kMiB}) charges(bytes);
}
TEST_F(SoftGpuBytesUnlistedTest, AByteIsAByte) {
  for (const size_t bytes : {kMiB, size_t{1}, kMiB + 1}) charges(bytes);
}
TEST_F(SoftGpuBytesTest, TheFirstIsLargerThanHalfAPage) { charges(kMiB + 77); }
TEST_F(SoftGpuBytesTest, ThreadsThatBeginAtOnceAreChargedToTheByte) {
  together(8, [&](size_t, Together& others) {
    CUdeviceptr pointer = 0;
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    others.meet();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(cuMemAlloc(&pointer, kMiB), CUDA_SUCCESS);
  });
  EXPECT_TRUE(eventually([&] { return difference().empty(); })) << difference();
  CUdeviceptr rest = 0;
  EXPECT_EQ(cuMemAlloc(&rest, kQuota - device_total()), CUDA_SUCCESS) << difference();
  EXPECT_EQ(device_total(), kQuota);
}

}  // namespace
