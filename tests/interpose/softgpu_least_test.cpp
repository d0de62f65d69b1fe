// Loads and limits that surely do not fit the quota are refused before the driver is asked: judged
// by the most that the device ever held, because what is loaded and taken back was a neighbour's
// memory meanwhile.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "tests/interpose/softgpu_residual.h"

namespace {

using namespace sluice::test;

struct Loaded {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUresult result = CUDA_ERROR_UNKNOWN;
};

std::string file_of(const std::string& text) {
  const std::string path = std::string(getenv("SOFTGPU_DIR")) + "/image";
  std::ofstream(path) << text;
  return path;
}

struct Route {
  const char* name;
  void (*load)(const std::string& text, Loaded* out);
};
const Route kRoutes[] = {
    {"cuModuleLoad",
     [](const std::string& text, Loaded* out) {
       out->result = cuModuleLoad(&out->module, file_of(text).c_str());
     }},
    {"cuModuleLoadData",
     [](const std::string& text, Loaded* out) {
       out->result = cuModuleLoadData(&out->module, text.c_str());
     }},
    {"cuModuleLoadDataEx",
     [](const std::string& text, Loaded* out) {
       out->result = cuModuleLoadDataEx(&out->module, text.c_str(), 0, nullptr, nullptr);
     }},
    {"cuModuleLoadFatBinary",
     [](const std::string& text, Loaded* out) {
       out->result = cuModuleLoadFatBinary(&out->module, fatbin_of({{70, text}}).data());
     }},
    {"cuLinkComplete",
     [](const std::string& text, Loaded* out) {
       CUlinkState link = nullptr;
       void* image = nullptr;
       size_t bytes = 0;
       ASSERT_EQ(cuLinkCreate(0, nullptr, nullptr, &link), CUDA_SUCCESS);
       ASSERT_EQ(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(text.c_str()),
                               text.size() + 1, "it", 0, nullptr, nullptr),
                 CUDA_SUCCESS);
       ASSERT_EQ(cuLinkComplete(link, &image, &bytes), CUDA_SUCCESS);
       out->result = cuModuleLoadData(&out->module, image);
       EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
     }},
    {"cuLibraryLoadData",
     [](const std::string& text, Loaded* out) {
       out->result =
           cuLibraryLoadData(&out->library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
     }},
    {"cuLibraryLoadFromFile",
     [](const std::string& text, Loaded* out) {
       out->result = cuLibraryLoadFromFile(&out->library, file_of(text).c_str(), nullptr, nullptr,
                                           0, nullptr, nullptr, 0);
     }},
};

class LeastTest : public SoftGpuTest {
 protected:
  explicit LeastTest(bool listed = true)
      : SoftGpuTest([listed] {
          Options o;
          o.listed = listed;
          return o;
        }()) {}
  void SetUp() override {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    SoftGpuTest::SetUp();
    broker->lease_store(sluice::protocol::kLeaseOpen);
  }
  void refused_without_a_trace() {
    for (const Route& route : kRoutes) {
      Loaded loaded;
      route.load(module_text(120 * kMiB), &loaded);
      EXPECT_EQ(loaded.result, CUDA_ERROR_OUT_OF_MEMORY) << route.name;
      EXPECT_EQ(loaded.module, nullptr) << route.name;
      EXPECT_EQ(loaded.library, nullptr) << route.name;
      EXPECT_LE(device_peak(), kQuota) << route.name;
      EXPECT_EQ(held(), kContext) << route.name;
      agrees(route.name);
    }
  }
  void fits_to_the_last_byte() {
    for (const Route& route : kRoutes) {
      Loaded loaded;
      route.load(module_text(kQuota - kContext), &loaded);
      EXPECT_EQ(loaded.result, CUDA_SUCCESS) << route.name;
      EXPECT_EQ(held(), kQuota) << route.name;
      agrees(route.name);
      if (loaded.module != nullptr) {
        EXPECT_EQ(cuModuleUnload(loaded.module), CUDA_SUCCESS);
      }
      if (loaded.library != nullptr) {
        EXPECT_EQ(cuLibraryUnload(loaded.library), CUDA_SUCCESS);
      }
      EXPECT_EQ(held(), kContext) << route.name;
    }
  }
};

class LeastEstimatedTest : public LeastTest {
 protected:
  LeastEstimatedTest() : LeastTest(false) {}
};

TEST_F(LeastTest, ALoadThatSurelyDoesNotFitNeverReachesTheDevice) { refused_without_a_trace(); }
TEST_F(LeastEstimatedTest, ALoadThatSurelyDoesNotFitNeverReachesTheDevice) {
  refused_without_a_trace();
}

TEST_F(LeastTest, ALoadThatFitsIsNotRefused) { fits_to_the_last_byte(); }
TEST_F(LeastEstimatedTest, ALoadThatFitsIsNotRefused) { fits_to_the_last_byte(); }

// What is refused by the driver leaves no charge, and its own words are told.
TEST_F(LeastTest, AnImageThatTheDriverRefusesLeavesNoCharge) {
  CUmodule module = nullptr;
  const std::string wrong = module_text(20 * kMiB) + ".visible .entry broken() { no such thing }\n";
  EXPECT_EQ(cuModuleLoadData(&module, wrong.c_str()), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(held(), kContext);
  agrees("refused by the driver");
}

TEST_F(LeastTest, AStackThatSurelyDoesNotFitNeverReachesTheDevice) {
  size_t before = 0, after = 0;
  ASSERT_EQ(cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(device_peak(), kQuota);
  ASSERT_EQ(cuCtxGetLimit(&after, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(after, before);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1 << 20), CUDA_ERROR_INVALID_VALUE)
      << "no device has as much";
  EXPECT_EQ(held(), kContext);
}

// A stack that was raised for a kernel may be there already.
TEST_F(LeastTest, AStackThatIsThereIsNotRefused) {
  ASSERT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
  CUdeviceptr rest = 0;
  ASSERT_EQ(cuMemAlloc(&rest, kQuota - held()), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
}

}  // namespace
