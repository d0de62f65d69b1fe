// CUDA_VISIBLE_DEVICES by NVIDIA's rules, as a table.
#include "softgpu/driver/visibility.h"

#include <gtest/gtest.h>

namespace {

using softgpu::driver::visible_devices;
using Devices = std::vector<int>;

const std::vector<std::string> kUuids = {"GPU-11110000-aaaa", "GPU-11112222-bbbb",
                                         "GPU-33330000-cccc"};

TEST(Visibility, Table) {
  const struct {
    const char* text;
    Devices expected;
  } rows[] = {
      {nullptr, {0, 1, 2}},
      {"", {}},
      {"-1", {}},
      {"2,0", {2, 0}},
      {"1", {1}},
      {" 1, 2", {1, 2}},
      {"0,-1,1", {0}},
      {"0,7,1", {0}},
      {"none", {}},
      {"0,0", {}},
      {"1,GPU-11112222", {1}},
      {"1,GPU-33330000", {1}},
      {"GPU-11112222,0", {1}},
      {"GPU-11112222,GPU-1111222", {}},
      {"GPU-3333", {2}},
      {"GPU-11110000-aaaa,GPU-33", {0, 2}},
      {"GPU-1111", {}},
      {"GPU-9999,0", {}},
      {"gpu-3333", {}},
  };
  for (const auto& row : rows)
    EXPECT_EQ(visible_devices(kUuids, row.text).devices, row.expected)
        << (row.text ? row.text : "unset");
}

TEST(Visibility, ARepetitionIsToldApart) {
  EXPECT_TRUE(visible_devices(kUuids, "0,0").repeated);
  EXPECT_TRUE(visible_devices(kUuids, "GPU-3333,GPU-11112222,GPU-33").repeated);
  EXPECT_FALSE(visible_devices(kUuids, "0,7,0").repeated) << "the list has ended before";
  EXPECT_FALSE(visible_devices(kUuids, "-1").repeated);
}

TEST(Visibility, DeviceOrder) {
  using softgpu::driver::device_order;
  const std::vector<double> rates = {40e6, 80e6, 40e6, 80e6};
  EXPECT_EQ(device_order(rates, nullptr), (Devices{1, 3, 0, 2}));
  EXPECT_EQ(device_order(rates, "FASTEST_FIRST"), (Devices{1, 3, 0, 2}));
  EXPECT_EQ(device_order(rates, "PCI_BUS_ID"), (Devices{0, 1, 2, 3}));
  EXPECT_EQ(device_order(rates, "PCI_SLOT_NAME"), (Devices{1, 3, 0, 2}))
      << "there is no such order";
  EXPECT_EQ(device_order({1, 1}, nullptr), (Devices{0, 1}));
}

TEST(Visibility, PciBusIds) {
  using softgpu::driver::PciAddress;
  const auto parsed = [](const char* text) -> std::vector<unsigned> {
    PciAddress a;
    if (!softgpu::driver::pci_parse(text, a)) return {};
    return {a.domain, a.bus, a.device, a.function};
  };
  using Parts = std::vector<unsigned>;
  EXPECT_EQ(parsed("0001:65:1f.7"), (Parts{1, 0x65, 0x1f, 7}));
  EXPECT_EQ(parsed("00000000:65:00.0"), (Parts{0, 0x65, 0, 0}));
  EXPECT_EQ(parsed("1:65:2"), (Parts{1, 0x65, 2, 0}));
  EXPECT_EQ(parsed("65:2.1"), (Parts{0, 0x65, 2, 1}));
  for (const char* none : {"", "65", "65:2", "0:65:2.1x", "zz:65:2", "0:65:2:1"})
    EXPECT_EQ(parsed(none), Parts{}) << none;
}

}  // namespace
