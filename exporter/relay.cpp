// One thread that polls: a slow reader holds up nobody but itself.
#include "exporter/relay.h"
#include "exporter/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace sluice::exporter {
namespace {

// Prometheus keeps a connection or two; a person with a browser, a few.
constexpr std::size_t kConnectionsMax = 32;
constexpr std::size_t kChunkBytes = 16 * 1024;
// Beyond what the server itself puts up with; the server cannot see that a client leaves what is
// here.
constexpr std::uint64_t kStill_ns = 3'000'000'000;
constexpr int kLookEvery_ms = 500;

int server_connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

std::unique_ptr<Relay> Relay::start(const sockaddr_in6& address, int target_port,
                                    std::string* error) {
  const int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int yes = 1;
  sockaddr_in6 bound = address;
  socklen_t size = sizeof bound;
  // The same port of IPv4 is the web server's own.
  const bool good =
      listener >= 0 && setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes) == 0 &&
      setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      listen(listener, SOMAXCONN) == 0 &&
      getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  const int stop = good ? eventfd(0, EFD_CLOEXEC) : -1;
  if (stop < 0) {
    *error = std::strerror(errno);
    if (listener >= 0) close(listener);
    return nullptr;
  }
  return std::unique_ptr<Relay>(new Relay(listener, stop, ntohs(bound.sin6_port), target_port));
}

Relay::Relay(int listener, int stop, int port, int target_port)
    : listener_(listener), stop_(stop), port_(port), target_port_(target_port) {
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  const std::uint64_t one = 1;
  (void)!write(stop_, &one, sizeof one);
  thread_.join();
  connections_.clear();
  close(listener_);
  close(stop_);
}

Relay::Connection::~Connection() {
  close(forth.from);
  close(forth.to);
}

void Relay::accept_one() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (client < 0) return;
  const int server = server_connect(target_port_);
  if (server < 0) {
    close(client);
    return;
  }
  Connection& connection = connections_.emplace_back();
  connection.forth = {client, server, {}, false};
  connection.back = {server, client, {}, false};
  connection.moved_ns = monotonic_ns();
}

bool Relay::move(Flow& flow, short from_ready, bool* broken) {
  bool moved = false;
  if (!flow.ended && flow.waiting.empty() && (from_ready & (POLLIN | POLLHUP)) != 0) {
    char chunk[kChunkBytes];
    const ssize_t count = read(flow.from, chunk, sizeof chunk);
    if (count > 0) flow.waiting.assign(chunk, static_cast<std::size_t>(count));
    moved = count > 0;
    if (count == 0) {
      flow.ended = true;
      shutdown(flow.to, SHUT_WR);
    }
    *broken |= count < 0 && errno != EAGAIN && errno != EINTR;
  }
  if (flow.waiting.empty()) return moved;
  const ssize_t count = send(flow.to, flow.waiting.data(), flow.waiting.size(), MSG_NOSIGNAL);
  if (count > 0) flow.waiting.erase(0, static_cast<std::size_t>(count));
  *broken |= count < 0 && errno != EAGAIN && errno != EINTR;
  return moved || count > 0;
}

/// The server closes when it has said all, or has lost patience: what a client still holds open
/// then is a place that somebody else could have. So is that of a client that asks nothing, or does
/// not take what it asked for.
void Relay::finished_remove(std::uint64_t now_ns) {
  connections_.remove_if([now_ns](const Connection& c) {
    const bool theirs = !c.asked || !c.back.waiting.empty();
    return c.broken || (c.back.ended && c.back.waiting.empty()) ||
           (theirs && now_ns > c.moved_ns + kStill_ns);
  });
}

void Relay::run() {
  for (;;) {
    std::vector<pollfd> fds{{stop_, POLLIN, 0}};
    const bool room = connections_.size() < kConnectionsMax;
    fds.push_back({room ? listener_ : -1, POLLIN, 0});
    const auto events = [](const Flow& in, const Flow& out) {
      const bool read_more = !in.ended && in.waiting.empty();
      return static_cast<short>((read_more ? POLLIN : 0) | (out.waiting.empty() ? 0 : POLLOUT));
    };
    for (const Connection& c : connections_) {
      fds.push_back({c.forth.from, events(c.forth, c.back), 0});
      fds.push_back({c.forth.to, events(c.back, c.forth), 0});
    }
    const int patience_ms = connections_.empty() ? -1 : kLookEvery_ms;
    if (poll(fds.data(), fds.size(), patience_ms) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    const std::uint64_t now_ns = monotonic_ns();
    std::size_t at = 2;
    for (Connection& c : connections_) {
      const bool forth = move(c.forth, fds[at].revents, &c.broken);
      const bool back = move(c.back, fds[at + 1].revents, &c.broken);
      c.asked |= forth;
      if (forth || back) c.moved_ns = now_ns;
      c.broken |= ((fds[at].revents | fds[at + 1].revents) & (POLLERR | POLLNVAL)) != 0;
      at += 2;
    }
    finished_remove(now_ns);
    if (fds[1].revents != 0) accept_one();
  }
}

}  // namespace sluice::exporter
