// The command lines, by CLI11; no other file includes it (it takes seconds to compile).
#include "broker/cli/options.h"

#include <time.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <map>

#include "broker/cli/command.h"
#include "broker/cli/help.h"
#include "config/reader/command_line_fault.h"
#include "config/reader/config.h"
#include "config/reader/keys.h"

namespace sluice::cli {
namespace {

using protocol::SmMode;
using protocol::TenantClass;

const std::map<std::string, TenantClass> kClasses = {{"inference", TenantClass::kInference},
                                                     {"debug", TenantClass::kDebug},
                                                     {"batch", TenantClass::kBatch},
                                                     {"exclusive", TenantClass::kExclusive}};
const std::map<std::string, SmMode> kModes = {
    {"best-effort", SmMode::kBestEffort}, {"equal", SmMode::kEqual}, {"fixed", SmMode::kFixed}};
constexpr unsigned kSoftGpusMax = 16;

template <class E>
std::string words_of(const std::map<std::string, E>& words) {
  std::string out;
  for (const auto& [word, value] : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

[[noreturn]] void refuse(const std::string& option, const std::string& text) {
  throw CLI::ValidationError(option + " " + text);
}

// Each of these refuses what is no such value.
template <class E, class Out>
void word_option(CLI::App& app, const char* option, const std::map<std::string, E>& words,
                 Out* out) {
  app.add_option_function<std::string>(option, [option, &words, out](const std::string& text) {
    const auto found = words.find(text);
    if (found == words.end())
      refuse(option, "is one of " + words_of(words) + ", not '" + text + "'");
    *out = found->second;
  });
}

/// What a size that is refused may have been meant to be; empty = it is not known.
std::string size_guess(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string number = text.substr(0, digits);
  if (number.find_first_of("123456789") == std::string::npos || !config::size_parse(number + "G"))
    return "";
  if (digits == std::string::npos) {
    constexpr std::size_t kBytesDigits = 7;  // as many have only bytes
    return number.size() >= kBytesDigits ? number + "B" : number + "M or " + number + "G";
  }
  std::string unit = text.substr(digits);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  constexpr std::string_view kPrefixes = "KMGTP";
  if (kPrefixes.find(unit.front()) == kPrefixes.npos) return "";
  const std::string binary = number + unit.front();
  const std::string rest = unit.substr(1);
  if (rest.empty() || rest == "I" || rest == "IB") return binary;
  return rest == "B" ? binary + " (or " + binary + "iB), or " + binary + "B" : "";
}

void size_option(CLI::App& app, const char* option, std::uint64_t* out) {
  app.add_option_function<std::string>(option, [option, out](const std::string& text) {
    const auto bytes = config::size_parse(text);
    if (bytes && *bytes != 0) {
      *out = *bytes;
      return;
    }
    const std::string guess = size_guess(text);
    const bool nothing = text.find_first_not_of("0.") == std::string::npos || bytes;
    refuse(option, "takes a size with its unit, such as 8G or 512M, not '" + text + "'" +
                       (nothing         ? "; it has to be more than 0"
                        : guess.empty() ? ""
                                        : "; write " + guess));
  });
}

void duration_option(CLI::App& app, const char* option, std::int64_t* out) {
  app.add_option_function<std::string>(option, [option, out](const std::string& text) {
    const auto ns = config::duration_parse(text);
    if (!ns || *ns <= 0) refuse(option, "takes a time such as 30s or 10m, not '" + text + "'");
    *out = *ns;
  });
}

// A whole number from 1 to `most`; 0 for anything else.
std::uint32_t number_read(std::string_view text, std::uint32_t most) {
  std::uint32_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return 0;
    value = value * 10 + static_cast<std::uint32_t>(c - '0');
    if (value > most) return 0;
  }
  return value;
}

void number_option(CLI::App& app, const char* option, std::uint32_t most, std::uint32_t* out) {
  app.add_option_function<std::string>(option, [option, most, out](const std::string& text) {
    const std::uint32_t value = number_read(text, most);
    if (value == 0) {
      refuse(option, "takes a number from 1 to " + std::to_string(most) + ", not '" + text + "'");
    }
    *out = value;
  });
}

// As SLUICE_SM and shim.conf take it.
void percent_option(CLI::App& app, const char* option, std::uint32_t* out) {
  app.add_option_function<std::string>(option, [option, out](const std::string& text) {
    std::string_view digits = text;
    if (digits.size() > 1 && digits.back() == '%') digits.remove_suffix(1);
    *out = number_read(digits, 100);
    if (*out == 0) {
      refuse(option,
             "takes a whole percentage from 1 to 100, such as 25 or 25%, not '" + text + "'");
    }
  });
}

void reason_option(CLI::App& app, std::string* out) {
  app.add_option_function<std::string>("--reason", [out](const std::string& text) {
    if (text.size() >= protocol::kDrainReasonBytes)
      refuse("--reason", "takes at most " + std::to_string(protocol::kDrainReasonBytes - 1) +
                             " bytes, these are " + std::to_string(text.size()));
    *out = text;
  });
}

void until_option(CLI::App& app, std::int64_t* out) {
  app.add_option_function<std::string>("--until", [out](const std::string& text) {
    const auto until = until_parse(text, static_cast<std::int64_t>(time(nullptr)));
    if (!until)
      refuse("--until",
             "takes a time to come such as 18:00, 2h or '2026-11-28 08:00', not '" + text + "'");
    *out = *until;
  });
}

std::string nearest_option(const CLI::App& app, const std::string& wrong) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  return config::word_nearest(wrong.substr(0, wrong.find('=')), known);
}

/// What was meant by a word that is no option of the command, or that is one word too many.
std::string unknown_guess(const CLI::App& app, const std::string& wrong) {
  if (wrong.starts_with("-")) {
    const std::string near = nearest_option(app, wrong);
    return near.empty() ? "" : "did you mean " + near + "? ";
  }
  const bool names_gpu = app.get_option_no_throw("--gpu") != nullptr;
  return names_gpu ? "a GPU is named with --gpu " + wrong + "; " : "";
}

void unknown_say(const CLI::App& app, const char* command, const std::string& wrong) {
  std::fprintf(stderr, "sluice: %s %s '%s'; %ssee sluice %s --help\n", command,
               wrong.starts_with("-") ? "knows no option" : "is given a word too many,",
               wrong.c_str(), unknown_guess(app, wrong).c_str(), command);
}

Parsed parse(CLI::App& app, const char* command, std::vector<std::string> arguments) {
  bool help = false;
  app.set_help_flag();
  app.add_flag("-h,--help", help);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ExtrasError& error) {
    unknown_say(app, command, app.remaining().empty() ? "" : app.remaining().front());
    return Parsed::kWrong;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sluice: %s; see sluice %s --help\n",
                 config::command_line_fault(app, error).c_str(), command);
    return Parsed::kWrong;
  }
  if (!help) return Parsed::kGo;
  help_print(command);
  return Parsed::kHelped;
}

Parsed run_check(const RunOptions& run) {
  std::string fault;
  if (run.command.empty())
    fault = "run takes a command, for example: sluice run --memory 2GiB -- python3 train.py";
  if (run.no_wait && run.timeout_ns != 0)
    fault = "--no-wait and --timeout exclude each other; leave one out";
  if (run.memory_max_bytes != 0 && run.memory_min_bytes > run.memory_max_bytes) {
    fault = "--memory-min is above --memory; the guaranteed part cannot be larger than the quota";
  }
  if (run.tenant_class == TenantClass::kExclusive) {
    const char* option = run.memory_max_bytes != 0            ? "--memory"
                         : run.memory_min_bytes != 0          ? "--memory-min"
                         : run.weight                         ? "--weight"
                         : run.sm_percent != 0                ? "--sm"
                         : run.sm_mode != SmMode::kBestEffort ? "--sm-mode"
                         : run.swap                           ? "--swap"
                                                              : "";
    if (*option != '\0')
      fault = std::string("an exclusive job owns whole GPUs, so ") + option +
              " means nothing to it; leave it out";
  }
  if (fault.empty()) return Parsed::kGo;
  std::fprintf(stderr, "sluice: %s; see sluice run --help\n", fault.c_str());
  return Parsed::kWrong;
}

Parsed command_check(const CommandOptions& options, bool takes_tenant, bool takes_gpu) {
  const std::string word = verb_name(options.verb);
  std::string fault;
  if (takes_tenant && options.tenant.empty())
    fault = word + " takes a job, by its number or name in sluice status";
  else if (takes_gpu && options.gpu.empty())
    fault = word + " takes --gpu with an index or UUID of sluice status";
  if (fault.empty()) return Parsed::kGo;
  std::fprintf(stderr, "sluice: %s; see sluice %s --help\n", fault.c_str(), word.c_str());
  return Parsed::kWrong;
}

}  // namespace

std::optional<std::int64_t> until_parse(const std::string& text, std::int64_t now_s) {
  constexpr std::int64_t kNsPerS = 1'000'000'000;
  if (const auto ns = config::duration_parse(text))
    return *ns >= kNsPerS ? std::optional(now_s + *ns / kNsPerS) : std::nullopt;
  const auto now = static_cast<time_t>(now_s);
  tm when{};
  localtime_r(&now, &when);
  when.tm_sec = 0;
  const auto reads = [&](const char* format) {
    const char* end = strptime(text.c_str(), format, &when);
    return end != nullptr && *end == '\0';
  };
  const bool clock = reads("%H:%M");
  if (!clock) {
    when = tm{};
    if (!reads("%Y-%m-%d %H:%M") && (when = tm{}, !reads("%Y-%m-%dT%H:%M"))) return std::nullopt;
  }
  when.tm_isdst = -1;
  std::int64_t until = mktime(&when);
  if (clock && until <= now_s) {
    when.tm_mday += 1;  // a day may have 23 or 25 hours
    when.tm_isdst = -1;
    until = mktime(&when);
  }
  return until > now_s ? std::optional(until) : std::nullopt;
}

Parsed options_parse(const std::vector<std::string>& arguments, RunOptions* out) {
  CLI::App app;
  std::uint32_t soft = 0;
  std::uint32_t gpu_count = 0;
  word_option(app, "--class", kClasses, &out->tenant_class);
  word_option(app, "--sm-mode", kModes, &out->sm_mode);
  size_option(app, "--memory", &out->memory_max_bytes);
  size_option(app, "--memory-min", &out->memory_min_bytes);
  percent_option(app, "--sm", &out->sm_percent);
  std::uint32_t weight = 0;
  number_option(app, "--weight", 100, &weight);
  number_option(app, "--gpus", protocol::kTenantGpusMax, &gpu_count);
  number_option(app, "--soft", kSoftGpusMax, &soft);
  app.add_option("--gpu", out->gpus)->expected(1)->take_all()->delimiter(',');
  app.add_option("--name", out->name);
  app.add_option("--profile", out->profile);
  app.add_option("--socket", out->socket);
  duration_option(app, "--timeout", &out->timeout_ns);
  app.add_flag("--no-wait", out->no_wait);
  app.add_flag("--dry-run", out->dry_run);
  app.add_flag("--swap", out->swap);
  app.add_option("command", out->command);
  app.positionals_at_end();
  const Parsed parsed = parse(app, "run", arguments);
  if (parsed != Parsed::kGo) return parsed;
  out->soft = soft;
  if (weight != 0 && out->sm_percent != 0) {
    std::fprintf(stderr,
                 "sluice: --sm asks for a guarantee and --weight for none; leave one out; see "
                 "sluice run --help\n");
    return Parsed::kWrong;
  }
  out->weight = weight != 0;
  if (out->weight) out->sm_percent = weight;
  const auto pinned = static_cast<std::uint32_t>(out->gpus.size());
  if (pinned != 0 && gpu_count != 0 && gpu_count != pinned) {
    std::fprintf(
        stderr,
        "sluice: --gpus %u but %u GPUs named with --gpu; leave --gpus out; see sluice run --help\n",
        gpu_count, pinned);
    return Parsed::kWrong;
  }
  if (pinned > protocol::kTenantGpusMax) {
    std::fprintf(stderr, "sluice: a job may have %u GPUs, %u were named; name fewer\n",
                 protocol::kTenantGpusMax, pinned);
    return Parsed::kWrong;
  }
  out->gpu_count = pinned != 0 ? pinned : gpu_count != 0 ? gpu_count : 1;
  return run_check(*out);
}

Parsed options_parse(const std::vector<std::string>& arguments, StatusOptions* out) {
  CLI::App app;
  app.add_flag("--json", out->json);
  app.add_option("--socket", out->socket);
  return parse(app, "status", arguments);
}

Parsed options_parse(const std::vector<std::string>& arguments, DoctorOptions* out) {
  CLI::App app;
  app.add_flag("--soft", out->soft);
  app.add_flag("--json", out->json);
  app.add_option("--socket", out->socket);
  app.add_option("program", out->program);
  return parse(app, "doctor", arguments);
}

Parsed options_parse(const std::vector<std::string>& arguments, ConfigOptions* out) {
  CLI::App app;
  std::vector<std::string> words;
  app.add_flag("--origin", out->origin);
  app.add_option("--socket", out->socket);
  app.add_option("words", words);
  const Parsed parsed = parse(app, "config", arguments);
  if (parsed != Parsed::kGo) return parsed;
  const std::string action = words.empty() ? "" : words.front();
  std::string fault;
  if (action != "check" && action != "show") {
    const std::string near = action.empty() ? "" : config::word_nearest(action, {"check", "show"});
    fault = "config takes check or show, and a file";
    if (!action.empty()) fault += ", not '" + action + "'";
    if (!near.empty()) fault += "; did you mean " + near + "?";
  } else if (words.size() > 2) {
    fault =
        "config " + action + " takes one file, " + std::to_string(words.size() - 1) + " are named";
  }
  out->show = action == "show";
  if (words.size() > 1) out->file = words[1];
  if (fault.empty()) return Parsed::kGo;
  std::fprintf(stderr, "sluice: %s; see sluice config --help\n", fault.c_str());
  return Parsed::kWrong;
}

Parsed options_parse(const std::vector<std::string>& arguments, ReloadOptions* out) {
  CLI::App app;
  app.add_option("--socket", out->socket);
  return parse(app, "reload", arguments);
}

Parsed options_parse(const std::vector<std::string>& arguments, CommandOptions* out) {
  using protocol::CommandVerb;
  const bool of_gpu = out->verb == CommandVerb::kDrain || out->verb == CommandVerb::kUndrain;
  const bool takes_gpu = of_gpu || out->verb == CommandVerb::kMove;
  CLI::App app;
  if (!of_gpu) app.add_option("tenant", out->tenant);
  if (takes_gpu) app.add_option("--gpu", out->gpu);
  if (out->verb == CommandVerb::kDrain) {
    reason_option(app, &out->reason);
    until_option(app, &out->until_s);
  }
  app.add_option("--socket", out->socket);
  const Parsed parsed = parse(app, verb_name(out->verb), arguments);
  return parsed == Parsed::kGo ? command_check(*out, !of_gpu, takes_gpu) : parsed;
}

}  // namespace sluice::cli
