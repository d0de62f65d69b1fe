// Programs that close descriptors which are not theirs, or give their numbers to other files. What
// the driver keeps open is found out to be lost, and the other file is left alone.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace {

using softgpu_test::kMiB;
using softgpu_test::piece_prop;
using softgpu_test::used;

/// The numbers of the driver's files of memory and events.
std::vector<int> drivers_files() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("/memfd:softgpu")) found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

/// A file of the program that has the numbers of the driver's files from now on.
class Impostor {
 public:
  Impostor() : path_(std::string(std::getenv("SOFTGPU_DIR")) + "/program") {
    std::ofstream(path_) << std::string(kMiB, 'p');
    const int file = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    for (const int number : drivers_files()) {
      EXPECT_EQ(dup2(file, number), number);
      numbers_.push_back(number);
    }
    close(file);
  }
  void expect_untouched() const {
    EXPECT_FALSE(numbers_.empty());
    std::ifstream file(path_);
    const std::string now(std::istreambuf_iterator<char>(file), {});
    EXPECT_TRUE(now == std::string(kMiB, 'p')) << now.size() << " bytes";
    for (const int number : numbers_) {
      struct stat status {};
      EXPECT_EQ(fstat(number, &status), 0) << "the driver closed the program's file";
    }
  }

 private:
  const std::string path_;
  std::vector<int> numbers_;
};

class Descriptors : public softgpu_test::Driver {};

TEST_F(Descriptors, AnAllocationIsRefusedAndAnEarlierOneLives) {
  WithContext([](CUcontext) {
    const std::size_t before = used();
    CUdeviceptr kept = 0, freed = 0, none = 0;
    ASSERT_CU(cuMemAlloc(&kept, 3 * kMiB));
    ASSERT_CU(cuMemAlloc(&freed, 5 * kMiB));
    ASSERT_CU(cuMemsetD8(kept, 7, 3 * kMiB));
    ASSERT_CU(cuMemsetD8(freed, 8, 5 * kMiB));
    const Impostor program;
    EXPECT_EQ(cuMemAlloc(&none, 4 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocAsync(&none, kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_CU(cuMemFree(freed));
    EXPECT_EQ(used(), before + 3 * kMiB);
    unsigned char last = 0;
    EXPECT_CU(cuMemcpyDtoH(&last, kept + 3 * kMiB - 1, 1));
    EXPECT_EQ(last, 7);
    EXPECT_CU(cuMemFree(kept));
    EXPECT_EQ(used(), before);
    program.expect_untouched();
  });
}

TEST_F(Descriptors, APieceIsNotMappedAndOneThatIsMappedLives) {
  WithContext([](CUcontext) {
    const CUmemAllocationProp prop = piece_prop();
    CUmemGenericAllocationHandle mapped = 0, other = 0;
    ASSERT_CU(cuMemCreate(&mapped, 2 * kMiB, &prop, 0));
    ASSERT_CU(cuMemCreate(&other, 2 * kMiB, &prop, 0));
    CUdeviceptr range = 0;
    ASSERT_CU(cuMemAddressReserve(&range, 4 * kMiB, 0, 0, 0));
    ASSERT_CU(cuMemMap(range, 2 * kMiB, 0, mapped, 0));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_CU(cuMemSetAccess(range, 2 * kMiB, &access, 1));
    const std::size_t both = used();
    const Impostor program;
    EXPECT_EQ(cuMemMap(range + 2 * kMiB, 2 * kMiB, 0, other, 0), CUDA_ERROR_OUT_OF_MEMORY);
    int file = -1;
    EXPECT_NE(
        cuMemExportToShareableHandle(&file, other, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
    EXPECT_CU(cuMemsetD8(range, 1, 2 * kMiB));
    EXPECT_CU(cuMemRelease(other));
    EXPECT_EQ(used(), both - 2 * kMiB);
    EXPECT_CU(cuMemUnmap(range, 2 * kMiB));
    EXPECT_CU(cuMemRelease(mapped));
    EXPECT_EQ(used(), both - 4 * kMiB);
    program.expect_untouched();
  });
}

TEST_F(Descriptors, NoHandleTellsOthersOfAFileThatIsLost) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc(&p, kMiB));
    CUevent event = nullptr;
    ASSERT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    const Impostor program;
    CUipcMemHandle memory;
    CUipcEventHandle handle;
    EXPECT_NE(cuIpcGetMemHandle(&memory, p), CUDA_SUCCESS);
    EXPECT_NE(cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
    EXPECT_CU(cuEventRecord(event, nullptr));
    EXPECT_CU(cuEventSynchronize(event));
    program.expect_untouched();
  });
}

/// The host's bytes behind the driver's memory, margins and all.
std::int64_t host_bytes() {
  const std::vector<int> files = drivers_files();
  struct stat status {};
  EXPECT_EQ(files.size(), 1U);
  EXPECT_EQ(fstat(files.at(0), &status), 0);
  return std::int64_t{status.st_blocks} * 512;
}

TEST_F(Descriptors, FreedMemoryIsTheHostsAgainAlsoWhenTheProgramLocksItsMemory) {
  for (const bool locked : {false, true})
    WithContext([locked](CUcontext) {
      CUdeviceptr first = 0, p = 0;
      ASSERT_CU(cuMemAlloc(&first, kMiB));
      const std::int64_t before = host_bytes();
      ASSERT_CU(cuMemAlloc(&p, 5 * kMiB));
      ASSERT_CU(cuMemsetD8(p, 1, 5 * kMiB));
      ASSERT_CU(cuCtxSynchronize());
      ASSERT_GE(host_bytes(), before + std::int64_t{5 * kMiB});
      if (locked && mlock(reinterpret_cast<void*>(p), 5 * kMiB) != 0)
        GTEST_SKIP() << "this user may not lock 5 MiB";
      ASSERT_CU(cuMemFree(p));
      EXPECT_EQ(host_bytes(), before);
    });
}

}  // namespace
