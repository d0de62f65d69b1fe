// The entry points in which a capture has a say, by name. Knows nothing of the driver's objects:
// what a rule means is in capture.cpp.
#pragma once

#include <span>
#include <string_view>

namespace softgpu::driver {

/// What a capture says to an entry point; see the table for who has which.
enum class CaptureRule {
  kUnsafe,      // works behind the back of all streams: forbidden as the modes say
  kLegacyWait,  // runs in the default stream and waits for it
  kStreamWait,  // asks or waits for a stream
  kStreamUse,   // cannot be captured: forbidden to a stream that captures, free to all others; some
                // only ask
  kStreamNone,  // the same, but a refusal does the capture no harm
  kContextWait,
  kEventWait,
};
struct CaptureEntry {
  std::string_view name;  // without _v2, _ptsz and the like
  CaptureRule rule;
};
/// In the order of their names.
std::span<const CaptureEntry> capture_entries();
/// nullptr: captures have no say in it.
const CaptureEntry* capture_entry(std::string_view name);

}  // namespace softgpu::driver
