// The command line of sluice-exporter.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::exporter {

struct Options {
  std::optional<std::string> listen;
  std::optional<std::string> socket;
  std::optional<std::string> config;
  std::optional<std::string> user;
  bool bpf = true;
  bool once = false;
  bool describe = false;
  bool help = false;
  bool version = false;
};

/// On a mistake nothing, and `error` says what it was.
std::optional<Options> options_parse(const std::vector<std::string>& arguments, std::string* error);

inline constexpr char kUsage[] =
    "usage: sluice-exporter [--listen ADDR:PORT] [--socket PATH] [--config FILE] [--user "
    "NAME]\n"
    "                       [--no-bpf] [--once]\n"
    "\n"
    "Serves the broker's figures to Prometheus on http://ADDR:PORT/metrics, and to people as a "
    "page\n"
    "on http://ADDR:PORT/ (its data: /snapshot.json).\n"
    "\n"
    "  --listen ADDR:PORT  where to serve: an address such as 127.0.0.1 or [::1], or a name; "
    "default "
    "from the\n"
    "                      configuration, else 127.0.0.1:9843; port 0 takes a free one\n"
    "  --socket PATH       the broker's socket; default $SLUICE_SOCKET, else, with another "
    "configuration than\n"
    "                      the system's, the one in it, else /run/sluice/sluiced.sock\n"
    "  --config FILE       the configuration; default /etc/sluice/sluice.toml where it exists\n"
    "  --user NAME         started by root: go on as this user, once the kernel observers are "
    "loaded; in any "
    "case\n"
    "                      it then has no more rights than its user (but for ports below 1024, if "
    "it "
    "listens there)\n"
    "  --no-bpf            do not load the kernel observers\n"
    "  --once              print the metrics once and exit\n"
    "  --describe          print the list of all metrics as Markdown and exit\n"
    "  --help, --version   print this, or the version, and exit\n"
    "\n"
    "exit codes: 0, 1 it went wrong, 2 wrong usage or configuration\n"
    "\n"
    "examples:\n"
    "  sluice-exporter --once | grep sluice_up\n"
    "  sluice-exporter --listen 127.0.0.1:9843 & sleep 1; curl -s http://127.0.0.1:9843/metrics\n";

}  // namespace sluice::exporter
