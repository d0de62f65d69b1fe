// IPv4 and IPv6 have a socket each, so that a machine without one of them serves the other.
#include "exporter/web/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace sluice::exporter {
namespace {

// Connections that the kernel keeps until a thread accepts them.
constexpr int kBacklog = 64;

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  bool operator==(const Address& other) const {
    return length == other.length && std::memcmp(&bytes, &other.bytes, length) == 0;
  }
  void port_set(std::uint16_t port) {
    if (bytes.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(bytes).sin_port = htons(port);
    if (bytes.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(bytes).sin6_port = htons(port);
  }
  std::uint16_t port() const {
    return ntohs(bytes.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(bytes).sin_port);
  }
};

/// Returns the addresses of a name, IPv4 first; none, with `error`, if it has none.
std::vector<Address> resolve(const config::ListenAddress& listen, std::string* error) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int failed =
      getaddrinfo(listen.host.c_str(), std::to_string(listen.port).c_str(), &hints, &found);
  std::vector<Address> out;
  if (failed != 0) {
    *error = gai_strerror(failed);
    return out;
  }
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      if (one->ai_family != family) continue;
      Address address;
      std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
      address.length = one->ai_addrlen;
      if (std::find(out.begin(), out.end(), address) == out.end()) out.push_back(address);
    }
  }
  freeaddrinfo(found);
  return out;
}

/// Listens on `address`, and writes the port that it got into it. On failure the socket is -1 and
/// errno says why.
ListenSocket open_one(Address& address) {
  auto* name = reinterpret_cast<sockaddr*>(&address.bytes);
  ListenSocket listener(
      socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  const bool v6 = address.bytes.ss_family == AF_INET6;
  socklen_t length = sizeof address.bytes;
  const bool good =
      listener.fd() >= 0 &&
      (!v6 || setsockopt(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes) == 0) &&
      setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      bind(listener.fd(), name, address.length) == 0 && listen(listener.fd(), kBacklog) == 0 &&
      getsockname(listener.fd(), name, &length) == 0;
  return good ? std::move(listener) : ListenSocket(-1);
}

}  // namespace

ListenSocket::~ListenSocket() {
  if (fd_ < 0) return;
  const int error = errno;  // of what made the caller give the socket up
  close(fd_);
  errno = error;
}

std::optional<Listening> listen_open(const config::ListenAddress& listen, std::string* error) {
  std::vector<Address> addresses = resolve(listen, error);
  Listening out;
  std::uint16_t port = listen.port;
  for (Address& address : addresses) {
    address.port_set(port);
    ListenSocket listener = open_one(address);
    if (listener.fd() >= 0) {
      port = address.port();
      out.sockets.push_back(std::move(listener));
      continue;
    }
    *error = std::strerror(errno);
    // A name such as localhost may stand for an address of a family that this machine has not. Any
    // other error ends the start: another program could answer there in this one's place.
    if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) {
      out.sockets.clear();
      break;
    }
  }
  if (out.sockets.empty()) {
    *error = "cannot listen on " + config::listen_format(listen) + ": " + *error +
             "; choose another address or port with --listen";
    return std::nullopt;
  }
  out.url = "http://" + config::listen_format({listen.host, port}) + "/metrics";
  return out;
}

}  // namespace sluice::exporter
