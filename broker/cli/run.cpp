// Check the program, find or start a broker, ask, wait, become the program.
#include "broker/cli/run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "broker/cli/admission.h"
#include "broker/cli/environment.h"
#include "broker/cli/launch.h"
#include "broker/cli/paths.h"
#include "broker/cli/private_broker.h"
#include "broker/cli/reach.h"
#include "broker/cli/soft_gpus.h"
#include "broker/cli/status.h"
#include "broker/protocol/gpu_index.h"
#include "broker/protocol/tenant_limits.h"
#include "config/reader/config.h"

extern char** environ;

namespace sluice::cli {
namespace {

using protocol::RefusalCode;

int fail(const std::string& text, int exit_code = kExitSluiceFailed) {
  std::fprintf(stderr, "sluice: %s\n", text.c_str());
  return exit_code;
}

// What must be there before anybody is asked to wait.
bool installation_check(const RunOptions& options, std::string* error) {
  const std::string shim = library_path("libsluice.so");
  if (access(shim.c_str(), R_OK) < 0) {
    *error = "the shim library " + shim + " is missing; reinstall Sluice, or build it";
    return false;
  }
  const std::string soft = soft_directory() + "/libcuda.so.1";
  if (options.soft != 0 && access(soft.c_str(), R_OK) < 0) {
    *error = "the software GPU's driver " + soft + " is missing; reinstall Sluice or build it";
    return false;
  }
  return true;
}

// Why nobody was asked, where a broker is set up for all users of the machine.
std::string configured_text(std::string error) {
  const std::string file = config::kSystemConfig;
  const auto config = config::config_read(file);
  if (!config.ok()) return config.errors().front().text() + "; correct it, then start sluiced";
  return error.insert(error.find("; "),
                      ", and where " + file + " exists no private one is started");
}

/// A machine with a broker, or where one is set up, is not asked for software GPUs.
bool passed_over(const RunOptions& options) {
  return options.soft != 0 && (system_configured() || access(protocol::kSystemSocket, F_OK) == 0);
}

// A system broker has the machine's own GPUs, so --soft never asks it unless it was named.
std::optional<Client> broker_find(const RunOptions& options, std::string* socket,
                                  std::string* error) {
  const SocketChoice choice = socket_choose(options.socket);
  *socket = choice.path;
  if (choice.named || options.soft == 0) {
    auto client = Client::connect(choice.path, error);
    if (client || choice.named) return client;
    if (system_configured()) {
      // The machine's users share one broker; another beside it would promise the same GPUs twice.
      *error = configured_text(*error);
      return client;
    }
  }
  PrivateBrokerOptions start;
  start.soft = options.soft;
  if (options.soft != 0) soft_gpus_renew(options.soft);
  if (!private_broker_start(start, socket, error)) return std::nullopt;
  std::fprintf(
      stderr,
      "sluice: %s, so a private one was started for this command and what it starts; other "
      "commands do not share with it%s\n",
      passed_over(options) ? "the machine's broker has no software GPUs" : "no broker was running",
      passed_over(options) ? ", and the machine's profiles do not apply" : "");
  return Client::connect(*socket, error);
}

std::string gpus_text(const protocol::Admitted& admitted,
                      const std::vector<protocol::SnapshotGpu>& gpus) {
  std::string text;
  const char* word = admitted.gpu_count > 1 ? "GPUs " : "GPU ";
  for (std::uint32_t i = 0; i < admitted.gpu_count && i < protocol::kTenantGpusMax; ++i) {
    const std::uint32_t g = protocol::gpu_index(gpus, admitted.gpus[i]);
    if (g < gpus.size()) text += (text.empty() ? "" : ", ") + std::to_string(g);
  }
  return word + text;
}

std::string share_text(const protocol::Admitted& admitted, const std::string& where) {
  const std::string share = std::to_string(admitted.sm_percent);
  if (admitted.sm_mode == protocol::SmMode::kEqual) return "an equal part of " + where;
  const bool guaranteed = admitted.sm_kind == protocol::SmKind::kGuaranteed;
  return (guaranteed ? share + " % of " + where + ", guaranteed"
                     : "weight " + share + " on " + where) +
         (admitted.sm_mode == protocol::SmMode::kFixed ? ", fixed" : "");
}

std::string grant_text(const protocol::Admitted& admitted,
                       const std::vector<protocol::SnapshotGpu>& gpus) {
  const std::string where = gpus_text(admitted, gpus);
  if (admitted.tenant_class == protocol::TenantClass::kExclusive) return "all of " + where;
  return config::size_format(admitted.memory_max_bytes) + " and " + share_text(admitted, where);
}

/// What was asked for and means another thing than it says; empty = all means what it says.
std::string share_asked_text(const RunOptions& options, const protocol::Admitted& admitted) {
  if (options.sm_percent == 0) return "";
  const std::string asked =
      (options.weight ? "--weight " : "--sm ") + std::to_string(options.sm_percent);
  if (admitted.sm_mode == protocol::SmMode::kEqual)
    return "this job gets an equal part of the GPU time (--sm-mode equal), so " + asked +
           " means nothing to it; leave one of them out";
  if (options.weight || admitted.sm_kind != protocol::SmKind::kWeight) return "";
  return std::string("class ") + class_name(admitted.tenant_class) +
         " guarantees no GPU time here, so " + asked + " is a weight; see sluice run --help";
}

std::string cut_line(const protocol::Admitted& admitted, const std::string& amount,
                     bool by_profile) {
  return "this job has " + amount + ": class " + class_name(admitted.tenant_class) +
         "'s default is more than " +
         (by_profile ? "profile " + field_text(admitted.profile, sizeof admitted.profile) +
                           " allows, so this is the most there is"
                     : "the GPU has; --memory asks for another quota");
}

/// Why the job has less memory than its class's default; empty = it has not.
std::string memory_cut_text(const protocol::Admitted& admitted) {
  const bool by_profile = (admitted.cut & protocol::kCutByProfile) != 0;
  if (!by_profile && (admitted.cut & protocol::kCutByGpu) == 0) return "";
  return cut_line(admitted, config::size_format(admitted.memory_max_bytes), by_profile);
}

/// The same of its GPU time.
std::string share_cut_text(const protocol::Admitted& admitted) {
  const bool equal = admitted.sm_mode == protocol::SmMode::kEqual;
  if ((admitted.cut & protocol::kCutShareByProfile) == 0 || equal) return "";
  const std::string share = std::to_string(admitted.sm_percent);
  const bool guaranteed = admitted.sm_kind == protocol::SmKind::kGuaranteed;
  return cut_line(admitted, guaranteed ? share + " % of the GPU time" : "weight " + share, true);
}

/// Why there are fewer software GPUs than `--soft` asks for; empty = as many as the job needs.
std::string fewer_text(const RunOptions& options, std::size_t there) {
  if (options.soft <= there || options.gpu_count > there) return "";
  const std::string count = std::to_string(there) + (there == 1 ? " GPU" : " GPUs");
  const std::string asked = "--soft " + std::to_string(options.soft) + ", but ";
  if (options.socket.empty() && std::getenv(protocol::kTenantVariable) != nullptr)
    return asked + "the broker of the sluice run around this command has " + count +
           "; ask for as many there";
  if (socket_choose(options.socket).named)
    return asked + "the broker that --socket or SLUICE_SOCKET names has " + count +
           "; leave both out, and a private broker has as many as --soft says";
  return asked + count + (there == 1 ? " answers" : " answer") +
         "; the others are lost: softgpu-ctl clear brings them back";
}

void say(const std::string& text) {
  if (!text.empty()) std::fprintf(stderr, "sluice: %s\n", text.c_str());
}

// Ends as if the signal had never been caught, so that a shell sees what happened.
[[noreturn]] void die_of(int number) {
  signal(number, SIG_DFL);
  raise(number);
  _exit(128 + number);
}

int refused_end(const protocol::Refused& refused, bool soft) {
  std::fprintf(stderr, "sluice: %s\n", refusal_text(refused, soft).c_str());
  return refused.code == RefusalCode::kTimeout || refused.code == RefusalCode::kNoRoom
             ? kExitWaitedTooLong
             : kExitSluiceFailed;
}

std::string limits_text(const protocol::Admitted& admitted,
                        const std::vector<protocol::SnapshotGpu>& gpus) {
  protocol::TenantLimits limits = protocol::tenant_limits_of(admitted);
  limits.founder = static_cast<std::uint32_t>(getpid());  // which the program will have
  for (const protocol::SnapshotGpu& gpu : gpus) {
    for (std::uint32_t i = 0; i < limits.gpu_count; ++i) {
      if (limits.gpus[i] == gpu.uuid)
        limits.context_bytes = std::max(limits.context_bytes, gpu.context_bytes);
    }
  }
  char text[protocol::kTenantLimitsTextBytes];
  protocol::tenant_limits_format(limits, text);
  return text;
}

bool gpus_are_soft(const std::vector<protocol::SnapshotGpu>& gpus) {
  return !gpus.empty() && std::ranges::all_of(gpus, [](const auto& gpu) { return gpu.software; });
}

int become(const RunOptions& options, const std::string& program, const std::string& socket,
           const protocol::Admitted& admitted, const std::vector<protocol::SnapshotGpu>& gpus) {
  RunEnvironment run;
  char tenant[protocol::kTenantTextBytes];
  protocol::tenant_format(admitted.tenant, admitted.key, tenant);
  run.shim = library_path("libsluice.so");
  run.tenant = tenant;
  run.limits = limits_text(admitted, gpus);
  if (socket != protocol::kSystemSocket) run.socket = socket;
  run.gpus.assign(admitted.gpus,
                  admitted.gpus + std::min(admitted.gpu_count, protocol::kTenantGpusMax));
  Environment environment = environment_read(environ);
  environment_enter(&environment, run);
  if (options.soft != 0)
    environment_soften(&environment, soft_directory(), options.soft);
  else if (gpus_are_soft(gpus) && access((soft_directory() + "/libcuda.so.1").c_str(), R_OK) == 0)
    environment_reach_soft(&environment, soft_directory());
  return launch(program, options.command, environment);
}

}  // namespace

std::string refusal_text(const protocol::Refused& refused, bool soft) {
  std::string text = refused.text;
  const std::string minimum = config::size_format(refused.minimum_bytes);
  if (refused.code == RefusalCode::kMemoryBelowContext && text.find(minimum) == std::string::npos) {
    text += "; the smallest quota that would do is " + minimum;
  }
  if (refused.code == RefusalCode::kTooManyGpus && soft) text += ", or make more: --soft N";
  return text;
}

int run_command(const RunOptions& options) {
  const ProgramFile program = program_locate(options.command.front());
  std::string error;
  if (program.obstacle.exit_code != 0)
    return fail(program.obstacle.what + "; " + program.obstacle.fix, program.obstacle.exit_code);
  if (!installation_check(options, &error)) return fail(error);
  const ProgramReach reach = program_reach(program.path);
  if (reach.exit_code != 0) return fail(reach.warning, reach.exit_code);
  say(reach.warning);
  for (const std::string& line : environment_unknown(environment_read(environ))) say(line);

  std::string socket;
  auto client = broker_find(options, &socket, &error);
  if (!client) return fail(error);
  const auto snapshot = snapshot_fetch(*client, &error);
  if (!snapshot) return fail(error);
  say(fewer_text(options, snapshot->gpus.size()));
  protocol::Admit message;
  if (!admit_make(options, snapshot->gpus, &message, &error)) return fail(error);

  WaitLine line(STDERR_FILENO, isatty(STDERR_FILENO) == 1);
  int signal_number = 0;
  const AdmitAnswer answer = admit_ask(*client, message, line, &signal_number);
  switch (answer.kind) {
    case AdmitAnswer::Kind::kLost:
      return fail(
          "the broker closed the connection before it answered; see its log, then try again");
    case AdmitAnswer::Kind::kInterrupted:
      std::fprintf(stderr, "sluice: left the line\n");
      die_of(signal_number);
    case AdmitAnswer::Kind::kRefused:
      return refused_end(answer.refused, options.soft != 0);
    case AdmitAnswer::Kind::kAdmitted:
      break;
  }
  say(memory_cut_text(answer.admitted));
  say(share_cut_text(answer.admitted));
  say(share_asked_text(options, answer.admitted));
  if (options.dry_run) {
    std::printf("would run now with %s (class %s, profile %s)\n",
                grant_text(answer.admitted, snapshot->gpus).c_str(),
                class_name(answer.admitted.tenant_class), answer.admitted.profile);
    return 0;
  }
  if (answer.waited) {
    std::fprintf(stderr, "sluice: your turn; %s runs with %s\n", message.name,
                 grant_text(answer.admitted, snapshot->gpus).c_str());
  }
  return become(options, program.path, socket, answer.admitted, snapshot->gpus);
}

}  // namespace sluice::cli
