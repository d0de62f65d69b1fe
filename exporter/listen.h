// From the address that people write to a web server that listens there: names are resolved, and
// IPv6 is carried by a relay.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/reader/config.h"
#include "exporter/web.h"

namespace sluice::exporter {

class Relay;

class Server {
 public:
  /// Serves `pages` on every address that `listen` names. On failure null, and `error` says what
  /// cannot be listened on and why.
  static std::unique_ptr<Server> start(const config::ListenAddress& listen, WebPages pages,
                                       std::string* error);
  ~Server();

  /// As a browser takes it: http://HOST:PORT/metrics, with the port that was found.
  const std::string& url() const { return url_; }

 private:
  Server() = default;
  std::unique_ptr<Web> web_;
  std::vector<std::unique_ptr<Relay>> relays_;  // end before what they lead to
  std::string url_;
};

}  // namespace sluice::exporter
