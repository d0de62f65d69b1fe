// The settings of a Sluice installation, read from sluice.toml (toml++) and checked. Every mistake
// is reported with file, line, column and, for an unknown key, the nearest known one; a file with a
// mistake is refused whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sluice::config {

/// Where and what: "sluice.toml:12:9: unknown key 'quantun'; did you mean 'quantum'?"
struct Error {
  std::string file;
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  std::string what;
  std::string source = {};  // the line as it stands in the file; empty = not known
  std::string text() const;
  /// The text, and below it the line with a caret under the column. Ends with a newline.
  std::string shown() const;
};

/// A word of the file, and where it stands.
struct Place {
  std::string text;
  std::uint32_t line = 0;
  std::uint32_t column = 0;
};

/// Where a key has its value from; a key without one has its default.
struct Origin {
  std::string table;  // "scheduler", "class.batch", "profile.staff"
  std::string key;
  Place value;
  std::vector<Place> items;  // of a list
};

template <class T>
struct [[nodiscard]] Result {
  std::variant<T, std::vector<Error>> value;
  bool ok() const { return value.index() == 0; }
  const T& operator*() const { return std::get<0>(value); }
  const std::vector<Error>& errors() const { return std::get<1>(value); }
};

/// One of the four classes (inference, debug, batch, exclusive): table [class.NAME].
struct ClassSettings {
  std::int64_t window_ns = 20'000'000;  // class inference: 0
  std::uint32_t sm_percent = 100;
  std::string sm = "asked";             // asked | guaranteed | weight
  std::string sm_mode = "best-effort";  // fixed | equal | best-effort
  std::string placement = "spread";     // spread | pack
  std::uint64_t memory_max_bytes = 0;   // 0 = a quarter of the smallest GPU
  // What happens to a job that has used no GPU for so long; 0 = nothing.
  std::int64_t idle_ns = 0;          // it is told,
  std::int64_t idle_release_ns = 0;  // leaves its GPUs to others,
  std::int64_t idle_end_ns = 0;      // and is ended
  bool operator==(const ClassSettings&) const = default;
};

/// What a user, group or cgroup gets: table [profile.NAME]. The first profile that names the user,
/// one of the user's groups or the cgroup of the asking process is taken; the one called "default"
/// names nobody, stands last, and applies to everyone else.
struct ProfileSettings {
  std::string name;
  std::vector<std::string> users;
  std::vector<std::string> groups;
  std::vector<std::string> cgroups;    // by path; what is below one belongs to it
  std::vector<std::string> classes;    // allowed classes; empty = all
  std::uint64_t memory_max_bytes = 0;  // most a tenant may ask per GPU; 0 = no limit
  std::uint32_t sm_percent_max = 100;
  std::uint32_t tenants_max = 64;
  // What is admitted at a time, each user's and everybody's who has the profile; 0 = no limit.
  std::uint32_t running_max = 0;
  std::uint64_t user_memory_max_bytes = 0;
  std::uint32_t all_running_max = 0;
  std::uint64_t all_memory_max_bytes = 0;
  std::optional<bool> swap;  // whether its tenants' memory may be moved; unset = as [memory] says
  bool operator==(const ProfileSettings&) const = default;
};

struct Config {
  std::string path;  // empty = built-in defaults
  // [broker]
  std::string socket = "/run/sluice/sluiced.sock";
  std::string log_level = "info";
  std::string state;    // directory of the journal; empty = none
  std::string contact;  // whom users ask; empty = nobody is named
  // [scheduler]
  std::string policy = "fair";  // fair | round-robin | fifo
  std::int64_t quantum_ns = 10'000'000;
  std::int64_t drain_timeout_ns = 1'000'000'000;
  std::int64_t idle_grace_ns = 500'000;
  std::int64_t inference_window_ns = 1'000'000;
  std::int64_t inference_burst_ns = 100'000'000;
  std::string runaway = "end";  // report | end
  std::int64_t runaway_after_ns = 4'000'000'000;
  std::string exclusive = "wait";  // wait | suspend | move
  std::string rank_loss = "keep";  // keep | end
  // [memory]
  double oversell = 1.0;
  std::uint64_t reserve_bytes = 0;  // of every GPU, kept out of promises
  std::string swap = "off";         // off | on
  std::int64_t swap_quantum_ns = 1'000'000'000;
  std::uint64_t swap_host_max_bytes = 0;  // per user; 0 = half of the machine's memory
  // [class.*], [profile.*]
  std::map<std::string, ClassSettings> classes;  // all four present, defaults filled in
  std::vector<ProfileSettings> profiles;         // in the order of the file
  // [exporter]
  std::string exporter_listen = "127.0.0.1:9843";
  std::uint32_t exporter_tenants_max =
      200;  // tenants with series of their own; the rest are summed as "other"
  std::vector<std::string> exporter_hosts;  // further names that the exporter answers to
  std::string exporter_user;                // may look at why tenants are idle; empty = nobody's
  // [bypass]: what sluice-watch does about programs that use a GPU without Sluice
  std::string bypass_policy = "report";  // count | report | stop
  std::int64_t bypass_grace_ns = 10'000'000'000;
  std::vector<std::string> bypass_exempt_users{"root"};
  std::vector<std::string> bypass_exempt_paths;
  std::string bypass_driver;  // the driver library; empty = where the loader finds it
  std::string bypass_figures = "/run/sluice-watch/figures";
  bool operator==(const Config&) const = default;
};

/// Defaults that suit a machine nobody configured.
Config config_default();
/// `origins`, where given, receives what the file has set.
Result<Config> config_read(const std::string& path, std::vector<Origin>* origins = nullptr);
Result<Config> config_parse(std::string_view text, const std::string& path,
                            std::vector<Origin>* origins = nullptr);
/// As config_read, for a program that acts on it for others: refuses a file that belongs neither to
/// root nor to this process's user, or that another user can write to.
Result<Config> config_read_trusted(const std::string& path, std::vector<Origin>* origins = nullptr);

/// Users and groups that the file names and the machine does not have. Asks the account databases.
std::vector<Error> accounts_unknown(const std::vector<Origin>& origins, const std::string& path);

/// What differs between two configurations, a line each: `[scheduler] quantum: "10ms" -> "20ms"`.
/// Keys that are read at start only, or all others.
std::vector<std::string> config_changes(const Config& before, const Config& after, bool at_start);

/// The configuration of the machine, where there is one.
inline constexpr char kSystemConfig[] = "/etc/sluice/sluice.toml";
/// Whether a path leads to it.
bool config_is_system(const std::string& path);
/// Where a service with this configuration looks for its broker: at the place of the machine's
/// broker, which leads there whatever the file says now; with another file, where that one says.
std::string client_socket(const Config& config);

/// Longest configuration file that is read; a longer one is refused before it is parsed.
inline constexpr std::size_t kFileBytesMax = 256 * 1024;

/// The whole of a configuration as TOML text with every key written out; config_parse gives the
/// same Config back.
std::string config_format(const Config& config);
/// The same with a comment behind each value: the line that set it, or "default".
std::string config_format_origins(const Config& config, const std::vector<Origin>& origins);
/// The table of keys as Markdown: the source of docs/config.md.
std::string config_describe();

/// "127.0.0.1:9843", "[::1]:9843", "localhost:9843": an address, or a name that leads to some, and
/// a port.
struct ListenAddress {
  std::string host;  // without brackets
  std::uint16_t port = 0;
};
std::optional<ListenAddress> listen_parse(std::string_view text);
/// As it is written, brackets included.
std::string listen_format(const ListenAddress& address);

/// "8GiB", "512 MiB", "64KiB", "1.5GiB", "2GB", "0" -> bytes; nothing for anything else
/// (negative, overflow, junk). A fraction of a byte is dropped; what is above zero never becomes
/// zero.
std::optional<std::uint64_t> size_parse(std::string_view text);
/// "10ms", "2s", "500us", "1h30m", "250ns" -> nanoseconds. Units d, h, m, s, ms, us, ns, the larger
/// first; a unit is always needed.
std::optional<std::int64_t> duration_parse(std::string_view text);
/// 8589934592 -> "8 GiB", 1610612736 -> "1.5 GiB".
std::string size_format(std::uint64_t bytes);
std::string duration_format(std::int64_t ns);
/// A time of the epoch as people here write it: "18:00", or "2026-11-28 08:00" where that is of
/// another day than now; 0 is empty.
std::string time_format(std::int64_t epoch_s, std::int64_t now_s);
std::string time_format(std::int64_t epoch_s);

}  // namespace sluice::config
