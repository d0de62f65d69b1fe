// Which GPUs a process sees and in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER by
// NVIDIA's rules; and what a PCI bus id names. Pure text.
#pragma once

#include <string>
#include <vector>

namespace softgpu::driver {

struct Visible {
  std::vector<int> devices;  // in the order of the list
  bool repeated = false;     // some device is named twice; then `devices` is empty
};

/// `uuids` are the GPUs in PCI order, as "GPU-...". Returns indices into it. `visible` null: all of
/// them. Entries are indices or UUID prefixes; the list ends at the first entry that is none, and
/// at one that is not of the first one's kind.
Visible visible_devices(const std::vector<std::string>& uuids, const char* visible);

/// The order in which GPUs are numbered before CUDA_VISIBLE_DEVICES picks among them: `order` is
/// CUDA_DEVICE_ORDER, "PCI_BUS_ID" or "FASTEST_FIRST" (the default, also for anything else).
/// `rates` are the speeds in PCI order; equally fast ones stay in it.
std::vector<int> device_order(const std::vector<double>& rates, const char* order);

struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
};

/// "domain:bus:device.function", "domain:bus:device" or "bus:device.function", all hexadecimal;
/// what is left out is 0. False: it is none of them.
bool pci_parse(const char* text, PciAddress& address);

}  // namespace softgpu::driver
