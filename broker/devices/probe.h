// What one context costs on each GPU, measured by the helper program sluice-probe: the broker
// itself never loads the driver, which may block, crash or take device memory. This is the broker's
// side: start, read, give up in time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "broker/protocol/words.h"

namespace sluice::devices {

struct ProbedGpu {
  protocol::GpuUuid uuid{};
  std::uint64_t total_bytes = 0;     // what the driver lets programs allocate
  std::uint64_t context_bytes = 0;   // 0 = could not be measured
  std::string method;                // process | device | driver: where the figure comes from
  std::uint64_t unlisted_bytes = 0;  // in use for a process beyond what the driver lists for it
};

struct ProbeResult {
  std::vector<ProbedGpu> gpus;
  std::string fault;  // empty = all well; else what happened
};

/// One line per GPU: "GPU-uuid total_bytes=N context_bytes=N unlisted_bytes=N method=M".
std::string probe_line(const ProbedGpu& gpu);
/// False for a line that is not exactly that.
bool probe_line_parse(std::string_view line, ProbedGpu* out);

/// The caller's environment without what would change the answer: visible devices, preloads, tenant
/// variables.
std::vector<std::string> probe_environment(const char* const* environment);

/// Runs `program` (sluice-probe) and waits at most `deadline_ms`.
ProbeResult probe_run(const std::string& program, const char* const* environment,
                      std::int64_t deadline_ms);

}  // namespace sluice::devices
