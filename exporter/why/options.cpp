#include "exporter/why/options.h"

#include "config/reader/config.h"
#include "config/reader/keys.h"

namespace sluice::exporter {

const char* const kWhyUsage =
    "usage: sluice why [JOB] [--for 10s] [--json] [--no-bpf] [--socket PATH]\n"
    "\n"
    "Watches a job and says why its GPU had nothing to do: every moment is either busy or idle\n"
    "for exactly one cause. JOB is a number or a name of `sluice status`; without it, all\n"
    "shared jobs are watched. A job that waits in line, is suspended or has ended (the last\n"
    "hundred are remembered) is not watched: what keeps it, or how it ended, is said at once.\n"
    "\n"
    "  cpu       the program computed on the host: preparing data, launching\n"
    "  runqueue  it could run but had no CPU: other programs, or its cgroup's limit\n"
    "  disk      it waited for files\n"
    "  network   it waited for sockets, peers of a distributed job among them\n"
    "  lock      it waited for a lock whose owner did nothing that explains it\n"
    "  sync      it waited in the driver: copies, the end of kernels\n"
    "  gate      it waited for its lease: the GPU was another job's\n"
    "  memory    it waited for room in the GPU's memory\n"
    "  no-work   it slept, or waited for input\n"
    "\n"
    "A wait for another thread or process of the same job counts as what that one did.\n"
    "\n"
    "  --for TIME     how long to watch, such as 500ms, 10s or 1m (default 10s)\n"
    "  --json         figures for programs, in nanoseconds\n"
    "  --no-bpf       sample /proc even where BPF is permitted; coarser\n"
    "  --socket PATH  the broker's socket (else SLUICE_SOCKET, else the system's)\n"
    "\n"
    "Needs no privileges for one's own jobs; with those for BPF (root, or CAP_BPF and\n"
    "CAP_PERFMON) what threads did is exact, without them it is sampled. Exit codes: 0 = told,\n"
    "1 = no broker (waited for 2 s), no such job or another user's, 2 = called wrongly.\n"
    "\n"
    "examples:\n"
    "  sluice why --for 2s\n"
    "  sluice why train --json\n";

std::optional<WhyOptions> why_options_parse(const std::vector<std::string>& arguments,
                                            std::string* error) {
  WhyOptions out;
  const auto value = [&](std::size_t* i, const std::string& name) -> std::optional<std::string> {
    const std::string& argument = arguments[*i];
    if (argument.size() > name.size() && argument[name.size()] == '=')
      return argument.substr(name.size() + 1);
    if (*i + 1 < arguments.size()) return arguments[++*i];
    *error = name + " needs a value";
    return std::nullopt;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::string name = argument.substr(0, argument.find('='));
    if (name == "--for") {
      const auto text = value(&i, name);
      if (!text) return std::nullopt;
      const auto ns = config::duration_parse(*text);
      if (!ns || *ns <= 0) {
        *error = "'" + *text + "' is no time to watch for; write it like 500ms, 10s or 1m";
        return std::nullopt;
      }
      out.seconds_ns = static_cast<std::uint64_t>(*ns);
    } else if (name == "--socket") {
      out.socket = value(&i, name);
      if (!out.socket) return std::nullopt;
    } else if (argument == "--json") {
      out.json = true;
    } else if (argument == "--no-bpf") {
      out.bpf = false;
    } else if (argument == "--help" || argument == "-h") {
      out.help = true;
    } else if (argument.empty() || argument[0] == '-' || !out.tenant.empty()) {
      *error = "unknown argument '" + argument + "'" +
               config::nearest_question(argument,
                                        {"--for", "--json", "--no-bpf", "--socket", "--help"}) +
               "; sluice why --help lists the known ones";
      return std::nullopt;
    } else {
      out.tenant = argument;
    }
  }
  return out;
}

}  // namespace sluice::exporter
