// Which GPUs a process sees and in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER by
// NVIDIA's rules. Pure text.
#pragma once

#include <string>
#include <vector>

namespace softgpu::driver {

/// `uuids` are the GPUs in PCI order, as "GPU-...". Returns indices into it. `visible` null: all of
/// them. Entries are indices or UUID prefixes; the list ends at the first entry that is none, an
/// entry named twice leaves no device at all.
std::vector<int> visible_devices(const std::vector<std::string>& uuids, const char* visible);

/// The order in which GPUs are numbered before CUDA_VISIBLE_DEVICES picks among them: `order` is
/// CUDA_DEVICE_ORDER, "PCI_BUS_ID" or "FASTEST_FIRST" (the default, also for anything else).
/// `rates` are the speeds in PCI order; equally fast ones stay in it.
std::vector<int> device_order(const std::vector<double>& rates, const char* order);

}  // namespace softgpu::driver
