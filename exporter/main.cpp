// sluice-exporter: wires settings, broker, kernel observers and the web server of the Prometheus
// client together.
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "broker/protocol/wire.h"
#include "config/reader/config.h"
#include "exporter/clock.h"
#include "exporter/collector.h"
#include "exporter/families.h"
#include "exporter/options.h"
#include "exporter/privileges.h"
#include "exporter/wall.h"
#include "exporter/web/host_name.h"
#include "exporter/web/web.h"

namespace sluice::exporter {
namespace {

// What a service manager and a shell both understand: 1 = it went wrong, 2 = it was called wrongly.
constexpr int kFailed = 1;
constexpr int kUsageError = 2;

struct Settings {
  std::string socket;
  config::ListenAddress listen;
  std::vector<std::string> hosts;
  std::uint32_t tenants_max = 0;
  std::string bypass_figures;
};

void say(const std::string& line) { fprintf(stderr, "sluice-exporter: %s\n", line.c_str()); }

std::optional<config::Config> config_load(const Options& options) {
  if (!options.config && access(config::kSystemConfig, F_OK) != 0) return config::config_default();
  auto result = config::config_read(options.config.value_or(config::kSystemConfig));
  if (result.ok()) return *result;
  for (const config::Error& error : result.errors()) say(error.text());
  return std::nullopt;
}

/// Command line before environment before configuration.
std::optional<Settings> settings_make(const Options& options) {
  const auto config = config_load(options);
  if (!config) return std::nullopt;
  Settings out;
  const char* variable = getenv(protocol::kSocketVariable);
  out.socket = options.socket                             ? *options.socket
               : variable != nullptr && *variable != '\0' ? std::string(variable)
                                                          : config::client_socket(*config);
  out.tenants_max = config->exporter_tenants_max;
  out.bypass_figures = config->bypass_figures;
  const std::string listen = options.listen.value_or(config->exporter_listen);
  const auto address = config::listen_parse(listen);
  if (!address) {
    say("cannot listen on '" + listen +
        "': not an address or a name and a port; write it like 127.0.0.1:9843 or [::1]:9843");
    return std::nullopt;
  }
  out.listen = *address;
  out.hosts = config->exporter_hosts;
  out.hosts.push_back(address->host);
  out.hosts.push_back(machine_name());
  return out;
}

/// Whether the observers can be read, which older kernels grant only to who may load them.
bool watch_answers(Watch& watch) {
  WatchFigures figures;
  figures.exits.fill(UINT64_MAX);
  watch.figures_read(figures);
  return figures.exits[0] != UINT64_MAX;
}

/// The same of those for threads: this process is watched for a moment.
bool threads_answer(ThreadWatch& threads) {
  const auto self = static_cast<std::uint32_t>(getpid());
  threads.processes_set({self});
  const bool good = threads.root_of(self) == self;
  threads.processes_set({});
  return good;
}

/// What must outlive the loading of the observers.
std::vector<int> capabilities_needed(const Settings& settings, Watch* watch, ThreadWatch* threads) {
  constexpr int kPortsOfRoot = 1024;
  std::vector<int> out;
  if (settings.listen.port > 0 && settings.listen.port < kPortsOfRoot)
    out.push_back(CAP_NET_BIND_SERVICE);
  const bool free = works_without_capabilities([=] {
    return (watch == nullptr || watch_answers(*watch)) &&
           (threads == nullptr || threads_answer(*threads));
  });
  if (!free) out.push_back(CAP_BPF);
  return out;
}

/// Null if what it does not need cannot be given up.
std::shared_ptr<Collector> collector_make(const Options& options, const Settings& settings) {
  CollectorParts parts;
  parts.source = std::make_unique<BrokerSource>(settings.socket);
  if (options.bpf) {
    parts.watch = watch_open(&parts.watch_reason);
    if (parts.watch == nullptr) say("going on without kernel observers: " + parts.watch_reason);
  } else {
    parts.watch_reason = "switched off with --no-bpf";
  }
  IdleSetup idle;
  idle.reason = parts.watch_reason;
  if (parts.watch != nullptr && !options.once) idle.watch = thread_watch_bpf(&idle.reason);
  // Before NVML and the web server, whose threads would keep what they were born with.
  std::string error;
  if (!privileges_drop(options.user.value_or(""),
                       capabilities_needed(settings, parts.watch.get(), idle.watch.get()),
                       &error)) {
    say(error);
    return nullptr;
  }
  parts.devices = Devices::open();
  parts.idle_reason = "asked once: causes are found by watching for a while";
  if (!options.once) {
    idle.source = std::make_unique<BrokerActivity>(settings.socket);
    idle.tenants_max = settings.tenants_max;
    parts.idle = std::make_unique<IdleThread>(std::move(idle));
  }
  parts.tenants_max = settings.tenants_max;
  parts.clock_ns = monotonic_ns;
  parts.bypass_figures = settings.bypass_figures;
  parts.say = say;
  return std::make_shared<Collector>(std::move(parts));
}

/// Serves until SIGINT or SIGTERM, which every thread blocks and this one waits for.
int serve(const Settings& settings, const std::shared_ptr<Collector>& collector) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::string error;
  WebPages pages;
  pages["/metrics"] = [collector] {
    return WebPage{"text/plain; version=0.0.4; charset=utf-8", metrics_text(collector->Collect())};
  };
  pages["/snapshot.json"] = [collector] {
    return WebPage{"application/json; charset=utf-8", collector->wall()};
  };
  wall_pages_add(pages);
  auto listening = listen_open(settings.listen, &error);
  const auto web = listening ? Web::start(std::move(listening->sockets), settings.hosts,
                                          std::move(pages), &error)
                             : nullptr;
  if (web == nullptr) {
    say(error);
    return kFailed;
  }
  say("serving " + listening->url + " from the broker at " + settings.socket);
  constexpr timespec kRefreshEvery{1, 0};
  while (sigtimedwait(&ends, nullptr, &kRefreshEvery) < 0) collector->refresh();
  return EXIT_SUCCESS;
}

int run(const std::vector<std::string>& arguments) {
  std::string error;
  const auto options = options_parse(arguments, &error);
  if (!options) {
    say(error);
    return kUsageError;
  }
  if (options->help || options->version || options->describe) {
    const std::string version = std::string("sluice-exporter ") + SLUICE_VERSION + "\n";
    fputs(options->help      ? kUsage
          : options->version ? version.c_str()
                             : families_describe().c_str(),
          stdout);
    return EXIT_SUCCESS;
  }
  const auto settings = settings_make(*options);
  if (!settings) return kUsageError;
  const auto collector = collector_make(*options, *settings);
  if (collector == nullptr) return kFailed;
  if (!options->once) return serve(*settings, collector);
  const std::string text = metrics_text(collector->Collect());
  fputs(text.c_str(), stdout);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace sluice::exporter

int main(int argc, char** argv) {
  return sluice::exporter::run(std::vector<std::string>(argv + 1, argv + argc));
}
