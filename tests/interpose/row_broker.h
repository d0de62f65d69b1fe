// What the programs share that run a conformance row as a tenant's, under a broker of their own.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "softgpu/device/device.h"
#include "tests/interpose/test_broker.h"

namespace sluice::test {

inline constexpr int kRowGpus = 4;  // more than any row uses
inline constexpr std::uint64_t kRowContext = 32ull << 20;

/// Gives the tenant the software GPUs of that directory, whose names follow from its path; the row
/// makes them.
void row_gpus_name(TestBroker& broker, const char* directory);
/// Starts it with `preload`, in that directory; -1 if it could not be.
pid_t row_start(const TestBroker& broker, const char* preload, const char* directory,
                char** program);
/// The GPUs that the row has made.
std::vector<std::unique_ptr<softgpu::device::Device>> row_gpus(const char* directory);
/// What both accounts have left of processes that have ended, as text; empty = nothing. The broker
/// hears of an end a moment later.
std::string row_left_over(TestBroker& broker, const char* directory);
/// As a shell tells it.
int row_exit_code(int status);

}  // namespace sluice::test
