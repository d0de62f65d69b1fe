// The directory of device segments: creates them atomically with the first process's settings,
// opens them for all others, and refuses what it does not understand. Knows files and mappings, not
// time.
#pragma once

#include <string>
#include <vector>

#include "softgpu/device/segment.h"
#include "softgpu/device/settings.h"

namespace softgpu::device {

/// Maps every device of `directory`, creating what is missing. Empty with a sentence in `error` on
/// failure. The mappings live as long as the process: work may still be going on when it exits.
std::vector<Segment*> directory_open(const std::string& directory, std::string& error);

/// Maps only what exists; creates nothing. Empty when there is no device.
std::vector<Segment*> directory_look(const std::string& directory, std::string& error);

/// Unlinks the segments. The caller has checked that nobody uses them.
[[nodiscard]] bool directory_remove(const std::string& directory, std::string& error);

/// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
std::string uuid_text(const unsigned char (&uuid)[16]);

}  // namespace softgpu::device
