// Checks and shows a configuration file without a broker; asks the broker, where one runs with that
// file, what a reload changes.
#include "broker/cli/config_command.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "broker/cli/snapshot_reader.h"
#include "broker/cli/status.h"
#include "config/reader/config.h"

namespace sluice::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kReloadAnswer_ms = 60'000;  // the broker gives a reload 30 s
constexpr std::uint64_t kTextBytesMax = 1 << 20;

int config_fail(const std::string& text) {
  std::fprintf(stderr, "sluice: %s\n", text.c_str());
  return kFailed;
}

void mistakes_print(const std::vector<config::Error>& errors) {
  for (const config::Error& error : errors)
    std::fprintf(stderr, "sluice: %s", error.shown().c_str());
}

struct ReloadAnswer {
  bool good = false;
  std::string text;
};

/// Nothing with `error` when the broker does not answer, or refuses.
std::optional<ReloadAnswer> reload_ask(Client& client, std::uint32_t flags, std::string* error) {
  protocol::Reload message;
  protocol::message_init(message, protocol::MessageType::kReload, 1);
  message.flags = flags;
  protocol::Envelope envelope;
  const int rc = client.send(message) ? client.receive(&envelope, kReloadAnswer_ms) : 0;
  if (rc != 1) {
    *error = no_answer_text(rc, kReloadAnswer_ms);
    return std::nullopt;
  }
  if (envelope.is<protocol::Refused>(protocol::MessageType::kRefused)) {
    const protocol::Refused& refused = envelope.as<protocol::Refused>();
    *error = field_text(refused.text, sizeof refused.text);
    return std::nullopt;
  }
  const devices::Fd fd(envelope.fd_count == 1 ? envelope.fds[0] : -1);
  ReloadAnswer answer;
  if (envelope.is<protocol::Reloaded>(protocol::MessageType::kReloaded) && fd &&
      envelope.as<protocol::Reloaded>().bytes <= kTextBytesMax &&
      bytes_read(fd.get(), envelope.as<protocol::Reloaded>().bytes, &answer.text)) {
    answer.good = envelope.as<protocol::Reloaded>().good != 0;
    return answer;
  }
  *error =
      "the broker's answer is not understood; sluice and sluiced must come from one installation";
  return std::nullopt;
}

/// Only root and the broker's user are told what a reload would change, and the broker logs a
/// refusal of others.
bool may_look(const std::string& path) {
  struct stat status {};
  return geteuid() == 0 || (stat(path.c_str(), &status) == 0 && status.st_uid == geteuid());
}

/// Of the machine's own file it is said why nothing was compared.
void not_compared(const std::string& file, const std::string& why) {
  if (config::config_is_system(file)) std::printf("%s\n", why.c_str());
}

/// What a reload would change, if a broker runs with this file and answers this user.
void broker_look(const std::string& socket, const std::string& file) {
  const std::string path = socket_choose(socket).path;
  std::string error;
  auto client = Client::connect(path, &error);
  const auto snapshot = client ? snapshot_fetch(*client, &error) : std::nullopt;
  if (!client) {
    not_compared(file, "no broker answers at " + path +
                           ", so it was not compared with what one uses; all of it counts from the "
                           "next start of sluiced");
    return;
  }
  if (!snapshot) {
    not_compared(file, "it was not compared with what the broker uses: " + error);
    return;
  }
  const std::string theirs =
      field_text(snapshot->header.config_path, sizeof snapshot->header.config_path);
  char* own = realpath(file.c_str(), nullptr);
  char* used = realpath(theirs.c_str(), nullptr);
  const bool same = own != nullptr && used != nullptr && std::string(own) == used;
  free(own);
  free(used);
  if (!same) {
    not_compared(file, "the broker at " + path + " uses " +
                           (theirs.empty() ? "built-in settings" : theirs) +
                           ", so it was not compared with what that one uses");
    return;
  }
  if (!may_look(path)) {
    not_compared(file, "only root is told what a reload would change");
    return;
  }
  const auto answer = reload_ask(*client, protocol::kReloadLook, &error);
  if (!answer)
    not_compared(file, "it was not compared with what the broker uses: " + error);
  else if (answer->good)
    std::fputs(answer->text.c_str(), stdout);
}

int check(const std::string& file, const std::string& socket) {
  std::vector<config::Origin> origins;
  const auto result = config::config_read_trusted(file, &origins);
  if (!result.ok()) {
    mistakes_print(result.errors());
    if (result.errors().front().line == 0) return kFailed;
    const std::size_t count = result.errors().size();
    return config_fail(
        file + " has " +
        (count == 1 ? std::string("a mistake") : std::to_string(count) + " mistakes") +
        "; sluiced would not start with it, and a reload would change nothing");
  }
  const auto unknown = config::accounts_unknown(origins, file);
  mistakes_print(unknown);
  std::printf("%s is good%s\n", file.c_str(),
              unknown.empty() ? "" : ", but see what is said above");
  broker_look(socket, file);
  return 0;
}

int show(const std::string& file, bool origin) {
  std::vector<config::Origin> origins;
  const auto result = config::config_read(file, &origins);
  if (!result.ok()) {
    mistakes_print(result.errors());
    return kFailed;
  }
  std::fputs(
      (origin ? config::config_format_origins(*result, origins) : config::config_format(*result))
          .c_str(),
      stdout);
  return 0;
}

}  // namespace

int config_command(const ConfigOptions& options) {
  const std::string file = options.file.empty() ? config::kSystemConfig : options.file;
  if (options.file.empty() && !system_configured()) {
    if (!options.show)
      return config_fail("this machine has no " + file + "; name a file: sluice config check FILE");
    std::fputs(config::config_format(config::config_default()).c_str(), stdout);
    return 0;
  }
  return options.show ? show(file, options.origin) : check(file, options.socket);
}

int reload_command(const ReloadOptions& options) {
  std::string error;
  auto client = Client::connect(socket_choose(options.socket).path, &error);
  const auto answer = client ? reload_ask(*client, 0, &error) : std::nullopt;
  if (!answer) return config_fail(error);
  std::fputs(answer->text.c_str(), answer->good ? stdout : stderr);
  return answer->good ? 0 : kFailed;
}

}  // namespace sluice::cli
