// IPv4 addresses are the web server's own; those of IPv6 lead to it on the loopback address.
#include "exporter/listen.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>

#include "exporter/relay.h"

namespace sluice::exporter {
namespace {

struct Addresses {
  std::vector<std::string> v4;
  std::vector<sockaddr_in6> v6;
};

/// Empty with `error` when the name leads nowhere.
Addresses resolve(const config::ListenAddress& listen, std::string* error) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int failed =
      getaddrinfo(listen.host.c_str(), std::to_string(listen.port).c_str(), &hints, &found);
  Addresses out;
  if (failed != 0) {
    *error = gai_strerror(failed);
    return out;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET) {
      char text[INET_ADDRSTRLEN];
      const auto* address = reinterpret_cast<const sockaddr_in*>(one->ai_addr);
      inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
      if (std::find(out.v4.begin(), out.v4.end(), text) == out.v4.end()) out.v4.emplace_back(text);
    } else if (one->ai_family == AF_INET6) {
      sockaddr_in6 address{};
      std::memcpy(&address, one->ai_addr, sizeof address);
      const auto same = [&address](const sockaddr_in6& other) {
        return std::memcmp(&address.sin6_addr, &other.sin6_addr, sizeof address.sin6_addr) == 0;
      };
      if (std::none_of(out.v6.begin(), out.v6.end(), same)) out.v6.push_back(address);
    }
  }
  freeaddrinfo(found);
  return out;
}

}  // namespace

Server::~Server() { relays_.clear(); }

std::unique_ptr<Server> Server::start(const config::ListenAddress& listen, WebPages pages,
                                      std::string* error) {
  const std::string where = config::listen_format(listen);
  const Addresses addresses = resolve(listen, error);
  if (addresses.v4.empty() && addresses.v6.empty()) {
    *error = "cannot listen on " + where + ": " + *error + "; choose another with --listen";
    return nullptr;
  }
  std::string own;
  for (const std::string& host : addresses.v4)
    own += (own.empty() ? "" : ",") + host + ":" + std::to_string(listen.port);
  // Reached through relays alone.
  if (own.empty()) own = "127.0.0.1:0";
  auto server = std::unique_ptr<Server>(new Server);
  server->web_ = Web::start(own, std::move(pages));
  if (server->web_ == nullptr) {
    // CivetWeb says no more than that it failed.
    *error = "cannot listen on " + where +
             ": the port is taken or the address is none of this machine's; choose another with "
             "--listen";
    return nullptr;
  }
  const int target = server->web_->port();
  int port = addresses.v4.empty() ? listen.port : target;
  for (sockaddr_in6 address : addresses.v6) {
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    std::string why;
    server->relays_.push_back(Relay::start(address, target, &why));
    if (server->relays_.back() != nullptr) {
      port = server->relays_.back()->port();
      continue;
    }
    server->relays_.pop_back();
    // A name may lead to an address of IPv6 on a machine without it.
    if (!addresses.v4.empty()) continue;
    *error = "cannot listen on " + where + ": " + why + "; choose another with --listen";
    return nullptr;
  }
  server->url_ = "http://" +
                 config::listen_format({listen.host, static_cast<std::uint16_t>(port)}) +
                 "/metrics";
  return server;
}

}  // namespace sluice::exporter
