// From the address that people write to a web server that listens there: names are resolved, and
// IPv6 is carried by a relay.
#pragma once

#include <prometheus/collectable.h>

#include <memory>
#include <string>
#include <vector>

#include "config/reader/config.h"

namespace prometheus {
class Exposer;
}

namespace sluice::exporter {

class Relay;

class Server {
 public:
  /// Serves `collectable` on /metrics of every address that `listen` names. On failure null, and
  /// `error` says what cannot be listened on and why.
  static std::unique_ptr<Server> start(const config::ListenAddress& listen,
                                       const std::shared_ptr<prometheus::Collectable>& collectable,
                                       std::string* error);
  ~Server();

  /// As a browser takes it: http://HOST:PORT/metrics, with the port that was found.
  const std::string& url() const { return url_; }

 private:
  Server();
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::vector<std::unique_ptr<Relay>> relays_;  // end before what they lead to
  std::string url_;
};

}  // namespace sluice::exporter
