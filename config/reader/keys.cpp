// The table itself, and what each type of field accepts.
#include "config/reader/keys.h"

#include <array>
#include <charconv>

namespace sluice::config {
namespace {

constexpr std::int64_t kUs = 1'000;
constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kYear = 365 * 24 * 3600 * kSecond;
constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr std::uint64_t kTiB = 1ULL << 40;

constexpr std::array<std::string_view, 4> kClasses{"inference", "debug", "batch", "exclusive"};
constexpr std::array<std::string_view, 3> kSmModes{"fixed", "equal", "best-effort"};
constexpr std::array<std::string_view, 3> kSms{"asked", "guaranteed", "weight"};
constexpr std::array<std::string_view, 2> kPlacements{"spread", "pack"};
constexpr std::array<std::string_view, 4> kLogLevels{"error", "warning", "info", "debug"};
constexpr std::array<std::string_view, 3> kPolicies{"fair", "round-robin", "fifo"};
constexpr std::array<std::string_view, 2> kRunaways{"report", "end"};
constexpr std::array<std::string_view, 3> kExclusives{"wait", "suspend", "move"};
constexpr std::array<std::string_view, 2> kRankLosses{"keep", "end"};
constexpr std::array<std::string_view, 2> kSwaps{"off", "on"};
constexpr std::array<std::string_view, 3> kBypasses{"count", "report", "stop"};

const char* path_check(std::string_view text) {
  const bool good = text.size() > 1 && text.front() == '/' && text.find('\0') == text.npos;
  return good ? nullptr : "an absolute path";
}

const char* state_check(std::string_view text) {
  return text.empty() || path_check(text) == nullptr ? nullptr : "an absolute path, or \"\"";
}

// It has to fit into a refusal beside what is allowed.
const char* contact_check(std::string_view text) {
  bool good = text.size() <= 60 && (text.empty() || text.front() != ' ');
  for (const char c : text) good = good && static_cast<unsigned char>(c) >= ' ' && c != '\x7f';
  return good ? nullptr : "one line of at most 60 bytes, such as \"gpu-help@example.edu\"";
}

// sockaddr_un::sun_path holds 108 bytes with the NUL.
const char* socket_check(std::string_view text) {
  if (path_check(text) != nullptr) return "an absolute path";
  return text.size() < 108 ? nullptr : "an absolute path of at most 107 bytes";
}

const char* listen_check(std::string_view text) {
  const auto address = listen_parse(text);
  return address && address->port != 0
             ? nullptr
             : "an address or a name and a port, such as \"127.0.0.1:9843\" or \"[::1]:9843\"";
}

// What useradd accepts and directory services add: no blanks, no ':' (the separator of passwd),
// nothing unprintable.
const char* account_check(std::string_view text) {
  bool good = !text.empty() && text.size() <= 255 && text.front() != '-';
  for (const char c : text) good = good && c > ' ' && c != ':' && c != ',' && c != '\x7f';
  return good ? nullptr : "a user or group name";
}

// RFC 1123 names. An address needs no entry: requests by address are always answered.
const char* host_name_check(std::string_view text) {
  bool good = !text.empty() && text.size() <= 253;
  for (const char c : text) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '.');
  }
  return good ? nullptr : "a host name without a port, such as \"gpu1.example\"";
}

const char* account_or_none_check(std::string_view text) {
  return text.empty() || account_check(text) == nullptr ? nullptr : "a user's name, or \"\"";
}

// As /proc/PID/cgroup writes it. The root would be everybody.
const char* cgroup_check(std::string_view text) {
  bool good = text.size() > 1 && text.size() <= 1023 && text.front() == '/' && text.back() != '/';
  for (const char c : text) good = good && c >= ' ' && c != '\x7f';
  good =
      good && text.find("//") == text.npos && (std::string(text) + "/").find("/../") == text.npos;
  return good ? nullptr : "a cgroup's path, such as \"/user.slice\"";
}

#define SLUICE_AT(member)         \
  +[](const Target& t) -> auto& { \
    return t.member;              \
  }

const Key kBroker[] = {
    {"socket", TextField{SLUICE_AT(config->socket), socket_check},
     "Where the broker listens. Its directory must belong to root. Clients that are told no socket "
     "look at /run/sluice/sluiced.sock; a broker with another path in /etc/sluice/sluice.toml "
     "leaves a link to it there when it starts.",
     true},
    {"log_level", WordField{SLUICE_AT(config->log_level), kLogLevels},
     "The least important message that is logged."},
    {"contact", TextField{SLUICE_AT(config->contact), contact_check},
     "Whom users are to ask: an address, a number or a page, named where a request is refused for "
     "what a profile allows."},
    {"state", TextField{SLUICE_AT(config->state), state_check},
     "The directory in which the broker remembers its jobs, so that one that is started anew knows "
     "them; it must belong to root alone (mode 0700) and is made where it is missing. \"\" means "
     "that nothing is remembered.",
     true},
};
const Key kScheduler[] = {
    {"policy", WordField{SLUICE_AT(config->policy), kPolicies},
     "Who goes first among those who want the GPU, after class inference: fair goes by sm_percent "
     "and measured time; round-robin gives everybody one turn of a quantum, whatever the "
     "percentages; fifo serves whoever came first until it is idle, for twenty quanta at most. See "
     "docs/scheduling.md."},
    {"quantum", DurationField{SLUICE_AT(config->quantum_ns), 1 * kMs, 10 * kSecond},
     "How long a tenant keeps a contended GPU before the next has its turn."},
    {"drain_timeout", DurationField{SLUICE_AT(config->drain_timeout_ns), 10 * kMs, 3600 * kSecond},
     "How long a tenant may take to finish what it has on the GPU once its turn is over; after "
     "that it is a runaway."},
    {"idle_grace", DurationField{SLUICE_AT(config->idle_grace_ns), 0, 1 * kSecond},
     "How long a tenant may leave a contended GPU idle before it gives up its turn."},
    {"inference_window",
     DurationField{SLUICE_AT(config->inference_window_ns), 100 * kUs, 1 * kSecond},
     "GPU time anybody may have in flight while a tenant of class inference shares the GPU. It "
     "bounds how long a request "
     "waits."},
    {"inference_burst", DurationField{SLUICE_AT(config->inference_burst_ns), 1 * kMs, 60 * kSecond},
     "GPU time by which class inference may exceed its guaranteed share before it queues by "
     "percentages like the others; several times what a request takes. It also bounds how much "
     "later "
     "than promised the others get theirs."},
    {"runaway", WordField{SLUICE_AT(config->runaway), kRunaways},
     "What happens to a runaway. end: its processes are ended once it has kept others waiting for "
     "runaway_after, and their user is told why. report: it is named and charged, and nothing ends "
     "it; "
     "the others share the GPU with it."},
    {"runaway_after",
     DurationField{SLUICE_AT(config->runaway_after_ns), 10 * kMs, 24 * 3600 * kSecond},
     "How long others may have wanted the GPU while a tenant did not finish, before it is ended. "
     "Time in which nobody else wants the GPU does not count. At least drain_timeout: a shorter "
     "one counts as that."},
    {"exclusive", WordField{SLUICE_AT(config->exclusive), kExclusives},
     "How a job of class exclusive comes to its GPUs. wait: once nobody else is on them. suspend: "
     "jobs whose memory can be moved are put away for as long as it lasts and come back "
     "afterwards; for the others it waits. move: jobs go on, on another GPU that has room for "
     "them; those for which there is none are put away."},
    {"rank_loss", WordField{SLUICE_AT(config->rank_loss), kRankLosses},
     "What the death of a process of a job of class exclusive, by a signal or a crash, means to "
     "its "
     "others. keep: they go on, and the job keeps its GPUs. end: they are killed."},
};
const Key kMemory[] = {
    {"oversell", RatioField{SLUICE_AT(config->oversell), 1.0, 16.0},
     "How far the sum of the quotas (memory_max) may exceed a GPU's memory. What is promised is "
     "never promised twice: above 1.0 matters to jobs whose memory can be moved (swap)."},
    {"reserve", SizeField{SLUICE_AT(config->reserve_bytes), kMiB, kTiB, "nothing is kept back"},
     "Memory of every GPU that is promised to nobody.", true},
    {"swap", WordField{SLUICE_AT(config->swap), kSwaps},
     "Whose memory may be moved to the host when a GPU is full. off: that of jobs that ask for it "
     "(sluice run --swap). on: everybody's. Memory that can be moved cannot be shared with other "
     "processes (CUDA IPC). Read when a job is admitted."},
    {"swap_quantum", DurationField{SLUICE_AT(config->swap_quantum_ns), 10 * kMs, 3600 * kSecond},
     "How long a job that works keeps its memory on the GPU before it is moved out for another "
     "that wants in. Idle jobs are moved at any time."},
    {"swap_host_max",
     SizeField{SLUICE_AT(config->swap_host_max_bytes), kMiB, 64 * kTiB, "half of the machine's"},
     "Host memory that all jobs of one user together may take for what is moved out."},
};
const Key kClass[] = {
    {"window", DurationField{SLUICE_AT(tenant_class->window_ns), 0, 10 * kSecond},
     "GPU time a tenant may have in flight while others are admitted to the GPU: it is about how "
     "long the next one waits after the end of a turn. A tenant that is alone there may have half "
     "of `drain_timeout`. \"0s\" means no limit, and is the default of class inference."},
    {"sm_percent", IntegerField{SLUICE_AT(tenant_class->sm_percent), 1, 100},
     "Per cent of the GPU's time that a tenant gets when others want it too, unless it asks for "
     "another."},
    {"sm", WordField{SLUICE_AT(tenant_class->sm), kSms},
     "What that percentage is. guaranteed: the tenant gets it whenever it wants it; the guarantees "
     "on a GPU add up to 100 at most, and a tenant that would pass that waits (reason Share). "
     "weight: its part, against other weights, of the time that the guarantees leave; it never "
     "waits for a share. asked: guaranteed where the tenant asks for a percentage (sluice run "
     "--sm), and a weight where it has the class's."},
    {"sm_mode", WordField{SLUICE_AT(tenant_class->sm_mode), kSmModes},
     "fixed: the share is also a limit; equal: every job that runs gets the same, which is never "
     "guaranteed; best-effort: free time goes to the jobs that want it."},
    {"placement", WordField{SLUICE_AT(tenant_class->placement), kPlacements},
     "Which of the GPUs that have room a tenant with one GPU gets. spread: the one that guarantees "
     "least, then the one that was least busy in the last seconds, then the one with least "
     "weights, "
     "then the one with most room. pack: the one with least room, so that large tenants keep "
     "finding some. Tenants with several GPUs, and those that own whole GPUs, are always packed."},
    {"memory_max",
     SizeField{SLUICE_AT(tenant_class->memory_max_bytes), kMiB, kTiB,
               "a quarter of the smallest GPU"},
     "Memory per GPU of a tenant that does not ask for any."},
    {"idle", DurationField{SLUICE_AT(tenant_class->idle_ns), 0, kYear},
     "How long a tenant may use no GPU, and want none, before its programs are told on their "
     "stderr. \"0s\" means never. Class exclusive is not looked at."},
    {"idle_release", DurationField{SLUICE_AT(tenant_class->idle_release_ns), 0, kYear},
     "How long until its GPU memory is moved to the host and all that it was promised is free for "
     "others. It comes back, through the queue, when it wants its GPU. Only where its memory may "
     "be moved (swap); \"0s\" means never."},
    {"idle_end", DurationField{SLUICE_AT(tenant_class->idle_end_ns), 0, kYear},
     "How long until its processes get SIGTERM, a second after they are told. \"0s\" means never."},
};
const Key kProfile[] = {
    {"users", ListField{SLUICE_AT(profile->users), account_check, {}},
     "The users who get this profile."},
    {"groups", ListField{SLUICE_AT(profile->groups), account_check, {}},
     "The groups whose members get this profile."},
    {"cgroups", ListField{SLUICE_AT(profile->cgroups), cgroup_check, {}},
     "The cgroups (version 2, by path) whose processes get this profile, those below included."},
    {"classes", ListField{SLUICE_AT(profile->classes), nullptr, kClasses},
     "The classes they may use; an empty list means all. A job that names none is of class batch "
     "where "
     "that is allowed, else of the first in the list."},
    {"memory_max", SizeField{SLUICE_AT(profile->memory_max_bytes), kMiB, kTiB, "no limit"},
     "The most memory per GPU that one tenant may ask for."},
    {"sm_percent_max", IntegerField{SLUICE_AT(profile->sm_percent_max), 1, 100},
     "The largest share that one tenant may ask for."},
    {"tenants_max", IntegerField{SLUICE_AT(profile->tenants_max), 1, 4096},
     "How many tenants a user may have at a time, queued ones included; more are refused."},
    {"running_max", IntegerField{SLUICE_AT(profile->running_max), 0, 4096},
     "How many tenants of one user run at a time; more wait. 0 means no limit."},
    {"user_memory_max",
     SizeField{SLUICE_AT(profile->user_memory_max_bytes), kMiB, 64 * kTiB, "no limit"},
     "GPU memory (quotas, once for each GPU) that the running tenants of one user have together; "
     "more waits."},
    {"all_running_max", IntegerField{SLUICE_AT(profile->all_running_max), 0, 4096},
     "How many tenants with this profile run at a time, all its users together; more wait. 0 means "
     "no limit."},
    {"all_memory_max",
     SizeField{SLUICE_AT(profile->all_memory_max_bytes), kMiB, 64 * kTiB, "no limit"},
     "GPU memory that the running tenants with this profile have together, all its users'; more "
     "waits."},
    {"swap", SwitchField{SLUICE_AT(profile->swap), "as [memory] says"},
     "true: the memory of all their jobs may be moved to the host; false: that of none, and sluice "
     "run --swap is refused. Left out, [memory] decides."},
};
const Key kExporter[] = {
    {"listen", TextField{SLUICE_AT(config->exporter_listen), listen_check},
     "Where sluice-exporter serves /metrics. Keep it on the loopback address unless a firewall "
     "guards the port."},
    {"hosts", ListField{SLUICE_AT(config->exporter_hosts), host_name_check, {}},
     "Names under which sluice-exporter answers beside addresses, localhost and the machine's own "
     "name. A request by another name gets status 421, so that a web page of another site cannot "
     "read the figures through a browser here."},
    {"tenants_max", IntegerField{SLUICE_AT(config->exporter_tenants_max), 1, 4096},
     "How many tenants have series of their own; the others are summed under the label \"other\"."},
    {"user", TextField{SLUICE_AT(config->exporter_user), account_or_none_check},
     "The user as whom sluice-exporter runs: the broker lets it read, as root and each tenant's "
     "own "
     "user may, what the programs tell of their idle time. A name that is no account of the "
     "machine "
     "is said, and lets nobody look. Empty: nobody besides."},
};
const Key kBypass[] = {
    {"policy", WordField{SLUICE_AT(config->bypass_policy), kBypasses},
     "What sluice-watch does about a process that uses a GPU and is not Sluice's: \"count\" it, "
     "\"report\" it in a line of its log as well, or \"stop\" it after that. Stopping needs root."},
    {"grace", DurationField{SLUICE_AT(config->bypass_grace_ns), 0, 3600 * kSecond},
     "How long a process may go on after it was found (3 s after it was first seen), before it is "
     "stopped. It is the user's: what its processes use, at once or one after the other, counts "
     "together, over ten times the grace and 3 s. Once that is the grace and 3 s, each further one "
     "is stopped a second after it was seen."},
    {"exempt_users", ListField{SLUICE_AT(config->bypass_exempt_users), account_check, {}},
     "Users whose processes are only counted."},
    {"exempt_paths", ListField{SLUICE_AT(config->bypass_exempt_paths), path_check, {}},
     "Programs, or folders of programs: their processes are only counted. What counts is the file, "
     "not what a process calls it: it must be there as sluice-watch sees the file system, the file "
     "and all folders above must be root's or sluice-watch's user's and not writable by others, "
     "and the process must be in sluice-watch's user namespace."},
    {"driver", TextField{SLUICE_AT(config->bypass_driver), state_check},
     "The driver library (libcuda.so.1) whose calls are watched. Empty: the one that the loader "
     "finds."},
    {"figures", TextField{SLUICE_AT(config->bypass_figures), path_check},
     "Where sluice-watch writes its counts, and sluice-exporter reads them.", false,
     "sluice-watch sluice-exporter"},
};
#undef SLUICE_AT

const Table kTables[] = {
    {"broker", "The daemon itself.", kBroker},
    {"scheduler", "Who may use a GPU when.", kScheduler},
    {"memory", "What may be promised.", kMemory},
    {"class.*",
     "Defaults of a class: [class.inference], [class.debug], [class.batch]. The class exclusive "
     "owns whole GPUs and has "
     "none of these settings.",
     kClass},
    {"profile.*",
     "What users and groups may have: [profile.NAME]. The first profile in the file that names the "
     "user or one of the "
     "user's groups is taken. [profile.default] names nobody, stands last and applies to everybody "
     "else; without it the "
     "built-in limits do.",
     kProfile},
    {"exporter", "The Prometheus exporter.", kExporter, "sluice-exporter"},
    {"bypass", "Programs that use a GPU without Sluice, and sluice-watch, which finds them.",
     kBypass, "sluice-watch"},
};

// ---- exact text of a value: what the writer prints and the documentation quotes

std::string size_exact(std::uint64_t bytes) {
  std::string text = size_format(bytes);
  if (const auto blank = text.find(' '); blank != text.npos) text.erase(blank, 1);
  return size_parse(text) == bytes ? text : std::to_string(bytes) + "B";
}

std::string duration_exact(std::int64_t ns) {
  if (ns == 0) return "0s";
  constexpr std::array<std::pair<const char*, std::int64_t>, 6> kUnits{{{"h", 3600 * kSecond},
                                                                        {"m", 60 * kSecond},
                                                                        {"s", kSecond},
                                                                        {"ms", kMs},
                                                                        {"us", kUs},
                                                                        {"ns", 1}}};
  for (const auto& [name, factor] : kUnits) {
    if (ns % factor == 0) return std::to_string(ns / factor) + name;
  }
  return {};
}

std::string ratio_exact(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), end.ptr);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// ---- one overload of `take` per type of field

struct Taker {
  const Key& key;
  const Value& value;
  const Target& target;
  std::vector<Error>& errors;

  void wrong(const Value& at, std::string what) const {
    errors.push_back(Error{{}, at.line, at.column, std::move(what)});
  }
  std::string name() const { return key.name; }
  bool is(Value::Kind kind) const { return value.kind == kind; }

  void operator()(const TextField& field) const {
    if (!is(Value::Kind::kString)) return wrong(value, name() + " must be a string in quotes");
    if (const char* wanted = field.check(value.text)) {
      return wrong(value,
                   name() + " must be " + wanted + ", not \"" + text_shown(value.text) + "\"");
    }
    field.at(target) = value.text;
  }

  void operator()(const WordField& field) const {
    if (word_known(value, field.words)) field.at(target) = value.text;
  }

  void operator()(const ListField& field) const {
    if (!is(Value::Kind::kArray)) {
      return wrong(value, name() + " must be a list of strings, such as [\"a\", \"b\"]");
    }
    std::vector<std::string>& list = field.at(target);
    list.clear();
    for (const Value& item : value.items) {
      if (!item_good(item, field)) continue;
      bool twice = false;
      for (const std::string& earlier : list) twice = twice || earlier == item.text;
      if (twice) {
        wrong(item, name() + " has \"" + text_shown(item.text) + "\" twice");
      } else {
        list.push_back(item.text);
      }
    }
  }

  void operator()(const IntegerField& field) const {
    const std::string range = std::to_string(field.min) + " to " + std::to_string(field.max);
    if (!is(Value::Kind::kInteger)) {
      return wrong(value, name() + " must be a whole number from " + range + ", without quotes");
    }
    if (value.integer < field.min || value.integer > field.max) {
      return wrong(value, name() + " must be " + range + ", not " + value.text);
    }
    field.at(target) = static_cast<std::uint32_t>(value.integer);
  }

  void operator()(const RatioField& field) const {
    const std::string range = ratio_exact(field.min) + " to " + ratio_exact(field.max);
    const bool whole = is(Value::Kind::kInteger);
    if (!whole && !is(Value::Kind::kFloat)) {
      return wrong(value, name() + " must be a number from " + range + ", without quotes");
    }
    const double number = whole ? static_cast<double>(value.integer) : value.real;
    if (!(number >= field.min && number <= field.max)) {  // written so that nan is refused
      return wrong(value, name() + " must be " + range + ", not " + text_shown(value.text));
    }
    field.at(target) = number;
  }

  void operator()(const SwitchField& field) const {
    if (!is(Value::Kind::kBoolean))
      return wrong(value, name() + " must be true or false, without quotes");
    field.at(target) = value.integer != 0;
  }

  void operator()(const SizeField& field) const {
    if (!is(Value::Kind::kString)) {
      return wrong(value, name() + " must be a size with its unit; put quotes around sizes: " +
                              name() + " = \"8GiB\"");
    }
    const auto bytes = size_parse(value.text);
    if (!bytes) {
      return wrong(value, name() +
                              " must be a size such as \"8GiB\", \"512MiB\" or \"2GB\", not \"" +
                              text_shown(value.text) + "\"");
    }
    if (*bytes != 0 && (*bytes < field.min || *bytes > field.max)) {
      return wrong(value, name() + " must be " + key_range(key) + ", not \"" +
                              text_shown(value.text) + "\"");
    }
    field.at(target) = *bytes;
  }

  void operator()(const DurationField& field) const {
    if (!is(Value::Kind::kString)) {
      return wrong(value, name() +
                              " must be a duration with its unit; put quotes around durations: " +
                              name() + " = \"10ms\"");
    }
    const auto ns = duration_parse(value.text);
    if (!ns) {
      return wrong(value,
                   name() + " must be a duration such as \"500us\", \"10ms\" or \"1h30m\", not \"" +
                       text_shown(value.text) + "\"");
    }
    if (*ns < field.min || *ns > field.max) {
      return wrong(value, name() + " must be " + key_range(key) + ", not \"" +
                              text_shown(value.text) + "\"");
    }
    field.at(target) = *ns;
  }

 private:
  bool word_known(const Value& at, std::span<const std::string_view> words) const {
    if (at.kind == Value::Kind::kString) {
      for (const std::string_view word : words) {
        if (word == at.text) return true;
      }
    }
    std::string what = name() + " must be " + words_join(words, "or");
    if (at.kind == Value::Kind::kString) {
      what += ", not \"" + text_shown(at.text) + "\"";
      if (const auto near = word_nearest(at.text, words)) {
        what.append("; did you mean \"").append(*near).append("\"?");
      }
    } else {
      what += ", in quotes";
    }
    wrong(at, std::move(what));
    return false;
  }

  bool item_good(const Value& item, const ListField& field) const {
    if (!field.words.empty()) return word_known(item, field.words);
    if (item.kind != Value::Kind::kString) {
      wrong(item, name() + " must hold only strings in quotes");
      return false;
    }
    if (const char* wanted = field.check(item.text)) {
      wrong(item, name() + ": \"" + text_shown(item.text) + "\" is not " + wanted);
      return false;
    }
    return true;
  }
};

template <class... F>
struct Cases : F... {
  using F::operator()...;
};
template <class... F>
Cases(F...) -> Cases<F...>;

}  // namespace

std::span<const Table> tables() { return kTables; }
std::span<const std::string_view> class_names() { return kClasses; }

void key_apply(const Key& key, const Value& value, const Target& target,
               std::vector<Error>& errors) {
  std::visit(Taker{key, value, target, errors}, key.field);
}

std::string key_show(const Key& key, const Target& target) {
  return std::visit(
      Cases{[&](const TextField& f) { return in_quotes(f.at(target)); },
            [&](const WordField& f) { return in_quotes(f.at(target)); },
            [&](const ListField& f) {
              std::string out;
              for (const std::string& item : f.at(target))
                out += (out.empty() ? "" : ", ") + in_quotes(item);
              return "[" + out + "]";
            },
            [&](const IntegerField& f) { return std::to_string(f.at(target)); },
            [&](const RatioField& f) { return ratio_exact(f.at(target)); },
            [&](const SizeField& f) { return in_quotes(size_exact(f.at(target))); },
            [&](const DurationField& f) { return in_quotes(duration_exact(f.at(target))); },
            [&](const SwitchField& f) {
              const std::optional<bool>& on = f.at(target);
              return std::string(!on ? "" : *on ? "true" : "false");
            }},
      key.field);
}

std::string key_type(const Key& key) {
  constexpr std::array<const char*, std::variant_size_v<Field>> kNames{
      "string", "word", "list of strings", "integer", "number", "size", "duration", "switch"};
  return kNames[key.field.index()];
}

std::string key_range(const Key& key) {
  return std::visit(
      Cases{
          [&](const TextField& f) { return std::string(f.check(" ")); },
          [&](const WordField& f) { return words_join(f.words, "or"); },
          [&](const ListField& f) {
            if (f.check == cgroup_check) return std::string("paths of cgroups");
            if (f.check == path_check) return std::string("absolute paths");
            return f.words.empty() ? std::string("names") : "of " + words_join(f.words, "and");
          },
          [&](const IntegerField& f) {
            return std::to_string(f.min) + " to " + std::to_string(f.max);
          },
          [&](const RatioField& f) { return ratio_exact(f.min) + " to " + ratio_exact(f.max); },
          [&](const SizeField& f) {
            return size_exact(f.min) + " to " + size_exact(f.max) + ", or 0B (" + f.zero + ")";
          },
          [&](const DurationField& f) {
            return duration_exact(f.min) + " to " + duration_exact(f.max);
          },
          [&](const SwitchField& f) { return std::string("true or false; left out: ") + f.unset; }},
      key.field);
}

}  // namespace sluice::config
