// See frames.h.
#include "trainer/comm/frames.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "trainer/base/failure.h"
#include "trainer/comm/peer_failure.h"

namespace sluice::train {
namespace {

constexpr std::size_t kHeaderBytes = 5;  // length of the body, type
constexpr Nanos kConnectAgain = 50 * kNanosPerMilli;
constexpr int kBacklog = 128;

void little_put(std::string& to, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to += static_cast<char>((value >> (8 * i)) & 0xff);
}

std::uint64_t little_get(std::string_view from, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(from[i])) << (8 * i);
  return value;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_find(const HostPort& of, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(of.host.c_str(), of.port.c_str(), &hints, &found);
  if (error != 0) throw Failure("cannot find " + of.text() + ": " + gai_strerror(error));
  return {found, &freeaddrinfo};
}

void nagle_off(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Of a connection that is being made: 0 when it is there, else the error.
int connect_await(int fd, Nanos until) {
  pollfd watched{fd, POLLOUT, 0};
  const timespec time = timespec_of(std::max<Nanos>(until - now_ns(), 0));
  if (ppoll(&watched, 1, &time, nullptr) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

/// -1 and the error in `why`.
int connect_once(const addrinfo* all, Nanos until, int* why) {
  for (const addrinfo* one = all; one != nullptr; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      *why = errno;
      continue;
    }
    *why = connect(fd, one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (*why == EINPROGRESS) *why = connect_await(fd, until);
    if (*why == 0) {
      nagle_off(fd);
      return fd;
    }
    close(fd);
  }
  return -1;
}

std::string address_text(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  if (getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

template <class Ask>
std::string address_asked(int fd, Ask ask) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  return ask(fd, address, &size) == 0 ? address_text(address, size) : "";
}

}  // namespace

FrameSocket::FrameSocket(int fd, std::size_t body_max) : fd_(fd), body_max_(body_max) {}

FrameSocket::~FrameSocket() { close(fd_); }

void FrameSocket::fail(const std::string& why) {
  if (broken_.empty()) broken_ = why;
}

void FrameSocket::push(std::uint8_t type, std::string_view body) {
  if (!broken_.empty()) return;
  little_put(out_, body.size(), kHeaderBytes - 1);
  out_ += static_cast<char>(type);
  out_ += body;
  flush();
}

void FrameSocket::flush() {
  std::size_t sent = 0;
  while (sent < out_.size()) {
    const ssize_t got =
        send(fd_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EAGAIN) fail(std::strerror(errno));
    if (got <= 0) break;
    sent += static_cast<std::size_t>(got);
  }
  out_.erase(0, sent);
}

void FrameSocket::pump() {
  flush();
  // No more than one message of the greatest length waits here to be taken out.
  while (in_.size() < kHeaderBytes + body_max_) {
    char buffer[16384];
    const ssize_t got = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) fail("the connection was closed");
    if (got < 0 && errno != EAGAIN) fail(std::strerror(errno));
    if (got <= 0) return;
    in_.append(buffer, static_cast<std::size_t>(got));
  }
}

std::optional<Frame> FrameSocket::next() {
  if (in_.size() < kHeaderBytes) return std::nullopt;
  const auto bytes = static_cast<std::size_t>(little_get(in_, kHeaderBytes - 1));
  if (bytes > body_max_) {
    fail(text_format("a message of %zu bytes, and %zu are the most", bytes, body_max_));
    in_.clear();
    return std::nullopt;
  }
  if (in_.size() < kHeaderBytes + bytes) return std::nullopt;
  Frame frame{static_cast<std::uint8_t>(in_[kHeaderBytes - 1]), in_.substr(kHeaderBytes, bytes)};
  in_.erase(0, kHeaderBytes + bytes);
  return frame;
}

BodyWriter& BodyWriter::number(std::uint64_t value) {
  little_put(body_, value, 8);
  return *this;
}

BodyWriter& BodyWriter::text(std::string_view value) {
  little_put(body_, value.size(), 4);
  body_ += value;
  return *this;
}

std::uint64_t BodyReader::number() {
  good_ = good_ && rest_.size() >= 8;
  if (!good_) return 0;
  const std::uint64_t value = little_get(rest_, 8);
  rest_.remove_prefix(8);
  return value;
}

std::string BodyReader::text() {
  good_ = good_ && rest_.size() >= 4;
  const auto bytes = good_ ? static_cast<std::size_t>(little_get(rest_, 4)) : 0;
  good_ = good_ && rest_.size() - 4 >= bytes;
  if (!good_) return "";
  std::string value(rest_.substr(4, bytes));
  rest_.remove_prefix(4 + bytes);
  return value;
}

std::string HostPort::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

std::optional<HostPort> host_port_parse(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  HostPort out{text.substr(0, colon), text.substr(colon + 1)};
  const bool bracketed = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
  if (bracketed) out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty() || (!bracketed && out.host.find(':') != std::string::npos))
    return std::nullopt;
  if (out.port.empty() || out.port.size() > 5 ||
      out.port.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  const int port = std::stoi(out.port);
  if (port < 1 || port > 65535) return std::nullopt;
  return out;
}

int tcp_listen(const HostPort& at) {
  const Addresses found = addresses_find(at, true);
  int error = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const int on = 1;  // connections of an earlier job may still be dying
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, one->ai_addr, one->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
    error = errno;
    close(fd);
  }
  throw Failure("cannot listen at " + at.text() + ": " + std::strerror(error) +
                "; give another port, or an address of this machine");
}

int tcp_connect(const HostPort& to, Nanos deadline, const std::function<bool()>& cancelled) {
  const Addresses found = addresses_find(to, false);
  for (;;) {
    int error = 0;
    const int fd = connect_once(found.get(), deadline, &error);
    if (fd >= 0) return fd;
    if (cancelled && cancelled()) throw PeerFailure("a rank was lost before all had met");
    if (now_ns() > deadline)
      throw Failure("cannot reach " + to.text() + ": " + std::strerror(error));
    sleep_until(now_ns() + kConnectAgain);
  }
}

std::string address_here(int fd) { return address_asked(fd, getsockname); }
std::string address_there(int fd) { return address_asked(fd, getpeername); }

std::string interface_of(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string name;
  for (const ifaddrs* one = all; one != nullptr && name.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (address_text(one->ifa_addr, size) == address) name = one->ifa_name;
  }
  freeifaddrs(all);
  // All of 127.0.0.0/8 is the loopback's.
  if (name.empty() && address.rfind("127.", 0) == 0) name = "lo";
  return name;
}

}  // namespace sluice::train
