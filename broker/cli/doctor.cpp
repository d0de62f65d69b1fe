// The checks. None of them creates a context or changes anything.
#include "broker/cli/doctor.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "broker/cli/client.h"
#include "broker/cli/json.h"
#include "broker/cli/paths.h"
#include "broker/cli/reach.h"
#include "broker/cli/snapshot_reader.h"
#include "broker/devices/nvml.h"
#include "broker/devices/uuid.h"
#include "broker/protocol/shim_policy.h"
#include "config/reader/config.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kWordWidth = 7;
constexpr std::size_t kWhatWidth = 16;

constexpr char kSoftFix[] = "reinstall Sluice, or build the software GPU";

std::string loader_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown reason";
}

Finding driver_check(const std::string& library, bool soft) {
  Finding finding{Verdict::kGood, "driver library", "", ""};
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    finding.verdict = Verdict::kBroken;
    finding.detail = loader_error();
    finding.fix = soft ? kSoftFix
                       : "install the NVIDIA driver, or use software GPUs: sluice doctor --soft, "
                         "sluice run --soft N";
    return finding;
  }
  int version = 0;
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(handle, "cuDriverGetVersion"));
  if (ask == nullptr || ask(&version) != 0) {
    finding.verdict = Verdict::kBroken;
    finding.detail = library + " loads but is no CUDA driver";
    finding.fix = soft ? kSoftFix
                       : "reinstall the NVIDIA driver; look for another libcuda.so.1 in "
                         "LD_LIBRARY_PATH";
    return finding;
  }
  finding.detail = library + ", CUDA " + std::to_string(version / 1000) + "." +
                   std::to_string(version % 1000 / 10);
  return finding;
}

void devices_check(const std::string& library, std::vector<Finding>* out) {
  devices::DeviceError error;
  std::vector<devices::GpuInfo> gpus;
  const auto nvml = devices::Nvml::open(library.c_str(), &error);
  if (nvml == nullptr || !nvml->gpus(&gpus, &error)) {
    const std::size_t split = error.text.rfind("; ");
    out->push_back({Verdict::kBroken, "NVML and GPUs", error.text.substr(0, split),
                    split == std::string::npos ? "see dmesg" : error.text.substr(split + 2)});
    return;
  }
  if (!error.text.empty()) {
    const std::size_t split = error.text.rfind("; ");
    out->push_back(
        {Verdict::kBroken, "lost GPUs", error.text.substr(0, split), error.text.substr(split + 2)});
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    out->push_back({Verdict::kGood, "GPU " + std::to_string(i),
                    gpus[i].name + ", " + config::size_format(gpus[i].total_bytes) + ", " +
                        config::size_format(gpus[i].used_bytes) + " in use",
                    ""});
  }
}

// In a child: a broken library must not take the doctor with it.
Finding shim_check() {
  const std::string path = library_path("libsluice.so");
  const Finding good{Verdict::kGood, "shim library", path, ""};
  const Finding bad{Verdict::kBroken, "shim library", path + " is missing or cannot be loaded",
                    "reinstall Sluice, or build it (ninja in the build folder)"};
  if (access(path.c_str(), R_OK) < 0) return bad;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr ? 0 : 1);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
      WEXITSTATUS(status) != 0)
    return bad;
  return good;
}

Finding config_check() {
  if (!system_configured()) {
    return {Verdict::kGood, "configuration",
            std::string("no ") + config::kSystemConfig +
                "; a broker without --config has built-in settings",
            ""};
  }
  const auto config = config::config_read(config::kSystemConfig);
  if (config.ok()) return {Verdict::kGood, "configuration", config::kSystemConfig, ""};
  return {Verdict::kBroken, "configuration", config.errors().front().text(),
          "correct the file, then reload the broker"};
}

}  // namespace

Finding shim_policy_check(const char* path) {
  using protocol::PolicyFile;
  Finding finding{Verdict::kGood, "shim policy", path, ""};
  char text[protocol::kPolicyBytesMax + 1];
  protocol::PolicyIgnored ignored{};
  const PolicyFile file = protocol::policy_file_read(path, text, &ignored);
  if (file == PolicyFile::kAbsent) {
    finding.detail = "none; missing_broker = keep";
    return finding;
  }
  if (file == PolicyFile::kIgnored) {
    finding.verdict = Verdict::kBroken;
    finding.detail += std::string(" is ignored: ") +
                      (ignored.reason != nullptr ? ignored.reason : std::strerror(ignored.error));
    finding.fix = ignored.remedy;
    return finding;
  }
  protocol::Policy policy;
  protocol::PolicyMistake mistake{0, protocol::kPolicyNoText};
  if (file == PolicyFile::kRead && protocol::policy_parse(text, &policy, &mistake)) {
    constexpr const char* kWords[] = {"keep", "open", "hold", "static"};
    finding.detail += std::string(": missing_broker = ") +
                      kWords[static_cast<std::size_t>(policy.missing)] +
                      (policy.broker_required ? ", require_broker = yes" : "");
    return finding;
  }
  finding.verdict = Verdict::kBroken;
  finding.detail += ": ";
  if (mistake.line != 0) finding.detail += "line " + std::to_string(mistake.line) + ": ";
  finding.detail += mistake.wrong;
  finding.fix = "correct it; until then all CUDA calls without a broker wait";
  return finding;
}

Finding broker_gpus_check(const Snapshot& snapshot, Finding finding) {
  std::string lost;
  bool software = false;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    if (snapshot.gpus[i].lost == 0) continue;
    lost += (lost.empty() ? "GPU " : ", ") + std::to_string(i) + " (" +
            devices::uuid_format(snapshot.gpus[i].uuid) + ")";
    software = snapshot.gpus[i].software != 0;
  }
  if (lost.empty()) return finding;
  finding.verdict = Verdict::kBroken;
  finding.detail += "; lost: " + lost;
  finding.fix = std::string(devices::lost_remedy(software)) + ", then start the broker again";
  return finding;
}

namespace {

std::string config_text(const protocol::SnapshotHeader& header) {
  const std::string path = field_text(header.config_path, sizeof header.config_path);
  return path.empty() ? "with built-in settings" : "configuration " + path;
}

Finding broker_check(const std::string& option) {
  Finding finding{Verdict::kGood, "broker", "", ""};
  const SocketChoice choice = socket_choose(option);
  std::string error;
  if (auto client = Client::connect(choice.path, &error)) {
    const auto snapshot = snapshot_fetch(*client, &error);
    if (snapshot) {
      const std::size_t gpus = snapshot->gpus.size();
      finding.detail = choice.path + ", " + std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") +
                       ", " + config_text(snapshot->header);
      return broker_gpus_check(*snapshot, std::move(finding));
    }
  } else if (!choice.named && !system_configured()) {
    finding.detail = "none runs; sluice run starts a private one";
    if (access(program_path("sluiced").c_str(), X_OK) == 0) return finding;
    error = program_path("sluiced") + " is missing; reinstall Sluice";
  }
  const std::size_t split = error.find("; ");
  finding.verdict = Verdict::kBroken;
  finding.detail = error.substr(0, split);
  finding.fix = split == std::string::npos ? "restart sluiced" : error.substr(split + 2);
  return finding;
}

// CAP_BPF (39) and CAP_PERFMON (38), or CAP_SYS_ADMIN (21), in the effective set.
Finding bpf_check() {
  std::ifstream status("/proc/self/status");
  std::string line;
  unsigned long long effective = 0;
  while (std::getline(status, line)) {
    if (line.compare(0, 7, "CapEff:") == 0) effective = std::stoull(line.substr(7), nullptr, 16);
  }
  const bool admin = (effective >> 21 & 1) != 0;
  const bool bpf = (effective >> 39 & 1) != 0 && (effective >> 38 & 1) != 0;
  if (admin || bpf) return {Verdict::kGood, "BPF", "this user may load programs", ""};
  return {Verdict::kMissing, "BPF",
          "this user may not load programs; the off-CPU time and exits of processes need it",
          "run sluice-exporter as root or with CAP_BPF and CAP_PERFMON; nothing else needs it"};
}

Finding toolkit_check() {
  bool executable = false;
  const std::string nvcc = program_find("nvcc", &executable);
  if (executable) return {Verdict::kGood, "CUDA toolkit", nvcc, ""};
  return {Verdict::kMissing, "CUDA toolkit",
          "nvcc is not in PATH; only building CUDA programs needs it",
          "install the CUDA 13 toolkit and put its bin folder into PATH"};
}

// The notes come after the verdict, which people look for first.
void program_check(const DoctorOptions& options, std::vector<Finding>* out) {
  const ProgramFile program = program_locate(options.program);
  if (program.obstacle.exit_code != 0) {
    out->push_back({Verdict::kBroken, "program", program.obstacle.what, program.obstacle.fix});
    return;
  }
  ProgramReach reach = program_reach(program.path);
  const std::vector<std::string> first =
      options.soft ? std::vector<std::string>{soft_directory()} : std::vector<std::string>{};
  if (!reach.file.empty()) libraries_reach(&reach, first);
  if (options.soft) soft_reach(&reach, soft_directory());
  if (reach.hookable) out->push_back({Verdict::kGood, "program", reach.finding, ""});
  for (const Obstacle& obstacle : reach.obstacles) {
    out->push_back({Verdict::kBroken, "program", obstacle.what, obstacle.fix});
  }
  for (const std::string& note : reach.notes) {
    out->push_back({Verdict::kNote, "program", note, ""});
  }
  out->push_back({Verdict::kNote, "not looked at",
                  "what the program does when it runs: clearing LD_PRELOAD, dlopen with "
                  "RTLD_DEEPBIND, other programs that it starts",
                  ""});
}

const char* verdict_word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood:
      return "ok";
    case Verdict::kMissing:
      return "absent";
    case Verdict::kBroken:
      return "FAIL";
    case Verdict::kNote:
      break;
  }
  return "note";
}

}  // namespace

std::string findings_format(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) {
    std::string word = verdict_word(finding.verdict);
    word.resize(kWordWidth, ' ');
    std::string what = finding.what;
    what.resize(std::max(what.size(), kWhatWidth), ' ');
    out += word + what + " " + finding.detail + "\n";
    if (!finding.fix.empty()) out += "       fix: " + finding.fix + "\n";
  }
  return out;
}

bool findings_good(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.verdict == Verdict::kBroken; });
}

std::string findings_json(const std::vector<Finding>& findings) {
  JsonWriter json;
  json.object_begin();
  json.value("good", findings_good(findings));
  json.array_begin("findings");
  for (const Finding& finding : findings) {
    json.object_begin();
    json.value("verdict",
               finding.verdict == Verdict::kBroken ? "fail" : verdict_word(finding.verdict));
    json.value("what", finding.what);
    json.value("detail", finding.detail);
    json.value("fix", finding.fix);
    json.object_end();
  }
  json.array_end();
  json.object_end();
  return json.text();
}

int doctor_command(const DoctorOptions& options) {
  const std::string prefix = options.soft ? soft_directory() + "/" : "";
  std::vector<Finding> findings = {driver_check(prefix + "libcuda.so.1", options.soft)};
  devices_check(prefix + devices::kNvmlLibrary, &findings);
  findings.push_back(config_check());
  findings.push_back(broker_check(options.socket));
  findings.push_back(shim_check());
  findings.push_back(shim_policy_check(protocol::kShimPolicyPath));
  findings.push_back(bpf_check());
  findings.push_back(toolkit_check());
  if (!options.program.empty()) program_check(options, &findings);
  const std::string text = options.json ? findings_json(findings) : findings_format(findings);
  std::fputs(text.c_str(), stdout);
  return findings_good(findings) ? 0 : 1;
}

}  // namespace sluice::cli
