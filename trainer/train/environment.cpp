// See environment.h.
#include "trainer/train/environment.h"

#include <unistd.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "trainer/base/failure.h"
#include "trainer/train/options.h"

namespace sluice::train {
namespace {

struct Starter {
  const char* name;
  const char* rank;
  const char* count;
  const char* local_count;    // ranks on this machine, or null
  const char* machine_count;  // or null
  const char* needed;         // without this variable it is not this starter; null = none
  std::array<const char*, 2> job;
};

constexpr std::array kStarters = {
    Starter{"mpirun",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            nullptr,
            nullptr,
            {"PMIX_NAMESPACE", nullptr}},
    Starter{
        "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", nullptr, nullptr, {nullptr, nullptr}},
    Starter{"srun",
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            nullptr,
            "SLURM_STEP_NUM_NODES",
            "SLURM_STEP_ID",
            {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

int number_of(const Environment& environment, const Starter& starter, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) {
    throw Failure(
        text_format("started by %s (%s or %s is set), but %s is not; start the job "
                    "with %s, or give --start self",
                    starter.name, starter.rank, starter.count, name, starter.name));
  }
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < 0) {
    throw Failure(text_format("%s is \"%s\", which is no number of %s", name, text, starter.name));
  }
  return value;
}

void one_machine_check(const Environment& environment, const Starter& starter, int rank_count) {
  const bool some_elsewhere = starter.local_count != nullptr &&
                              environment(starter.local_count) != nullptr &&
                              number_of(environment, starter, starter.local_count) != rank_count;
  const bool many = starter.machine_count != nullptr &&
                    environment(starter.machine_count) != nullptr &&
                    number_of(environment, starter, starter.machine_count) > 1;
  if (some_elsewhere || many) {
    throw Failure(
        text_format("%s has ranks on several machines, which meet by a directory of one machine "
                    "only; start all of them on one, or one sluice-train on each machine with "
                    "--nnodes, --node-rank and --rendezvous",
                    starter.name));
  }
}

/// Of the process that has started this one: the same for all ranks, if it is no shell in between.
std::string parent_text() {
  std::ifstream stat("/proc/" + std::to_string(getppid()) + "/stat");
  std::string text{std::istreambuf_iterator<char>(stat), std::istreambuf_iterator<char>()};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 2)));
  std::string started;
  for (int field = 3; field <= 22; ++field) fields >> started;  // proc(5): starttime
  return "p" + std::to_string(getppid()) + "-" + started;
}

std::string job_text(const Environment& environment, const Starter& starter) {
  std::string job;
  for (const char* name : starter.job) {
    const char* value = name == nullptr ? nullptr : environment(name);
    if (value != nullptr) job += (job.empty() ? "" : ".") + std::string(value);
  }
  if (job.empty()) job = parent_text();
  for (char& c : job) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::strchr(".-_", c) == nullptr)
      c = '_';
  }
  return job;
}

}  // namespace

std::optional<ExternalStart> external_start(const Environment& environment) {
  for (const Starter& starter : kStarters) {
    if (environment(starter.rank) == nullptr && environment(starter.count) == nullptr) continue;
    if (starter.needed != nullptr && environment(starter.needed) == nullptr) continue;
    ExternalStart start;
    start.rank = number_of(environment, starter, starter.rank);
    start.rank_count = number_of(environment, starter, starter.count);
    start.by = text_format("%s (%s)", starter.name, starter.rank);
    if (start.rank_count < 1 || start.rank_count > kRanksMax || start.rank >= start.rank_count) {
      throw Failure(
          text_format("%s says rank %d of %d; possible are ranks below their number, and "
                      "1 to %d of them",
                      start.by.c_str(), start.rank, start.rank_count, kRanksMax));
    }
    one_machine_check(environment, starter, start.rank_count);
    start.job = job_text(environment, starter);
    return start;
  }
  return std::nullopt;
}

}  // namespace sluice::train
