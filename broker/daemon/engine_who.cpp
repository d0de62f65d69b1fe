// Who asks: the groups that the account databases give a user, and the cgroup of a process, for the
// profiles that go by them. A directory service may take seconds to answer and a look into /proc
// may wait for a lock, so both are asked beside the loop (slow_work.h). A request that a profile
// could decide by them waits here meanwhile, for a bounded time. Nobody waits for a name: until it
// is known the number stands for it.
#include <fcntl.h>

#include <algorithm>

#include "broker/daemon/engine.h"
#include "broker/daemon/validate.h"

namespace sluice::daemon {
namespace {

using protocol::RefusalCode;

constexpr std::int64_t kWhoSecond_ns = 1'000'000'000;

}  // namespace

/// Who the peer is for the profiles, if nothing has to be looked up for it.
std::optional<Who> Engine::who_known(const Peer& peer) const {
  const Account* account = accounts_.find(peer.uid);
  if (profiles_.by_cgroup()) return std::nullopt;
  if (profiles_.by_group() && (account == nullptr || !peer.groups_known)) return std::nullopt;
  Who who{peer.uid, peer.groups, {}};
  if (account != nullptr)
    who.groups.insert(who.groups.end(), account->groups.begin(), account->groups.end());
  return who;
}

void Engine::who_ask(const Asker& asker, const Asked& message) {
  Question question;
  if (!knock_make(asker, "", &question.asker)) return;
  question.message = message;
  question.asked_ns = clock_ns();
  questions_[asker.connection] = std::move(question);
  who_start(asker.connection);
}

/// Asks what is needed and has not been asked.
void Engine::who_start(ConnectionId connection) {
  const auto found = questions_.find(connection);
  if (found == questions_.end()) return;
  Question& question = found->second;
  const pid_t pid = question.asker.peer.pid;
  const uid_t uid = question.asker.peer.uid;
  if (profiles_.by_cgroup() && question.cgroup_asked == nullptr) {
    question.cgroup_asked = std::make_shared<int>();
    slow_.run(
        [this, connection, pid]() -> Loop::Handler {
          return [this, connection, cgroup = process_cgroup(pid)] {
            const auto asked = questions_.find(connection);
            if (asked != questions_.end()) asked->second.cgroup = cgroup;
            question_answer(connection, false);
          };
        },
        question.cgroup_asked);
  }
  account_ask(uid);
  question_answer(connection, false);
}

void Engine::account_ask(uid_t uid) {
  if (accounts_.find(uid) != nullptr || !accounts_asked_.insert(uid).second) return;
  slow_.run([this, uid]() -> Loop::Handler {
    return [this, uid, account = account_read(uid)] { account_told(uid, account); };
  });
}

/// An account that could not be read is asked for again by the next request of its user; those that
/// wait now may still be refused by their deadline.
void Engine::account_told(uid_t uid, const std::optional<Account>& account) {
  accounts_asked_.erase(uid);
  if (!account) return;
  accounts_.keep(uid, *account);
  places_name(uid);
  std::vector<ConnectionId> waiting;
  for (const auto& [connection, question] : questions_)
    if (question.asker.peer.uid == uid) waiting.push_back(connection);
  for (const ConnectionId connection : waiting) question_answer(connection, false);
}

/// Goes on with the request once what it needs is known. What cannot be told is not taken for
/// "none", as another profile may allow more: a request that is `late` is refused, unless no
/// profile goes by what is missing.
void Engine::question_answer(ConnectionId connection, bool late) {
  const auto found = questions_.find(connection);
  if (found == questions_.end()) return;
  const Account* account = accounts_.find(found->second.asker.peer.uid);
  const bool by_cgroup = profiles_.by_cgroup();
  const bool told = (account != nullptr || !profiles_.by_group()) &&
                    (!by_cgroup || found->second.cgroup.has_value());
  const bool hidden = profiles_.by_group() && !found->second.asker.peer.groups_known;
  if (!told && !hidden && !late) return;
  const Question question = std::move(found->second);
  questions_.erase(found);
  const Peer& peer = question.asker.peer;
  const Asker asker{connection, peer, question.asker.request};
  if (hidden) {
    refuse(connection, asker.request, RefusalCode::kNoRoom,
           "process " + std::to_string(peer.pid) + " is in more groups than the broker reads (" +
               std::to_string(kPeerGroupsMax) +
               "), and the profiles go by them; start it with fewer (setpriv --groups)");
    return;
  }
  if (profiles_.by_group() && account == nullptr) {
    refuse(connection, asker.request, RefusalCode::kNoRoom,
           "the account databases have not told the groups of user " + std::to_string(peer.uid) +
               " within " + std::to_string(who_patience_ns_ / kWhoSecond_ns) +
               " s, and the profiles go by them; try again, and see that the directory service "
               "(getent initgroups) answers");
    return;
  }
  // By number: it must still be the process that asked.
  const std::string cgroup = question.cgroup.value_or("");
  if (by_cgroup && (cgroup.empty() || pidfd_ended(peer.pidfd.get()))) {
    refuse(connection, asker.request, RefusalCode::kNoRoom,
           "the kernel does not tell the cgroup of process " + std::to_string(peer.pid) +
               ", which the profiles go by; try again, and see that the broker can read /proc");
    return;
  }
  Who who{peer.uid, peer.groups, cgroup};
  if (account != nullptr)
    who.groups.insert(who.groups.end(), account->groups.begin(), account->groups.end());
  if (const auto* admit = std::get_if<protocol::Admit>(&question.message))
    admit_as(asker, *admit, who);
  else
    join_as(asker, std::get<protocol::Register>(question.message), &who);
}

/// Called with every heartbeat.
void Engine::who_over() {
  std::vector<ConnectionId> late;
  for (const auto& [connection, question] : questions_)
    if (clock_ns() - question.asked_ns > who_patience_ns_) late.push_back(connection);
  for (const ConnectionId connection : late) question_answer(connection, true);
}

void Engine::admit(const Asker& asker, const protocol::Admit& message) {
  account_ask(asker.peer.uid);
  if (const auto who = who_known(asker.peer))
    admit_as(asker, message, *who);
  else
    who_ask(asker, message);
}

void Engine::admit_as(const Asker& asker, const protocol::Admit& message, const Who& who) {
  const std::string wanted = text_clean(message.profile, sizeof message.profile);
  const Profile* profile =
      wanted.empty() ? &profiles_.find(who) : profiles_.find_named(wanted, who);
  if (profile == nullptr) {
    refuse_within(asker, profiles_.find(who), RefusalCode::kClassNotAllowed,
                  "there is no profile '" + wanted + "' for user " +
                      accounts_.name(asker.peer.uid) +
                      "; leave --profile out, or ask whoever keeps sluice.toml");
    return;
  }
  protocol::Admit wish = message;
  if ((message.flags & protocol::kAdmitAnyClass) != 0) wish.tenant_class = profile->class_default;
  ask(asker, *profile, wish, std::nullopt);
}

}  // namespace sluice::daemon
