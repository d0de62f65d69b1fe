// See visibility.h.
#include "softgpu/driver/visibility.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>

namespace softgpu::driver {
namespace {

constexpr std::string_view kUuidBegins = "GPU-";

std::string entry_next(const char*& text) {
  std::string entry;
  for (; *text != '\0' && *text != ','; ++text) entry += *text;
  if (*text == ',') ++text;
  while (!entry.empty() && std::isspace(static_cast<unsigned char>(entry.front())))
    entry.erase(0, 1);
  return entry;
}

/// The GPU whose UUID starts so, when there is exactly one.
int find_uuid(const std::vector<std::string>& uuids, const std::string& prefix) {
  int found = -1;
  if (prefix == kUuidBegins) return -1;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    if (!uuids[i].starts_with(prefix)) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(i);
  }
  return found;
}

bool entry_is_uuid(std::string_view entry) { return entry.starts_with(kUuidBegins); }

int entry_resolve(const std::vector<std::string>& uuids, const std::string& entry) {
  if (entry_is_uuid(entry)) return find_uuid(uuids, entry);
  if (entry.empty() || !std::isdigit(static_cast<unsigned char>(entry[0]))) return -1;
  const long index = std::strtol(entry.c_str(), nullptr, 10);
  return index < static_cast<long>(uuids.size()) ? static_cast<int>(index) : -1;
}

}  // namespace

std::vector<int> device_order(const std::vector<double>& rates, const char* order) {
  std::vector<int> result(rates.size());
  std::iota(result.begin(), result.end(), 0);
  if (order != nullptr && std::string_view(order) == "PCI_BUS_ID") return result;
  std::stable_sort(result.begin(), result.end(), [&](int a, int b) {
    return rates[static_cast<std::size_t>(a)] > rates[static_cast<std::size_t>(b)];
  });
  return result;
}

Visible visible_devices(const std::vector<std::string>& uuids, const char* visible) {
  Visible result;
  std::vector<int>& devices = result.devices;
  if (visible == nullptr) {
    devices.resize(uuids.size());
    std::iota(devices.begin(), devices.end(), 0);
    return result;
  }
  std::optional<bool> by_uuid;
  while (*visible != '\0') {
    const std::string entry = entry_next(visible);
    if (!by_uuid.has_value()) by_uuid = entry_is_uuid(entry);
    const int device = entry_is_uuid(entry) == *by_uuid ? entry_resolve(uuids, entry) : -1;
    if (device < 0) break;
    if (std::find(devices.begin(), devices.end(), device) != devices.end())
      return {.devices = {}, .repeated = true};
    devices.push_back(device);
  }
  return result;
}

bool pci_parse(const char* text, PciAddress& address) {
  const auto is = [&](const char* format, int fields, auto*... places) {
    int used = 0;
    address = {};
    return std::sscanf(text, format, places..., &used) == fields && text[used] == '\0';
  };
  PciAddress& a = address;
  return is("%x:%x:%x.%x%n", 4, &a.domain, &a.bus, &a.device, &a.function) ||
         is("%x:%x:%x%n", 3, &a.domain, &a.bus, &a.device) ||
         is("%x:%x.%x%n", 3, &a.bus, &a.device, &a.function);
}

}  // namespace softgpu::driver
