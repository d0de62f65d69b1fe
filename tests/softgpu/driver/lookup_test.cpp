// Exports and cuGetProcAddress against the list made from the toolkit's headers and stub library.
#include <dlfcn.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/softgpu/driver/fixture.h"

namespace {

using softgpu_test::InChild;
using Driver = softgpu_test::Driver;

nlohmann::json entrypoints() { return nlohmann::json::parse(std::ifstream(SOFTGPU_ENTRYPOINTS)); }

void* driver() { return dlopen(SOFTGPU_DRIVER, RTLD_NOW); }

TEST_F(Driver, ExportsEveryEntryPoint) {
  const auto entries = entrypoints();
  EXPECT_GE(entries.size(), 637U);
  for (const auto& entry : entries) {
    const std::string symbol = entry["symbol"];
    EXPECT_NE(dlsym(driver(), symbol.c_str()), nullptr) << symbol;
  }
  EXPECT_NE(dlsym(driver(), "softgpuStreamDelay"), nullptr);
  EXPECT_NE(dlsym(driver(), "softgpuStreamGoOn"), nullptr);
}

TEST_F(Driver, LookupAgreesWithTheExports) {
  for (const auto& entry : entrypoints()) {
    const std::string base = entry["base"], symbol = entry["symbol"];
    const bool own = entry["per_thread"] != "";
    void* found = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const cuuint64_t flags =
        own ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    ASSERT_CU(cuGetProcAddress(base.c_str(), &found, entry["since"], flags, &status));
    EXPECT_EQ(found, dlsym(driver(), symbol.c_str())) << symbol;
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  }
}

TEST_F(Driver, FunctionsForGraphicsAreThereAndRefuse) {
  ASSERT_CU(cuInit(0));
  std::ifstream names(SOFTGPU_GRAPHICS);
  size_t count = 0;
  for (std::string line; std::getline(names, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream row(line);
    std::string symbol;
    int since = 0;
    row >> symbol >> since;
    void* function = dlsym(driver(), symbol.c_str());
    ASSERT_NE(function, nullptr) << symbol;
    const auto refuse =
        reinterpret_cast<CUresult (*)(unsigned*, CUdevice*, unsigned, unsigned)>(function);
    unsigned found_devices = 7;
    const bool looks_for_a_display = symbol.rfind("cuGLGetDevices", 0) == 0;
    EXPECT_EQ(refuse(&found_devices, nullptr, 0, 1),
              looks_for_a_display ? CUDA_ERROR_INVALID_GRAPHICS_CONTEXT : CUDA_ERROR_NOT_SUPPORTED)
        << symbol;
    EXPECT_EQ(found_devices, 7u) << symbol;
    const std::string base = symbol.substr(0, symbol.find("_v2"));
    const bool own = symbol.find("_pt") != std::string::npos;
    void* found = nullptr;
    EXPECT_CU(cuGetProcAddress(base.c_str(), &found, since, own ? 2 : 1, nullptr));
    EXPECT_EQ(found, function) << symbol;
    ++count;
  }
  EXPECT_EQ(count, 35u);
}

TEST_F(Driver, LookupSaysWhyThereIsNothing) {
  void* found = &found;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_CU(cuGetProcAddress("cuNoSuchThing", &found, 13000, 0, &status));
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_CU(cuGetProcAddress("cuMemAllocAsync", &found, 10000, 0, &status));
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(cuGetProcAddress("cuMemAlloc", &found, 99000, 0, &status), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress("cuMemAlloc", &found, 13000, 8, &status), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cuGetProcAddress("", &found, 0, 0, nullptr));
  EXPECT_EQ(found, nullptr);
}

TEST_F(Driver, WhatIsNotImplementedSaysSoOnce) {
  setenv("SOFTGPU_LOG", "1", 1);
  ::testing::internal::CaptureStderr();
  InChild([] {
    EXPECT_EQ(cuGraphicsUnregisterResource(nullptr), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGraphicsUnregisterResource(nullptr), CUDA_ERROR_NOT_SUPPORTED);
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "softgpu: cuGraphicsUnregisterResource is not implemented\n");
  unsetenv("SOFTGPU_LOG");
}

TEST_F(Driver, NvidiasOwnRuntimeIsToldInOneLine) {
  ::testing::internal::CaptureStderr();
  InChild([] {
    CUuuid id;
    const unsigned char bytes[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                     0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    std::memcpy(id.bytes, bytes, sizeof bytes);
    const void* table = &id;
    EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(table, nullptr);
    EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
    id.bytes[0] = 1;
    EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
  });
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_NE(line.find("-cudart shared"), std::string::npos);
  EXPECT_NE(line.find("NVCC_APPEND_FLAGS"), std::string::npos);
}

TEST_F(Driver, DevicesOfAProcessFollowVisibility) {
  setenv("SOFTGPU_COUNT", "3", 1);
  setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
  InChild([] {
    ASSERT_CU(cuInit(0));
    int count = 0, bus = 0;
    ASSERT_CU(cuDeviceGetCount(&count));
    EXPECT_EQ(count, 2);
    ASSERT_CU(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
    EXPECT_EQ(bus, 0x67);
    CUdevice device = 9;
    EXPECT_EQ(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuDeviceGetByPCIBusId(&device, "0000:65:00.0"));
    EXPECT_EQ(device, 1);
  });
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  InChild([] { EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE); });
}

}  // namespace
