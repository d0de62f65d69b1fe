// getopt_long over the options of sluiced.
#include "broker/daemon/options.h"

#include <fcntl.h>
#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "broker/protocol/words.h"
#include "config/reader/config.h"

namespace sluice::daemon {
namespace {

constexpr std::int64_t kPrivateIdleExit_ns = 1'000'000'000;

constexpr char kHelp[] =
    "usage: sluiced [options]\n"
    "The broker of Sluice: admits jobs to GPUs and says who may use them when. Users talk to it "
    "with 'sluice'.\n"
    "\n"
    "  --config FILE     settings (default: /etc/sluice/sluice.toml if it exists, else built-in "
    "defaults)\n"
    "  --socket PATH     where to listen (default: the configuration's, /run/sluice/sluiced.sock)\n"
    "  --state DIR       remember the jobs in DIR (mode 0700) for a broker started anew (default: "
    "the "
    "configuration's, none)\n"
    "  --private         serve one user only, from a directory of mode 0700; end after the last "
    "tenant;\n"
    "                    nothing is remembered\n"
    "  --idle-exit TIME  end after this long with nothing to do, e.g. 30s or 5 (seconds); private "
    "brokers: 1s\n"
    "  --realtime        run before all ordinary programs (SCHED_FIFO; root, or LimitRTPRIO=1): a "
    "busy host\n"
    "                    does not make those wait who start or take turns\n"
    "  --ready-fd N      write 'ready', or why not, to descriptor N and close it\n"
    "  --log FILE        append log lines to FILE instead of writing them to standard error\n"
    "  --help, --version\n"
    "\n"
    "Signals: SIGHUP reads the configuration again (a file with a mistake changes nothing); new "
    "limits "
    "of classes and profiles\n"
    "hold for running jobs, too. SIGTERM ends. Programs that run go on and keep their memory quota "
    "and their share of GPU\n"
    "time by themselves. A broker that is started anew with the same --state takes them in again, "
    "also after a crash;\n"
    "without one it does not know them.\n";

bool fail(const char* what, const char* value, const char* fix) {
  std::fprintf(stderr, "sluice: %s '%s'; %s\n", what, value, fix);
  return false;
}

bool duration_option(const char* text, std::int64_t* out) {
  std::string value = text;
  if (value.find_first_not_of("0123456789") == std::string::npos) value += "s";
  const auto parsed = config::duration_parse(value);
  if (!parsed || *parsed <= 0)
    return fail("--idle-exit takes a time, not", text, "write for example 30s");
  *out = *parsed;
  return true;
}

bool descriptor_option(const char* text, int* out) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < 0 || value > 1 << 20 ||
      fcntl(static_cast<int>(value), F_GETFD) < 0) {
    return fail("--ready-fd takes the number of an open descriptor, not", text,
                "open it before starting sluiced");
  }
  *out = static_cast<int>(value);
  fcntl(*out, F_SETFD, FD_CLOEXEC);
  return true;
}

}  // namespace

OptionsOutcome options_parse(int argc, char** argv, Options* out) {
  static const option kOptions[] = {{"config", required_argument, nullptr, 'c'},
                                    {"socket", required_argument, nullptr, 's'},
                                    {"state", required_argument, nullptr, 'd'},
                                    {"private", no_argument, nullptr, 'p'},
                                    {"idle-exit", required_argument, nullptr, 'i'},
                                    {"ready-fd", required_argument, nullptr, 'r'},
                                    {"log", required_argument, nullptr, 'l'},
                                    {"realtime", no_argument, nullptr, 't'},
                                    {"help", no_argument, nullptr, 'h'},
                                    {"version", no_argument, nullptr, 'v'},
                                    {nullptr, 0, nullptr, 0}};
  optind = 1;
  for (;;) {
    const int choice = getopt_long(argc, argv, "", kOptions, nullptr);
    if (choice == -1) break;
    switch (choice) {
      case 'c':
        out->config_path = optarg;
        break;
      case 's':
        out->socket_path = optarg;
        break;
      case 'd':
        if (*optarg != '/') {
          fail("--state takes an absolute path, not", optarg, "write for example /var/lib/sluice");
          return OptionsOutcome::kWrong;
        }
        out->state_path = optarg;
        break;
      case 'p':
        out->is_private = true;
        break;
      case 't':
        out->realtime = true;
        break;
      case 'l':
        out->log_path = optarg;
        break;
      case 'i':
        if (!duration_option(optarg, &out->idle_exit_ns)) return OptionsOutcome::kWrong;
        break;
      case 'r':
        if (!descriptor_option(optarg, &out->ready_fd)) return OptionsOutcome::kWrong;
        break;
      case 'h':
        std::fputs(kHelp, stdout);
        return OptionsOutcome::kDone;
      case 'v':
        std::printf("sluiced %s (protocol %d)\n", SLUICE_VERSION, protocol::kVersion);
        return OptionsOutcome::kDone;
      default:  // getopt has said what
        std::fputs("sluice: see sluiced --help\n", stderr);
        return OptionsOutcome::kWrong;
    }
  }
  if (optind < argc) {
    fail("sluiced takes no argument like", argv[optind], "see sluiced --help");
    return OptionsOutcome::kWrong;
  }
  if (out->is_private && !out->state_path.empty()) {
    fail("a private broker remembers nothing; it takes no --state", out->state_path.c_str(),
         "leave --state or --private out");
    return OptionsOutcome::kWrong;
  }
  if (out->is_private && out->idle_exit_ns == 0) out->idle_exit_ns = kPrivateIdleExit_ns;
  return OptionsOutcome::kRun;
}

}  // namespace sluice::daemon
