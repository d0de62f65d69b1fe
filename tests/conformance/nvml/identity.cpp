// Rows of family `nvml`: start and end, errors, how devices are found and what they are.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "tests/conformance/nvml/library.h"

namespace conformance {
namespace {

constexpr unsigned kTextBytes = 96;  // as NVML_DEVICE_NAME_V2_BUFFER_SIZE

ROW(nvml, calls_before_init_are_refused) {
  unsigned count = 0;
  nvmlDevice_t device = nullptr;
  char text[kTextBytes];
  NVML_ANSWERS(NVML_ERROR_UNINITIALIZED, NVML(nvmlDeviceGetCount_v2)(&count));
  NVML_ANSWERS(NVML_ERROR_UNINITIALIZED, NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device));
  NVML_ANSWERS(NVML_ERROR_UNINITIALIZED, NVML(nvmlSystemGetDriverVersion)(text, sizeof text));
}

ROW(nvml, shutdown_without_init_refused) {
  NVML_ANSWERS(NVML_ERROR_UNINITIALIZED, NVML(nvmlShutdown)());
}

ROW(nvml, initialisation_is_counted) {
  unsigned count = 0;
  NVML_MUST(NVML(nvmlInit_v2)());
  NVML_MUST(NVML(nvmlInit_v2)());
  NVML_MUST(NVML(nvmlShutdown)());
  NVML_ANSWERS(NVML_SUCCESS, NVML(nvmlDeviceGetCount_v2)(&count));
  NVML_MUST(NVML(nvmlShutdown)());
  NVML_ANSWERS(NVML_ERROR_UNINITIALIZED, NVML(nvmlDeviceGetCount_v2)(&count));
  NVML_ANSWERS(NVML_ERROR_UNINITIALIZED, NVML(nvmlShutdown)());
}

ROW(nvml, devices_need_no_initialised_driver) {
  const Library library;
  int ordinals = 0;
  unsigned count = 0;
  NVML_MUST(NVML(nvmlDeviceGetCount_v2)(&count));
  EXPECT_GE(count, 1U);
  EXPECT_EQ(cuDeviceGetCount(&ordinals), CUDA_ERROR_NOT_INITIALIZED);
}

ROW(nvml, count_is_of_all_devices) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  unsigned before = 0, after = 0;
  {
    const Library library;
    NVML_MUST(NVML(nvmlDeviceGetCount_v2)(&before));
  }
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const Library library;
  NVML_MUST(NVML(nvmlDeviceGetCount_v2)(&after));
  EXPECT_EQ(after, before);
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE) << "which CUDA does not see";
}

ROW(nvml, error_strings_tell_errors_apart) {
  std::set<std::string> texts;
  for (const nvmlReturn_t code : {0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 13, 15, 16, 17, 18, 20}) {
    const char* text = NVML(nvmlErrorString)(code);
    ASSERT_NE(text, nullptr) << code;
    EXPECT_TRUE(texts.insert(text).second) << code << " is \"" << text << "\" like another";
  }
  EXPECT_STREQ(NVML(nvmlErrorString)(NVML_SUCCESS), "Success");
  EXPECT_STREQ(NVML(nvmlErrorString)(NVML_ERROR_NOT_FOUND), "Not Found");
  EXPECT_STREQ(NVML(nvmlErrorString)(NVML_ERROR_GPU_IS_LOST), "GPU is lost");
}

ROW(nvml, error_string_of_any_number) {
  const char* text = NVML(nvmlErrorString)(12345);
  ASSERT_NE(text, nullptr);
  EXPECT_STRNE(text, "");
}

ROW(nvml, versions_are_told) {
  const Library library;
  char driver[kTextBytes] = {}, own[kTextBytes] = {};
  NVML_ANSWERS(NVML_SUCCESS, NVML(nvmlSystemGetDriverVersion)(driver, sizeof driver));
  NVML_ANSWERS(NVML_SUCCESS, NVML(nvmlSystemGetNVMLVersion)(own, sizeof own));
  EXPECT_NE(std::string(own).find(driver), std::string::npos)
      << own << " names the driver " << driver;
}

ROW(nvml, cuda_version_is_the_drivers) {
  const Library library;
  int told = 0, driver = 0;
  NVML_MUST(NVML(nvmlSystemGetCudaDriverVersion_v2)(&told));
  MUST(cuDriverGetVersion(&driver));
  EXPECT_EQ(told, driver);
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlSystemGetCudaDriverVersion_v2)(nullptr));
}

ROW(nvml, short_buffers_refused) {
  const Library library;
  char text[kTextBytes] = {};
  NVML_ANSWERS(NVML_ERROR_INSUFFICIENT_SIZE, NVML(nvmlSystemGetDriverVersion)(text, 2));
  NVML_ANSWERS(NVML_ERROR_INSUFFICIENT_SIZE, NVML(nvmlDeviceGetName)(library.first(), text, 2));
  NVML_ANSWERS(NVML_ERROR_INSUFFICIENT_SIZE, NVML(nvmlDeviceGetUUID)(library.first(), text, 10));
}

ROW(nvml, results_need_a_place) {
  const Library library;
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlDeviceGetCount_v2)(nullptr));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlDeviceGetHandleByIndex_v2)(0, nullptr));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetMemoryInfo)(library.first(), nullptr));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetUtilizationRates)(library.first(), nullptr));
}

ROW(nvml, null_handle_refused) {
  const Library library;
  nvmlMemory_t memory;
  char text[kTextBytes];
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlDeviceGetMemoryInfo)(nullptr, &memory));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlDeviceGetName)(nullptr, text, sizeof text));
}

ROW(nvml, index_beyond_the_devices_refused) {
  const Library library;
  unsigned count = 0;
  nvmlDevice_t device = nullptr;
  NVML_MUST(NVML(nvmlDeviceGetCount_v2)(&count));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlDeviceGetHandleByIndex_v2)(count, &device));
}

ROW(nvml, index_of_a_handle) {
  settings_soft({{"SOFTGPU_COUNT", "2"}});
  const Library library;
  unsigned count = 0;
  NVML_MUST(NVML(nvmlDeviceGetCount_v2)(&count));
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t device = nullptr;
    unsigned index = ~0U;
    NVML_MUST(NVML(nvmlDeviceGetHandleByIndex_v2)(i, &device));
    NVML_MUST(NVML(nvmlDeviceGetIndex)(device, &index));
    EXPECT_EQ(index, i);
  }
}

ROW(nvml, indices_are_in_bus_order) {
  settings_soft({{"SOFTGPU_COUNT", "3"}});
  const Library library;
  unsigned count = 0;
  NVML_MUST(NVML(nvmlDeviceGetCount_v2)(&count));
  if (count < 2) GTEST_SKIP() << "needs two GPUs";
  std::vector<std::string> addresses;
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t device = nullptr;
    nvmlPciInfo_t pci{};
    NVML_MUST(NVML(nvmlDeviceGetHandleByIndex_v2)(i, &device));
    NVML_MUST(NVML(nvmlDeviceGetPciInfo_v3)(device, &pci));
    addresses.emplace_back(pci.busId);
  }
  EXPECT_TRUE(std::is_sorted(addresses.begin(), addresses.end()));
}

ROW(nvml, uuid_is_the_drivers) {
  const Library library;
  char text[kTextBytes] = {};
  nvmlDevice_t device = nullptr;
  const std::string uuid = uuid_text(0);
  NVML_MUST(NVML(nvmlDeviceGetHandleByUUID)(uuid.c_str(), &device));
  NVML_MUST(NVML(nvmlDeviceGetUUID)(device, text, sizeof text));
  EXPECT_EQ(text, uuid);
}

ROW(nvml, unknown_uuid_not_found) {
  const Library library;
  nvmlDevice_t device = nullptr;
  NVML_ANSWERS(NVML_ERROR_NOT_FOUND, NVML(nvmlDeviceGetHandleByUUID)(
                                         "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a", &device));
}

ROW(nvml, null_uuid_refused) {
  const Library library;
  nvmlDevice_t device = nullptr;
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT, NVML(nvmlDeviceGetHandleByUUID)(nullptr, &device));
}

ROW(nvml, bus_id_is_the_drivers) {
  const Library library;
  nvmlPciInfo_t pci{};
  const Context context;
  int domain = -1, bus = -1, slot = -1;
  NVML_MUST(NVML(nvmlDeviceGetPciInfo_v3)(library.device(), &pci));
  MUST(cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, context.device()));
  MUST(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, context.device()));
  MUST(cuDeviceGetAttribute(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, context.device()));
  EXPECT_EQ(pci.domain, static_cast<unsigned>(domain));
  EXPECT_EQ(pci.bus, static_cast<unsigned>(bus));
  EXPECT_EQ(pci.device, static_cast<unsigned>(slot));
}

ROW(nvml, bus_id_texts_say_the_same) {
  const Library library;
  nvmlPciInfo_t pci{};
  NVML_MUST(NVML(nvmlDeviceGetPciInfo_v3)(library.first(), &pci));
  unsigned domain = 0, bus = 0, slot = 0, function = 9;
  ASSERT_EQ(std::sscanf(pci.busId, "%8x:%2x:%2x.%1x", &domain, &bus, &slot, &function), 4);
  EXPECT_EQ(domain, pci.domain);
  EXPECT_EQ(bus, pci.bus);
  EXPECT_EQ(slot, pci.device);
  ASSERT_EQ(std::sscanf(pci.busIdLegacy, "%4x:%2x:%2x.%1x", &domain, &bus, &slot, &function), 4);
  EXPECT_EQ(bus, pci.bus);
}

ROW(nvml, older_forms_of_the_bus_id_say_the_same) {
  const Library library;
  nvmlPciInfo_t now{};
  NVML_MUST(NVML(nvmlDeviceGetPciInfo_v3)(library.first(), &now));
  nvmlPciInfo_v2_t first, second;
  std::memset(&first, 0x5a, sizeof first);
  std::memset(&second, 0x5a, sizeof second);
  NVML_ANSWERS(NVML_SUCCESS, NVML(nvmlDeviceGetPciInfo)(library.first(), &first));
  NVML_ANSWERS(NVML_SUCCESS, NVML(nvmlDeviceGetPciInfo_v2)(library.first(), &second));
  for (const nvmlPciInfo_v2_t& old : {first, second}) {
    EXPECT_STREQ(old.busId, now.busIdLegacy);
    EXPECT_EQ(old.domain, now.domain);
    EXPECT_EQ(old.bus, now.bus);
    EXPECT_EQ(old.device, now.device);
    EXPECT_EQ(old.pciDeviceId, now.pciDeviceId);
  }
  EXPECT_EQ(second.pciSubSystemId, now.pciSubSystemId);
}

ROW(nvml, handle_by_bus_id_in_each_form) {
  const Library library;
  nvmlPciInfo_t pci{};
  NVML_MUST(NVML(nvmlDeviceGetPciInfo_v3)(library.first(), &pci));
  const std::string whole = pci.busId;
  for (const std::string& form : {whole, std::string(pci.busIdLegacy),
                                  whole.substr(0, whole.size() - 2) /* without the function */}) {
    nvmlDevice_t device = nullptr;
    NVML_ANSWERS(NVML_SUCCESS, NVML(nvmlDeviceGetHandleByPciBusId_v2)(form.c_str(), &device));
    EXPECT_EQ(device, library.first()) << form;
  }
}

ROW(nvml, unknown_bus_id_not_found) {
  const Library library;
  nvmlDevice_t device = nullptr;
  NVML_ANSWERS(NVML_ERROR_NOT_FOUND,
               NVML(nvmlDeviceGetHandleByPciBusId_v2)("0000:fe:1f.0", &device));
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetHandleByPciBusId_v2)(nullptr, &device));
}

ROW(nvml, name_is_the_drivers) {
  const Library library;
  const Context context;
  char told[kTextBytes] = {}, driver[kTextBytes] = {};
  NVML_MUST(NVML(nvmlDeviceGetName)(library.device(), told, sizeof told));
  MUST(cuDeviceGetName(driver, sizeof driver, context.device()));
  EXPECT_STREQ(told, driver);
}

ROW(nvml, compute_capability_is_the_drivers) {
  const Library library;
  const Context context;
  int major = 0, minor = 0, of_driver = 0;
  NVML_MUST(NVML(nvmlDeviceGetCudaComputeCapability)(library.device(), &major, &minor));
  MUST(cuDeviceGetAttribute(&of_driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                            context.device()));
  EXPECT_EQ(major, of_driver);
  MUST(cuDeviceGetAttribute(&of_driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                            context.device()));
  EXPECT_EQ(minor, of_driver);
}

ROW(nvml, architecture_belongs_to_the_capability) {
  const Library library;
  int major = 0, minor = 0;
  unsigned architecture = 0;
  NVML_MUST(NVML(nvmlDeviceGetCudaComputeCapability)(library.first(), &major, &minor));
  NVML_MUST(NVML(nvmlDeviceGetArchitecture)(library.first(), &architecture));
  // nvml.h: Turing 6 (7.5), Ampere 7, Ada 8 (8.9), Hopper 9, Blackwell 10.
  const unsigned expected = major == 7    ? 6
                            : major == 8  ? (minor == 9 ? 8 : 7)
                            : major == 9  ? 9
                            : major >= 10 ? 10
                                          : 0;
  EXPECT_EQ(architecture, expected) << major << "." << minor;
}

ROW(nvml, compute_mode_is_the_drivers) {
  const Library library;
  const Context context;
  unsigned mode = 99;
  int of_driver = 0;
  NVML_MUST(NVML(nvmlDeviceGetComputeMode)(library.device(), &mode));
  MUST(cuDeviceGetAttribute(&of_driver, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, context.device()));
  EXPECT_EQ(mode, static_cast<unsigned>(of_driver));
}

ROW(nvml, mig_is_off_or_unknown) {
  const Library library;
  unsigned current = 9, pending = 9;
  const nvmlReturn_t result = NVML(nvmlDeviceGetMigMode)(library.first(), &current, &pending);
  if (result == NVML_SUCCESS)
    EXPECT_EQ(current, 0U) << "these rows are about whole devices";
  else
    EXPECT_EQ(result, NVML_ERROR_NOT_SUPPORTED);
}

ROW(nvml, persistence_mode_is_on_or_off) {
  const Library library;
  unsigned mode = 9;
  NVML_MUST(NVML(nvmlDeviceGetPersistenceMode)(library.first(), &mode));
  EXPECT_LE(mode, 1U);
  NVML_ANSWERS(NVML_ERROR_INVALID_ARGUMENT,
               NVML(nvmlDeviceGetPersistenceMode)(library.first(), nullptr));
}

ROW(nvml, unknown_process_has_no_name) {
  const Library library;
  char name[kTextBytes];
  constexpr unsigned kNoPid = 0x3fffffff;  // above the kernel's limit of 4194304
  NVML_ANSWERS(NVML_ERROR_NOT_FOUND, NVML(nvmlSystemGetProcessName)(kNoPid, name, sizeof name));
}

}  // namespace
}  // namespace conformance
